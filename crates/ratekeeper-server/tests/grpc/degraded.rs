//! gRPC responses while the store is down.

use crate::generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::generated::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::generated::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::generated::ratekeeper::v1::rate_limiter_client::RateLimiterClient;
use crate::generated::ratekeeper::v1::{CheckRequest, CheckResponse, Reason};
use crate::timed_out_store::{self, RULES};
use ratekeeper_server::{BoundSocket, ServerSetup, serve};
use std::future::pending;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

async fn start() -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (http, grpc) = (None, Some(BoundSocket { listener, tls: None }));
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = ServerSetup { http, grpc, ..ServerSetup::http(unused) };
    tokio::spawn(serve(timed_out_store::degraded_limiter(RULES), setup, mpsc::channel(1).1, pending()));
    Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn ratekeepers_own_service_reports_the_reason() {
    let mut client = RateLimiterClient::new(start().await);
    let mut check = async |endpoint: &str| {
        let request = CheckRequest {
            client_key: "alice".to_owned(),
            endpoint: endpoint.to_owned(),
            ..CheckRequest::default()
        };
        client.check(request).await.unwrap().into_inner()
    };
    let degraded = |rule: &str| CheckResponse {
        rule: rule.to_owned(),
        reason: Reason::Degraded.into(),
        ..CheckResponse::default()
    };
    assert_eq!(check("/").await, CheckResponse { allowed: true, ..degraded("default") });
    let closed = CheckResponse { remaining: Some(0), retry_after: Some(1), ..degraded("login") };
    assert_eq!(check("/login").await, closed);
    let local = CheckResponse {
        allowed: true,
        remaining: Some(0),
        reset_at: Some(1_700_000_060),
        limit: Some(1),
        window: Some(60),
        ..degraded("orders")
    };
    assert_eq!(check("/orders").await, local);
    assert_eq!(check("/orders").await, CheckResponse { allowed: false, retry_after: Some(60), ..local });
}

#[tokio::test]
async fn envoys_service_returns_a_code_and_headers() {
    let mut client = RateLimitServiceClient::new(start().await);
    let mut ask = async |path: &str| {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let entries = vec![entry("api_key", "alice"), entry("path", path)];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 };
        client.should_rate_limit(request).await.unwrap().into_inner()
    };
    let header = |response: &RateLimitResponse, name: &str| {
        let found = response.response_headers_to_add.iter().find(|header| header.key == name);
        found.map(|header| header.value.clone())
    };
    let open = ask("/").await;
    assert_eq!((open.overall_code(), open.statuses[0].code()), (Code::Ok, Code::Ok));
    assert_eq!(header(&open, "x-ratelimit-remaining").as_deref(), Some("-1"));
    let closed = ask("/login").await;
    assert_eq!(closed.overall_code(), Code::OverLimit);
    assert_eq!(header(&closed, "retry-after").as_deref(), Some("1"));
    assert!(closed.raw_body.starts_with(br#"{"error":{"code":"LIMIT_UNAVAILABLE","#));
    let local = ask("/orders").await;
    assert_eq!((local.overall_code(), local.statuses[0].limit_remaining), (Code::Ok, 0));
    assert_eq!(local.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit), Some(1));
    let denied = ask("/orders").await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert!(denied.raw_body.starts_with(br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","#));
    for response in [open, closed, local, denied] {
        assert_eq!(header(&response, "x-ratelimit-policy").as_deref(), Some("degraded"));
    }
}
