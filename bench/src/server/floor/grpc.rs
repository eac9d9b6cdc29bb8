//! gRPC without decisions: tonic's codec on hyper, without a router.
//!
//! It answers Envoy's calls with one fixed status, and each check on a stream with a fixed response as long as
//! Ratekeeper's.

use crate::server::proto::{
    CheckResponse, CheckStreamRequest, CheckStreamResponse, CurrentLimit, DescriptorStatus, RateLimitRequest,
    RateLimitResponse, Span,
};
use crate::server::subject::grpc::{CHECK_STREAM, SHOULD_RATE_LIMIT};
use anyhow::Result;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use tokio::net::TcpStream;
use tokio_stream::StreamExt;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

pub(super) async fn serve(stream: TcpStream) -> Result<()> {
    let service = service_fn(|request: hyper::Request<Incoming>| async {
        let reply = match request.uri().path() {
            SHOULD_RATE_LIMIT => Grpc::new(ProstCodec::default()).unary(Floor, request).await,
            CHECK_STREAM => Grpc::new(ProstCodec::default()).streaming(Floor, request).await,
            _ => Status::unimplemented("not answered here").into_http(),
        };
        Ok::<_, Infallible>(reply)
    });
    let http = http2::Builder::new(TokioExecutor::new());
    Ok(http.serve_connection(TokioIo::new(stream), service).await?)
}

struct Floor;

impl UnaryService<RateLimitRequest> for Floor {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        black_box(request.into_inner());
        let ok = 1;
        let status = DescriptorStatus {
            code: ok,
            current_limit: Some(CurrentLimit { requests_per_unit: 1_000_000, unit: 1 }),
            limit_remaining: 999_999,
            duration_until_reset: Some(Span { seconds: 1, nanos: 0 }),
        };
        ready(Ok(Response::new(RateLimitResponse { overall_code: ok, statuses: vec![status] })))
    }
}

/// A stream with one response per check.
type Answers = tokio_stream::adapters::Map<Streaming<CheckStreamRequest>, Answering>;
type Answering = fn(Result<CheckStreamRequest, Status>) -> Result<CheckStreamResponse, Status>;

impl StreamingService<CheckStreamRequest> for Floor {
    type Response = CheckStreamResponse;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<CheckStreamRequest>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner().map(answer as Answering))))
    }
}

fn answer(check: Result<CheckStreamRequest, Status>) -> Result<CheckStreamResponse, Status> {
    let CheckStreamRequest { id, check } = check?;
    black_box(check);
    let result = CheckResponse {
        allowed: true,
        remaining: Some(999_999),
        reset_at: Some(1_700_000_000),
        limit: Some(1_000_000),
        window: Some(1),
        rule: "per-key".to_owned(),
        reason: 1,
    };
    Ok(CheckStreamResponse { id, result: Some(result) })
}
