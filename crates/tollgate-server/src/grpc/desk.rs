//! Where the calls of one connection are answered.

use super::Shared;
use super::body::Asked;
use super::check::{self, Check};
use super::envoy;
use super::frame;
use super::generated::tollgate::v1::{CheckBatchResponse, CheckResponse};
use super::load::{Held, Load};
use super::standard;
use super::stream::CheckStream;
use super::streams::Streams;
use crate::api::MAX_CHECK_BYTES;
use crate::http::{Backlog, Orders, Phase};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use std::sync::Arc;
use tokio::sync::watch;
use tollgate::rules::Verb;
use tollgate::{Docket, Store, Verdict};
use tonic::Status;
use tonic::metadata::MetadataValue;

/// The most bytes of what Envoy asks: some descriptors, each with a header as long as Envoy takes.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// What asks for a long answer with no more bytes than this is answered with tens of kilobytes, which need not wait for
/// their turn.
const BRIEF_BYTES: usize = 4 * 1024;

/// Where the calls of one connection are answered.
pub(super) struct Desk<S> {
    shared: Arc<Shared<S>>,
    backlog: Backlog,
    streams: Streams,
    /// As it was when the connection came: whoever asks is told of every change since.
    phase: watch::Receiver<Phase>,
}

/// What can be asked for here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    One(Verb),
    Batch,
    Stream,
    Envoy,
    /// Health, reflection, or nothing that there is.
    Standard,
}

impl Route {
    fn of(path: &str) -> Route {
        match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => Route::Envoy,
            "/tollgate.v1.RateLimiter/Check" => Route::One(Verb::Check),
            "/tollgate.v1.RateLimiter/CheckBatch" => Route::Batch,
            "/tollgate.v1.RateLimiter/CheckStream" => Route::Stream,
            "/tollgate.v1.RateLimiter/Peek" => Route::One(Verb::Peek),
            "/tollgate.v1.RateLimiter/Refund" => Route::One(Verb::Refund),
            "/tollgate.v1.RateLimiter/Reset" => Route::One(Verb::Reset),
            _ => Route::Standard,
        }
    }
}

impl<S: Store> Desk<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, phase: watch::Receiver<Phase>) -> Desk<S> {
        Desk { shared, backlog: Backlog::new(), streams: Streams::new(), phase }
    }

    /// Until a client has not taken an answer for too long.
    pub(super) async fn is_overdue(&self) {
        tokio::select! {
            () = self.backlog.is_overdue() => {}
            () = self.streams.is_overdue() => {}
        }
    }

    /// Answers a call.
    pub(super) async fn reply(&self, request: Request<Incoming>) -> Response<Load> {
        if !is_grpc(&request) {
            let mut response = Response::new(Load::Empty);
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        self.answer(request).await.unwrap_or_else(Status::into_http)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Load>, Status> {
        let route = Route::of(request.uri().path());
        self.admit(&request)?;
        let shared = &*self.shared;
        let load = match route {
            Route::Envoy => {
                let asked = Asked::read(request.into_body(), MAX_CALL_BYTES, &shared.room).await?;
                let answer = envoy::should_rate_limit(shared, asked.message()).await?;
                message_of(&answer, None)
            }
            Route::One(verb) => {
                let asked = Asked::read(request.into_body(), MAX_CHECK_BYTES, &shared.room).await?;
                message_of(&self.one(verb, asked.message()).await?, None)
            }
            Route::Batch => {
                let asked = Asked::read(request.into_body(), shared.options.max_body, &shared.room).await?;
                let turn = match asked.message().len() > BRIEF_BYTES {
                    true => Some(self.backlog.turn().await),
                    false => None,
                };
                let answer = self.batch(asked.message()).await?;
                message_of(&answer, turn.map(|turn| (turn, asked.place)))
            }
            Route::Stream => {
                let pulse = self.streams.open().ok_or_else(too_many_streams)?;
                let shared = Arc::clone(&self.shared);
                let stream = CheckStream::new(shared, request.into_body(), self.orders(), pulse);
                Load::Stream(Box::pin(stream))
            }
            Route::Standard => return shared.standard.reply(request, self.orders()).await,
        };
        let mut response = Response::new(load);
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        Ok(response)
    }

    /// Refuses who may not ask, and what can't be read whatever it says.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), Status> {
        let (headers, path) = (request.headers(), request.uri().path());
        if let Some(token) = &self.shared.options.token
            && !token.admits(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))
            && !standard::is_health(path)
        {
            return Err(Status::unauthenticated(
                "this server asks for a token: send the metadata authorization: Bearer TOKEN",
            ));
        }
        match headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity") {
            true => Ok(()),
            false => Err(uncompressed_only()),
        }
    }

    async fn one(&self, verb: Verb, message: &[u8]) -> Result<CheckResponse, Status> {
        let shared = &*self.shared;
        let check = Check::read(message)?;
        let docket = shared.gate.ask(verb, &check.request()).await;
        let mut answer = CheckResponse::default();
        let verdict = docket.verdict(0);
        check::answer(&verdict, &mut answer);
        if verb == Verb::Check {
            self.log_denial(&check, &verdict);
        }
        Ok(answer)
    }

    async fn batch(&self, message: &[u8]) -> Result<CheckBatchResponse, Status> {
        let shared = &*self.shared;
        let mut docket = shared.gate.begin();
        self.file(message, &mut docket)?;
        if !docket.is_empty() {
            shared.gate.settle(&mut docket).await;
        }
        let results = docket.verdicts().map(|verdict| {
            let mut answer = CheckResponse::default();
            check::answer(&verdict, &mut answer);
            answer
        });
        let results: Vec<_> = results.collect();
        if results.iter().any(|result| !result.allowed) {
            let mut verdicts = docket.verdicts();
            let note = |check: &Check<'_>| {
                if let Some(verdict) = verdicts.next() {
                    self.log_denial(check, &verdict);
                }
            };
            // It was read before, so it can be read again.
            let _ = check::read_batch(message, shared.options.max_batch, note);
        }
        Ok(CheckBatchResponse { results })
    }

    /// Adds the checks of a batch. If one of them can't be read, none is decided.
    fn file(&self, message: &[u8], docket: &mut Docket) -> Result<usize, Status> {
        let (gate, most) = (&self.shared.gate, self.shared.options.max_batch);
        // The emergency limit takes when a check is added, and does not give back: under it, all is read before.
        if gate.emergency().limit().is_some() {
            check::read_batch(message, most, |_| {})?;
        }
        let add = |check: &Check<'_>| gate.add(docket, Verb::Check, &check.request());
        Ok(check::read_batch(message, most, add)?)
    }

    #[inline]
    fn log_denial(&self, check: &Check<'_>, verdict: &Verdict<'_>) {
        if !verdict.is_allowed() {
            self.shared.denials.note(self.shared.gate.clock(), &check.request(), verdict);
        }
    }

    fn orders(&self) -> Orders {
        Orders::new(self.phase.clone())
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request is a call at all, with messages in protobuf.
fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    request.method() == Method::POST && matches!(kind, b"application/grpc" | b"application/grpc+proto")
}

/// An answer of one message, for which this is held until it is sent.
fn message_of(message: &impl Message, held: Option<Held>) -> Load {
    let mut bytes = Vec::with_capacity(frame::HEAD_BYTES + message.encoded_len());
    frame::append(&mut bytes, message);
    Load::Message(bytes.into(), held)
}

fn uncompressed_only() -> Status {
    let mut status =
        Status::unimplemented("messages are not compressed here: leave grpc-encoding out, or say identity");
    status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static("identity"));
    status
}

fn too_many_streams() -> Status {
    Status::resource_exhausted(
        "there are too many streams on this connection: use one, or open another connection",
    )
}
