//! What an answer's head tells a client: where it stands, when to come back, and a denial's status.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};
use support::{Answer, Http2, Server};

const ALICE: &str = r#"{"client_key":"alice"}"#;

const RULES: &str = "
rules:
  - {id: orders, match: {path: /orders}, limits: [3/day, 100/day burst 7]}
default: {limit: 10/day}
blacklist: [foe]
whitelist: [friend]
";

#[expect(clippy::disallowed_methods, reason = "what the server says is held against the wall clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An answer over HTTP/1.1, and the answer to another key over HTTP/2, which must tell the same.
struct Both {
    server: Server,
}

impl Both {
    fn new(arguments: &[&str]) -> Both {
        Both { server: Server::with(RULES, arguments) }
    }

    /// Asks for KEY, which is another client in each version, some units, and gives the limits' fields.
    #[track_caller]
    fn fields(&self, path: &str, cost: u32) -> Vec<(String, String)> {
        let body = |key: &str| format!(r#"{{"client_key":"{key}","endpoint":"/orders","cost":{cost}}}"#);
        let one = self.server.post(path, body("alice"));
        let other = Http2::connect(&self.server.address).ask("POST", path, &[], &body("bob"));
        let (one, other) = (limits(&one), limits(&other));
        assert_eq!(one.len(), other.len());
        for ((name, value), (other_name, other_value)) in one.iter().zip(&other) {
            assert_eq!(name, other_name);
            // A second may have passed between the two.
            assert!(value.len().abs_diff(other_value.len()) <= 1, "{name}: {value} and {other_value}");
        }
        one
    }
}

/// The fields that are about limits.
fn limits(answer: &Answer) -> Vec<(String, String)> {
    let usual = ["content-type", "content-length", "date"];
    answer.fields.iter().filter(|(name, _)| !usual.contains(&name.as_str())).cloned().collect()
}

/// Compares fields with what is expected; `#` stands for a number of seconds about a day's thirds away, `@` for such a
/// moment in Unix time.
#[track_caller]
fn same(found: &[(String, String)], expected: &[&str]) {
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
fn unless_told_otherwise_answers_have_the_old_fields_and_the_new() {
    let both = Both::new(&[]);
    let policy = "ratelimit-policy: \"orders\";q=3;w=86400, \"orders-2\";q=7;w=6048";
    let limit = "x-ratelimit-limit: 3";
    same(
        &both.fields("/check", 1),
        &[limit, "x-ratelimit-remaining: 2", "x-ratelimit-reset: @", policy, "ratelimit: \"orders\";r=2;t=#"],
    );
    same(
        &both.fields("/v1/peek", 3),
        &[
            limit,
            "x-ratelimit-remaining: 2",
            "x-ratelimit-reset: @",
            policy,
            "ratelimit: \"orders\";r=2;t=#",
            "retry-after: #",
        ],
    );
    same(
        &both.fields("/v1/check", 2),
        &[
            limit,
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: @",
            policy,
            "ratelimit: \"orders\";r=0;t=86400",
        ],
    );
    for path in ["/check", "/v1/check"] {
        same(
            &both.fields(path, 1),
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
    // What never fits has no time to come back at.
    let never = both.fields("/check", 4);
    assert!(never.iter().all(|(name, _)| name != "retry-after"), "{never:?}");
}

#[test]
fn each_profile_has_its_own_fields() {
    let asked = |arguments: &[&str]| Both::new(arguments).fields("/check", 1);
    same(
        &asked(&["--headers", "x-ratelimit"]),
        &["x-ratelimit-limit: 3", "x-ratelimit-remaining: 2", "x-ratelimit-reset: @"],
    );
    same(
        &asked(&["--headers", "x-ratelimit", "--reset", "delta"]),
        &["x-ratelimit-limit: 3", "x-ratelimit-remaining: 2", "x-ratelimit-reset: #"],
    );
    same(
        &asked(&["--headers", "ietf", "--reset", "epoch"]),
        &[
            "ratelimit-policy: \"orders\";q=3;w=86400, \"orders-2\";q=7;w=6048",
            "ratelimit: \"orders\";r=2;t=#",
        ],
    );
    same(
        &asked(&["--headers", "draft-7"]),
        &["ratelimit: limit=3, remaining=2, reset=#", "ratelimit-policy: 3;w=86400"],
    );
    same(
        &asked(&["--headers", "draft-6"]),
        &[
            "ratelimit-limit: 3",
            "ratelimit-remaining: 2",
            "ratelimit-reset: #",
            "ratelimit-policy: 3;w=86400",
        ],
    );
    same(
        &asked(&["--headers", "draft-6,x-ratelimit", "--reset", "delta"]),
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
    let none = Both::new(&["--headers", "none"]);
    same(&none.fields("/check", 3), &[]);
    same(&none.fields("/check", 1), &["retry-after: #"]);
}

#[test]
fn where_no_limit_binds_nothing_is_told_of_one() {
    let server = Server::with_rules(RULES);
    for body in [r#"{"client_key":"friend"}"#, r#"{"client_key":"foe"}"#, r#"{"ip":"10.0.0.1"}"#] {
        let answer = server.check(body);
        assert_eq!(limits(&answer), [], "{body}");
    }
    let batch = server.post("/v1/check/batch", r#"{"checks":[{"client_key":"alice"}]}"#);
    assert_eq!(limits(&batch), [], "the checks of a batch may be many clients'");
    for path in ["/v1/refund", "/v1/reset"] {
        let answer = server.post(path, ALICE);
        assert_eq!((answer.status, answer.field("retry-after")), (200, None), "{path}");
        assert_eq!(answer.field("x-ratelimit-remaining"), Some("10"), "{path}");
    }
}

#[test]
fn a_wait_is_rounded_up_to_whole_seconds() {
    // A unit comes back every 400 ms, so a wait is never a whole second, and never 0.
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
    // In 400 ms at most, which may lie in the second after next.
    assert!((begun + 1..=unix_seconds() + 2).contains(&denied.number("reset_at")), "{denied:?}");
}

#[test]
fn a_denial_has_the_status_that_was_set_or_asked_for() {
    for (setting, usual) in [("200", 200), ("429", 429), ("403", 403)] {
        let server = Server::with(RULES, &["--deny-status", setting]);
        let mut client = server.connect();
        assert_eq!(client.check(r#"{"client_key":"alice","cost":10}"#).status, 200, "allowed is always 200");
        for path in ["/check", "/v1/check", "/v1/peek"] {
            assert_eq!(client.post(path, ALICE).status, usual, "{path}");
            for (asked, status) in [("200", 200), ("403", 403), ("429", 429)] {
                let answer = client.post(&format!("{path}?x=1&deny_status={asked}"), ALICE);
                assert_eq!(answer.status, status, "{path} {asked}");
                assert_eq!(answer.field("retry-after"), Some("8640"));
                let body = answer.json();
                assert_eq!(
                    (body["allowed"] == false, body["error"].is_object()),
                    (status == 200, status != 200)
                );
            }
        }
        let refused = client.post("/v1/check?deny_status=418", ALICE);
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("write deny_status=200, 403 or 429, or leave it out"), "{refused:?}");
        // A batch is answered as a whole, whatever the answers in it.
        let batch = client.post("/v1/check/batch", r#"{"checks":[{"client_key":"alice"}]}"#);
        assert_eq!((batch.status, &batch.json()["results"][0]["allowed"]), (200, &json!(false)));
    }
}

#[test]
fn a_denial_by_status_says_so_in_its_body() {
    let server = Server::with(RULES, &["--deny-status", "429"]);
    let mut http2 = Http2::connect(&server.address);
    let mut ask = |body: &str, accept: &[(&str, &str)]| {
        let one = server.connect().ask("POST", "/check", accept, body);
        let other = http2.ask("POST", "/check", accept, body);
        assert_eq!((one.status, one.field("cache-control")), (429, Some("no-store")));
        assert_eq!((other.status, other.field("content-type")), (429, one.field("content-type")));
        one
    };
    server.check(r#"{"client_key":"alice","cost":10}"#);
    let denied = ask(ALICE, &[]);
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

    let never = ask(r#"{"client_key":"bob","cost":11}"#, &[]);
    assert_eq!(
        (never.field("retry-after"), &never.json()["error"]["details"]["retry_after_seconds"]),
        (None, &json!(null))
    );
    let foe = ask(r#"{"client_key":"foe"}"#, &[]);
    assert_eq!(foe.body, r#"{"error":{"code":"CLIENT_DENIED","message":"This client is on the deny list"}}"#);

    for accept in ["application/problem+json", "text/html, Application/Problem+JSON;q=0.9, */*"] {
        let problem = ask(ALICE, &[("Accept", accept)]);
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
    let problem = ask(r#"{"client_key":"foe"}"#, &[("Accept", "application/problem+json")]).json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
    for accept in ["*/*", "application/json", "application/*"] {
        assert_eq!(
            ask(ALICE, &[("Accept", accept)]).field("content-type"),
            Some("application/json"),
            "{accept}"
        );
    }
}
