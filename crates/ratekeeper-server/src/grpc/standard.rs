//! Tonic's standard services: health and reflection.

use super::response_body::{GrpcBody, error_trailers};
use crate::conn::ShutdownSignal;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Request, Response};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::Service;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// The maximum size of a message: it holds the name of a service or of a message type.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// The descriptors of our services and of Envoy's, for reflection.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
/// The services with a health status; the empty name is the server as a whole.
const SERVICES: [&str; 3] = ["", "ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"];

type TonicAnswer = Pin<Box<dyn Future<Output = Response<tonic::body::Body>> + Send>>;
type TonicServe = Box<dyn Fn(Request<Incoming>) -> TonicAnswer + Send + Sync>;

/// The health and reflection services.
pub(super) struct StandardServices {
    reporter: HealthReporter,
    health: TonicServe,
    reflection_v1: TonicServe,
    reflection_v1alpha: TonicServe,
}

impl StandardServices {
    pub(super) fn new() -> StandardServices {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure();
            let builder = builder.register_encoded_file_descriptor_set(DESCRIPTORS);
            builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let valid = "the descriptors are generated, and so valid";
        StandardServices {
            reporter,
            health: boxed(health.max_decoding_message_size(MAX_MESSAGE_BYTES)),
            reflection_v1: boxed(
                reflection().build_v1().expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES),
            ),
            reflection_v1alpha: boxed(
                reflection().build_v1alpha().expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES),
            ),
        }
    }

    /// Sets the health status of all services.
    pub(super) async fn set_serving(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// Answers a request for one of these services.
    ///
    /// # Errors
    /// If the request is for another service.
    pub(super) async fn handle(
        &self,
        request: Request<Incoming>,
        shutdown: ShutdownSignal,
    ) -> Result<Response<GrpcBody>, Status> {
        let path = request.uri().path();
        let (service, _) = path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
        let serve = match service {
            "grpc.health.v1.Health" => &self.health,
            "grpc.reflection.v1.ServerReflection" => &self.reflection_v1,
            "grpc.reflection.v1alpha.ServerReflection" => &self.reflection_v1alpha,
            _ => return Err(unknown_method(path)),
        };
        Ok(serve(request)
            .await
            .map(|body| GrpcBody::Stream(Box::pin(StoppableBody { body: Some(body), shutdown }))))
    }
}

/// Whether a path is of the health service, which load balancers call without a token.
pub(super) fn is_health(path: &str) -> bool {
    path.starts_with("/grpc.health.v1.Health/")
}

fn unknown_method(path: &str) -> Status {
    let shown: String = path.chars().take(128).collect();
    Status::unimplemented(format!(
        "there is no method {shown}: there are ratekeeper.v1.RateLimiter, envoy.service.ratelimit.v3.RateLimitService, \
         grpc.health.v1.Health and grpc.reflection.v1.ServerReflection"
    ))
}

/// Boxes a tonic service.
fn boxed<T>(service: T) -> TonicServe
where
    T: Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = std::convert::Infallible>,
    T: Clone + Send + Sync + 'static,
    T::Future: Send + 'static,
{
    Box::new(move |request| {
        // Tonic's services are always ready, so `poll_ready` is not needed.
        let answer = service.clone().call(request);
        Box::pin(async move { answer.await.unwrap_or_else(|never| match never {}) })
    })
}

/// A tonic body that ends when the server stops. A health watch, for example, never ends by itself.
struct StoppableBody {
    body: Option<tonic::body::Body>,
    shutdown: ShutdownSignal,
}

impl Body for StoppableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let is_stopped = self.shutdown.poll_closed(cx).is_ready();
        if !is_stopped && !self.shutdown.is_draining() {
            return Poll::Pending;
        }
        self.body = None;
        let status = Status::unavailable("the server is stopping");
        Poll::Ready(Some(Ok(Frame::trailers(error_trailers(&status)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }
}
