//! The API on the main port: checks and what goes with them.
//!
//! All that is asked for at once (the requests of a pipeline, the checks of a batch) is decided in one docket: by one
//! version of the rules, in one call to the store. What can't be read is a fault, and takes nothing.

mod answer;
mod body;
mod denial;
mod forward;
#[cfg(test)]
mod fuzz;
mod headers;
mod openapi;
mod quick;

pub(crate) use answer::reason;
pub(crate) use body::{MAX_ATTRIBUTES, MAX_ENDPOINT_CHARS, MAX_NAME_CHARS, MAX_VALUE_CHARS};
pub(crate) use denial::DenialFormat;
pub use forward::{ForwardOptions, KeySources, KeySourcesError};
pub use headers::{FieldProfile, ResetForm};
pub(crate) use headers::{RETRY_CLOSED_SECS, WireNumbers, fails_closed, write as write_fields};

use crate::cross_site::AllowedOrigins;
use crate::denial_log::DenialLog;
use crate::http::{
    AdmittedRequest, Handler, HttpCall, HttpError, JSON, RequestHead, ResponseLength, ResponseWriter, TEXT,
};
use crate::token::Token;
use body::{BatchBody, CheckBody};
use forward::{Forward, ProxyParameters};
use hyper::StatusCode;
use ratekeeper::rules::{CheckRequest, Verb};
use ratekeeper::{CheckBatch, RuleDecision, RuleLimiter, Store};
use serde::de::DeserializeSeed;
use std::cell::RefCell;
use std::sync::Arc;

/// The most bytes of a body that is one check. A check with the longest key has a tenth of it.
pub(crate) const MAX_CHECK_BYTES: usize = 64 * 1024;

/// How the API answers.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Which fields tell a client where it stands.
    pub fields: FieldProfile,
    /// The status of a refusal, unless the request asks for another.
    pub deny_status: StatusCode,
    /// The most checks of a batch.
    pub max_batch: usize,
    /// The most bytes of a batch.
    pub max_body: usize,
    /// Who may ask; nobody is asked who it is if there is none.
    pub token: Option<Token>,
    /// How the questions of proxies are understood.
    pub forward: ForwardOptions,
    /// The web sites whose pages may ask, and use the admin port with its token, besides the server's own.
    pub allowed_origins: AllowedOrigins,
}

impl Default for ApiOptions {
    fn default() -> ApiOptions {
        ApiOptions {
            fields: FieldProfile::default(),
            deny_status: StatusCode::OK,
            max_batch: 10_000,
            max_body: 4 << 20,
            token: None,
            forward: ForwardOptions::default(),
            allowed_origins: AllowedOrigins::default(),
        }
    }
}

/// The API on the main port.
#[derive(Debug)]
pub(crate) struct Api<S> {
    gate: RuleLimiter<S>,
    options: ApiOptions,
    forward: Forward,
    denials: Arc<DenialLog>,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRoute {
    /// `/check`: four fields.
    Short,
    /// A single request under `/v1`.
    Full(Verb),
    Batch,
    /// `/v1/forward-auth`: what a proxy asks before it passes a request on.
    Forward,
    OpenApi,
    Livez,
}

/// A call on its way through the docket.
#[derive(Debug)]
enum PendingCall {
    /// One request, at this index, and the status that it has if it is refused.
    One(usize, StatusCode),
    /// A batch, from this index on.
    Many(usize, QueuedBatch),
    Page,
    Fault(HttpError),
}

/// A batch on the docket.
#[derive(Clone, Copy, Debug)]
struct QueuedBatch {
    /// How many checks it has.
    count: usize,
    /// Whether all of it could be read quickly.
    is_plain: bool,
}

/// What answering needs room for. Each thread keeps one, so that a warm server allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    pending: Vec<PendingCall>,
    lines: Vec<u8>,
    body: Vec<u8>,
}

thread_local! {
    static DESKTOP: RefCell<Scratch> = RefCell::default();
}

/// How much room each thread keeps for the next answer: enough for a batch of a thousand and more.
const KEPT_BYTES: usize = 512 * 1024;

impl<S: Store> Api<S> {
    pub(crate) fn new(gate: RuleLimiter<S>, options: ApiOptions, denials: Arc<DenialLog>) -> Api<S> {
        let forward = Forward::new(options.forward.clone());
        Api { gate, options, forward, denials }
    }

    fn file<'a>(
        &self,
        call: &HttpCall<'a, ApiRoute>,
        docket: &mut CheckBatch,
    ) -> Result<PendingCall, HttpError> {
        match call.route {
            ApiRoute::Short | ApiRoute::Full(_) => {
                let status = self.deny_status(call)?;
                with_request(call, |request| self.gate.add(docket, call.route.verb(), request))?;
                Ok(PendingCall::One(docket.len() - 1, status))
            }
            ApiRoute::Batch => {
                let first = docket.len();
                let filed = self.file_batch(call.body, docket)?;
                Ok(PendingCall::Many(first, filed))
            }
            ApiRoute::Forward => {
                let errand = ProxyParameters::read(call.head.query())?;
                let add = |request: &CheckRequest<'_>| self.gate.add(docket, Verb::Check, request);
                self.forward.with_request(call, &errand, add)?;
                Ok(PendingCall::One(
                    docket.len() - 1,
                    errand.deny_status.unwrap_or(self.deny_status_to_proxies()),
                ))
            }
            ApiRoute::OpenApi | ApiRoute::Livez => Ok(PendingCall::Page),
        }
    }

    /// Adds the checks of a batch. If one of them can't be read, none is decided.
    fn file_batch(&self, body: &[u8], docket: &mut CheckBatch) -> Result<QueuedBatch, HttpError> {
        let most = self.options.max_batch;
        let first = docket.len();
        // The emergency limit takes when a check is added, and does not give back: under it, all is read before.
        let may_be_plain = match self.gate.emergency().limit() {
            None => true,
            Some(_) => quick::batch(body, most, |_| ()).is_some(),
        };
        if may_be_plain {
            let quick = quick::batch(body, most, |request| self.gate.add(docket, Verb::Check, request));
            if let Some(count) = quick {
                return Ok(QueuedBatch { count, is_plain: true });
            }
            docket.cut(first);
        } else {
            read_batch(body, most, |_| {})?;
        }
        let add = |check: &CheckBody<'_>| {
            check.with_request(|request| self.gate.add(docket, Verb::Check, request));
        };
        match read_batch(body, most, add) {
            Ok(count) => Ok(QueuedBatch { count, is_plain: false }),
            Err(fault) => {
                docket.cut(first);
                Err(fault)
            }
        }
    }

    /// The status that the caller wants a refusal to have.
    fn deny_status(&self, call: &HttpCall<'_, ApiRoute>) -> Result<StatusCode, HttpError> {
        match call.head.query() {
            None => Ok(self.options.deny_status),
            Some(query) => Ok(asked_status(query)?.unwrap_or(self.options.deny_status)),
        }
    }

    /// The status that a refusal has for proxies unless they ask for another: never one that is a yes to them.
    fn deny_status_to_proxies(&self) -> StatusCode {
        match self.options.deny_status {
            StatusCode::OK => StatusCode::TOO_MANY_REQUESTS,
            status => status,
        }
    }

    fn tell(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        docket: &CheckBatch,
        pending: &PendingCall,
        desktop: (&mut Vec<u8>, &mut Vec<u8>),
        out: &mut impl ResponseWriter,
    ) {
        let (lines, body) = desktop;
        lines.clear();
        body.clear();
        match pending {
            PendingCall::Fault(fault) => fault.tell(out),
            PendingCall::Page => page(call.route, out),
            PendingCall::One(index, deny_status) => {
                let verdict = docket.verdict(*index);
                let figures = WireNumbers::of(&verdict);
                headers::write(self.options.fields, &verdict, &figures, lines);
                if verdict.is_allowed() || *deny_status == StatusCode::OK {
                    match call.route {
                        ApiRoute::Short => answer::short(&verdict, &figures, body),
                        // A proxy reads no further than the fields, and others might keep the answer to a GET.
                        ApiRoute::Forward => lines.extend_from_slice(b"cache-control: no-store\r\n"),
                        _ => answer::full(&verdict, &figures, body),
                    }
                    out.begin(StatusCode::OK, if call.route == ApiRoute::Forward { TEXT } else { JSON });
                } else {
                    let form = DenialFormat::asked_for(call.head.field("accept"));
                    let status = match *deny_status {
                        // The client did nothing wrong: it was not even looked at.
                        StatusCode::TOO_MANY_REQUESTS if fails_closed(&verdict) => {
                            StatusCode::SERVICE_UNAVAILABLE
                        }
                        status => status,
                    };
                    form.write(&verdict, &figures, status.as_u16(), body);
                    out.begin(status, form.content_type());
                    lines.extend_from_slice(b"cache-control: no-store\r\n");
                }
                out.lines(lines);
                out.end(body);
                if !verdict.is_allowed() && call.route.verb() == Verb::Check {
                    self.log_denial(call, &verdict);
                }
            }
            PendingCall::Many(first, filed) => {
                body.extend_from_slice(b"{\"results\":[");
                let mut is_all_allowed = true;
                for index in *first..first + filed.count {
                    if index > *first {
                        body.push(b',');
                    }
                    let verdict = docket.verdict(index);
                    is_all_allowed &= verdict.is_allowed();
                    answer::full(&verdict, &WireNumbers::of(&verdict), body);
                }
                body.extend_from_slice(b"]}");
                out.begin(StatusCode::OK, JSON);
                out.end(body);
                if !is_all_allowed {
                    self.log_denials(call, docket, *first, *filed);
                }
            }
        }
    }

    /// Logs a denial. What was asked is read once more: that is rare, and keeping it would cost everybody.
    #[cold]
    fn log_denial(&self, call: &HttpCall<'_, ApiRoute>, verdict: &RuleDecision<'_>) {
        let note = |request: &CheckRequest<'_>| self.denials.note(self.gate.clock(), request, verdict);
        // It was read before, so it can be read again.
        let _ = match call.route {
            ApiRoute::Forward => ProxyParameters::read(call.head.query())
                .and_then(|errand| self.forward.with_request(call, &errand, note)),
            _ => with_request(call, note),
        };
    }

    /// Whether who sends this head may ask.
    fn expect_token(&self, route: ApiRoute, head: &RequestHead<'_>) -> Result<(), HttpError> {
        let Some(token) = &self.options.token else { return Ok(()) };
        match route {
            ApiRoute::Livez => Ok(()),
            ApiRoute::Forward if Forward::admits(token, head) => Ok(()),
            ApiRoute::Forward => Err(HttpError::UnknownProxy),
            _ if token.admits(head.field("authorization")) => Ok(()),
            _ => Err(HttpError::Unauthorized),
        }
    }

    #[cold]
    fn log_denials(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        docket: &CheckBatch,
        first: usize,
        filed: QueuedBatch,
    ) {
        let mut index = first;
        let mut note = |request: &CheckRequest<'_>| {
            let verdict = docket.verdict(index);
            index += 1;
            if !verdict.is_allowed() {
                self.denials.note(self.gate.clock(), request, &verdict);
            }
        };
        let most = self.options.max_batch;
        // It was read before, so it can be read again, in the same way.
        if filed.is_plain {
            let _ = quick::batch(call.body, most, note);
        } else {
            let _ = read_batch(call.body, most, |check| check.with_request(&mut note));
        }
    }
}

impl<S: Store> Handler for Api<S> {
    type Route = ApiRoute;

    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<ApiRoute>, HttpError> {
        let route = ApiRoute::of(head)?;
        if route.is_for_programs() {
            self.options.allowed_origins.admit(head)?;
        }
        self.expect_token(route, head)?;
        let (max_body, answer) = match route {
            ApiRoute::Batch => (self.options.max_body, ResponseLength::Long),
            ApiRoute::OpenApi => (MAX_CHECK_BYTES, ResponseLength::Long),
            ApiRoute::Short | ApiRoute::Full(_) | ApiRoute::Forward | ApiRoute::Livez => {
                (MAX_CHECK_BYTES, ResponseLength::Short)
            }
        };
        Ok(AdmittedRequest { route, max_body, answer })
    }

    async fn answer<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, ApiRoute>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) {
        let mut desktop = DESKTOP.take();
        let mut docket = self.gate.begin();
        for call in calls.clone() {
            let pending = self.file(&call, &mut docket).unwrap_or_else(PendingCall::Fault);
            desktop.pending.push(pending);
        }
        if !docket.is_empty() {
            self.gate.settle(&mut docket).await;
        }
        for (call, pending) in calls.zip(&desktop.pending) {
            self.tell(&call, &docket, pending, (&mut desktop.lines, &mut desktop.body), out);
        }
        desktop.pending.clear();
        desktop.lines.shrink_to(KEPT_BYTES);
        desktop.body.shrink_to(KEPT_BYTES);
        DESKTOP.replace(desktop);
    }
}

impl ApiRoute {
    fn of(head: &RequestHead<'_>) -> Result<ApiRoute, HttpError> {
        let (route, methods) = match head.path() {
            "/check" => (ApiRoute::Short, "POST"),
            "/v1/check" => (ApiRoute::Full(Verb::Check), "POST"),
            "/v1/check/batch" => (ApiRoute::Batch, "POST"),
            "/v1/peek" => (ApiRoute::Full(Verb::Peek), "POST"),
            "/v1/refund" => (ApiRoute::Full(Verb::Refund), "POST"),
            "/v1/reset" => (ApiRoute::Full(Verb::Reset), "POST"),
            // Whatever method a proxy asks with, the one that counts is told.
            "/v1/forward-auth" => return Ok(ApiRoute::Forward),
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

    /// Whether it changes something, and is asked for by programs directly, whose requests no web page sends.
    fn is_for_programs(self) -> bool {
        match self {
            ApiRoute::Short | ApiRoute::Full(_) | ApiRoute::Batch => true,
            // What a proxy asks carries the fields of a client, which may well be a browser on another site.
            ApiRoute::Forward | ApiRoute::OpenApi | ApiRoute::Livez => false,
        }
    }

    fn verb(self) -> Verb {
        match self {
            ApiRoute::Full(verb) => verb,
            ApiRoute::Short | ApiRoute::Batch | ApiRoute::Forward | ApiRoute::OpenApi | ApiRoute::Livez => {
                Verb::Check
            }
        }
    }
}

/// What is missing from a check that names nobody.
pub(crate) const NOBODY: &str = "it does not say who asks: give client_key, or ip, or attributes";

/// Reads a check, and has `use_it` look at the request that it stands for.
#[inline]
fn with_request<T>(
    call: &HttpCall<'_, ApiRoute>,
    use_it: impl FnOnce(&CheckRequest<'_>) -> T,
) -> Result<T, HttpError> {
    match quick::check(call.body) {
        Some(request) => Ok(use_it(&request)),
        None => read_check(call.body, call.route == ApiRoute::Short).map(|check| check.with_request(use_it)),
    }
}

/// Reads a check by the book; one that has to name a key, if `needs_key`.
pub(crate) fn read_check(body: &[u8], needs_key: bool) -> Result<CheckBody<'_>, HttpError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpError::NoObject);
    }
    let check: CheckBody<'_> = serde_json::from_slice(body).map_err(|error| HttpError::unreadable(&error))?;
    match check.says_who() {
        _ if needs_key && !check.has_key() => Err(HttpError::missing_key()),
        false => Err(HttpError::Unreadable { reason: NOBODY.to_owned() }),
        true => Ok(check),
    }
}

/// Reads a batch by the book, and hands over each check. On an error, some may have been handed over in vain.
fn read_batch(body: &[u8], most: usize, mut use_it: impl FnMut(&CheckBody<'_>)) -> Result<usize, HttpError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpError::NoBatch);
    }
    let take = |check: CheckBody<'_>| match check.says_who() {
        true => {
            use_it(&check);
            Ok(())
        }
        false => Err(NOBODY),
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = BatchBody { most, take }.deserialize(&mut json).and_then(|count| json.end().map(|()| count));
    read.map_err(|error| HttpError::unreadable_batch(&error))
}

/// The status that a query asks refusals to have: `deny_status=429`. What else is in a query means nothing here.
fn asked_status(query: &str) -> Result<Option<StatusCode>, HttpError> {
    let Some(asked) = query.split('&').find_map(|pair| pair.strip_prefix("deny_status=")) else {
        return Ok(None);
    };
    match asked {
        "200" => Ok(Some(StatusCode::OK)),
        "403" => Ok(Some(StatusCode::FORBIDDEN)),
        "429" => Ok(Some(StatusCode::TOO_MANY_REQUESTS)),
        asked => Err(HttpError::bad_status(asked)),
    }
}

fn page(route: ApiRoute, out: &mut impl ResponseWriter) {
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

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use ratekeeper::rules::{RuleSet, read};
    use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros};

    pub(crate) type TestApi = Api<MemoryStore<Arc<ManualClock>>>;

    /// The API of these rules, and its clock, which begins a quarter of a second past 1 700 000 000 and stands still.
    pub(crate) fn api(rules: &str, options: ApiOptions) -> (Arc<TestApi>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
        let rules = RuleSet::compile(&read(rules, Micros::EPOCH).spec.unwrap()).unwrap();
        let gate = RuleLimiter::new(rules, store, Arc::clone(&clock));
        (Arc::new(Api::new(gate, options, Arc::new(DenialLog::new(0)))), clock)
    }

    impl TestApi {
        /// What a client has left.
        pub(crate) async fn left(&self, client_key: &str) -> u32 {
            let docket = self.gate.ask(Verb::Peek, &ratekeeper::rules::CheckRequest::new(client_key)).await;
            docket.verdict(0).decision().remaining()
        }
    }
}
