//! The handler of a listener's requests, and the state of one connection.
//!
//! A request is admitted or rejected by its head alone, before its body is read. Admitted requests that are complete at
//! the same time are answered as one batch. The fast path and hyper both call the handler, so a route is written once.

use super::HttpResponse;
use super::body;
use super::call::{HttpCall, RequestHead};
use super::error::{HttpError, excerpt};
use super::response::{HyperWriter, JSON, ResponseWriter};
use crate::conn::{BodyPermit, BodyPermits, LongResponses};
use hyper::body::{Bytes, Incoming};
use hyper::header::{EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Request, Version};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Requests with a body up to this size get responses of tens of kilobytes at most, which need no long-response permit.
const SMALL_REQUEST_BYTES: usize = 4 * 1024;

/// Answers the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The routes that it serves.
    type Route: Copy + std::fmt::Debug + Send + Sync;

    /// Finds the route for a head, or the error that rejects the request whatever its body is.
    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<Self::Route>, HttpError>;

    /// Writes exactly one response per call, in order.
    fn respond<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, Self::Route>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) -> impl Future<Output = ()> + Send;
}

/// A request that was admitted by its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedRequest<R> {
    pub(crate) route: R,
    /// The most bytes that its body may have.
    pub(crate) max_body_bytes: usize,
    /// How long its response can be.
    pub(crate) response_length: ResponseLength,
}

/// How long a response can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseLength {
    /// A few hundred bytes.
    Short,
    /// Many times as long as the request.
    Long,
}

/// State of one connection, shared by the fast path and hyper.
pub(super) struct ConnectionContext<T> {
    handler: Arc<T>,
    /// The client's address.
    peer: IpAddr,
    /// Permits for large request bodies.
    pub(super) body_permits: BodyPermits,
    /// The number of requests that have started.
    started_requests: AtomicU64,
}

impl<T: Handler> ConnectionContext<T> {
    pub(super) fn new(handler: Arc<T>, body_permits: BodyPermits, peer: IpAddr) -> ConnectionContext<T> {
        ConnectionContext { handler, peer, body_permits, started_requests: AtomicU64::new(0) }
    }

    /// The number of requests that have started on this connection.
    pub(super) fn started_requests(&self) -> u64 {
        self.started_requests.load(Relaxed)
    }

    /// Counts requests as started: their heads have been read.
    pub(super) fn count_started(&self, requests: u64) {
        self.started_requests.fetch_add(requests, Relaxed);
    }

    /// The client's address.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    pub(super) fn handler(&self) -> &T {
        &self.handler
    }

    /// Answers a request that hyper parsed.
    pub(super) async fn handle(
        &self,
        request: Request<Incoming>,
        long_responses: &LongResponses,
    ) -> HttpResponse {
        self.count_started(1);
        let (parts, body) = request.into_parts();
        let head = RequestHead::Parts(&parts);
        let mut writer = HyperWriter::default();
        let guard = match self.read_request(&parts, body).await {
            Ok((AdmittedRequest { route, response_length: answer, .. }, body, permit)) => {
                let guard = match answer {
                    ResponseLength::Long if body.len() > SMALL_REQUEST_BYTES => {
                        Some((long_responses.acquire().await, permit))
                    }
                    ResponseLength::Long | ResponseLength::Short => None,
                };
                let call = HttpCall { route, head, body: &body, peer: self.peer };
                self.handler.respond(std::iter::once(call), &mut writer).await;
                guard
            }
            Err(error) => {
                error.write(&mut writer);
                None
            }
        };
        writer.into_response().map(|body| body.with_guard(guard))
    }

    /// Admits a request and reads its body. A large body comes with its permit, to be kept as long as the body.
    async fn read_request(
        &self,
        parts: &Parts,
        body: Incoming,
    ) -> Result<(AdmittedRequest<T::Route>, Bytes, Option<BodyPermit>), HttpError> {
        let admitted = match reject_ambiguous_head(parts)
            .and_then(|()| self.handler.admit(&RequestHead::Parts(parts)))
        {
            Ok(admitted) => admitted,
            Err(error) => {
                // Over HTTP/1, hyper drains the body itself unless the connection is about to close. A client that sent
                // `Expect` waits for the response before it sends the body, so there is nothing to drain.
                let is_closing = matches!(error, HttpError::Malformed { .. });
                if (parts.version == Version::HTTP_2 || is_closing) && !parts.headers.contains_key(EXPECT) {
                    body::drain_rejected(body).await;
                }
                return Err(error);
            }
        };
        let (body, permit) = body::read(body, admitted.max_body_bytes, &self.body_permits).await?;
        Ok((admitted, body, permit))
    }
}

/// Rejects an HTTP/1 head that hyper accepts but that a proxy in front may parse differently.
fn reject_ambiguous_head(parts: &Parts) -> Result<(), HttpError> {
    if parts.version > Version::HTTP_11 {
        return Ok(());
    }
    match parts.headers.get_all(HOST).iter().count() {
        0 if parts.version == Version::HTTP_11 => {
            return Err(HttpError::Malformed { reason: "missing Host header: send one" });
        }
        0 | 1 => {}
        _ => return Err(HttpError::Malformed { reason: "several Host headers: send one" }),
    }
    let mut encodings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if encodings.next().is_some_and(|first| !is_known(first)) || encodings.next().is_some() {
        let reason = "unsupported Transfer-Encoding: send the body unencoded, or chunked";
        return Err(HttpError::Malformed { reason });
    }
    Ok(())
}

/// Checks that a `Content-Type` allows JSON. It may be absent, or the form type that `curl -d` sends by default.
pub(crate) fn expect_json(found: Option<&[u8]>) -> Result<(), HttpError> {
    let Some(found) = found.filter(|found| *found != JSON.as_bytes()) else { return Ok(()) };
    let essence = found.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |kind: &[u8]| essence.eq_ignore_ascii_case(kind);
    let is_json = is(b"application/json")
        || essence.last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b"+json"));
    if is_json || is(b"application/x-www-form-urlencoded") {
        Ok(())
    } else {
        Err(HttpError::UnsupportedContentType { found: excerpt(String::from_utf8_lossy(found)) })
    }
}
