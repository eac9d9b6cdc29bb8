//! The HTTP API: checks and related routes.
//!
//! Requests that arrive together (pipelined requests, the checks of a batch request) are decided as one batch: by one
//! version of the rules, in one store call. A request that can't be parsed gets an error and takes no units.

mod body;
mod decision_json;
mod denial;
#[cfg(test)]
mod differential;
mod fast_json;
mod forward;
#[cfg(test)]
mod fuzz;
mod headers;
mod openapi;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use denial::DenialFormat;
pub use forward::{ForwardOptions, KeySources, KeySourcesError};
use headers::fails_closed;
pub use headers::{RateLimitHeaders, ResetForm};
pub(crate) use headers::{WireNumbers, for_each_header, write_digits};

use crate::cross_site::AllowedOrigins;
use crate::denial_log::DenialLog;
use crate::http::{
    AdmittedRequest, Handler, HttpCall, HttpError, JSON, RequestHead, ResponseLength, ResponseWriter, TEXT,
    excerpt,
};
use crate::token::Token;
use body::{BatchBody, CheckBody};
use forward::{ForwardAuth, ProxyParameters};
use hyper::StatusCode;
use ratekeeper::rules::{CheckRequest, Verb};
use ratekeeper::{CheckBatch, RuleDecision, RuleLimiter, Store};
use serde::de::DeserializeSeed;
use std::cell::RefCell;
use std::sync::Arc;

/// The most bytes of the body of a single check. A check with the longest key takes a tenth of it.
pub(crate) const MAX_CHECK_BYTES: usize = 64 * 1024;

/// Options of the HTTP API.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// The rate limit headers of responses.
    pub headers: RateLimitHeaders,
    /// The status of a denial, unless the request asks for another.
    pub deny_status: StatusCode,
    /// The most checks in a batch.
    pub max_batch: usize,
    /// The most bytes in the body of a batch.
    pub max_body: usize,
    /// The token that clients must send. `None` lets every client in.
    pub token: Option<Token>,
    /// Options of forward-auth requests.
    pub forward: ForwardOptions,
    /// The origins whose pages may use the API, and the admin listener with its token, besides the server's own.
    pub allowed_origins: AllowedOrigins,
}

impl Default for ApiOptions {
    fn default() -> ApiOptions {
        ApiOptions {
            headers: RateLimitHeaders::default(),
            deny_status: StatusCode::OK,
            max_batch: 10_000,
            max_body: 4 << 20,
            token: None,
            forward: ForwardOptions::default(),
            allowed_origins: AllowedOrigins::default(),
        }
    }
}

/// The handler of the HTTP API.
#[derive(Debug)]
pub(crate) struct Api<S> {
    limiter: RuleLimiter<S>,
    options: ApiOptions,
    forward: ForwardAuth,
    denial_log: Arc<DenialLog>,
}

/// The routes of the HTTP API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRoute {
    /// `/check`: a check with a response of four fields.
    Short,
    /// A single request under `/v1`.
    Full(Verb),
    Batch,
    /// `/v1/forward-auth`: a proxy's check before it forwards a request.
    ForwardAuth,
    OpenApi,
    Livez,
}

/// A call between parsing and its response.
#[derive(Debug)]
enum PendingCall {
    /// A single request: its index in the batch, and the status of its response if it is denied.
    Single(usize, StatusCode),
    /// A batch request: the index of its first check in the batch.
    Batch(usize, QueuedBatch),
    /// A constant response.
    Static,
    /// An invalid request.
    Error(HttpError),
}

/// A batch request whose checks were added to the batch.
#[derive(Clone, Copy, Debug)]
struct QueuedBatch {
    /// The number of checks.
    count: usize,
    /// Whether the fast parser could parse all of it.
    used_fast_parser: bool,
}

/// Buffers for writing responses. Each thread keeps one set, so that a warm server allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    pending: Vec<PendingCall>,
    body: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The capacity that each thread keeps for the next response: enough for a batch of more than a thousand checks.
const KEPT_BYTES: usize = 512 * 1024;

impl<S: Store> Api<S> {
    pub(crate) fn new(limiter: RuleLimiter<S>, options: ApiOptions, denial_log: Arc<DenialLog>) -> Api<S> {
        let forward = ForwardAuth::new(options.forward.clone());
        Api { limiter, options, forward, denial_log }
    }

    /// Parses a call and adds its checks to the batch.
    fn add_call<'a>(
        &self,
        call: &HttpCall<'a, ApiRoute>,
        batch: &mut CheckBatch,
    ) -> Result<PendingCall, HttpError> {
        match call.route {
            ApiRoute::Short | ApiRoute::Full(_) => {
                let status = self.deny_status(call)?;
                with_request(call, |request| self.limiter.add(batch, call.route.verb(), request))?;
                Ok(PendingCall::Single(batch.len() - 1, status))
            }
            ApiRoute::Batch => {
                let first = batch.len();
                let queued = self.add_batch(call.body, batch)?;
                Ok(PendingCall::Batch(first, queued))
            }
            ApiRoute::ForwardAuth => {
                let parameters = ProxyParameters::parse(call.head.query())?;
                let add = |request: &CheckRequest<'_>| self.limiter.add(batch, Verb::Check, request);
                self.forward.with_request(call, &parameters, add)?;
                Ok(PendingCall::Single(
                    batch.len() - 1,
                    parameters.deny_status.unwrap_or(self.forward_deny_status()),
                ))
            }
            ApiRoute::OpenApi | ApiRoute::Livez => Ok(PendingCall::Static),
        }
    }

    /// Adds the checks of a batch request. If one of them is invalid, none is decided.
    fn add_batch(&self, body: &[u8], batch: &mut CheckBatch) -> Result<QueuedBatch, HttpError> {
        let max_checks = self.options.max_batch;
        let first = batch.len();
        // The emergency limit takes units as soon as a check is added and can't return them, so while it is on, the
        // whole batch is parsed before any check is added.
        let may_be_plain = match self.limiter.emergency().limit() {
            None => true,
            Some(_) => fast_json::batch(body, max_checks, |_| ()).is_some(),
        };
        if may_be_plain {
            let parsed =
                fast_json::batch(body, max_checks, |request| self.limiter.add(batch, Verb::Check, request));
            if let Some(count) = parsed {
                return Ok(QueuedBatch { count, used_fast_parser: true });
            }
            batch.truncate(first);
        } else {
            parse_batch(body, max_checks, |_| {})?;
        }
        let add = |request: &CheckRequest<'_>| self.limiter.add(batch, Verb::Check, request);
        match parse_batch(body, max_checks, add) {
            Ok(count) => Ok(QueuedBatch { count, used_fast_parser: false }),
            Err(error) => {
                batch.truncate(first);
                Err(error)
            }
        }
    }

    /// The status of a denial: as asked for in the query, or else as configured.
    fn deny_status(&self, call: &HttpCall<'_, ApiRoute>) -> Result<StatusCode, HttpError> {
        match call.head.query() {
            None => Ok(self.options.deny_status),
            Some(query) => Ok(query_deny_status(query)?.unwrap_or(self.options.deny_status)),
        }
    }

    /// The default status of a denial for proxies: never 200, which they treat as allowed.
    fn forward_deny_status(&self) -> StatusCode {
        match self.options.deny_status {
            StatusCode::OK => StatusCode::TOO_MANY_REQUESTS,
            status => status,
        }
    }

    /// Writes the response to a call, and logs its denials.
    fn write_response(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        batch: &CheckBatch,
        pending: &PendingCall,
        body: &mut Vec<u8>,
        out: &mut impl ResponseWriter,
    ) {
        body.clear();
        match pending {
            PendingCall::Error(error) => error.write(out),
            PendingCall::Static => write_static(call.route, out),
            PendingCall::Single(index, deny_status) => {
                let decision = batch.decision(*index);
                let numbers = WireNumbers::from_decision(&decision);
                let is_cacheable = if decision.is_allowed() || *deny_status == StatusCode::OK {
                    match call.route {
                        ApiRoute::Short => decision_json::write_short(&decision, &numbers, body),
                        // A proxy reads only the headers.
                        ApiRoute::ForwardAuth => {}
                        _ => decision_json::write_full(&decision, &numbers, body),
                    }
                    out.begin(StatusCode::OK, if call.route == ApiRoute::ForwardAuth { TEXT } else { JSON });
                    // A cache might store the response to a GET.
                    call.route != ApiRoute::ForwardAuth
                } else {
                    let format = DenialFormat::from_accept(call.head.header("accept"));
                    let status = match *deny_status {
                        // The client did nothing wrong: its limit could not be checked.
                        StatusCode::TOO_MANY_REQUESTS if fails_closed(&decision) => {
                            StatusCode::SERVICE_UNAVAILABLE
                        }
                        status => status,
                    };
                    format.write(&decision, &numbers, status.as_u16(), body);
                    out.begin(status, format.content_type());
                    false
                };
                for_each_header(self.options.headers, &decision, &numbers, |name, value| {
                    out.header(name, value);
                });
                if !is_cacheable {
                    out.header("cache-control", b"no-store");
                }
                out.end(body);
                if !decision.is_allowed() && call.route.verb() == Verb::Check {
                    self.log_denial(call, &decision);
                }
            }
            PendingCall::Batch(first, queued) => {
                body.extend_from_slice(b"{\"results\":[");
                let mut is_all_allowed = true;
                for index in *first..first + queued.count {
                    if index > *first {
                        body.push(b',');
                    }
                    let decision = batch.decision(index);
                    is_all_allowed &= decision.is_allowed();
                    decision_json::write_full(&decision, &WireNumbers::from_decision(&decision), body);
                }
                body.extend_from_slice(b"]}");
                out.begin(StatusCode::OK, JSON);
                out.end(body);
                if !is_all_allowed {
                    self.log_denials(call, batch, *first, *queued);
                }
            }
        }
    }

    /// Logs a denial. The request is parsed again: that is rare, and keeping it would cost every request.
    #[cold]
    fn log_denial(&self, call: &HttpCall<'_, ApiRoute>, decision: &RuleDecision<'_>) {
        let record =
            |request: &CheckRequest<'_>| self.denial_log.record(self.limiter.clock(), request, decision);
        // It parsed before, so this can't fail.
        let _ = match call.route {
            ApiRoute::ForwardAuth => ProxyParameters::parse(call.head.query())
                .and_then(|parameters| self.forward.with_request(call, &parameters, record)),
            _ => with_request(call, record),
        };
    }

    /// Rejects a request without a valid token, unless the route needs none.
    fn require_token(&self, route: ApiRoute, head: &RequestHead<'_>) -> Result<(), HttpError> {
        let Some(token) = &self.options.token else { return Ok(()) };
        match route {
            ApiRoute::Livez => Ok(()),
            ApiRoute::ForwardAuth if ForwardAuth::has_token(token, head) => Ok(()),
            ApiRoute::ForwardAuth => Err(HttpError::ProxyUnauthorized),
            _ if token.admits(head.header("authorization")) => Ok(()),
            _ => Err(HttpError::Unauthorized),
        }
    }

    /// Logs the denied checks of a batch request, which is parsed again as in [`Api::log_denial`].
    #[cold]
    fn log_denials(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        batch: &CheckBatch,
        first: usize,
        queued: QueuedBatch,
    ) {
        let mut index = first;
        let record = |request: &CheckRequest<'_>| {
            let decision = batch.decision(index);
            index += 1;
            if !decision.is_allowed() {
                self.denial_log.record(self.limiter.clock(), request, &decision);
            }
        };
        let max_checks = self.options.max_batch;
        // It parsed before, so the same parser can't fail.
        if queued.used_fast_parser {
            let _ = fast_json::batch(call.body, max_checks, record);
        } else {
            let _ = parse_batch(call.body, max_checks, record);
        }
    }
}

impl<S: Store> Handler for Api<S> {
    type Route = ApiRoute;

    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<ApiRoute>, HttpError> {
        let route = ApiRoute::from_head(head)?;
        if route.rejects_cross_site() {
            self.options.allowed_origins.admit(head)?;
        }
        self.require_token(route, head)?;
        let (max_body, answer) = match route {
            ApiRoute::Batch => (self.options.max_body, ResponseLength::Long),
            ApiRoute::OpenApi => (MAX_CHECK_BYTES, ResponseLength::Long),
            ApiRoute::Short | ApiRoute::Full(_) | ApiRoute::ForwardAuth | ApiRoute::Livez => {
                (MAX_CHECK_BYTES, ResponseLength::Short)
            }
        };
        Ok(AdmittedRequest { route, max_body_bytes: max_body, response_length: answer })
    }

    async fn respond<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, ApiRoute>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) {
        let mut scratch = SCRATCH.take();
        let mut batch = self.limiter.begin();
        for call in calls.clone() {
            let pending = self.add_call(&call, &mut batch).unwrap_or_else(PendingCall::Error);
            scratch.pending.push(pending);
        }
        if !batch.is_empty() {
            self.limiter.decide(&mut batch).await;
        }
        for (call, pending) in calls.zip(&scratch.pending) {
            self.write_response(&call, &batch, pending, &mut scratch.body, out);
        }
        scratch.pending.clear();
        scratch.body.shrink_to(KEPT_BYTES);
        SCRATCH.replace(scratch);
    }
}

impl ApiRoute {
    /// The route of a request, if its method and content type are allowed.
    fn from_head(head: &RequestHead<'_>) -> Result<ApiRoute, HttpError> {
        let (route, methods) = match head.path() {
            "/check" => (ApiRoute::Short, "POST"),
            "/v1/check" => (ApiRoute::Full(Verb::Check), "POST"),
            "/v1/check/batch" => (ApiRoute::Batch, "POST"),
            "/v1/peek" => (ApiRoute::Full(Verb::Peek), "POST"),
            "/v1/refund" => (ApiRoute::Full(Verb::Refund), "POST"),
            "/v1/reset" => (ApiRoute::Full(Verb::Reset), "POST"),
            // Any method: the one to check is in a header.
            "/v1/forward-auth" => return Ok(ApiRoute::ForwardAuth),
            "/openapi.json" => (ApiRoute::OpenApi, "GET, HEAD"),
            "/livez" => (ApiRoute::Livez, "GET, HEAD"),
            path => return Err(HttpError::no_such_path(path)),
        };
        match (methods, head.method()) {
            ("POST", "POST") => crate::http::expect_json(head.content_type()).map(|()| route),
            ("GET, HEAD", "GET" | "HEAD") => Ok(route),
            (methods, method) => Err(HttpError::wrong_method(head.path(), method, methods)),
        }
    }

    /// Whether it changes state and is called by programs directly, so that cross-site requests are rejected.
    fn rejects_cross_site(self) -> bool {
        match self {
            ApiRoute::Short | ApiRoute::Full(_) | ApiRoute::Batch => true,
            // A proxy forwards the headers of its client, which may be a browser on another site.
            ApiRoute::ForwardAuth | ApiRoute::OpenApi | ApiRoute::Livez => false,
        }
    }

    fn verb(self) -> Verb {
        match self {
            ApiRoute::Full(verb) => verb,
            ApiRoute::Short
            | ApiRoute::Batch
            | ApiRoute::ForwardAuth
            | ApiRoute::OpenApi
            | ApiRoute::Livez => Verb::Check,
        }
    }
}

/// Parses a check and calls `use_it` with the request.
#[inline]
fn with_request<T>(
    call: &HttpCall<'_, ApiRoute>,
    use_it: impl FnOnce(&CheckRequest<'_>) -> T,
) -> Result<T, HttpError> {
    match fast_json::check(call.body) {
        Some(request) => Ok(use_it(&request)),
        None => with_any_request(call.body, call.route == ApiRoute::Short, use_it),
    }
}

/// Parses a check with serde, which also reports what is wrong with it, and calls `use_it` with the request. If
/// `needs_key`, it must have a `client_key`.
pub(crate) fn with_any_request<T>(
    body: &[u8],
    needs_key: bool,
    use_it: impl FnOnce(&CheckRequest<'_>) -> T,
) -> Result<T, HttpError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpError::NotAnObject);
    }
    let invalid = |error: &dyn std::fmt::Display| HttpError::InvalidBody { reason: excerpt(error) };
    let check: CheckBody<'_> = serde_json::from_slice(body).map_err(|error| invalid(&error))?;
    if needs_key && !check.has_key() {
        return Err(invalid(&"missing field `client_key`"));
    }
    check.with_request(use_it).map_err(|error| invalid(&error))
}

/// Parses a batch with serde and calls `use_it` with each check. If it fails, `use_it` may have been called already.
fn parse_batch(
    body: &[u8],
    max_checks: usize,
    use_it: impl FnMut(&CheckRequest<'_>),
) -> Result<usize, HttpError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpError::BatchNotAnObject);
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let batch = BatchBody { max_checks, on_check: use_it };
    let parsed = batch.deserialize(&mut json).and_then(|count| json.end().map(|()| count));
    parsed.map_err(|error| HttpError::InvalidBatch { reason: excerpt(error) })
}

/// The status of denials that a query asks for, like `deny_status=429`. Other parameters are ignored.
fn query_deny_status(query: &str) -> Result<Option<StatusCode>, HttpError> {
    let Some(status) = query.split('&').find_map(|pair| pair.strip_prefix("deny_status=")) else {
        return Ok(None);
    };
    match status {
        "200" => Ok(Some(StatusCode::OK)),
        "403" => Ok(Some(StatusCode::FORBIDDEN)),
        "429" => Ok(Some(StatusCode::TOO_MANY_REQUESTS)),
        status => Err(HttpError::InvalidDenyStatus { found: excerpt(status) }),
    }
}

fn write_static(route: ApiRoute, out: &mut impl ResponseWriter) {
    match route {
        ApiRoute::OpenApi => {
            out.begin(StatusCode::OK, JSON);
            out.end_static(openapi::DOCUMENT.as_bytes());
        }
        _ => {
            out.begin(StatusCode::OK, TEXT);
            out.end(b"ok");
        }
    }
}
