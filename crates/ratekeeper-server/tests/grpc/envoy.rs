//! Envoy's rate limit service.

use crate::generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::generated::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::generated::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::generated::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::generated::envoy::r#type::v3::RateLimitUnit;
use crate::server::Server;
use ratekeeper::{Algorithm, Limit};
use ratekeeper_server::{ApiOptions, FieldProfile, ServerSetup};
use serde_json::json;
use tonic::transport::Channel;

/// A descriptor of names and values: `descriptor("path=/a, plan=free")`.
fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap();
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    RateLimitDescriptor {
        entries: entries.split(", ").map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

fn costing(hits: u64, entries: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn giving_back(hits: u64, entries: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..costing(hits, entries) }
}

fn stating(requests_per_unit: u32, unit: RateLimitUnit, entries: &str) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    RateLimitDescriptor { limit, ..descriptor(entries) }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

async fn ask(
    client: &mut RateLimitServiceClient<Channel>,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    client.should_rate_limit(request(descriptors)).await.unwrap().into_inner()
}

/// The overall code, and the code and what is left of each descriptor.
fn brief(said: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = said.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (said.overall_code(), statuses.collect())
}

fn header<'a>(said: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    said.response_headers_to_add.iter().find(|header| header.key == name).map(|header| &*header.value)
}

const RULES: &str = "
rules:
  - {id: plans, match: {attributes: {plan: free}}, key: user, limit: 3/h}
  - {id: paths, match: {path: '/slow/**'}, key: path, algorithm: fixed_window, limit: 2/min}
  - {id: tried, match: {attributes: {trial: '*'}}, key: trial, shadow: true, limit: 1/h}
  - {id: addresses, match: {ip: [192.0.2.0/24]}, key: ip, limit: 5/day}
deny: mallory
allow: root
";

#[tokio::test]
async fn a_descriptor_is_told_all_of_its_limit() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let said = ask(&mut client, vec![descriptor("plan=free, user=alice"), descriptor("path=/slow/a")]).await;
    let limit = |requests_per_unit, unit: Unit, name: &str| {
        Some(RateLimit { requests_per_unit, unit: unit.into(), name: name.to_owned() })
    };
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let plans = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: limit(3, Unit::Hour, "plans"),
        limit_remaining: 2,
        duration_until_reset: seconds(1200),
    };
    let paths = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: limit(2, Unit::Minute, "paths"),
        limit_remaining: 1,
        duration_until_reset: seconds(60),
    };
    assert_eq!((said.overall_code(), &said.statuses), (Code::Ok, &vec![plans, paths]));
    assert!(said.raw_body.is_empty());
    // The one with the least left is what the client hears of.
    assert_eq!(header(&said, "x-ratelimit-limit"), Some("2"));
    assert_eq!(header(&said, "x-ratelimit-remaining"), Some("1"));
    assert_eq!(header(&said, "ratelimit"), Some("\"paths\";r=1;t=60"));
    assert_eq!(header(&said, "retry-after"), None);
}

#[tokio::test]
async fn a_refusal_says_when_to_come_back_in_headers_and_body() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let slow = || vec![descriptor("path=/slow/a")];
    assert_eq!(brief(&ask(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 1)]));
    assert_eq!(brief(&ask(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 0)]));
    server.forward(18);
    let said = ask(&mut client, slow()).await;
    assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::OverLimit, 0)]));
    assert_eq!(said.statuses[0].duration_until_reset.unwrap().seconds, 42);
    assert_eq!(header(&said, "retry-after"), Some("42"));
    assert_eq!(header(&said, "content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&said.raw_body).unwrap();
    assert_eq!(
        body,
        json!({"error": {
            "code": "RATE_LIMIT_EXCEEDED",
            "message": "Rate limit of 2 requests per 60 seconds exceeded",
            "details": {
                "limit": 2, "window_seconds": 60, "retry_after_seconds": 42, "reset_at": "2023-11-14T22:15:00Z"
            }
        }})
    );
    server.forward(42);
    assert_eq!(brief(&ask(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 1)]));
}

#[tokio::test]
async fn the_header_profile_is_that_of_the_api() {
    let fields = FieldProfile { legacy: None, ietf: false, draft_7: false, draft_6: false };
    let api = ApiOptions { fields, ..ApiOptions::default() };
    let server = Server::start_with(RULES, |setup| ServerSetup { api, ..setup }).await;
    let mut client = server.envoy().await;
    let said = ask(&mut client, vec![descriptor("plan=free, user=alice")]).await;
    assert_eq!(said.response_headers_to_add, []);
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let both = || vec![descriptor("plan=free, user=alice"), descriptor("path=/slow/a")];
    assert_eq!(brief(&ask(&mut client, both()).await).1, [(Code::Ok, 2), (Code::Ok, 1)]);
    assert_eq!(brief(&ask(&mut client, both()).await).1, [(Code::Ok, 1), (Code::Ok, 0)]);
    for _ in 0..3 {
        let said = ask(&mut client, both()).await;
        assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::Ok, 1), (Code::OverLimit, 0)]));
        assert_eq!(
            header(&said, "ratelimit"),
            Some("\"paths\";r=0;t=60"),
            "the client hears of what refuses it"
        );
    }
    let mut reversed = both();
    reversed.reverse();
    assert_eq!(brief(&ask(&mut client, reversed).await).1, [(Code::OverLimit, 0), (Code::Ok, 1)]);
    assert_eq!(brief(&ask(&mut client, vec![descriptor("plan=free, user=alice")]).await).1, [(Code::Ok, 0)]);
}

#[tokio::test]
async fn who_is_denied_outright_costs_the_others_nothing() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    for _ in 0..4 {
        let said =
            ask(&mut client, vec![descriptor("plan=free, user=alice"), descriptor("api_key=mallory")]).await;
        assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 0)]));
        assert_eq!(said.statuses[1].current_limit, None);
        assert!(said.raw_body.starts_with(br#"{"error":{"code":"CLIENT_DENIED","#));
        let said = ask(
            &mut client,
            vec![descriptor("plan=free, user=alice"), stating(0, RateLimitUnit::Second, "a=b")],
        )
        .await;
        assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 0)]));
        assert!(said.raw_body.starts_with(br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","#));
    }
    let said = ask(&mut client, vec![descriptor("api_key=root, plan=free, user=alice")]).await;
    assert_eq!(brief(&said), (Code::Ok, vec![(Code::Ok, 0)]));
    assert_eq!(said.statuses[0].current_limit, None, "no limit binds who is on the allow list");
}

#[tokio::test]
async fn a_call_with_more_limits_than_a_group_takes_nothing_if_it_is_refused() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let users: Vec<_> = (0..40).map(|user| descriptor(&format!("plan=free, user={user}"))).collect();
    let used_up = || costing(2, "path=/slow/last");
    assert_eq!(brief(&ask(&mut client, vec![used_up()]).await).0, Code::Ok);
    let all = || users.iter().cloned().chain([used_up()]).collect::<Vec<_>>();
    for _ in 0..3 {
        let (overall, statuses) = brief(&ask(&mut client, all()).await);
        assert_eq!((overall, statuses[40]), (Code::OverLimit, (Code::OverLimit, 0)));
    }
    let (overall, statuses) = brief(&ask(&mut client, users.clone()).await);
    assert_eq!((overall, statuses), (Code::Ok, vec![(Code::Ok, 2); 40]));
}

#[tokio::test]
async fn in_an_emergency_a_call_counts_once_by_its_address() {
    let server = Server::start(RULES).await;
    server.gate.emergency().switch_on(Limit::new(Algorithm::TokenBucket, "2/h".parse().unwrap()).unwrap());
    let mut client = server.envoy().await;
    let of = |address: &str| {
        vec![descriptor("plan=free, user=alice"), descriptor(&format!("remote_address={address}"))]
    };
    assert_eq!(brief(&ask(&mut client, of("192.0.2.1")).await).1, [(Code::Ok, 2), (Code::Ok, 4)]);
    assert_eq!(brief(&ask(&mut client, of("192.0.2.1")).await).1, [(Code::Ok, 1), (Code::Ok, 3)]);
    let said = ask(&mut client, of("192.0.2.1")).await;
    assert_eq!(brief(&said).1, [(Code::OverLimit, 0), (Code::OverLimit, 0)]);
    assert_eq!(said.statuses[0].current_limit.as_ref().unwrap().name, "emergency");
    assert_eq!(brief(&ask(&mut client, of("192.0.2.2")).await).1, [(Code::Ok, 0), (Code::Ok, 4)]);
}

#[tokio::test]
async fn hits_are_counted_at_both_levels() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let address = || descriptor("remote_address=192.0.2.7");
    let mut call = request(vec![address()]);
    call.hits_addend = 2;
    let said = client.should_rate_limit(call.clone()).await.unwrap().into_inner();
    assert_eq!(brief(&said).1, [(Code::Ok, 3)]);
    call.descriptors = vec![costing(1, "remote_address=192.0.2.7")];
    let said = client.should_rate_limit(call.clone()).await.unwrap().into_inner();
    assert_eq!(brief(&said).1, [(Code::Ok, 2)], "that of the descriptor counts");
    // Looking takes nothing, and says whether anything is left.
    for _ in 0..3 {
        let looked = vec![costing(0, "remote_address=192.0.2.7")];
        assert_eq!(brief(&ask(&mut client, looked).await).1, [(Code::Ok, 2)]);
    }
    assert_eq!(
        brief(&ask(&mut client, vec![costing(2, "remote_address=192.0.2.7")]).await).1,
        [(Code::Ok, 0)]
    );
    let said = ask(&mut client, vec![costing(0, "remote_address=192.0.2.7")]).await;
    assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::OverLimit, 0)]));
    // What is over when it is looked at stops the others too.
    let said =
        ask(&mut client, vec![descriptor("plan=free, user=bob"), costing(0, "remote_address=192.0.2.7")])
            .await;
    assert_eq!(brief(&said).1, [(Code::Ok, 3), (Code::OverLimit, 0)]);
    // What is given back comes back, though another is refused.
    let said =
        ask(&mut client, vec![giving_back(3, "remote_address=192.0.2.7"), costing(9, "path=/slow/b")]).await;
    assert_eq!(brief(&said), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 2)]));
    assert_eq!(header(&said, "retry-after"), None, "so many never fit");
    assert_eq!(brief(&ask(&mut client, vec![address()]).await).1, [(Code::Ok, 2)]);
}

#[tokio::test]
async fn a_limit_that_comes_with_a_descriptor_is_a_window_on_the_wall_clock() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let stated = || vec![stating(2, RateLimitUnit::Minute, "plan=free, user=alice")];
    server.forward(45);
    let said = ask(&mut client, stated()).await;
    assert_eq!(brief(&said).1, [(Code::Ok, 1)]);
    let limit = RateLimit { requests_per_unit: 2, unit: Unit::Minute.into(), name: "stated".to_owned() };
    assert_eq!(said.statuses[0].current_limit, Some(limit));
    assert_eq!(said.statuses[0].duration_until_reset.unwrap().seconds, 15);
    ask(&mut client, stated()).await;
    assert_eq!(brief(&ask(&mut client, stated()).await).0, Code::OverLimit);
    server.forward(15);
    assert_eq!(brief(&ask(&mut client, stated()).await).1, [(Code::Ok, 1)]);
    // The rule has counts of its own, which nobody has touched.
    let said = ask(&mut client, vec![descriptor("plan=free, user=alice")]).await;
    assert_eq!(brief(&said).1, [(Code::Ok, 2)]);
}

#[tokio::test]
async fn what_no_rule_binds_and_what_only_a_shadow_binds_is_allowed() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    for _ in 0..5 {
        let said = ask(&mut client, vec![descriptor("nobody=knows"), descriptor("trial=x")]).await;
        assert_eq!(brief(&said), (Code::Ok, vec![(Code::Ok, 0), (Code::Ok, 0)]));
        assert!(said.statuses.iter().all(|status| status.current_limit.is_none()), "{said:?}");
    }
    let outcomes = server.gate.outcomes();
    let (_, tried) = outcomes.rules.iter().find(|(id, _)| id == "tried").unwrap();
    assert_eq!((tried.denied, tried.shadow_denied), (0, 4));
}

#[tokio::test]
async fn names_that_everybody_knows_meet_ordinary_rules() {
    let server = Server::start(
        "default: {limit: 1000/h}
rules:
  - {id: by-path, match: {path: /orders, method: POST, tier: gold}, key: [api_key, ip], limit: 9/h}
tiers: {gold: 1000/h}",
    )
    .await;
    let mut client = server.envoy().await;
    for entries in [
        "api_key=alice, remote_address=192.0.2.1, path=/orders, method=POST, tier=gold",
        "client_key=alice, ip=192.0.2.1:443, endpoint=/orders/, :method=POST, tier=gold",
        "tier=gold, :method=POST, :path=/orders?page=2, masked_remote_address=192.0.2.1/32, api_key=alice, api_key=bob",
    ] {
        let said = ask(&mut client, vec![descriptor(entries)]).await;
        assert_eq!(said.statuses[0].current_limit.as_ref().unwrap().name, "by-path", "{entries}");
    }
    let last = "api_key=alice, remote_address=192.0.2.1, path=/orders, method=POST, tier=gold";
    assert_eq!(
        brief(&ask(&mut client, vec![descriptor(last)]).await).1,
        [(Code::Ok, 5)],
        "all are the same client"
    );
    let said = ask(&mut client, vec![descriptor("api_key=carol")]).await;
    assert_eq!(said.statuses[0].current_limit.as_ref().unwrap().name, "default");
}

#[tokio::test]
async fn rules_bind_by_domain_and_descriptor_and_count_by_the_whole_of_it() {
    let rules = "
rules:
  - {id: partners, match: {domain: edge, descriptor: [{generic_key: slow}, {remote_address: 10.0.0.1}]}, limit: unlimited}
  - {id: slow, match: {domain: edge, descriptor: [{generic_key: slow}, remote_address]}, limit: 2/min}
  - {id: tenants, match: {domain: edge, descriptor: [tenant]}, key: tenant, limits: [5/s, 8/min]}
";
    let server = Server::start(rules).await;
    let mut client = server.envoy().await;
    let slow = |address: &str| vec![descriptor(&format!("generic_key=slow, remote_address={address}"))];
    assert_eq!(brief(&ask(&mut client, slow("10.0.0.2")).await).1, [(Code::Ok, 1)]);
    assert_eq!(brief(&ask(&mut client, slow("10.0.0.2")).await).1, [(Code::Ok, 0)]);
    assert_eq!(brief(&ask(&mut client, slow("10.0.0.2")).await).1, [(Code::OverLimit, 0)]);
    assert_eq!(brief(&ask(&mut client, slow("10.0.0.3")).await).1, [(Code::Ok, 1)]);
    for _ in 0..3 {
        let said = ask(&mut client, slow("10.0.0.1")).await;
        assert_eq!((said.overall_code(), &said.statuses[0].current_limit), (Code::Ok, &None));
    }
    // Another order, another domain, an entry more: none of them is the descriptor that the rule asks for.
    let turned = vec![descriptor("remote_address=10.0.0.2, generic_key=slow")];
    let longer = vec![descriptor("generic_key=slow, remote_address=10.0.0.2, a=b")];
    let elsewhere = RateLimitRequest { domain: "other".to_owned(), ..request(slow("10.0.0.2")) };
    for call in [request(turned), request(longer), elsewhere] {
        let said = client.should_rate_limit(call).await.unwrap().into_inner();
        assert_eq!(said.statuses[0].current_limit, None, "{said:?}");
    }
    // Of two limits, the one that binds is told.
    let said = ask(&mut client, vec![costing(4, "tenant=acme")]).await;
    assert_eq!(said.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Second);
    server.forward(1);
    let said = ask(&mut client, vec![costing(4, "tenant=acme")]).await;
    assert_eq!(said.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Minute);
    assert_eq!(header(&said, "ratelimit-policy"), Some("\"tenants\";q=5;w=1, \"tenants-2\";q=8;w=60"));
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_and_no_code() {
    let server = Server::start(RULES).await;
    let mut client = server.envoy().await;
    let cases = [
        (
            RateLimitRequest { domain: String::new(), ..request(vec![descriptor("a=b")]) },
            "there is no domain: ",
        ),
        (request(vec![]), "there are no descriptors: send at least one"),
        (
            request(vec![descriptor("a=b"), RateLimitDescriptor::default()]),
            "descriptor 1: it has no entries: send at least one",
        ),
        (request(vec![descriptor("=b")]), "descriptor 0: an entry has no name: send one"),
        (
            request(vec![descriptor(&format!("{}=b", "a".repeat(257)))]),
            "descriptor 0: the name of an entry has 257 bytes: send at most 256",
        ),
        (
            request(vec![descriptor(&format!("a={}", "b".repeat(65_536)))]),
            "descriptor 0: an entry has 65536 bytes: send at most 65535",
        ),
        (
            RateLimitRequest { domain: "d".repeat(257), ..request(vec![descriptor("a=b")]) },
            "the domain has 257 bytes: send at most 256",
        ),
        (
            request(vec![RateLimitDescriptor {
                entries: vec![descriptor("a=b").entries[0].clone(); 33],
                ..descriptor("a=b")
            }]),
            "descriptor 0: it has more than 32 entries: send fewer",
        ),
        (request(vec![descriptor("a=b"); 65]), "there are more than 64 descriptors: send fewer"),
        (request(vec![descriptor("a=b"); 10_000]), "there are more than 64 descriptors: send fewer"),
        (
            request(vec![costing(1 << 32, "a=b")]),
            "descriptor 0: hits_addend is above 4294967295: send a whole number up to that",
        ),
        (
            request(vec![stating(5, RateLimitUnit::Unknown, "a=b")]),
            "descriptor 0: the limit has no unit: send SECOND, ",
        ),
    ];
    for (call, expected) in cases {
        let status = client.should_rate_limit(call).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{status} is not {expected:?}");
    }
    let widest = RateLimitDescriptor {
        entries: (0..32).map(|name| Entry { key: name.to_string(), value: "v".repeat(400) }).collect(),
        ..RateLimitDescriptor::default()
    };
    assert_eq!(brief(&ask(&mut client, vec![widest; 64]).await).0, Code::Ok);
    let longest = descriptor(&format!("path=/slow/{}", "b".repeat(65_535 - 6)));
    assert_eq!(brief(&ask(&mut client, vec![longest; 2]).await).1, [(Code::Ok, 1), (Code::Ok, 0)]);
}
