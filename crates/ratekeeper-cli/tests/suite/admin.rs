//! The admin listener of the real binary: health, metrics, the emergency limit, and authorization.

use crate::support::{Http2, Server};
use serde_json::{Value, json};
use std::fs;

const ALICE: &str = r#"{"client_key":"alice"}"#;

#[test]
fn health_needs_no_token() {
    let server = Server::start(&[]);
    let mut client = server.connect_admin();
    for path in ["/livez", "/healthz"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"), "{path}");
    }
    let ready = client.get("/readyz");
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (200, r#"{"ready":true,"draining":false,"rules":"in force"}"#)
    );
    let version = client.get("/version").json();
    assert_eq!(version, json!({"name": "ratekeeper", "version": env!("CARGO_PKG_VERSION")}));
    // HTTP/2 gives the same answer.
    let mut http2 = Http2::connect(&server.admin_address);
    assert_eq!(http2.request("GET", "/readyz", &[], "").body, ready.body);
}

#[test]
fn metrics_and_control_routes_need_the_token() {
    let server = Server::start(&[]);
    let mut client = server.connect_admin();
    let calls = [
        ("GET", "/metrics", 200),
        ("GET", "/v1/emergency", 200),
        ("PUT", "/v1/emergency", 200),
        ("DELETE", "/v1/emergency", 200),
        ("POST", "/v1/reload", 202),
    ];
    let right = format!("Bearer {}", server.token);
    let wrong = format!("Bearer {}x", server.token);
    let short = right[..right.len() - 1].to_owned();
    let basic = right.replace("Bearer", "Basic");
    let body = r#"{"limit":"1000/s"}"#;
    for (method, path, status) in calls {
        let answer = client.request(method, path, &[], body);
        assert_eq!(answer.status, 401, "{method} {path}");
        assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        assert_eq!(
            answer.body,
            r#"{"error":{"code":"UNAUTHORIZED","message":"missing or invalid token: send the header Authorization: Bearer TOKEN"}}"#
        );
        for authorization in [&wrong, &short, &basic, &server.token, "Bearer", "Bearer "] {
            let answer = client.request(method, path, &[("Authorization", authorization)], body);
            assert_eq!(answer.status, 401, "{method} {path} {authorization}");
        }
        let answer = client.request(method, path, &[("Authorization", &right)], body);
        assert_eq!(answer.status, status, "{method} {path}");
    }
    for (method, path, allow) in [
        ("POST", "/metrics", "GET, HEAD"),
        ("POST", "/v1/store", "GET, HEAD"),
        ("POST", "/v1/emergency", "GET, PUT, DELETE"),
        ("GET", "/v1/explain", "POST"),
        ("GET", "/v1/reload", "POST"),
        ("PUT", "/readyz", "GET, HEAD"),
    ] {
        let answer = server.admin(method, path, "");
        assert_eq!((answer.status, answer.field("allow")), (405, Some(allow)), "{method} {path}");
    }
    let store = server.admin("GET", "/v1/store", "").json();
    assert_eq!(store, json!({"store": "memory", "degraded": false}));
    let unknown = server.admin("GET", "/metricz", "");
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.body.contains(
            "use /livez, /readyz, /version, /metrics, /v1/emergency, /v1/store, /v1/explain or /v1/reload"
        ),
        "{unknown:?}"
    );
    assert_eq!(server.admin("POST", "/check", ALICE).status, 404, "the admin listener serves no checks");
}

#[test]
fn a_configured_token_is_used_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, "  my-own-token-0123456789\n").unwrap();
    let server = Server::start_in(folder, &["--admin-token-file", path.to_str().unwrap()]);
    assert_eq!(server.token, "");
    assert!(!server.banner.contains("my-own") && !server.log().contains("my-own"), "{}", server.banner);
    assert!(server.banner.contains("curl -H 'Authorization: Bearer TOKEN'"), "{}", server.banner);
    let bearer = [("Authorization", "Bearer my-own-token-0123456789")];
    assert_eq!(server.connect_admin().request("GET", "/metrics", &bearer, "").status, 200);
    let folder = tempfile::tempdir().unwrap();
    let server = Server::launch(
        folder,
        crate::support::serve(&[]).env("RATEKEEPER_ADMIN_TOKEN", "my-own-token-0123456789"),
    );
    assert_eq!(server.connect_admin().request("GET", "/metrics", &bearer, "").status, 200);
    fs::write(server.folder().join("token"), "short").unwrap();
    let message =
        crate::support::failure(&["--admin-token-file", server.folder().join("token").to_str().unwrap()]);
    assert!(
        message.starts_with("error: the token has 5 characters, which can be guessed: use at least 16"),
        "{message}"
    );
}

const RULES: &str = "
rules:
  - {id: orders, match: {path: /orders}, limit: 3/day}
  - {id: tried-out, shadow: true, key: ip, limit: 1/day}
  - {id: log, match: {path: /log}, key: [api_key, path], limit: 5/day, algorithm: sliding_window_log}
default: {limit: 10/day}
tiers: {pro: {limit: 20/day}}
whitelist: [friend]
blacklist: [foe]
";

#[test]
fn metrics_count_decisions() {
    let server = Server::with(RULES, &["--max-keys", "100000"]);
    let before = server.metrics();
    assert!(before.all_decisions().is_empty());
    let mut client = server.connect();
    let mut post_all = |path: &str, bodies: &[&str]| {
        for body in bodies {
            assert_eq!(client.post(path, body).status, 200, "{body}");
        }
    };
    let order = r#"{"client_key":"alice","endpoint":"/orders"}"#;
    post_all("/check", &[order; 5]);
    post_all("/v1/check", &[r#"{"client_key":"bob","ip":"10.0.0.1"}"#; 4]);
    post_all(
        "/v1/check/batch",
        &[r#"{"checks":[{"client_key":"friend"},{"client_key":"foe"},{"client_key":"carol","tier":"pro"}]}"#],
    );
    post_all("/v1/check", &[r#"{"client_key":"dave","endpoint":"/log"}"#, r#"{"attributes":{"x":"y"}}"#]);
    // These make no decision.
    post_all("/v1/peek", &[order]);
    post_all("/v1/refund", &[r#"{"client_key":"bob","cost":1}"#]);
    assert_eq!(client.check("{}").status, 400);
    assert_eq!(client.get("/nowhere").status, 404);
    let metrics = server.metrics();
    let expected = [
        ("(allow_list)", "allowed", 1.0),
        ("(deny_list)", "denied", 1.0),
        ("default", "allowed", 5.0),
        ("log", "allowed", 1.0),
        ("orders", "allowed", 3.0),
        ("orders", "denied", 2.0),
        ("tier:pro", "allowed", 1.0),
        ("tried-out", "shadow_denied", 3.0),
    ];
    for (rule, outcome, count) in expected {
        assert_eq!(metrics.decisions(rule, outcome), count, "{rule} {outcome}");
    }
    assert_eq!(metrics.all_decisions().len(), expected.len(), "{:?}", metrics.all_decisions());
    assert_eq!(metrics.kinds["ratekeeper_decision_duration_seconds"], "histogram");
    assert!(metrics.value("ratekeeper_decision_duration_seconds_count") >= 1.0);
    assert_eq!(
        metrics.value(&format!("ratekeeper_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))),
        1.0
    );
    // Keys: alice, bob, carol and dave, one address, and one for requests with neither key nor address.
    assert_eq!((metrics.value("ratekeeper_keys"), metrics.value("ratekeeper_log_entries")), (6.0, 1.0));
    assert!((90_000.0..=100_000.0).contains(&metrics.value("ratekeeper_keys_max")));
    assert_eq!(metrics.value("ratekeeper_connections{listener=\"http\"}"), 1.0);
    assert!(metrics.value("ratekeeper_connections{listener=\"admin\"}") >= 1.0);
    for (name, value) in [
        ("ratekeeper_rules_loads_total", 1.0),
        ("ratekeeper_rules_load_failures_total", 0.0),
        ("ratekeeper_rules_last_load_successful", 1.0),
        ("ratekeeper_emergency_limit_on", 0.0),
        ("ratekeeper_denials_unlogged_total", 0.0),
        ("ratekeeper_evictions_total{cause=\"forgotten\"}", 0.0),
        ("ratekeeper_evictions_total{cause=\"moved\"}", 0.0),
        ("ratekeeper_evictions_total{cause=\"limit_dropped\"}", 0.0),
        ("ratekeeper_sketch_decisions_total", 0.0),
        ("ratekeeper_uncounted_checks_total", 0.0),
        ("ratekeeper_limits_dropped_total", 0.0),
    ] {
        assert!(metrics.has(name) && metrics.value(name) == value, "{name} is {}", metrics.value(name));
    }
    let started = metrics.value("ratekeeper_start_time_seconds");
    assert!(
        started > 1.7e9
            && started <= metrics.value("ratekeeper_rules_last_load_success_timestamp_seconds") + 1.0
    );
}

#[test]
fn metrics_contain_no_client_data() {
    let server = Server::with_rules(RULES);
    let checks: Vec<_> = (0..2000)
        .map(|n| json!({"client_key": format!("sk_secret_{n}"), "endpoint": format!("/orders/{n}"), "tier": format!("t{n}"),
                        "ip": format!("10.0.{}.{}", n / 256, n % 256), "attributes": {"tenant": format!("acme{n}")}}))
        .collect();
    let answer = server.post("/v1/check/batch", json!({"checks": checks}).to_string());
    assert_eq!(answer.status, 200);
    let answer = server.admin("GET", "/metrics", "");
    assert_eq!(answer.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for secret in ["sk_secret", "/orders", "acme", "10.0.", "t1999"] {
        assert!(!answer.body.contains(secret), "{secret} is in\n{}", answer.body);
    }
    assert!(answer.body.lines().count() < 150, "{}", answer.body);
}

/// Checks a client at an address, and returns whether it is allowed and the reason.
fn check_at(server: &Server, key: &str, ip: Option<&str>) -> (bool, String) {
    let answer = server.decide(json!({"client_key": key, "ip": ip}).to_string()).json();
    (answer["allowed"].as_bool().unwrap(), answer["reason"].as_str().unwrap().to_owned())
}

fn is_limited(answer: &Value) -> bool {
    answer["on"].as_bool().unwrap()
}

#[test]
fn the_emergency_limit_applies_to_each_address_before_lists_and_rules() {
    let server = Server::with_rules(RULES);
    let denied_by_emergency = (false, "emergency".to_owned());
    assert_eq!(server.admin("GET", "/v1/emergency", "").body, r#"{"on":false,"limit":null}"#);
    let on = server.admin("PUT", "/v1/emergency", r#"{"limit":"2/day"}"#);
    assert_eq!((on.status, on.body.as_str()), (200, r#"{"on":true,"limit":"2/day"}"#));
    // Two per address for every client, even one on the allow list.
    assert_eq!(check_at(&server, "friend", Some("192.0.2.1")), (true, "allow_list".to_owned()));
    assert_eq!(check_at(&server, "alice", Some("192.0.2.1")), (true, "limit".to_owned()));
    assert_eq!(check_at(&server, "friend", Some("192.0.2.1")), denied_by_emergency);
    assert_eq!(check_at(&server, "friend", Some("::ffff:192.0.2.1")), denied_by_emergency);
    assert_eq!(check_at(&server, "friend", Some("192.0.2.2")), (true, "allow_list".to_owned()));
    // Without an address, the key is counted.
    assert_eq!(check_at(&server, "friend", None), (true, "allow_list".to_owned()));
    assert_eq!(check_at(&server, "friend", None), (true, "allow_list".to_owned()));
    assert_eq!(check_at(&server, "friend", None), denied_by_emergency);
    assert_eq!(check_at(&server, "bob", None), (true, "limit".to_owned()));
    // A denied check takes nothing from the rules, and a peek is not denied.
    let left = server.post("/v1/peek", r#"{"client_key":"alice","ip":"192.0.2.1"}"#);
    assert_eq!((left.is_allowed(), left.number("remaining")), (true, 9));

    let body = r#"{"client_key":"friend","ip":"192.0.2.1"}"#;
    let denied = server.post("/v1/check?deny_status=429", body);
    assert_eq!(
        (denied.status, denied.field("retry-after"), denied.field("ratelimit")),
        (429, Some("43200"), Some("\"emergency\";r=0;t=43200"))
    );
    let problem = server.connect().request(
        "POST",
        "/check?deny_status=429",
        &[("Accept", "application/problem+json")],
        body,
    );
    assert_eq!(problem.status, 429);
    assert_eq!(
        problem.json()["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );

    let metrics = server.metrics();
    assert_eq!(
        (metrics.decisions("(emergency)", "denied"), metrics.value("ratekeeper_emergency_limit_on")),
        (5.0, 1.0)
    );
    assert!(
        server.connect_admin().get("/readyz").body.contains(r#""ready":true"#),
        "an emergency limit does not affect readiness"
    );
    assert!(server.admin("GET", "/readyz", "").body.contains(r#""emergency_limit":"2/day""#));
    assert_eq!(server.admin("DELETE", "/v1/emergency", "").body, r#"{"on":false,"limit":null}"#);
    assert_eq!(check_at(&server, "friend", Some("192.0.2.1")), (true, "allow_list".to_owned()));
    assert_eq!(server.metrics().value("ratekeeper_emergency_limit_on"), 0.0);
    server.await_log("emergency limit enabled for every client address");
    server.await_log("emergency limit disabled");
}

#[test]
fn the_emergency_limit_can_be_set_at_start() {
    let server = Server::with(RULES, &["--emergency-limit", "1/day"]);
    assert!(is_limited(&server.admin("GET", "/v1/emergency", "").json()));
    assert_eq!(check_at(&server, "friend", Some("192.0.2.1")), (true, "allow_list".to_owned()));
    assert_eq!(check_at(&server, "friend", Some("192.0.2.1")), (false, "emergency".to_owned()));
    // Raising the limit keeps its counters.
    server.admin("PUT", "/v1/emergency", r#"{"limit":"100/day"}"#);
    assert_eq!(server.metrics().decisions("(emergency)", "denied"), 1.0);
    assert!(is_limited(&server.admin("GET", "/v1/emergency", "").json()));
}

#[test]
fn an_invalid_emergency_limit_changes_nothing() {
    let server = Server::with_rules(RULES);
    for (body, message) in [
        ("", "invalid emergency limit: EOF"),
        ("{}", "missing field `limit`"),
        (r#"{"limit":"0/s"}"#, "an amount of 0 would deny everything"),
        (r#"{"limit":"fast"}"#, "send {\\\"limit\\\":\\\"10/s\\\"}, which applies to each address"),
        (r#"{"limit":"1/s","for":"1h"}"#, "unknown field `for`"),
        (r#"{"limit":5}"#, "invalid type"),
    ] {
        let answer = server.admin("PUT", "/v1/emergency", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.body.contains(message), "{body}: {}", answer.body);
    }
    let long = format!(r#"{{"limit":"{}"}}"#, "1".repeat(5000));
    assert_eq!(server.admin("PUT", "/v1/emergency", &long).status, 413);
    assert!(!is_limited(&server.admin("GET", "/v1/emergency", "").json()));
    let message = crate::support::failure(&["--emergency-limit", "0/s"]);
    assert!(message.contains("(from --emergency-limit)"), "{message}");
}

#[test]
fn a_batch_is_charged_to_the_emergency_limit_once_and_only_if_it_is_valid() {
    let server = Server::with_rules(RULES);
    server.admin("PUT", "/v1/emergency", r#"{"limit":"4/day"}"#);
    let alice = json!({"client_key": "alice"});
    let bad = json!({"checks": [alice, alice, alice, {"client_key": 5}]}).to_string();
    assert_eq!(server.post("/v1/check/batch", bad).status, 400);
    // The last check does not take the parser's fast path.
    let good = json!({"checks": [alice, alice, alice, {"client_key": "bob", "method": "GET"}]}).to_string();
    let results = server.post("/v1/check/batch", good).json()["results"].clone();
    assert!(results.as_array().unwrap().iter().all(|result| result["allowed"] == true), "{results}");
    assert!(check_at(&server, "alice", None).0);
    assert_eq!(check_at(&server, "alice", None), (false, "emergency".to_owned()));
}
