//! Where the requests of one connection are answered.
//!
//! A head is admitted or refused before anybody waits for its body; what is admitted is answered together with whatever
//! else has come by then. The lane and hyper both end here, so a route is written once.

use super::Reply;
use super::body;
use super::call::{Call, Head};
use super::check;
use super::fault::Fault;
use super::out::{Draft, JSON, Out, TEXT};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, StatusCode};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tollgate::{Clock, Limiter, MemoryStore};

pub(super) struct Desk<C> {
    limiter: Limiter<MemoryStore<C>>,
    /// How many requests have begun.
    begun: AtomicU64,
}

/// What an admitted request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Check,
    Livez,
}

impl Route {
    fn reads_body(self) -> bool {
        match self {
            Route::Check => true,
            Route::Livez => false,
        }
    }
}

impl<C: Clock> Desk<C> {
    pub(super) fn new(limiter: Limiter<MemoryStore<C>>) -> Desk<C> {
        Desk { limiter, begun: AtomicU64::new(0) }
    }

    /// How many requests have begun on this connection.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Notes that more have begun: their heads are in.
    pub(super) fn begin(&self, requests: u64) {
        self.begun.fetch_add(requests, Relaxed);
    }

    /// Answers a request that hyper has read.
    pub(super) async fn reply(&self, request: Request<Incoming>) -> Reply {
        self.begin(1);
        let (parts, body) = request.into_parts();
        let head = Head::Parts(&parts);
        let mut draft = Draft::default();
        match self.take_in(&head, body).await {
            Ok((route, body)) => {
                let call = Call { route, head, body: &body };
                self.answer(std::iter::once(call), &mut draft).await;
            }
            Err(fault) => fault.tell(&mut draft),
        }
        draft.into_reply()
    }

    async fn take_in(&self, head: &Head<'_>, body: Incoming) -> Result<(Route, Bytes), Fault> {
        let route = self.admit(head)?;
        let body = if route.reads_body() { body::read(body).await? } else { Bytes::new() };
        Ok((route, body))
    }

    /// What a head asks for, or why it gets nothing, whatever its body.
    #[expect(clippy::unused_self, reason = "who may ask for what will depend on how the server is set up")]
    pub(super) fn admit(&self, head: &Head<'_>) -> Result<Route, Fault> {
        match (head.path(), head.method()) {
            ("/check", "POST") => expect_json(head.content_type()).map(|()| Route::Check),
            ("/check", method) => Err(Fault::wrong_method("/check", method, "POST")),
            ("/livez", "GET" | "HEAD") => Ok(Route::Livez),
            ("/livez", method) => Err(Fault::wrong_method("/livez", method, "GET, HEAD")),
            (path, _) => Err(Fault::no_such_path(path)),
        }
    }

    /// Answers calls in order, each with exactly one answer.
    #[expect(
        clippy::unused_async,
        reason = "a store that has to be waited for answers all calls at once, here"
    )]
    pub(super) async fn answer<'a>(&self, calls: impl Iterator<Item = Call<'a>> + Clone, out: &mut impl Out) {
        for call in calls {
            match call.route {
                Route::Check => self.check(call.body, out),
                Route::Livez => {
                    out.begin(StatusCode::OK, TEXT);
                    out.end(b"ok");
                }
            }
        }
    }

    fn check(&self, body: &[u8], out: &mut impl Out) {
        match check::check(&self.limiter, body) {
            Ok(answer) => {
                out.begin(StatusCode::OK, JSON);
                out.end_json(&answer);
            }
            Err(fault) => fault.tell(out),
        }
    }
}

/// A client may leave the type out, or say what `curl -d` says unless it is told otherwise; another type is a mistake.
fn expect_json(found: Option<&[u8]>) -> Result<(), Fault> {
    let Some(found) = found else { return Ok(()) };
    let essence = found.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |kind: &[u8]| essence.eq_ignore_ascii_case(kind);
    let is_json = is(b"application/json")
        || essence.last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b"+json"));
    match is_json || is(b"application/x-www-form-urlencoded") {
        true => Ok(()),
        false => Err(Fault::not_json(found)),
    }
}
