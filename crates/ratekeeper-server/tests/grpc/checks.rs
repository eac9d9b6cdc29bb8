//! Our own service: the verbs, what they answer, and what they refuse to read.

use crate::generated::ratekeeper::v1::{CheckBatchRequest, CheckRequest, CheckResponse, Reason};
use crate::server::{BEGINNING, Server, check};
use ratekeeper_server::{ApiOptions, ServerSetup};
use std::collections::HashMap;
use tonic::{Code, Status};

/// An answer of the only limit there is, of so many an hour.
fn answer(
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
async fn a_check_takes_a_peek_looks_a_refund_gives_back_and_a_reset_forgets() {
    let server = Server::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let third = |thirds: u64| BEGINNING + 1200 * thirds;
    let said = client.check(check("alice")).await.unwrap().into_inner();
    assert_eq!(said, answer(true, 2, third(1), None, 3));
    let two = CheckRequest { cost: Some(2), ..check("alice") };
    assert_eq!(client.peek(two.clone()).await.unwrap().into_inner(), answer(true, 2, third(1), None, 3));
    assert_eq!(client.check(two.clone()).await.unwrap().into_inner(), answer(true, 0, third(3), None, 3));
    assert_eq!(
        client.check(check("alice")).await.unwrap().into_inner(),
        answer(false, 0, third(3), Some(1200), 3)
    );
    assert_eq!(client.refund(two).await.unwrap().into_inner(), answer(true, 2, third(1), None, 3));
    assert_eq!(client.reset(check("alice")).await.unwrap().into_inner(), answer(true, 3, third(0), None, 3));
    let never = CheckRequest { cost: Some(4), ..check("alice") };
    assert_eq!(client.check(never).await.unwrap().into_inner(), answer(false, 3, third(0), None, 3));
    let free = CheckRequest { cost: Some(0), ..check("alice") };
    assert_eq!(client.check(free).await.unwrap().into_inner(), answer(true, 3, third(0), None, 3));
    server.forward(60);
    let said = client.check(check("alice")).await.unwrap().into_inner();
    assert_eq!(said, answer(true, 2, third(1) + 60, None, 3));
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
    let server = Server::start(rules).await;
    let mut client = server.client().await;
    let whole = CheckRequest {
        client_key: "alice".to_owned(),
        endpoint: "/orders?page=2".to_owned(),
        method: "POST".to_owned(),
        tier: "gold".to_owned(),
        ip: "192.0.2.7".to_owned(),
        attributes: HashMap::from([("tenant".to_owned(), "acme".to_owned())]),
        cost: None,
    };
    let mut ask = async |request: CheckRequest| {
        let said = client.check(request).await.unwrap().into_inner();
        (said.allowed, said.reason(), said.rule)
    };
    let bound = |allowed| (allowed, Reason::Limit, "all".to_owned());
    assert_eq!(ask(whole.clone()).await, bound(true));
    assert_eq!(ask(CheckRequest { client_key: String::new(), ..whole.clone() }).await, bound(false));
    let other = || "/other".to_owned();
    for request in [
        CheckRequest { endpoint: other(), ..whole.clone() },
        CheckRequest { method: other(), ..whole.clone() },
        CheckRequest { tier: other(), ..whole.clone() },
        CheckRequest { ip: "198.51.100.7".to_owned(), ..whole.clone() },
        CheckRequest { attributes: HashMap::new(), ..whole.clone() },
    ] {
        let (allowed, _, rule) = ask(request.clone()).await;
        assert!(allowed && rule != "all", "{rule} binds {request:?}");
    }
    assert_eq!(ask(check("mallory")).await, (false, Reason::DenyList, String::new()));
    assert_eq!(ask(check("root")).await, (true, Reason::AllowList, String::new()));
}

#[tokio::test]
async fn a_batch_is_decided_in_order() {
    let server = Server::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let checks = ["a", "b", "a", "a", "a"].map(check).to_vec();
    let said = client.check_batch(CheckBatchRequest { checks }).await.unwrap().into_inner().results;
    let said: Vec<_> = said.into_iter().map(|said| (said.allowed, said.remaining)).collect();
    assert_eq!(said, [(true, Some(2)), (true, Some(2)), (true, Some(1)), (true, Some(0)), (false, Some(0))]);
    assert_eq!(client.check_batch(CheckBatchRequest::default()).await.unwrap().into_inner().results, []);
}

#[tokio::test]
async fn a_batch_with_a_flaw_takes_nothing() {
    for emergency in [false, true] {
        let api = ApiOptions { max_batch: 3, ..ApiOptions::default() };
        let server = Server::start_with("default: {limit: 3/h}", |setup| ServerSetup { api, ..setup }).await;
        if emergency {
            let limit =
                ratekeeper::Limit::new(ratekeeper::Algorithm::TokenBucket, "3/h".parse().unwrap()).unwrap();
            server.gate.emergency().switch_on(limit);
        }
        let mut client = server.client().await;
        let mut refused = async |checks: &[&str], said: &str| {
            let checks = checks.iter().map(|key| check(key)).collect();
            let status = client.check_batch(CheckBatchRequest { checks }).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, said));
        };
        refused(&["a", "a", ""], "check 2: it does not say who asks: give client_key, or ip, or attributes")
            .await;
        refused(&["a"; 4], "there are more than 3 checks: send several batches").await;
        let said = server.client().await.check(check("a")).await.unwrap().into_inner();
        assert_eq!((said.allowed, said.remaining, said.rule.as_str()), (true, Some(2), "default"));
        let three = CheckBatchRequest { checks: vec![check("a"); 3] };
        let said = server.client().await.check_batch(three).await.unwrap().into_inner().results;
        assert_eq!(said.iter().filter(|said| said.allowed).count(), 2, "the emergency limit took once");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_what_to_write() {
    let server = Server::start("default: {limit: 3/h}").await;
    let mut client = server.client().await;
    let text = |length: usize| "é".repeat(length);
    let with = |attributes: Vec<(String, String)>| CheckRequest {
        attributes: attributes.into_iter().collect(),
        ..check("a")
    };
    let cases = [
        (CheckRequest::default(), "it does not say who asks: give client_key, or ip, or attributes"),
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
    for (request, said) in cases {
        let status = client.check(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, said));
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
async fn who_has_no_token_is_turned_away() {
    let server = Server::start_asking_for("0123456789abcdef").await;
    let mut client = server.client().await;
    let mut ask = async |header: Option<&str>| {
        let mut request = tonic::Request::new(check("alice"));
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        client.check(request).await.map(|said| said.into_inner().remaining.unwrap())
    };
    for header in [None, Some("Bearer wrong"), Some("0123456789abcdef"), Some("Bearer 0123456789abcdef0")] {
        let status: Status = ask(header).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().ends_with("authorization: Bearer TOKEN"), "{status}");
    }
    assert_eq!(
        ask(Some("Bearer 0123456789abcdef")).await.unwrap(),
        4,
        "and nothing was taken for the others"
    );
}
