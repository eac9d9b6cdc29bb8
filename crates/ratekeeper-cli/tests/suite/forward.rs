//! Forward-auth (`/v1/forward-auth`) of the real binary and its settings.

use crate::support::{Answer, Client, Http2, Server};
use serde_json::json;
use std::fs;

const URL: &str = "/v1/forward-auth";

/// So slow that no unit is refilled during a test.
const RULES: &str = "
rules:
  - {id: login, match: {path: /login, method: POST}, key: ip, limit: 2/day}
default: {limit: 3/day}
allow: [sk_friend]
deny: [192.0.2.66]
";

/// Sends a forward-auth request for a client address, with additional header fields.
fn forward_auth(client: &mut Client, url: &str, address: &str, more: &[(&str, &str)]) -> Answer {
    let forwarded = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/orders?api_key=sk_in_query"),
        ("X-Forwarded-Host", "shop.example"),
        ("X-Forwarded-For", address),
    ];
    client.request("GET", url, &[&forwarded, more].concat(), "")
}

/// The `Retry-After` of a denial: a third of a day, minus the time the test takes.
#[track_caller]
fn retry_after(answer: &Answer) -> u64 {
    let seconds = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((28_700..=28_800).contains(&seconds), "{answer:?}");
    seconds
}

fn names(answer: &Answer) -> Vec<&str> {
    answer.fields.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_client_is_allowed_up_to_its_limit_and_then_denied() {
    let server = Server::with_rules(RULES);
    let mut client = server.connect();
    for left in ["2", "1", "0"] {
        let answer = forward_auth(&mut client, URL, "203.0.113.7", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, ""));
        assert_eq!(answer.field("x-ratelimit-remaining"), Some(left));
        assert_eq!(answer.field("cache-control"), Some("no-store"));
        assert_eq!(
            names(&answer),
            [
                "content-type",
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
                "ratelimit-policy",
                "ratelimit",
                "cache-control",
                "content-length",
                "date"
            ]
        );
    }
    let answer = forward_auth(&mut client, URL, "203.0.113.7", &[]);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.field("cache-control"), Some("no-store"));
    assert_eq!(answer.field("content-type"), Some("application/json"));
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!(error["details"]["retry_after_seconds"], retry_after(&answer));

    let answer = forward_auth(&mut client, &format!("{URL}?deny_status=403"), "203.0.113.7", &[]);
    assert_eq!((answer.status, retry_after(&answer) > 0), (403, true));
    let answer = forward_auth(&mut client, URL, "203.0.113.7", &[("Accept", "application/problem+json")]);
    assert_eq!((answer.status, &answer.json()["status"]), (429, &json!(429)));
    assert_eq!(
        forward_auth(&mut client, URL, "203.0.113.8", &[]).status,
        200,
        "another address is another client"
    );
    let denied = forward_auth(&mut client, URL, "192.0.2.66", &[]);
    assert_eq!(
        (denied.status, denied.field("retry-after")),
        (429, None),
        "a client on the deny list has no retry time"
    );
    assert_eq!(denied.json()["error"]["code"], "CLIENT_DENIED");

    let metrics = server.metrics();
    assert_eq!((metrics.decisions("default", "allowed"), metrics.decisions("default", "denied")), (4.0, 3.0));
    assert_eq!(metrics.decisions("(deny_list)", "denied"), 1.0);
}

#[test]
fn a_denial_never_has_status_200() {
    for (arguments, status) in [(&["--deny-status", "200"][..], 429), (&["--deny-status=403"], 403)] {
        let server = Server::with("default: {limit: 1/day}", arguments);
        let mut client = server.connect();
        let statuses = [(); 2].map(|()| forward_auth(&mut client, URL, "203.0.113.7", &[]).status);
        assert_eq!(statuses, [200, status]);
        assert_eq!(
            forward_auth(&mut client, &format!("{URL}?deny_status=429"), "203.0.113.7", &[]).status,
            429
        );
        assert_eq!(
            forward_auth(&mut client, &format!("{URL}?deny_status=200"), "203.0.113.7", &[]).status,
            400
        );
    }
}

#[test]
fn every_http_version_and_method_gets_the_same_answer() {
    let server = Server::with_rules(RULES);
    let forwarded =
        [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login"), ("x-forwarded-for", "203.0.113.7")];
    let mut first = server.connect();
    let mut second = Http2::connect(&server.address);
    assert_eq!(first.request("GET", URL, &forwarded, "").field("x-ratelimit-remaining"), Some("1"));
    assert_eq!(second.request("PUT", URL, &forwarded, "a body").field("x-ratelimit-remaining"), Some("0"));
    let one = first.request("POST", URL, &forwarded, "a body");
    let other = second.request("GET", URL, &forwarded, "");
    assert_eq!((one.status, &one.body), (429, &other.body));
    assert_eq!((one.status, names(&one).len()), (other.status, names(&other).len()));
    let huge = "x".repeat(64 * 1024 + 1);
    assert_eq!(
        first.request("POST", URL, &forwarded, huge).status,
        413,
        "the body is ignored, but its size is limited"
    );
}

#[test]
fn settings_choose_the_key_source_and_the_trusted_proxies() {
    let rules = "default: {limit: 1/day}";
    let statuses = |arguments: &[&str], questions: &[(&str, &[(&str, &str)])]| -> Vec<u16> {
        let server = Server::with(rules, arguments);
        let mut client = server.connect();
        questions.iter().map(|(address, more)| forward_auth(&mut client, URL, address, more).status).collect()
    };
    let key = |key| [("X-Api-Key", key)];
    let keys = ["--forward-key", "header:x-api-key,ip"];
    assert_eq!(
        statuses(
            &keys,
            &[("1.1.1.1", &key("a")), ("1.1.1.2", &key("a")), ("1.1.1.1", &key("b")), ("1.1.1.1", &[])]
        ),
        [200, 429, 200, 200]
    );
    assert_eq!(
        statuses(&["--forward-key=query:api_key"], &[("1.1.1.1", &[]), ("1.1.1.2", &[])]),
        [200, 429],
        "all requests have the same key"
    );
    assert_eq!(statuses(&[], &[("1.1.1.1", &key("a")), ("1.1.1.1", &key("b"))]), [200, 429], "by address");
    let untrusting = ["--trusted-proxies", "none"];
    assert_eq!(statuses(&untrusting, &[("1.1.1.1", &[]), ("1.1.1.2", &[])]), [200, 429], "by proxy address");
    let standard = ["--client-address=forwarded"];
    let client = |element| [("Forwarded", element)];
    assert_eq!(
        statuses(
            &standard,
            &[
                ("9.9.9.1", &client("for=1.1.1.1")),
                ("9.9.9.2", &client("for=1.1.1.1")),
                ("9.9.9.2", &client("for=1.1.1.2"))
            ]
        ),
        [200, 429, 200]
    );
}

#[test]
fn an_untrusted_proxy_is_logged_once() {
    let server = Server::with(RULES, &["--trusted-proxies=10.0.0.0/8", "--log-format=json"]);
    let mut client = server.connect();
    for address in ["203.0.113.7", "203.0.113.8"] {
        forward_auth(&mut client, URL, address, &[]);
    }
    let warnings = server.await_lines(1, |line| line["level"] == "WARN");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(warnings[0]["peer"], "127.0.0.1");
    let message = warnings[0]["message"].as_str().unwrap();
    assert!(message.contains("from 127.0.0.1, which is not in trusted_proxies"), "{message}");
}

#[test]
fn a_denial_is_logged_without_client_secrets() {
    let server = Server::with("default: {limit: 1/day}", &["--log-format=json"]);
    let mut client = server.connect();
    let sources = format!("{URL}?key=header:authorization,query:api_key");
    let bearer = [("Authorization", "Bearer eyJhbGciOi.secret.secret")];
    for _ in 0..2 {
        forward_auth(&mut client, &sources, "203.0.113.7", &bearer);
        forward_auth(&mut client, &sources, "203.0.113.7", &[]);
        forward_auth(&mut client, URL, "203.0.113.7", &[]);
    }
    let denied = server.await_lines(3, |line| line["target"] == "ratekeeper::denied");
    let keys: Vec<_> = denied.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["eyJh…", "sk_…", "ip:2…"]);
    for line in denied {
        assert_eq!((&line["endpoint"], &line["ip"]), (&json!("/orders"), &json!("203.0.113.7")));
    }
    let log = server.log();
    assert!(!log.contains("secret") && !log.contains("sk_in_query"), "{log}");
}

#[test]
fn a_configured_token_is_required_from_proxies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, "a-token-of-some-length\n").unwrap();
    let server = Server::with(RULES, &["--api-token-file", path.to_str().unwrap()]);
    let mut client = server.connect();
    let mut status =
        |url: &str, more: &[(&str, &str)]| forward_auth(&mut client, url, "203.0.113.7", more).status;
    let own = ("Authorization", "Bearer what-the-client-sends");
    for (url, more) in [
        (URL.to_owned(), vec![]),
        (URL.to_owned(), vec![own]),
        (URL.to_owned(), vec![own, ("X-Ratekeeper-Token", "a-token-of-some-lengtH")]),
        (URL.to_owned(), vec![("X-Ratekeeper-Token", "Bearer a-token-of-some-length")]),
        (format!("{URL}?token="), vec![]),
        (format!("{URL}?token=a-token"), vec![own]),
    ] {
        assert_eq!(status(&url, &more), 401, "{url} {more:?}");
    }
    assert_eq!(status(URL, &[own, ("X-Ratekeeper-Token", "a-token-of-some-length")]), 200);
    assert_eq!(status(&format!("{URL}?token=a-token-of-som%65-length"), &[own]), 200);
    assert_eq!(status(URL, &[("Authorization", "Bearer a-token-of-some-length")]), 200);
    let answer = forward_auth(&mut server.connect(), URL, "203.0.113.7", &[]);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("X-Ratekeeper-Token"), "{answer:?}");
    let fields = [("X-Ratekeeper-Token", "a-token-of-some-length")];
    let elsewhere = server.connect().request("POST", "/check", &fields, r#"{"client_key":"a"}"#);
    assert_eq!(elsewhere.status, 401, "other paths read the token from Authorization");
}

#[test]
fn the_emergency_limit_applies_to_client_addresses() {
    let server = Server::with_rules("allow: [203.0.113.0/24]");
    let mut client = server.connect();
    assert_eq!(server.admin("PUT", "/v1/emergency", r#"{"limit":"1/day"}"#).status, 200);
    let mut status = |address: &str| forward_auth(&mut client, URL, address, &[]).status;
    assert_eq!([status("203.0.113.7"), status("203.0.113.7"), status("203.0.113.8")], [200, 429, 200]);
}

#[test]
fn an_invalid_forward_auth_request_is_rejected_and_costs_nothing() {
    let server = Server::with_rules(RULES);
    let mut client = server.connect();
    let incomplete = client.get(URL);
    assert_eq!(incomplete.status, 400);
    let message = incomplete.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("have the proxy set X-Forwarded-Method and X-Forwarded-Uri"), "{message}");
    for (url, more) in [
        (format!("{URL}?page=2"), ("X", "y")),
        (format!("{URL}?api_key=sk_in_query"), ("X", "y")),
        (URL.to_owned(), ("X-Original-URI", "/cheap")),
        (URL.to_owned(), ("X-Forwarded-Uri", "/cheap")),
    ] {
        let answer = forward_auth(&mut client, &url, "203.0.113.7", &[more]);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!("BAD_REQUEST")),
            "{url} {more:?}"
        );
    }
    assert_eq!(forward_auth(&mut client, URL, "203.0.113.7", &[]).field("x-ratelimit-remaining"), Some("2"));
}
