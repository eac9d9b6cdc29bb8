//! Ratekeeper's own service: its methods, their responses, and the requests they reject.

use crate::generated::ratekeeper::v1::{CheckBatchRequest, CheckRequest, CheckResponse, Reason};
use crate::server::{GrpcTestServer, START_SECONDS, check};
use ratekeeper_server::{ApiOptions, ServerSetup};
use std::collections::HashMap;
use tonic::{Code, Status};

/// The response for the only limit, `limit` per hour.
fn expected(
    allowed: bool,
    remaining: u32,
    reset_at: u64,
    retry_after: Option<u64>,
    limit: u32,
) -> CheckResponse {
    CheckResponse {
        allowed,
        remaining: Some(remaining),
        reset_at: Some(reset_at),
        retry_after,
        limit: Some(limit),
        window: Some(3600),
        rule: "default".to_owned(),
        reason: Reason::Limit.into(),
    }
}

#[tokio::test]
async fn check_peek_refund_and_reset() {
    let server = GrpcTestServer::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let third = |thirds: u64| START_SECONDS + 1200 * thirds;
    let response = client.check(check("alice")).await.unwrap().into_inner();
    assert_eq!(response, expected(true, 2, third(1), None, 3));
    let two = CheckRequest { cost: Some(2), ..check("alice") };
    assert_eq!(client.peek(two.clone()).await.unwrap().into_inner(), expected(true, 2, third(1), None, 3));
    assert_eq!(client.check(two.clone()).await.unwrap().into_inner(), expected(true, 0, third(3), None, 3));
    assert_eq!(
        client.check(check("alice")).await.unwrap().into_inner(),
        expected(false, 0, third(3), Some(1200), 3)
    );
    assert_eq!(client.refund(two).await.unwrap().into_inner(), expected(true, 2, third(1), None, 3));
    assert_eq!(
        client.reset(check("alice")).await.unwrap().into_inner(),
        expected(true, 3, third(0), None, 3)
    );
    let never = CheckRequest { cost: Some(4), ..check("alice") };
    assert_eq!(client.check(never).await.unwrap().into_inner(), expected(false, 3, third(0), None, 3));
    let free = CheckRequest { cost: Some(0), ..check("alice") };
    assert_eq!(client.check(free).await.unwrap().into_inner(), expected(true, 3, third(0), None, 3));
    server.advance(60);
    let response = client.check(check("alice")).await.unwrap().into_inner();
    assert_eq!(response, expected(true, 2, third(1) + 60, None, 3));
}

#[tokio::test]
async fn every_field_reaches_the_rules() {
    let rules = "
rules:
  - {id: all, match: {endpoint: /orders, method: POST, tier: gold, ip: [192.0.2.0/24], attributes: {tenant: acme}}, key: ip, limit: 1/h}
tiers: {gold: 1000/h}
deny: mallory
allow: root
";
    let server = GrpcTestServer::start(rules).await;
    let mut client = server.client().await;
    let full = CheckRequest {
        client_key: "alice".to_owned(),
        endpoint: "/orders?page=2".to_owned(),
        method: "POST".to_owned(),
        tier: "gold".to_owned(),
        ip: "192.0.2.7".to_owned(),
        attributes: HashMap::from([("tenant".to_owned(), "acme".to_owned())]),
        cost: None,
    };
    let mut ask = async |request: CheckRequest| {
        let response = client.check(request).await.unwrap().into_inner();
        (response.allowed, response.reason(), response.rule)
    };
    let matched = |allowed| (allowed, Reason::Limit, "all".to_owned());
    assert_eq!(ask(full.clone()).await, matched(true));
    assert_eq!(ask(CheckRequest { client_key: String::new(), ..full.clone() }).await, matched(false));
    let other = || "/other".to_owned();
    for request in [
        CheckRequest { endpoint: other(), ..full.clone() },
        CheckRequest { method: other(), ..full.clone() },
        CheckRequest { tier: other(), ..full.clone() },
        CheckRequest { ip: "198.51.100.7".to_owned(), ..full.clone() },
        CheckRequest { attributes: HashMap::new(), ..full.clone() },
    ] {
        let (allowed, _, rule) = ask(request.clone()).await;
        assert!(allowed && rule != "all", "{rule} matches {request:?}");
    }
    assert_eq!(ask(check("mallory")).await, (false, Reason::DenyList, String::new()));
    assert_eq!(ask(check("root")).await, (true, Reason::AllowList, String::new()));
}

#[tokio::test]
async fn a_batch_is_decided_in_order() {
    let server = GrpcTestServer::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let checks = ["a", "b", "a", "a", "a"].map(check).to_vec();
    let results = client.check_batch(CheckBatchRequest { checks }).await.unwrap().into_inner().results;
    let results: Vec<_> = results.into_iter().map(|result| (result.allowed, result.remaining)).collect();
    assert_eq!(
        results,
        [(true, Some(2)), (true, Some(2)), (true, Some(1)), (true, Some(0)), (false, Some(0))]
    );
    assert_eq!(client.check_batch(CheckBatchRequest::default()).await.unwrap().into_inner().results, []);
}

#[tokio::test]
async fn a_batch_with_an_invalid_check_takes_nothing() {
    for emergency in [false, true] {
        let api = ApiOptions { max_batch: 3, ..ApiOptions::default() };
        let server =
            GrpcTestServer::start_with("default: {limit: 3/h}", |setup| ServerSetup { api, ..setup }).await;
        if emergency {
            let limit =
                ratekeeper::Limit::new(ratekeeper::Algorithm::TokenBucket, "3/h".parse().unwrap()).unwrap();
            server.limiter.emergency().switch_on(limit);
        }
        let mut client = server.client().await;
        let mut assert_rejected = async |checks: &[&str], message: &str| {
            let checks = checks.iter().map(|key| check(key)).collect();
            let status = client.check_batch(CheckBatchRequest { checks }).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
        };
        assert_rejected(
            &["a", "a", ""],
            "check 2: the check has no client: send client_key, ip or attributes",
        )
        .await;
        assert_rejected(&["a"; 4], "there are more than 3 checks: send several batches").await;
        let response = server.client().await.check(check("a")).await.unwrap().into_inner();
        assert_eq!(
            (response.allowed, response.remaining, response.rule.as_str()),
            (true, Some(2), "default")
        );
        let three = CheckBatchRequest { checks: vec![check("a"); 3] };
        let results = server.client().await.check_batch(three).await.unwrap().into_inner().results;
        assert_eq!(
            results.iter().filter(|result| result.allowed).count(),
            2,
            "the emergency limit was charged once"
        );
    }
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_a_remedy() {
    let server = GrpcTestServer::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let text = |length: usize| "é".repeat(length);
    let with = |attributes: Vec<(String, String)>| CheckRequest {
        attributes: attributes.into_iter().collect(),
        ..check("a")
    };
    let cases = [
        (CheckRequest::default(), "the check has no client: send client_key, ip or attributes"),
        (check(&"k".repeat(4097)), "client_key has 4097 bytes: send at most 4096"),
        (
            CheckRequest { endpoint: text(8193), ..check("a") },
            "endpoint has 8193 characters: send at most 8192",
        ),
        (CheckRequest { method: text(129), ..check("a") }, "method has 129 characters: send at most 128"),
        (CheckRequest { tier: text(129), ..check("a") }, "tier has 129 characters: send at most 128"),
        (
            CheckRequest { ip: "192.0.2".to_owned(), ..check("a") },
            "ip is \"192.0.2\": send an address, like 192.0.2.7 or 2001:db8::1",
        ),
        (with(vec![(text(129), String::new())]), "an attribute's name has 129 characters: send at most 128"),
        (with(vec![("a".to_owned(), text(4097))]), "an attribute has 4097 characters: send at most 4096"),
        (
            with(vec![(String::new(), "a".to_owned())]),
            "an attribute has no name: send one of 1 to 128 characters",
        ),
        (
            with((0..33).map(|number| (number.to_string(), String::new())).collect()),
            "there are more than 32 attributes: send those that rules use",
        ),
    ];
    for (request, message) in cases {
        let status = client.check(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    let longest = CheckRequest {
        endpoint: text(8192),
        method: text(128),
        tier: text(128),
        ip: "2001:db8::1".to_owned(),
        attributes: (10..42).map(|number| (number.to_string(), text(600))).collect(),
        cost: Some(0),
        client_key: "k".repeat(4096),
    };
    assert!(client.check(longest).await.unwrap().into_inner().allowed);
}

#[tokio::test]
async fn requests_without_the_token_are_rejected() {
    let server = GrpcTestServer::start_with_token("0123456789abcdef").await;
    let mut client = server.client().await;
    let mut ask = async |header: Option<&str>| {
        let mut request = tonic::Request::new(check("alice"));
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        client.check(request).await.map(|response| response.into_inner().remaining.unwrap())
    };
    for header in [None, Some("Bearer wrong"), Some("0123456789abcdef"), Some("Bearer 0123456789abcdef0")] {
        let status: Status = ask(header).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().ends_with("authorization: Bearer TOKEN"), "{status}");
    }
    assert_eq!(ask(Some("Bearer 0123456789abcdef")).await.unwrap(), 4, "rejected calls take nothing");
}
