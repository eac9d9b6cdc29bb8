//! Where the calls of one connection are answered.

use super::GrpcInner;
use super::body::MessageBody;
use super::check::{self, GrpcCheck};
use super::envoy;
use super::frame;
use super::message::put_message;
use super::response_body::GrpcBody;
use super::standard;
use super::stream::CheckStream;
use super::streams::StreamRegistry;
use crate::api::MAX_CHECK_BYTES;
use crate::http::{LongResponses, ShutdownPhase, ShutdownSignal};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use ratekeeper::rules::Verb;
use ratekeeper::{CheckBatch, RuleDecision, Store};
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// The most bytes of what Envoy asks: some descriptors, each with a header as long as Envoy takes.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// What asks for a long answer with no more bytes than this is answered with tens of kilobytes, which need not wait for
/// their turn.
const BRIEF_BYTES: usize = 4 * 1024;

/// How long an answer to a check is as a rule, with some room.
const ANSWER_BYTES: usize = 64;

/// Where the calls of one connection are answered.
pub(super) struct GrpcConnection<S> {
    shared: Arc<GrpcInner<S>>,
    backlog: LongResponses,
    streams: StreamRegistry,
    /// As it was when the connection came: whoever asks is told of every change since.
    phase: watch::Receiver<ShutdownPhase>,
}

/// What can be asked for here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcMethod {
    One(Verb),
    Batch,
    Stream,
    Envoy,
    /// Health, reflection, or nothing that there is.
    Standard,
}

impl GrpcMethod {
    fn of(path: &str) -> GrpcMethod {
        match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => GrpcMethod::Envoy,
            "/ratekeeper.v1.RateLimiter/Check" => GrpcMethod::One(Verb::Check),
            "/ratekeeper.v1.RateLimiter/CheckBatch" => GrpcMethod::Batch,
            "/ratekeeper.v1.RateLimiter/CheckStream" => GrpcMethod::Stream,
            "/ratekeeper.v1.RateLimiter/Peek" => GrpcMethod::One(Verb::Peek),
            "/ratekeeper.v1.RateLimiter/Refund" => GrpcMethod::One(Verb::Refund),
            "/ratekeeper.v1.RateLimiter/Reset" => GrpcMethod::One(Verb::Reset),
            _ => GrpcMethod::Standard,
        }
    }
}

impl<S: Store> GrpcConnection<S> {
    pub(super) fn new(shared: Arc<GrpcInner<S>>, phase: watch::Receiver<ShutdownPhase>) -> GrpcConnection<S> {
        GrpcConnection { shared, backlog: LongResponses::new(), streams: StreamRegistry::new(), phase }
    }

    /// Until a client has not taken an answer for too long.
    pub(super) async fn is_overdue(&self) {
        tokio::select! {
            () = self.backlog.is_overdue() => {}
            () = self.streams.is_overdue() => {}
        }
    }

    /// Answers a call. Its head is read and let go at once: whatever waits for the message had better be small, for it is
    /// moved from hand to hand.
    pub(super) fn reply(self: &Arc<Self>, request: Request<Incoming>) -> GrpcReply {
        if !is_grpc(&request) {
            let mut response = Response::new(GrpcBody::Empty);
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Box::pin(ready(Ok(response)));
        }
        if let Err(status) = self.admit(&request) {
            return Box::pin(ready(Ok(status.into_http())));
        }
        let desk = Arc::clone(self);
        match GrpcMethod::of(request.uri().path()) {
            GrpcMethod::Envoy => told(request, async move |body| desk.answer_envoy(body).await),
            GrpcMethod::One(verb) => told(request, async move |body| desk.answer_one(verb, body).await),
            GrpcMethod::Batch => told(request, async move |body| desk.answer_batch(body).await),
            GrpcMethod::Stream => told(request, async move |body| desk.open_stream(body)),
            GrpcMethod::Standard => Box::pin(async move {
                let answer = desk.shared.standard.reply(request, desk.orders()).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            }),
        }
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

    async fn answer_envoy(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let asked = MessageBody::read(body, MAX_CALL_BYTES, &self.shared.room).await?;
        let answer = envoy::should_rate_limit(&self.shared, asked.message()).await?;
        Ok(GrpcBody::Message(answer.into(), None))
    }

    async fn answer_one(&self, verb: Verb, body: Incoming) -> Result<GrpcBody, Status> {
        let asked = MessageBody::read(body, MAX_CHECK_BYTES, &self.shared.room).await?;
        Ok(GrpcBody::Message(self.one(verb, asked.message()).await?.into(), None))
    }

    async fn answer_batch(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let asked = MessageBody::read(body, self.shared.options.max_body, &self.shared.room).await?;
        let turn = match asked.message().len() > BRIEF_BYTES {
            true => Some(self.backlog.turn().await),
            false => None,
        };
        let answer = self.batch(asked.message()).await?;
        Ok(GrpcBody::Message(answer.into(), turn.map(|turn| (turn, asked.place))))
    }

    fn open_stream(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let pulse = self.streams.open().ok_or_else(too_many_streams)?;
        let stream = CheckStream::new(Arc::clone(&self.shared), body, self.orders(), pulse);
        Ok(GrpcBody::Stream(Box::pin(stream)))
    }

    async fn one(&self, verb: Verb, message: &[u8]) -> Result<Vec<u8>, Status> {
        let shared = &*self.shared;
        let check = GrpcCheck::read(message)?;
        let docket = shared.gate.ask(verb, &check.request()).await;
        let verdict = docket.verdict(0);
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        frame::append(&mut answer, |out| check::write_answer(&verdict, out));
        if verb == Verb::Check {
            self.log_denial(&check, &verdict);
        }
        Ok(answer)
    }

    async fn batch(&self, message: &[u8]) -> Result<Vec<u8>, Status> {
        let shared = &*self.shared;
        let mut docket = shared.gate.begin();
        self.file(message, &mut docket)?;
        if !docket.is_empty() {
            shared.gate.settle(&mut docket).await;
        }
        let mut answer = Vec::with_capacity(docket.len() * ANSWER_BYTES);
        frame::append(&mut answer, |out| {
            docket
                .verdicts()
                .for_each(|verdict| put_message(out, 1, |out| check::write_answer(&verdict, out)));
        });
        if docket.verdicts().any(|verdict| !verdict.is_allowed()) {
            let mut verdicts = docket.verdicts();
            let note = |check: &GrpcCheck<'_>| {
                if let Some(verdict) = verdicts.next() {
                    self.log_denial(check, &verdict);
                }
            };
            // It was read before, so it can be read again.
            let _ = check::read_batch(message, shared.options.max_batch, note);
        }
        Ok(answer)
    }

    /// Adds the checks of a batch. If one of them can't be read, none is decided.
    fn file(&self, message: &[u8], docket: &mut CheckBatch) -> Result<usize, Status> {
        let (gate, most) = (&self.shared.gate, self.shared.options.max_batch);
        // The emergency limit takes when a check is added, and does not give back: under it, all is read before.
        if gate.emergency().limit().is_some() {
            check::read_batch(message, most, |_| {})?;
        }
        let add = |check: &GrpcCheck<'_>| gate.add(docket, Verb::Check, &check.request());
        Ok(check::read_batch(message, most, add)?)
    }

    #[inline]
    fn log_denial(&self, check: &GrpcCheck<'_>, verdict: &RuleDecision<'_>) {
        if !verdict.is_allowed() {
            self.shared.denials.note(self.shared.gate.clock(), &check.request(), verdict);
        }
    }

    fn orders(&self) -> ShutdownSignal {
        ShutdownSignal::new(self.phase.clone())
    }
}

/// What becomes of a call.
pub(super) type GrpcReply = Pin<Box<dyn Future<Output = Result<Response<GrpcBody>, Infallible>> + Send>>;

/// The reply that `answer` makes of a request's body.
fn told<A>(request: Request<Incoming>, answer: impl FnOnce(Incoming) -> A) -> GrpcReply
where
    A: Future<Output = Result<GrpcBody, Status>> + Send + 'static,
{
    let answer = answer(request.into_body());
    Box::pin(async move {
        Ok(answer.await.map_or_else(Status::into_http, |load| {
            let mut response = Response::new(load);
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            response
        }))
    })
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request is a call at all, with messages in protobuf.
fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    request.method() == Method::POST && matches!(kind, b"application/grpc" | b"application/grpc+proto")
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
