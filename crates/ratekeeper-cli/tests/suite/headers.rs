//! Response headers: remaining units, retry time, and the status of a denial.

use crate::support::{Answer, Http2, Server};
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

const ALICE: &str = r#"{"client_key":"alice"}"#;

const RULES: &str = "
rules:
  - {id: orders, match: {path: /orders}, limits: [3/day, 100/day burst 7]}
default: {limit: 10/day}
blacklist: [foe]
whitelist: [friend]
";

#[expect(clippy::disallowed_methods, reason = "the test compares answers with the wall clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Sends each request over HTTP/1.1 and, for another key, over HTTP/2, and compares the rate-limit headers.
struct BothVersions {
    server: Server,
}

impl BothVersions {
    fn new(arguments: &[&str]) -> BothVersions {
        BothVersions { server: Server::with(RULES, arguments) }
    }

    /// Requests `cost` units over both versions, each for another client, and returns the rate-limit headers.
    #[track_caller]
    fn headers_for(&self, path: &str, cost: u32) -> Vec<(String, String)> {
        let body = |key: &str| format!(r#"{{"client_key":"{key}","endpoint":"/orders","cost":{cost}}}"#);
        let one = self.server.post(path, body("alice"));
        let other = Http2::connect(&self.server.address).request("POST", path, &[], &body("bob"));
        let (one, other) = (limit_headers(&one), limit_headers(&other));
        assert_eq!(one.len(), other.len());
        for ((name, value), (other_name, other_value)) in one.iter().zip(&other) {
            assert_eq!(name, other_name);
            // A second may pass between the two requests.
            assert!(value.len().abs_diff(other_value.len()) <= 1, "{name}: {value} and {other_value}");
        }
        one
    }
}

/// The rate-limit headers of an answer.
fn limit_headers(answer: &Answer) -> Vec<(String, String)> {
    let usual = ["content-type", "content-length", "date"];
    answer.fields.iter().filter(|(name, _)| !usual.contains(&name.as_str())).cloned().collect()
}

/// Compares headers with the expected lines. `#` stands for one, two or three thirds of a day in seconds, and `@` for
/// a Unix time that far ahead.
#[track_caller]
fn assert_headers(found: &[(String, String)], expected: &[&str]) {
    let now = unix_seconds();
    let lines: Vec<_> = found.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        let shown: Vec<_> = line
            .split_inclusive(|c: char| !c.is_ascii_digit())
            .map(|part| match part.trim_end_matches(|c: char| !c.is_ascii_digit()) {
                digits if digits.len() >= 5 && digits != "86400" => {
                    let number: u64 = digits.parse().unwrap();
                    let (mark, span) = if number > now { ("@", number - now) } else { ("#", number) };
                    let thirds = [28_800_u64, 57_600, 86_400];
                    assert!(thirds.iter().any(|third| third.abs_diff(span) <= 100), "{span} in {line}");
                    part.replace(digits, mark)
                }
                _ => part.to_owned(),
            })
            .collect();
        assert_eq!(shown.concat(), *expected);
    }
}

#[test]
fn by_default_answers_have_x_ratelimit_and_ietf_headers() {
    let both = BothVersions::new(&[]);
    let policy = "ratelimit-policy: \"orders\";q=3;w=86400, \"orders-2\";q=7;w=6048";
    let limit = "x-ratelimit-limit: 3";
    assert_headers(
        &both.headers_for("/check", 1),
        &[limit, "x-ratelimit-remaining: 2", "x-ratelimit-reset: @", policy, "ratelimit: \"orders\";r=2;t=#"],
    );
    assert_headers(
        &both.headers_for("/v1/peek", 3),
        &[
            limit,
            "x-ratelimit-remaining: 2",
            "x-ratelimit-reset: @",
            policy,
            "ratelimit: \"orders\";r=2;t=#",
            "retry-after: #",
        ],
    );
    assert_headers(
        &both.headers_for("/v1/check", 2),
        &[
            limit,
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: @",
            policy,
            "ratelimit: \"orders\";r=0;t=86400",
        ],
    );
    for path in ["/check", "/v1/check"] {
        assert_headers(
            &both.headers_for(path, 1),
            &[
                limit,
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: @",
                policy,
                "ratelimit: \"orders\";r=0;t=#",
                "retry-after: #",
            ],
        );
    }
    // A cost above the limit has no retry time.
    let never = both.headers_for("/check", 4);
    assert!(never.iter().all(|(name, _)| name != "retry-after"), "{never:?}");
}

#[test]
fn each_profile_has_its_own_headers() {
    let headers_with = |arguments: &[&str]| BothVersions::new(arguments).headers_for("/check", 1);
    assert_headers(
        &headers_with(&["--headers", "x-ratelimit"]),
        &["x-ratelimit-limit: 3", "x-ratelimit-remaining: 2", "x-ratelimit-reset: @"],
    );
    assert_headers(
        &headers_with(&["--headers", "x-ratelimit", "--reset", "delta"]),
        &["x-ratelimit-limit: 3", "x-ratelimit-remaining: 2", "x-ratelimit-reset: #"],
    );
    assert_headers(
        &headers_with(&["--headers", "ietf", "--reset", "epoch"]),
        &[
            "ratelimit-policy: \"orders\";q=3;w=86400, \"orders-2\";q=7;w=6048",
            "ratelimit: \"orders\";r=2;t=#",
        ],
    );
    assert_headers(
        &headers_with(&["--headers", "draft-7"]),
        &["ratelimit: limit=3, remaining=2, reset=#", "ratelimit-policy: 3;w=86400"],
    );
    assert_headers(
        &headers_with(&["--headers", "draft-6"]),
        &[
            "ratelimit-limit: 3",
            "ratelimit-remaining: 2",
            "ratelimit-reset: #",
            "ratelimit-policy: 3;w=86400",
        ],
    );
    assert_headers(
        &headers_with(&["--headers", "draft-6,x-ratelimit", "--reset", "delta"]),
        &[
            "x-ratelimit-limit: 3",
            "x-ratelimit-remaining: 2",
            "x-ratelimit-reset: #",
            "ratelimit-limit: 3",
            "ratelimit-remaining: 2",
            "ratelimit-reset: #",
            "ratelimit-policy: 3;w=86400",
        ],
    );
    let none = BothVersions::new(&["--headers", "none"]);
    assert_headers(&none.headers_for("/check", 3), &[]);
    assert_headers(&none.headers_for("/check", 1), &["retry-after: #"]);
}

#[test]
fn without_an_applicable_limit_there_are_no_rate_limit_headers() {
    let server = Server::with_rules(RULES);
    for body in [r#"{"client_key":"friend"}"#, r#"{"client_key":"foe"}"#, r#"{"ip":"10.0.0.1"}"#] {
        let answer = server.check(body);
        assert_eq!(limit_headers(&answer), [], "{body}");
    }
    let batch = server.post("/v1/check/batch", r#"{"checks":[{"client_key":"alice"}]}"#);
    assert_eq!(limit_headers(&batch), [], "a batch may contain many clients");
    for path in ["/v1/refund", "/v1/reset"] {
        let answer = server.post(path, ALICE);
        assert_eq!((answer.status, answer.field("retry-after")), (200, None), "{path}");
        assert_eq!(answer.field("x-ratelimit-remaining"), Some("10"), "{path}");
    }
}

#[test]
fn a_wait_is_rounded_up_to_whole_seconds() {
    // A unit is refilled every 400 ms, so a wait is never a whole second and never 0.
    let server = Server::with_rules("default: {limit: 5 per 2s burst 1}");
    let mut client = server.connect();
    let begun = unix_seconds();
    let denied = loop {
        let answer = client.check(ALICE);
        if !answer.is_allowed() {
            break answer;
        }
    };
    assert_eq!((denied.field("retry-after"), denied.number("retry_after")), (Some("1"), 1));
    // The reset is at most 400 ms away, which may round up to the second after next.
    assert!((begun + 1..=unix_seconds() + 2).contains(&denied.number("reset_at")), "{denied:?}");
}

#[test]
fn a_denial_has_the_configured_or_requested_status() {
    for (setting, usual) in [("200", 200), ("429", 429), ("403", 403)] {
        let server = Server::with(RULES, &["--deny-status", setting]);
        let mut client = server.connect();
        assert_eq!(
            client.check(r#"{"client_key":"alice","cost":10}"#).status,
            200,
            "allowed checks have status 200"
        );
        for path in ["/check", "/v1/check", "/v1/peek"] {
            assert_eq!(client.post(path, ALICE).status, usual, "{path}");
            for (requested, status) in [("200", 200), ("403", 403), ("429", 429)] {
                let answer = client.post(&format!("{path}?x=1&deny_status={requested}"), ALICE);
                assert_eq!(answer.status, status, "{path} {requested}");
                assert_eq!(answer.field("retry-after"), Some("8640"));
                let body = answer.json();
                assert_eq!(
                    (body["allowed"] == false, body["error"].is_object()),
                    (status == 200, status != 200)
                );
            }
        }
        let invalid = client.post("/v1/check?deny_status=418", ALICE);
        assert_eq!(invalid.status, 400);
        assert!(invalid.body.contains("write deny_status=200, 403 or 429, or leave it out"), "{invalid:?}");
        // A batch has status 200 whatever its results.
        let batch = client.post("/v1/check/batch", r#"{"checks":[{"client_key":"alice"}]}"#);
        assert_eq!((batch.status, &batch.json()["results"][0]["allowed"]), (200, &json!(false)));
    }
}

#[test]
fn a_denial_with_an_error_status_has_an_error_body() {
    let server = Server::with(RULES, &["--deny-status", "429"]);
    let mut http2 = Http2::connect(&server.address);
    let mut send = |body: &str, accept: &[(&str, &str)]| {
        let one = server.connect().request("POST", "/check", accept, body);
        let other = http2.request("POST", "/check", accept, body);
        assert_eq!((one.status, one.field("cache-control")), (429, Some("no-store")));
        assert_eq!((other.status, other.field("content-type")), (429, one.field("content-type")));
        one
    };
    server.check(r#"{"client_key":"alice","cost":10}"#);
    let denied = send(ALICE, &[]);
    assert_eq!(denied.field("content-type"), Some("application/json"));
    let reset_at = denied.json()["error"]["details"]["reset_at"].as_str().unwrap().to_owned();
    assert_eq!(
        denied.body,
        format!(
            r#"{{"error":{{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit of 10 requests per 86400 seconds exceeded","details":{{"limit":10,"window_seconds":86400,"retry_after_seconds":8640,"reset_at":"{reset_at}"}}}}}}"#
        )
    );
    let reset_at: jiff::Timestamp = reset_at.parse().unwrap();
    assert!(reset_at.as_second().abs_diff(unix_seconds().cast_signed() + 86_400) < 100, "{denied:?}");
    assert_eq!(denied.field("x-ratelimit-reset"), Some(reset_at.as_second().to_string().as_str()));

    let never = send(r#"{"client_key":"bob","cost":11}"#, &[]);
    assert_eq!(
        (never.field("retry-after"), &never.json()["error"]["details"]["retry_after_seconds"]),
        (None, &json!(null))
    );
    let foe = send(r#"{"client_key":"foe"}"#, &[]);
    assert_eq!(foe.body, r#"{"error":{"code":"CLIENT_DENIED","message":"This client is on the deny list"}}"#);

    for accept in ["application/problem+json", "text/html, Application/Problem+JSON;q=0.9, */*"] {
        let problem = send(ALICE, &[("Accept", accept)]);
        assert_eq!(problem.field("content-type"), Some("application/problem+json"));
        assert_eq!(
            problem.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "detail": "Rate limit of 10 requests per 86400 seconds exceeded",
                "reason": "limit",
                "violated-policies": ["default"],
                "retry_after": 8640,
            })
        );
    }
    let problem = send(r#"{"client_key":"foe"}"#, &[("Accept", "application/problem+json")]).json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
    for accept in ["*/*", "application/json", "application/*"] {
        assert_eq!(
            send(ALICE, &[("Accept", accept)]).field("content-type"),
            Some("application/json"),
            "{accept}"
        );
    }
}
