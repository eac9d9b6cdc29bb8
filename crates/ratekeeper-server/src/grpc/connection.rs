//! Dispatches and answers the calls of one gRPC connection.

use super::GrpcInner;
use super::body::MessageBody;
use super::check;
use super::envoy;
use super::frame;
use super::message::put_message;
use super::response_body::GrpcBody;
use super::standard;
use super::stream::CheckStream;
use super::streams::StreamRegistry;
use crate::api::MAX_CHECK_BYTES;
use crate::conn::{LongResponses, ShutdownPhase, ShutdownSignal};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use ratekeeper::rules::{CheckRequest, Verb};
use ratekeeper::{CheckBatch, RuleDecision, Store};
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// The maximum size of a call from Envoy: some descriptors, each with a header as long as Envoy accepts.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// The maximum size of a batch whose answer need not wait for a permit for long responses: it takes some tens of
/// kilobytes.
const SHORT_BATCH_BYTES: usize = 4 * 1024;

/// The typical size of an encoded answer, rounded up.
const TYPICAL_ANSWER_BYTES: usize = 64;

/// Dispatches and answers the calls of one connection.
pub(super) struct GrpcConnection<S> {
    shared: Arc<GrpcInner<S>>,
    long_responses: LongResponses,
    streams: StreamRegistry,
    /// As of when the connection was accepted, so that a clone sees every change since.
    phase: watch::Receiver<ShutdownPhase>,
}

/// The method that a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcMethod {
    Unary(Verb),
    Batch,
    Stream,
    Envoy,
    /// Health, reflection, or unknown.
    Standard,
}

impl GrpcMethod {
    fn of(path: &str) -> GrpcMethod {
        match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => GrpcMethod::Envoy,
            "/ratekeeper.v1.RateLimiter/Check" => GrpcMethod::Unary(Verb::Check),
            "/ratekeeper.v1.RateLimiter/CheckBatch" => GrpcMethod::Batch,
            "/ratekeeper.v1.RateLimiter/CheckStream" => GrpcMethod::Stream,
            "/ratekeeper.v1.RateLimiter/Peek" => GrpcMethod::Unary(Verb::Peek),
            "/ratekeeper.v1.RateLimiter/Refund" => GrpcMethod::Unary(Verb::Refund),
            "/ratekeeper.v1.RateLimiter/Reset" => GrpcMethod::Unary(Verb::Reset),
            _ => GrpcMethod::Standard,
        }
    }
}

impl<S: Store> GrpcConnection<S> {
    pub(super) fn new(shared: Arc<GrpcInner<S>>, phase: watch::Receiver<ShutdownPhase>) -> GrpcConnection<S> {
        GrpcConnection { shared, long_responses: LongResponses::new(), streams: StreamRegistry::new(), phase }
    }

    /// Completes when the client has not read an answer for too long.
    pub(super) async fn wait_until_overdue(&self) {
        tokio::select! {
            () = self.long_responses.wait_until_overdue() => {}
            () = self.streams.wait_until_overdue() => {}
        }
    }

    /// Answers a call. The headers are dropped before the message is awaited, because the future is moved several times
    /// and should be small.
    pub(super) fn handle(self: &Arc<Self>, request: Request<Incoming>) -> GrpcReply {
        if !is_grpc(&request) {
            let mut response = Response::new(GrpcBody::Empty);
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Box::pin(ready(Ok(response)));
        }
        if let Err(status) = self.admit(&request) {
            return Box::pin(ready(Ok(status.into_http())));
        }
        let calls = Arc::clone(self);
        match GrpcMethod::of(request.uri().path()) {
            GrpcMethod::Envoy => respond(request, async move |body| calls.answer_envoy(body).await),
            GrpcMethod::Unary(verb) => respond(request, async move |body| calls.answer_one(verb, body).await),
            GrpcMethod::Batch => respond(request, async move |body| calls.answer_batch(body).await),
            GrpcMethod::Stream => respond(request, async move |body| calls.open_stream(body)),
            GrpcMethod::Standard => Box::pin(async move {
                let answer = calls.shared.standard.handle(request, calls.shutdown_signal()).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            }),
        }
    }

    /// Rejects calls without the required token, and calls with compressed messages.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), Status> {
        let (headers, path) = (request.headers(), request.uri().path());
        if let Some(token) = &self.shared.options.token
            && !token.admits(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))
            && !standard::is_health(path)
        {
            return Err(Status::unauthenticated(
                "this server requires a token: send the metadata authorization: Bearer TOKEN",
            ));
        }
        if headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity") {
            Ok(())
        } else {
            Err(uncompressed_only())
        }
    }

    async fn answer_envoy(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let body = MessageBody::read(body, MAX_CALL_BYTES, &self.shared.body_permits).await?;
        let answer = envoy::should_rate_limit(&self.shared, body.message()).await?;
        Ok(GrpcBody::Message(answer.into(), None))
    }

    async fn answer_one(&self, verb: Verb, body: Incoming) -> Result<GrpcBody, Status> {
        let body = MessageBody::read(body, MAX_CHECK_BYTES, &self.shared.body_permits).await?;
        Ok(GrpcBody::Message(self.check_one(verb, body.message()).await?.into(), None))
    }

    async fn answer_batch(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let body = MessageBody::read(body, self.shared.options.max_body, &self.shared.body_permits).await?;
        let permit = if body.message().len() > SHORT_BATCH_BYTES {
            Some(self.long_responses.acquire().await)
        } else {
            None
        };
        let answer = self.check_batch(body.message()).await?;
        Ok(GrpcBody::Message(answer.into(), permit.map(|permit| (permit, body.permit))))
    }

    fn open_stream(&self, body: Incoming) -> Result<GrpcBody, Status> {
        let guard = self.streams.open().ok_or_else(too_many_streams)?;
        let stream = CheckStream::new(Arc::clone(&self.shared), body, self.shutdown_signal(), guard);
        Ok(GrpcBody::Stream(Box::pin(stream)))
    }

    async fn check_one(&self, verb: Verb, message: &[u8]) -> Result<Vec<u8>, Status> {
        let shared = &*self.shared;
        let mut batch = shared.limiter.begin();
        check::with_request(message, |request| shared.limiter.add(&mut batch, verb, request))?;
        shared.limiter.decide(&mut batch).await;
        let decision = batch.decision(0);
        let mut answer = Vec::with_capacity(TYPICAL_ANSWER_BYTES);
        frame::append(&mut answer, |out| check::write_answer(&decision, out));
        if verb == Verb::Check && !decision.is_allowed() {
            // It can't fail: the same message was read above.
            let _ = check::with_request(message, |request| self.log_denial(request, &decision));
        }
        Ok(answer)
    }

    async fn check_batch(&self, message: &[u8]) -> Result<Vec<u8>, Status> {
        let shared = &*self.shared;
        let mut batch = shared.limiter.begin();
        self.add_checks(message, &mut batch)?;
        if !batch.is_empty() {
            shared.limiter.decide(&mut batch).await;
        }
        let mut answer = Vec::with_capacity(batch.len() * TYPICAL_ANSWER_BYTES);
        frame::append(&mut answer, |out| {
            batch
                .decisions()
                .for_each(|decision| put_message(out, 1, |out| check::write_answer(&decision, out)));
        });
        if batch.decisions().any(|decision| !decision.is_allowed()) {
            let mut decisions = batch.decisions();
            let log = |request: &CheckRequest<'_>| {
                if let Some(decision) = decisions.next().filter(|decision| !decision.is_allowed()) {
                    self.log_denial(request, &decision);
                }
            };
            // It can't fail: the same message was read above.
            let _ = check::read_batch(message, shared.options.max_batch, log);
        }
        Ok(answer)
    }

    /// Adds the checks of a message to `batch`. If one of them is invalid, none is decided.
    fn add_checks(&self, message: &[u8], batch: &mut CheckBatch) -> Result<usize, Status> {
        let (limiter, max_checks) = (&self.shared.limiter, self.shared.options.max_batch);
        // The emergency limit takes units as soon as a check is added, and does not return them: read all checks first.
        if limiter.emergency().limit().is_some() {
            check::read_batch(message, max_checks, |_| {})?;
        }
        let add = |request: &CheckRequest<'_>| limiter.add(batch, Verb::Check, request);
        Ok(check::read_batch(message, max_checks, add)?)
    }

    #[cold]
    fn log_denial(&self, request: &CheckRequest<'_>, decision: &RuleDecision<'_>) {
        self.shared.denials.record(self.shared.limiter.clock(), request, decision);
    }

    fn shutdown_signal(&self) -> ShutdownSignal {
        ShutdownSignal::new(self.phase.clone())
    }
}

/// The response to a call, once it is ready.
pub(super) type GrpcReply = Pin<Box<dyn Future<Output = Result<Response<GrpcBody>, Infallible>> + Send>>;

/// Answers a request with the body that `answer` makes of its body.
fn respond<A>(request: Request<Incoming>, answer: impl FnOnce(Incoming) -> A) -> GrpcReply
where
    A: Future<Output = Result<GrpcBody, Status>> + Send + 'static,
{
    let answer = answer(request.into_body());
    Box::pin(async move {
        Ok(answer.await.map_or_else(Status::into_http, |body| {
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }))
    })
}

const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request is a gRPC call with protobuf messages.
fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    request.method() == Method::POST && matches!(kind, b"application/grpc" | b"application/grpc+proto")
}

fn uncompressed_only() -> Status {
    let mut status = Status::unimplemented(
        "compressed messages are not supported: leave grpc-encoding out, or send identity",
    );
    status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static("identity"));
    status
}

fn too_many_streams() -> Status {
    Status::resource_exhausted("too many streams on this connection: use fewer, or open another connection")
}
