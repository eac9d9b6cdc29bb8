//! The HTTP API of the real binary: the answer of each path, batches, and authorization.

use crate::support::{Http2, Server};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// So slow that no unit is refilled during a test.
const TEN_A_DAY: &str = "default: {limit: 10/day}";

/// The answer without `reset_at`, which depends on the time of day.
fn without_times(mut answer: Value) -> Value {
    answer.as_object_mut().unwrap().remove("reset_at").unwrap();
    answer
}

#[test]
fn a_short_check_answers_with_four_fields_in_order() {
    let server = Server::with_rules(&format!("{TEN_A_DAY}\nwhitelist: [friend]\nblacklist: [foe]"));
    let shape = |body: &str| {
        let answer = server.check(body);
        let reset_at = answer.number("reset_at").to_string();
        answer.body.replace(&reset_at, "AT")
    };
    assert_eq!(shape(ALICE), r#"{"allowed":true,"remaining":9,"reset_at":AT,"retry_after":null}"#);
    let full = r#"{"client_key":"alice","endpoint":"/orders","cost":9}"#;
    assert_eq!(
        shape(full),
        r#"{"allowed":true,"remaining":AT,"reset_at":AT,"retry_after":null}"#.replacen("AT", "0", 1)
    );
    assert_eq!(server.check(ALICE).number("retry_after"), 8640, "a tenth of a day");
    assert_eq!(
        server.check(r#"{"client_key":"friend"}"#).body,
        r#"{"allowed":true,"remaining":4294967295,"reset_at":0,"retry_after":null}"#
    );
    assert_eq!(
        server.check(r#"{"client_key":"foe"}"#).body,
        r#"{"allowed":false,"remaining":0,"reset_at":0,"retry_after":null}"#
    );
}

#[test]
fn a_full_check_says_which_rule_and_why() {
    let server = Server::with_rules(&format!(
        "rules: [{{id: orders, match: {{path: /orders}}, limits: [20/day, 3/day]}}]\n{TEN_A_DAY}\nwhitelist: [friend]\nblacklist: [foe]"
    ));
    let decide = |body: &str| server.decide(body).json();
    let answer = decide(r#"{"client_key":"alice","endpoint":"/orders","cost":3}"#);
    assert_eq!(
        without_times(answer),
        json!({
            "allowed": true, "remaining": 0, "retry_after": null, "limit": 3, "window": 86400, "rule": "orders",
            "reason": "limit",
        })
    );
    let answer = decide(r#"{"client_key":"alice","endpoint":"/orders","cost":2}"#);
    assert_eq!(
        without_times(answer),
        json!({
            "allowed": false, "remaining": 0, "retry_after": 57600, "limit": 3, "window": 86400, "rule": "orders",
            "reason": "limit",
        })
    );
    let answer = decide(ALICE);
    assert_eq!((&answer["rule"], &answer["remaining"]), (&json!("default"), &json!(9)));
    let nothing = json!({
        "allowed": true, "remaining": null, "reset_at": null, "retry_after": null, "limit": null, "window": null,
        "rule": null, "reason": "allow_list",
    });
    assert_eq!(decide(r#"{"client_key":"friend"}"#), nothing);
    let mut denied = nothing;
    denied["allowed"] = json!(false);
    denied["remaining"] = json!(0);
    denied["reason"] = json!("deny_list");
    assert_eq!(decide(r#"{"client_key":"foe"}"#), denied);
    let keyless = decide(r#"{"ip":"10.0.0.1"}"#);
    assert_eq!(
        (&keyless["rule"], &keyless["remaining"]),
        (&json!("default"), &json!(9)),
        "counted by address"
    );
}

#[test]
fn peek_takes_nothing_refund_returns_units_and_reset_clears_the_key() {
    let server = Server::with_rules(TEN_A_DAY);
    let mut client = server.connect();
    let mut left = |path: &str, cost: u32| {
        let answer = client.post(path, format!(r#"{{"client_key":"alice","cost":{cost}}}"#));
        assert_eq!(answer.status, 200);
        (answer.is_allowed(), answer.number("remaining"))
    };
    assert_eq!(left("/v1/peek", 10), (true, 10));
    assert_eq!(left("/v1/peek", 11), (false, 10));
    assert_eq!(left("/v1/check", 8), (true, 2));
    assert_eq!(left("/v1/peek", 3), (false, 2));
    assert_eq!(left("/v1/check", 0), (true, 2));
    assert_eq!(left("/v1/refund", 3), (true, 5));
    assert_eq!(left("/v1/check", 5), (true, 0));
    assert_eq!(left("/v1/refund", 4_000_000_000), (true, 10), "a refund never exceeds the limit");
    assert_eq!(left("/v1/check", 10), (true, 0));
    assert_eq!(left("/v1/reset", 1), (true, 10));
    assert_eq!(left("/v1/peek", 1), (true, 10));
}

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    let server = Server::with_rules(
        "
rules:
  - {id: address, key: ip, limit: 2/day}
  - {id: all, key: global, limit: 7/day}
default: {limits: [5/day, 100/day]}
",
    );
    let mut client = server.connect();
    let mut send = |path: &str, ip: &str, cost: u32| {
        let answer =
            client.post(path, format!(r#"{{"client_key":"alice","ip":"{ip}","cost":{cost}}}"#)).json();
        (
            answer["allowed"].as_bool().unwrap(),
            answer["rule"].as_str().unwrap().to_owned(),
            answer["remaining"].as_u64(),
        )
    };
    assert_eq!(send("/v1/check", "10.0.0.1", 2), (true, "address".to_owned(), Some(0)));
    for _ in 0..3 {
        assert_eq!(send("/v1/check", "10.0.0.1", 1), (false, "address".to_owned(), Some(0)));
    }
    // Otherwise those three denied checks would have used up alice's other limits.
    assert_eq!(send("/v1/peek", "10.0.0.2", 3), (false, "address".to_owned(), Some(2)));
    assert_eq!(send("/v1/check", "10.0.0.2", 2), (true, "address".to_owned(), Some(0)));
    assert_eq!(send("/v1/peek", "10.0.0.3", 1), (true, "default".to_owned(), Some(1)));
    let metrics = server.metrics();
    assert_eq!((metrics.decisions("address", "allowed"), metrics.decisions("address", "denied")), (2.0, 3.0));
}

#[test]
fn the_checks_of_a_batch_are_answered_in_order() {
    let server = Server::with_rules("default: {limit: 3/day}\nblacklist: [foe]");
    let checks = json!({"checks": [
        {"client_key": "alice"},
        {"client_key": "bob", "cost": 3, "endpoint": "/x"},
        {"client_key": "alice", "cost": 3},
        {"client_key": "foe"},
        {"client_key": "alice", "method": "GET", "attributes": {"a": "\u{e9}\""}},
        {"ip": "::1"},
        {"client_key": "bob"},
    ]});
    let answer = server.post("/v1/check/batch", checks.to_string());
    assert_eq!(answer.status, 200);
    let results = answer.json()["results"].clone();
    let decisions: Vec<_> =
        results.as_array().unwrap().iter().map(|one| (&one["allowed"], &one["remaining"])).collect();
    let (yes, no) = (&json!(true), &json!(false));
    let numbers = [json!(2), json!(0), json!(1)];
    let [two, zero, one] = numbers.each_ref();
    assert_eq!(
        decisions,
        [(yes, two), (yes, zero), (no, two), (no, zero), (yes, one), (yes, two), (no, zero)]
    );
    assert_eq!(results[1], {
        let single = server.post("/v1/peek", r#"{"client_key":"bob","cost":0}"#).json();
        json!({"reset_at": results[1]["reset_at"], "allowed": true, "remaining": 0, "retry_after": null,
               "limit": single["limit"], "window": single["window"], "rule": "default", "reason": "limit"})
    });
    assert_eq!(server.post("/v1/check/batch", r#"{"checks":[]}"#).body, r#"{"results":[]}"#);
}

/// A batch of checks of one key.
fn batch(count: usize) -> String {
    let checks = vec![r#"{"client_key":"alice","endpoint":"/v1/orders","cost":1}"#; count];
    format!(r#"{{"checks":[{}]}}"#, checks.join(","))
}

#[test]
fn a_batch_has_at_most_ten_thousand_checks() {
    let server = Server::with_rules("default: {limit: 10_000/day}");
    let mut client = server.connect();
    let answer = client.post("/v1/check/batch", batch(10_001));
    assert_eq!(answer.status, 400);
    assert!(
        answer.body.contains("invalid length 10001, expected checks to be a list of at most 10000 checks"),
        "{answer:?}"
    );
    let answer = client.post("/v1/check/batch", batch(10_000)).json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 10_000);
    for (index, result) in results.iter().enumerate() {
        assert_eq!(
            (&result["allowed"], result["remaining"].as_u64()),
            (&json!(true), Some(9_999 - index as u64))
        );
    }
    assert!(!client.check(ALICE).is_allowed(), "only the valid batch was charged");
}

#[test]
fn an_invalid_batch_names_the_check_and_charges_nothing() {
    let server = Server::with(TEN_A_DAY, &["--max-batch", "7", "--max-body", "2KiB"]);
    let good = r#"{"client_key":"alice"}"#;
    let cases = [
        (r#"{"client_key":5}"#, "check 3: invalid type: integer `5`, expected client_key to be a string"),
        (r#"{"client_key":"a","cost":-1}"#, "check 3: invalid type: integer `-1`, expected cost to be"),
        (r#"{"client_key":"a","kost":1}"#, "check 3: unknown field `kost`"),
        (
            r#"{"client_key":"a","ip":"nowhere"}"#,
            "check 3: invalid value: string \\\"nowhere\\\", expected ip",
        ),
        (r#"{"client_key":"a","client_key":"a"}"#, "check 3: duplicate field `client_key`"),
        (r#"{"endpoint":"/x"}"#, "check 3: the check has no client: send client_key, ip or attributes"),
        (r#"["alice"]"#, "check 3: invalid type: sequence, expected a check to be an object"),
        ("null", "check 3: invalid type: null, expected a check to be an object"),
        ("", "check 3: expected value"),
    ];
    let mut client = server.connect();
    for (check, message) in cases {
        let answer =
            client.post("/v1/check/batch", format!(r#"{{"checks":[{good},{good},{good},{check},{good}]}}"#));
        assert_eq!(answer.status, 400, "{check}");
        let begin = r#"{"error":{"code":"BAD_REQUEST","message":"invalid batch, no check was decided: "#;
        assert!(answer.body.starts_with(&format!("{begin}{message}")), "{check}: {answer:?}");
    }
    for body in [
        "[]".to_owned(),
        "{}".to_owned(),
        format!(r#"{{"checks":{good}}}"#),
        format!(r#"{{"checks":[{good}],"more":1}}"#),
        format!(r#"{{"checks":[{good}]}} {{}}"#),
        format!(r#"{{"checks":[{good}"#),
        batch(8),
    ] {
        let answer = client.post("/v1/check/batch", &body);
        assert_eq!(answer.status, 400, "{body}");
    }
    let answer = client.post("/v1/check/batch", batch(60));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("PAYLOAD_TOO_LARGE")));
    assert_eq!(server.post("/v1/peek", ALICE).number("remaining"), 10);
}

#[test]
fn every_answer_is_the_same_over_http2() {
    let server = Server::with_rules(TEN_A_DAY);
    let (mut first, mut second) = (server.connect(), Http2::connect(&server.address));
    let calls = [
        ("POST", "/check", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/check", r#"{"client_key":"KEY","cost":9}"#),
        ("POST", "/v1/check", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/check?deny_status=429", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/peek?deny_status=403", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/check/batch", r#"{"checks":[{"client_key":"KEY"},{"client_key":"KEY2"}]}"#),
        ("POST", "/v1/refund", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/reset", r#"{"client_key":"KEY"}"#),
        ("POST", "/v1/check", r#"{"client_key":"KEY","cost":"much"}"#),
        ("GET", "/v1/check", ""),
        ("GET", "/nowhere", ""),
        ("GET", "/livez", ""),
        ("GET", "/openapi.json", ""),
    ];
    // Timestamps may differ by a second between the two requests, so they are left out.
    let timeless = |text: &str| -> String {
        text.split_inclusive(|c: char| !c.is_ascii_digit()).filter(|part| part.len() < 10).collect()
    };
    for (method, path, body) in calls {
        let one = first.request(method, path, &[], body.replace("KEY", "one"));
        let other = second.request(method, path, &[], &body.replace("KEY", "two"));
        assert_eq!(one.status, other.status, "{path}");
        assert_eq!(timeless(&one.body), timeless(&other.body), "{path}");
        let names = |fields: &[(String, String)]| -> BTreeSet<String> {
            fields.iter().map(|(name, _)| name.clone()).filter(|name| name != "content-length").collect()
        };
        assert_eq!(names(&one.fields), names(&other.fields), "{path}");
    }
}

#[test]
fn the_openapi_document_lists_exactly_the_paths_that_exist() {
    let server = Server::with_rules(TEN_A_DAY);
    let mut client = server.connect();
    let document = client.get("/openapi.json");
    assert_eq!((document.status, document.field("content-type")), (200, Some("application/json")));
    let document = document.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 8);
    for (path, operations) in paths {
        for method in ["get", "post", "put", "delete", "patch"] {
            let body = match (method, path.ends_with("/batch")) {
                ("post", true) => r#"{"checks":[{"client_key":"alice"}]}"#,
                ("post", false) => ALICE,
                _ => "",
            };
            let forwarded = [("X-Forwarded-Method", "GET"), ("X-Forwarded-Uri", "/")];
            let answer = client.request(&method.to_uppercase(), path, &forwarded, body);
            match operations.get(method) {
                // Proxies may use any method.
                None if path == "/v1/forward-auth" => assert_eq!(answer.status, 200, "{method} {path}"),
                Some(operation) => {
                    assert_eq!(answer.status, 200, "{method} {path}");
                    let kind = answer.field("content-type").unwrap();
                    assert!(
                        operation["responses"]["200"]["content"][kind].is_object(),
                        "{kind} of {method} {path}"
                    );
                    assert!(
                        operation["summary"].is_string() && operation["operationId"].is_string(),
                        "{path}"
                    );
                }
                None => assert_eq!(answer.status, 405, "{method} {path}"),
            }
        }
    }
    // Paths of other rate limiters, paths of the admin listener, and misspelled paths.
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/check/",
        "/CHECK",
        "/v2/check",
        "/v1/batch",
        "/v1/reserve",
        "/v1/commit",
        "/v1/cancel",
        "/metrics",
        "/readyz",
        "/healthz",
        "/version",
        "/v1/emergency",
        "/v1/reload",
        "/openapi.yaml",
        "/v1/openapi.json",
    ] {
        assert!(!paths.contains_key(path), "{path}");
        for method in ["GET", "POST"] {
            assert_eq!(client.request(method, path, &[], ALICE).status, 404, "{method} {path}");
        }
    }
}

#[test]
fn a_configured_token_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, "a-token-of-some-length\n").unwrap();
    let server = Server::with(TEN_A_DAY, &["--api-token-file", path.to_str().unwrap()]);
    let mut client = server.connect();
    let paths = ["/check", "/v1/check", "/v1/peek", "/v1/refund", "/v1/reset", "/v1/check/batch"];
    let wrong = [
        "",
        "a-token-of-some-length",
        "Bearer",
        "Bearer ",
        "Bearer a-token-of-some-lengtH",
        "Basic a-token-of-some-length",
    ];
    for path in paths {
        let answer = client.post(path, ALICE);
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (401, &json!("UNAUTHORIZED")), "{path}");
        assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        for authorization in wrong {
            let answer = client.request("POST", path, &[("Authorization", authorization)], ALICE);
            assert_eq!(answer.status, 401, "{path} {authorization:?}");
        }
        // The admin token is not valid here.
        let answer =
            client.request("POST", path, &[("Authorization", &format!("Bearer {}", server.token))], ALICE);
        assert_eq!(answer.status, 401, "{path}");
    }
    assert_eq!(client.get("/openapi.json").status, 401);
    assert_eq!(client.get("/livez").status, 200, "health checks need no token");
    for authorization in ["Bearer a-token-of-some-length", "bearer  a-token-of-some-length"] {
        let answer = client.request("POST", "/check", &[("Authorization", authorization)], ALICE);
        assert_eq!(answer.status, 200);
    }
    let answer = Http2::connect(&server.address).request(
        "POST",
        "/check",
        &[("authorization", "Bearer a-token-of-some-length")],
        ALICE,
    );
    assert_eq!(answer.number("remaining"), 7, "rejected requests are not charged");
    assert_eq!(
        server
            .connect_admin()
            .request("GET", "/metrics", &[("Authorization", "Bearer a-token-of-some-length")], "")
            .status,
        401
    );
}

#[test]
fn cross_site_posts_are_rejected() {
    let server = Server::start(&["--allowed-origins", "https://admin.example"]);
    let send = |fields: &[(&str, &str)]| {
        server.connect().request("POST", "/check", fields, r#"{"client_key":"alice"}"#)
    };
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    for fields in [
        &[("Origin", "https://evil.example")][..],
        &[("Origin", "https://evil.example"), form],
        &[("Origin", "null"), ("Content-Type", "text/plain")],
        &[("Sec-Fetch-Site", "cross-site"), form],
        &[("Sec-Fetch-Site", "same-site")],
    ] {
        let answer = send(fields);
        let expected = if fields.iter().any(|(_, value)| *value == "text/plain") { 415 } else { 403 };
        assert_eq!(answer.status, expected, "{fields:?}: {answer:?}");
    }
    assert!(send(&[("Origin", "https://evil.example")]).body.contains("allowed_origins"));
    // `curl -d` sends the content type of a form.
    for fields in [
        &[form][..],
        &[("Origin", "http://test")],
        &[("Origin", "https://admin.example"), ("Sec-Fetch-Site", "cross-site")],
    ] {
        assert_eq!(send(fields).status, 200, "{fields:?}");
    }
    let evil = [("Origin", "https://evil.example"), ("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/")];
    let proxy = server.connect().request("GET", "/v1/forward-auth", &evil, "");
    assert_eq!(proxy.status, 200, "a proxy forwards its client's headers: {proxy:?}");
    let bearer = format!("Bearer {}", server.token);
    let admin = |method: &str, path: &str| {
        let fields = [("Authorization", &bearer[..]), ("Origin", "https://evil.example")];
        server.connect_admin().request(method, path, &fields, "").status
    };
    assert_eq!(
        [admin("POST", "/v1/reload"), admin("DELETE", "/v1/emergency"), admin("GET", "/metrics")],
        [403, 403, 200]
    );
}
