//! Where the requests of one connection are answered.
//!
//! A head is admitted or refused before anybody waits for its body; what is admitted is answered together with whatever
//! else has come by then. The lane and hyper both end here, so a route is written once.

use super::HttpReply;
use super::body;
use super::body_permits::{BodyPermit, BodyPermits};
use super::call::{HttpCall, RequestHead};
use super::error::HttpError;
use super::long_responses::LongResponses;
use super::response::{HyperWriter, JSON, ResponseWriter};
use hyper::body::{Bytes, Incoming};
use hyper::header::{EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Request, Version};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What asks for a long answer with no more bytes than this is answered with tens of kilobytes, which need not wait for
/// their turn.
const BRIEF_BYTES: usize = 4 * 1024;

/// What a port offers.
pub(crate) trait Handler: Send + Sync + 'static {
    /// What can be asked for.
    type Route: Copy + std::fmt::Debug + Send + Sync;

    /// What a head asks for, or why it gets nothing, whatever its body.
    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<Self::Route>, HttpError>;

    /// Answers calls in order, each with exactly one answer.
    fn answer<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, Self::Route>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) -> impl Future<Output = ()> + Send;
}

/// A request whose head is in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedRequest<R> {
    /// What it asks for.
    pub(crate) route: R,
    /// The most bytes of its body.
    pub(crate) max_body: usize,
    /// How long its answer can be.
    pub(crate) answer: ResponseLength,
}

/// How long an answer can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseLength {
    /// Some hundred bytes.
    Short,
    /// Many times as long as what asks for it.
    Long,
}

pub(super) struct ConnectionContext<T> {
    site: Arc<T>,
    /// Who is at the other end.
    peer: IpAddr,
    /// For bodies that are larger than most.
    pub(super) room: BodyPermits,
    /// How many requests have begun.
    begun: AtomicU64,
}

impl<T: Handler> ConnectionContext<T> {
    pub(super) fn new(site: Arc<T>, room: BodyPermits, peer: IpAddr) -> ConnectionContext<T> {
        ConnectionContext { site, peer, room, begun: AtomicU64::new(0) }
    }

    /// How many requests have begun on this connection.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Notes that more have begun: their heads are in.
    pub(super) fn begin(&self, requests: u64) {
        self.begun.fetch_add(requests, Relaxed);
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    pub(super) fn site(&self) -> &T {
        &self.site
    }

    /// Answers a request that hyper has read.
    pub(super) async fn reply(&self, request: Request<Incoming>, backlog: &LongResponses) -> HttpReply {
        self.begin(1);
        let (parts, body) = request.into_parts();
        let head = RequestHead::Parts(&parts);
        let mut draft = HyperWriter::default();
        let held = match self.take_in(&parts, body).await {
            Ok((AdmittedRequest { route, answer, .. }, body, place)) => {
                let held = match answer {
                    ResponseLength::Long if body.len() > BRIEF_BYTES => Some((backlog.turn().await, place)),
                    ResponseLength::Long | ResponseLength::Short => None,
                };
                let call = HttpCall { route, head, body: &body, peer: self.peer };
                self.site.answer(std::iter::once(call), &mut draft).await;
                held
            }
            Err(fault) => {
                fault.tell(&mut draft);
                None
            }
        };
        draft.into_reply().map(|load| load.holding(held))
    }

    /// Takes in the body of an admitted request. While the third is held, there is room for it.
    async fn take_in(
        &self,
        parts: &Parts,
        body: Incoming,
    ) -> Result<(AdmittedRequest<T::Route>, Bytes, Option<BodyPermit>), HttpError> {
        let admitted = match expect_one_reading(parts)
            .and_then(|()| self.site.admit(&RequestHead::Parts(parts)))
        {
            Ok(admitted) => admitted,
            Err(fault) => {
                // Hyper does so itself over HTTP/1, unless the connection is to be closed. Who waits for leave to send the
                // body is told at once.
                let is_closing = matches!(fault, HttpError::Malformed { .. });
                if (parts.version == Version::HTTP_2 || is_closing) && !parts.headers.contains_key(EXPECT) {
                    body::drain_unwanted(body).await;
                }
                return Err(fault);
            }
        };
        let (body, place) = body::read(body, admitted.max_body, &self.room).await?;
        Ok((admitted, body, place))
    }
}

/// Refuses a head of HTTP/1 that hyper accepts and a proxy in front may read differently.
fn expect_one_reading(parts: &Parts) -> Result<(), HttpError> {
    if parts.version > Version::HTTP_11 {
        return Ok(());
    }
    match parts.headers.get_all(HOST).iter().count() {
        0 if parts.version == Version::HTTP_11 => {
            return Err(HttpError::Malformed { reason: "there is no header Host: send one" });
        }
        0 | 1 => {}
        _ => return Err(HttpError::Malformed { reason: "there are several headers Host: send one" }),
    }
    let mut encodings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if encodings.next().is_some_and(|first| !is_known(first)) || encodings.next().is_some() {
        let reason =
            "the only Transfer-Encoding that is known is chunked: send the body as it is, or in chunks";
        return Err(HttpError::Malformed { reason });
    }
    Ok(())
}

/// A client may leave the type out, or say what `curl -d` says unless it is told otherwise; another type is a mistake.
pub(crate) fn expect_json(found: Option<&[u8]>) -> Result<(), HttpError> {
    let Some(found) = found.filter(|found| *found != JSON.as_bytes()) else { return Ok(()) };
    let essence = found.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |kind: &[u8]| essence.eq_ignore_ascii_case(kind);
    let is_json = is(b"application/json")
        || essence.last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b"+json"));
    match is_json || is(b"application/x-www-form-urlencoded") {
        true => Ok(()),
        false => Err(HttpError::not_json(found)),
    }
}
