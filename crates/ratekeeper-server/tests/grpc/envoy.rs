//! Envoy's rate limit service (RLS).

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
use crate::server::GrpcTestServer;
use ratekeeper::{Algorithm, Limit};
use ratekeeper_server::{ApiOptions, RateLimitHeaders, ServerSetup};
use serde_json::json;
use tonic::transport::Channel;

/// Parses a descriptor from its entries: `descriptor("path=/a, plan=free")`.
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

fn with_hits(hits: u64, entries: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn with_negative_hits(hits: u64, entries: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..with_hits(hits, entries) }
}

fn with_inline_limit(requests_per_unit: u32, unit: RateLimitUnit, entries: &str) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    RateLimitDescriptor { limit, ..descriptor(entries) }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

async fn should_rate_limit(
    client: &mut RateLimitServiceClient<Channel>,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    client.should_rate_limit(request(descriptors)).await.unwrap().into_inner()
}

/// The overall code, and the code and remaining units of each descriptor.
fn codes(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = response.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (response.overall_code(), statuses.collect())
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    response.response_headers_to_add.iter().find(|header| header.key == name).map(|header| &*header.value)
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
async fn a_descriptor_status_reports_its_limit() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let response =
        should_rate_limit(&mut client, vec![descriptor("plan=free, user=alice"), descriptor("path=/slow/a")])
            .await;
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
    assert_eq!((response.overall_code(), &response.statuses), (Code::Ok, &vec![plans, paths]));
    assert!(response.raw_body.is_empty());
    // The headers describe the limit with the fewest remaining units.
    assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("1"));
    assert_eq!(header(&response, "ratelimit"), Some("\"paths\";r=1;t=60"));
    assert_eq!(header(&response, "retry-after"), None);
}

#[tokio::test]
async fn a_denial_has_the_retry_time_in_headers_and_body() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let slow = || vec![descriptor("path=/slow/a")];
    assert_eq!(codes(&should_rate_limit(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 1)]));
    assert_eq!(codes(&should_rate_limit(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 0)]));
    server.advance(18);
    let response = should_rate_limit(&mut client, slow()).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::OverLimit, 0)]));
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 42);
    assert_eq!(header(&response, "retry-after"), Some("42"));
    assert_eq!(header(&response, "content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&response.raw_body).unwrap();
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
    server.advance(42);
    assert_eq!(codes(&should_rate_limit(&mut client, slow()).await), (Code::Ok, vec![(Code::Ok, 1)]));
}

#[tokio::test]
async fn the_header_profile_is_that_of_the_api() {
    let fields = RateLimitHeaders { legacy: None, ietf: false, draft_7: false, draft_6: false };
    let api = ApiOptions { headers: fields, ..ApiOptions::default() };
    let server = GrpcTestServer::start_with(RULES, |setup| ServerSetup { api, ..setup }).await;
    let mut client = server.envoy_client().await;
    let response = should_rate_limit(&mut client, vec![descriptor("plan=free, user=alice")]).await;
    assert_eq!(response.response_headers_to_add, []);
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let both = || vec![descriptor("plan=free, user=alice"), descriptor("path=/slow/a")];
    assert_eq!(codes(&should_rate_limit(&mut client, both()).await).1, [(Code::Ok, 2), (Code::Ok, 1)]);
    assert_eq!(codes(&should_rate_limit(&mut client, both()).await).1, [(Code::Ok, 1), (Code::Ok, 0)]);
    for _ in 0..3 {
        let response = should_rate_limit(&mut client, both()).await;
        assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::Ok, 1), (Code::OverLimit, 0)]));
        assert_eq!(
            header(&response, "ratelimit"),
            Some("\"paths\";r=0;t=60"),
            "the headers describe the limit that denies"
        );
    }
    let mut reversed = both();
    reversed.reverse();
    assert_eq!(
        codes(&should_rate_limit(&mut client, reversed).await).1,
        [(Code::OverLimit, 0), (Code::Ok, 1)]
    );
    assert_eq!(
        codes(&should_rate_limit(&mut client, vec![descriptor("plan=free, user=alice")]).await).1,
        [(Code::Ok, 0)]
    );
}

#[tokio::test]
async fn a_descriptor_denied_outright_charges_no_other() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    for _ in 0..4 {
        let response = should_rate_limit(
            &mut client,
            vec![descriptor("plan=free, user=alice"), descriptor("api_key=mallory")],
        )
        .await;
        assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 0)]));
        assert_eq!(response.statuses[1].current_limit, None);
        assert!(response.raw_body.starts_with(br#"{"error":{"code":"CLIENT_DENIED","#));
        let response = should_rate_limit(
            &mut client,
            vec![descriptor("plan=free, user=alice"), with_inline_limit(0, RateLimitUnit::Second, "a=b")],
        )
        .await;
        assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 0)]));
        assert!(response.raw_body.starts_with(br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","#));
    }
    let response =
        should_rate_limit(&mut client, vec![descriptor("api_key=root, plan=free, user=alice")]).await;
    assert_eq!(codes(&response), (Code::Ok, vec![(Code::Ok, 0)]));
    assert_eq!(response.statuses[0].current_limit, None, "no limit applies to an allow-listed client");
}

#[tokio::test]
async fn a_call_with_more_limits_than_a_group_takes_nothing_if_denied() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let users: Vec<_> = (0..40).map(|user| descriptor(&format!("plan=free, user={user}"))).collect();
    let used_up = || with_hits(2, "path=/slow/last");
    assert_eq!(codes(&should_rate_limit(&mut client, vec![used_up()]).await).0, Code::Ok);
    let all = || users.iter().cloned().chain([used_up()]).collect::<Vec<_>>();
    for _ in 0..3 {
        let (overall, statuses) = codes(&should_rate_limit(&mut client, all()).await);
        assert_eq!((overall, statuses[40]), (Code::OverLimit, (Code::OverLimit, 0)));
    }
    let (overall, statuses) = codes(&should_rate_limit(&mut client, users.clone()).await);
    assert_eq!((overall, statuses), (Code::Ok, vec![(Code::Ok, 2); 40]));
}

#[tokio::test]
async fn in_an_emergency_a_call_counts_once_by_its_address() {
    let server = GrpcTestServer::start(RULES).await;
    server.limiter.emergency().switch_on(Limit::new(Algorithm::TokenBucket, "2/h".parse().unwrap()).unwrap());
    let mut client = server.envoy_client().await;
    let of = |address: &str| {
        vec![descriptor("plan=free, user=alice"), descriptor(&format!("remote_address={address}"))]
    };
    assert_eq!(
        codes(&should_rate_limit(&mut client, of("192.0.2.1")).await).1,
        [(Code::Ok, 2), (Code::Ok, 4)]
    );
    assert_eq!(
        codes(&should_rate_limit(&mut client, of("192.0.2.1")).await).1,
        [(Code::Ok, 1), (Code::Ok, 3)]
    );
    let response = should_rate_limit(&mut client, of("192.0.2.1")).await;
    assert_eq!(codes(&response).1, [(Code::OverLimit, 0), (Code::OverLimit, 0)]);
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "emergency");
    assert_eq!(
        codes(&should_rate_limit(&mut client, of("192.0.2.2")).await).1,
        [(Code::Ok, 0), (Code::Ok, 4)]
    );
}

#[tokio::test]
async fn hits_are_counted_at_both_levels() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let address = || descriptor("remote_address=192.0.2.7");
    let mut call = request(vec![address()]);
    call.hits_addend = 2;
    let response = client.should_rate_limit(call.clone()).await.unwrap().into_inner();
    assert_eq!(codes(&response).1, [(Code::Ok, 3)]);
    call.descriptors = vec![with_hits(1, "remote_address=192.0.2.7")];
    let response = client.should_rate_limit(call.clone()).await.unwrap().into_inner();
    assert_eq!(codes(&response).1, [(Code::Ok, 2)], "the descriptor's hits_addend takes precedence");
    // Zero hits take nothing, and report whether units are left.
    for _ in 0..3 {
        let peek = vec![with_hits(0, "remote_address=192.0.2.7")];
        assert_eq!(codes(&should_rate_limit(&mut client, peek).await).1, [(Code::Ok, 2)]);
    }
    assert_eq!(
        codes(&should_rate_limit(&mut client, vec![with_hits(2, "remote_address=192.0.2.7")]).await).1,
        [(Code::Ok, 0)]
    );
    let response = should_rate_limit(&mut client, vec![with_hits(0, "remote_address=192.0.2.7")]).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::OverLimit, 0)]));
    // A descriptor with zero hits that is over its limit denies the others too.
    let response = should_rate_limit(
        &mut client,
        vec![descriptor("plan=free, user=bob"), with_hits(0, "remote_address=192.0.2.7")],
    )
    .await;
    assert_eq!(codes(&response).1, [(Code::Ok, 3), (Code::OverLimit, 0)]);
    // Negative hits are refunded even if another descriptor is denied.
    let response = should_rate_limit(
        &mut client,
        vec![with_negative_hits(3, "remote_address=192.0.2.7"), with_hits(9, "path=/slow/b")],
    )
    .await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![(Code::Ok, 3), (Code::OverLimit, 2)]));
    assert_eq!(header(&response, "retry-after"), None, "nine hits never fit");
    assert_eq!(codes(&should_rate_limit(&mut client, vec![address()]).await).1, [(Code::Ok, 2)]);
}

#[tokio::test]
async fn an_inline_limit_is_a_wall_clock_window() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    let inline = || vec![with_inline_limit(2, RateLimitUnit::Minute, "plan=free, user=alice")];
    server.advance(45);
    let response = should_rate_limit(&mut client, inline()).await;
    assert_eq!(codes(&response).1, [(Code::Ok, 1)]);
    let limit = RateLimit { requests_per_unit: 2, unit: Unit::Minute.into(), name: "stated".to_owned() };
    assert_eq!(response.statuses[0].current_limit, Some(limit));
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 15);
    should_rate_limit(&mut client, inline()).await;
    assert_eq!(codes(&should_rate_limit(&mut client, inline()).await).0, Code::OverLimit);
    server.advance(15);
    assert_eq!(codes(&should_rate_limit(&mut client, inline()).await).1, [(Code::Ok, 1)]);
    // The rule's own count is unaffected.
    let response = should_rate_limit(&mut client, vec![descriptor("plan=free, user=alice")]).await;
    assert_eq!(codes(&response).1, [(Code::Ok, 2)]);
}

#[tokio::test]
async fn unmatched_and_shadow_only_descriptors_are_allowed() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
    for _ in 0..5 {
        let response =
            should_rate_limit(&mut client, vec![descriptor("unknown=value"), descriptor("trial=x")]).await;
        assert_eq!(codes(&response), (Code::Ok, vec![(Code::Ok, 0), (Code::Ok, 0)]));
        assert!(response.statuses.iter().all(|status| status.current_limit.is_none()), "{response:?}");
    }
    let outcomes = server.limiter.decision_counts();
    let (_, tried) = outcomes.rules.iter().find(|(id, _)| id == "tried").unwrap();
    assert_eq!((tried.denied, tried.shadow_denied), (0, 4));
}

#[tokio::test]
async fn well_known_entry_names_match_ordinary_rules() {
    let server = GrpcTestServer::start(
        "default: {limit: 1000/h}
rules:
  - {id: by-path, match: {path: /orders, method: POST, tier: gold}, key: [api_key, ip], limit: 9/h}
tiers: {gold: 1000/h}",
    )
    .await;
    let mut client = server.envoy_client().await;
    for entries in [
        "api_key=alice, remote_address=192.0.2.1, path=/orders, method=POST, tier=gold",
        "client_key=alice, ip=192.0.2.1:443, endpoint=/orders/, :method=POST, tier=gold",
        "tier=gold, :method=POST, :path=/orders?page=2, masked_remote_address=192.0.2.1/32, api_key=alice, api_key=bob",
    ] {
        let response = should_rate_limit(&mut client, vec![descriptor(entries)]).await;
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "by-path", "{entries}");
    }
    let last = "api_key=alice, remote_address=192.0.2.1, path=/orders, method=POST, tier=gold";
    assert_eq!(
        codes(&should_rate_limit(&mut client, vec![descriptor(last)]).await).1,
        [(Code::Ok, 5)],
        "all entries identify the same client"
    );
    let response = should_rate_limit(&mut client, vec![descriptor("api_key=carol")]).await;
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "default");
}

#[tokio::test]
async fn rules_match_by_domain_and_descriptor_and_count_by_all_entries() {
    let rules = "
rules:
  - {id: partners, match: {domain: edge, descriptor: [{generic_key: slow}, {remote_address: 10.0.0.1}]}, limit: unlimited}
  - {id: slow, match: {domain: edge, descriptor: [{generic_key: slow}, remote_address]}, limit: 2/min}
  - {id: tenants, match: {domain: edge, descriptor: [tenant]}, key: tenant, limits: [5/s, 8/min]}
";
    let server = GrpcTestServer::start(rules).await;
    let mut client = server.envoy_client().await;
    let slow = |address: &str| vec![descriptor(&format!("generic_key=slow, remote_address={address}"))];
    assert_eq!(codes(&should_rate_limit(&mut client, slow("10.0.0.2")).await).1, [(Code::Ok, 1)]);
    assert_eq!(codes(&should_rate_limit(&mut client, slow("10.0.0.2")).await).1, [(Code::Ok, 0)]);
    assert_eq!(codes(&should_rate_limit(&mut client, slow("10.0.0.2")).await).1, [(Code::OverLimit, 0)]);
    assert_eq!(codes(&should_rate_limit(&mut client, slow("10.0.0.3")).await).1, [(Code::Ok, 1)]);
    for _ in 0..3 {
        let response = should_rate_limit(&mut client, slow("10.0.0.1")).await;
        assert_eq!((response.overall_code(), &response.statuses[0].current_limit), (Code::Ok, &None));
    }
    // Another order, another domain, an extra entry: none matches the rule's descriptor.
    let reversed = vec![descriptor("remote_address=10.0.0.2, generic_key=slow")];
    let longer = vec![descriptor("generic_key=slow, remote_address=10.0.0.2, a=b")];
    let elsewhere = RateLimitRequest { domain: "other".to_owned(), ..request(slow("10.0.0.2")) };
    for call in [request(reversed), request(longer), elsewhere] {
        let response = client.should_rate_limit(call).await.unwrap().into_inner();
        assert_eq!(response.statuses[0].current_limit, None, "{response:?}");
    }
    // Of two limits, the binding one is reported.
    let response = should_rate_limit(&mut client, vec![with_hits(4, "tenant=acme")]).await;
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Second);
    server.advance(1);
    let response = should_rate_limit(&mut client, vec![with_hits(4, "tenant=acme")]).await;
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Minute);
    assert_eq!(header(&response, "ratelimit-policy"), Some("\"tenants\";q=5;w=1, \"tenants-2\";q=8;w=60"));
}

#[tokio::test]
async fn invalid_requests_are_grpc_errors() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.envoy_client().await;
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
            request(vec![with_hits(1 << 32, "a=b")]),
            "descriptor 0: hits_addend is above 4294967295: send a whole number up to that",
        ),
        (
            request(vec![with_inline_limit(5, RateLimitUnit::Unknown, "a=b")]),
            "descriptor 0: the limit has no unit: send SECOND, ",
        ),
    ];
    for (call, expected) in cases {
        let status = client.should_rate_limit(call).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{status} does not start with {expected:?}");
    }
    let widest = RateLimitDescriptor {
        entries: (0..32).map(|name| Entry { key: name.to_string(), value: "v".repeat(400) }).collect(),
        ..RateLimitDescriptor::default()
    };
    assert_eq!(codes(&should_rate_limit(&mut client, vec![widest; 64]).await).0, Code::Ok);
    let longest = descriptor(&format!("path=/slow/{}", "b".repeat(65_535 - 6)));
    assert_eq!(
        codes(&should_rate_limit(&mut client, vec![longest; 2]).await).1,
        [(Code::Ok, 1), (Code::Ok, 0)]
    );
}
