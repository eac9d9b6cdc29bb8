//! `ratekeeper serve`: the HTTP behaviour of the real binary, byte by byte.

use crate::support::{Http2, Server, check, failure, request};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// A server with a limit so slow that no unit is refilled during a test.
fn server_with_daily_limit() -> Server {
    Server::with_rules("default: {limit: 100/day}")
}

#[expect(clippy::disallowed_methods, reason = "the test compares answers with the wall clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn the_default_limit_counts_down_to_a_denial() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    let begun = unix_seconds();
    let mut sent = 0;
    let denied = loop {
        let answer = client.check(ALICE);
        assert_eq!(answer.status, 200);
        if !answer.body.contains("\"allowed\":true") {
            break answer;
        }
        sent += 1;
        let (remaining, reset_at) = (answer.number("remaining"), answer.number("reset_at"));
        let body =
            format!(r#"{{"allowed":true,"remaining":{remaining},"reset_at":{reset_at},"retry_after":null}}"#);
        assert_eq!(answer.body, body);
        assert_eq!(answer.field("content-type"), Some("application/json"));
        // Units refilled while a slow machine sends requests are fine; more than that would be an error.
        let regained = (unix_seconds() - begun + 1) * 100 / 60 + 1;
        assert!((100..=100 + regained).contains(&(remaining + sent)), "{remaining} left after {sent}");
        assert!((begun..=unix_seconds() + 61).contains(&reset_at), "{reset_at}");
    };
    assert!(sent >= 100);
    let reset_at = denied.number("reset_at");
    let body = format!(r#"{{"allowed":false,"remaining":0,"reset_at":{reset_at},"retry_after":1}}"#);
    assert_eq!(denied.body, body);
    let other = client.check(r#"{"client_key":"bob"}"#);
    assert_eq!((other.status, other.number("remaining")), (200, 99), "keys are independent");
}

#[test]
fn a_cost_above_the_limit_is_denied_without_a_retry_time() {
    let server = server_with_daily_limit();
    let answer = server.check(r#"{"client_key":"alice","cost":101}"#);
    assert_eq!(answer.status, 200);
    assert!(answer.body.starts_with(r#"{"allowed":false,"remaining":100,"#), "{answer:?}");
    assert!(answer.body.ends_with(r#","retry_after":null}"#), "{answer:?}");
}

#[test]
fn every_applicable_limit_must_be_passed() {
    let server = Server::with_rules(
        "
rules:
  - id: burst
    limit: 3/h
    algorithm: sliding_window_log
  - id: together
    key: global
    limits: [5/day]
    algorithm: fixed_window
  - id: polite
    key: [endpoint]
    limits: [4/h, 1000/day]
    shadow: true
",
    );
    let mut client = server.connect();
    for left in [2, 1, 0] {
        let answer = client.check(ALICE);
        assert!(answer.is_allowed(), "{answer:?}");
        assert_eq!(answer.number("remaining"), left);
    }
    let answer = client.check(ALICE);
    assert!(answer.body.starts_with(r#"{"allowed":false,"remaining":0,"#), "{answer:?}");
    assert!((3590..=3600).contains(&answer.number("retry_after")), "the first hit leaves the log in an hour");
    let banner = &server.banner;
    let expected = format!(
        "\nrules from {} (reloaded on change):\n  burst: sliding_window_log 3/h per api_key\n  together: \
         fixed_window 5/day shared by all clients\n  polite: token_bucket 4/h, token_bucket 1000/day per \
         endpoint (shadow)\ntry it:\n",
        server.rules().display()
    );
    assert!(banner.contains(&expected), "{banner}");
}

#[test]
fn the_banner_shows_addresses_and_example_commands() {
    let server = Server::start(&[]);
    let Server { address, admin_address: admin, token, banner, .. } = &server;
    let Server { grpc_address: grpc, resp_address: resp, .. } = &server;
    let port = resp.rsplit(':').next().unwrap();
    assert!(token.starts_with("rk_") && token.len() == 67, "{banner}");
    let expected = format!(
        "ratekeeper {} listening on http://{address}
gRPC and Envoy RLS: http://{grpc}
RESP: redis://{resp}
admin: http://{admin} (/metrics, /livez, /readyz, /version)
admin token, generated at start and not shown again: {token}
store: memory (this process only)
rules (built-in; set your own with --rules FILE):
  default: token_bucket 100/min per client
try it:
  curl -d '{{\"client_key\":\"alice\"}}' http://{address}/check
  ratekeeper check alice --endpoint /orders --server http://{address}
  redis-cli -h 127.0.0.1 -p {port} CL.THROTTLE alice 15 30 60
  curl -H 'Authorization: Bearer {token}' http://{admin}/metrics
",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(*banner, expected);
}

#[test]
fn bad_input_gets_a_clear_error_and_costs_nothing() {
    let server = server_with_daily_limit();
    let mut client = server.connect();
    let big = format!(r#"{{"client_key":"alice","endpoint":"{}"}}"#, "x".repeat(70_000));
    let with_body = |body: &str| check(body);
    let typed = |kind: &str| request("POST", "/check", &[("Content-Type", kind)], ALICE);
    let cases = [
        (with_body("{"), 400, "BAD_REQUEST", "invalid body: EOF"),
        (with_body(""), 400, "BAD_REQUEST", "the body is not a JSON object: send one like {"),
        (with_body("{}"), 400, "BAD_REQUEST", "invalid body: missing field `client_key`"),
        (
            with_body(r#"{"client_key":""}"#),
            400,
            "BAD_REQUEST",
            "expected client_key to be a string of 1 to 4096 bytes",
        ),
        (
            with_body(r#"{"client_key":"a","cost":-1}"#),
            400,
            "BAD_REQUEST",
            "integer `-1`, expected cost to be a whole number",
        ),
        (
            with_body(r#"{"client_key":"a","cost":0.5}"#),
            400,
            "BAD_REQUEST",
            "`0.5`, expected cost to be a whole number",
        ),
        (
            with_body(r#"{"client_key":"a","cost":4294967296}"#),
            400,
            "BAD_REQUEST",
            "whole number from 0 to 4294967295",
        ),
        (
            with_body(r#"{"client_key":"a","weight":1}"#),
            400,
            "BAD_REQUEST",
            "unknown field `weight`, expected one of",
        ),
        (check(b"{\"client_key\":\"\xff\"}"), 400, "BAD_REQUEST", "invalid unicode"),
        (request("GET", "/check", &[], ""), 405, "METHOD_NOT_ALLOWED", "/check does not allow GET: use POST"),
        (
            request("DELETE", "/livez", &[], ""),
            405,
            "METHOD_NOT_ALLOWED",
            "/livez does not allow DELETE: use GET, HEAD",
        ),
        (
            request("POST", "/chekc?x=1", &[], ALICE),
            404,
            "NOT_FOUND",
            "no route at /chekc: check with POST /check",
        ),
        (
            typed("text/plain"),
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "unsupported content type text/plain: send JSON",
        ),
        (with_body(&big), 413, "PAYLOAD_TOO_LARGE", "the body has more than 65536 bytes"),
    ];
    for (bytes, status, code, expected) in cases {
        client.send(&bytes);
        let answer = client.answer();
        let begin = format!(r#"{{"error":{{"code":"{code}","message":""#);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(
            answer.body.starts_with(&begin) && answer.body.replace("\\\"", "\"").contains(expected),
            "{answer:?}"
        );
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert_eq!(answer.field("allow").is_some(), status == 405, "{answer:?}");
    }
    let kinds = [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.check+json",
        "application/x-www-form-urlencoded",
    ];
    for kind in kinds {
        client.send(typed(kind));
        assert_eq!(client.answer().status, 200, "{kind}");
    }
    assert_eq!(client.check(r#"{"client_key":"a"}"#).number("remaining"), 99);
}

#[test]
fn the_server_survives_malformed_input() {
    let server = server_with_daily_limit();
    let chunked = "POST /check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let huge = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let strange: [&[u8]; 9] = [
        b"\0\0\0\0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        huge.as_bytes(),
        &[chunked.as_bytes(), b"ffffffffffffffffff\r\n"].concat(),
    ];
    for bytes in strange {
        // The server may close the connection before everything is sent.
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let _ = std::io::Write::write_all(&mut stream, bytes);
        drop(stream);
        let mut client = server.connect();
        client.send(request("GET", "/livez", &[], ""));
        let answer = client.answer();
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    }
    let mut client = server.connect();
    client.send(format!("{chunked}9\r\n{{\"client_\r\n"));
    client.send("e\r\nkey\":\"alice\"} \r\n0\r\n\r\n");
    assert_eq!(client.answer().number("remaining"), 99, "a chunked body is reassembled");
}

#[test]
fn invalid_http_gets_status_400() {
    let server = server_with_daily_limit();
    for head in
        ["alice\r\n\r\n", "GET /livez HTTP/7.3\r\n\r\n", "GET /livez HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"]
    {
        let mut client = server.connect();
        client.send(head);
        assert_eq!(client.answer().status, 400, "{head:?}");
    }
}

#[test]
fn requests_are_pipelined_on_one_connection() {
    let server = server_with_daily_limit();
    let mut client = server.connect();
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    client.send(
        [check(ALICE), request("GET", "/livez", &[], ""), check(r#"{"client_key":"bob"}"#), check(ALICE)]
            .concat(),
    );
    assert_eq!(client.answer().number("remaining"), 98);
    assert_eq!(client.answer().body, "ok");
    assert_eq!(client.answer().number("remaining"), 99);
    assert_eq!(client.answer().number("remaining"), 97);
    let (half, rest) = ("POST /check HTTP/1.1\r\nHost: a\r\nConn", "ection: close");
    client.send([&check(ALICE), half.as_bytes()].concat());
    assert_eq!(client.answer().number("remaining"), 96, "a response does not wait for the next request");
    client.send(rest);
    client.send(["\r\nContent-Length: 22\r\n\r\n", ALICE].concat());
    assert_eq!(client.answer().number("remaining"), 95);
    assert!(client.has_ended());
}

#[test]
fn http2_with_prior_knowledge_is_supported() {
    let server = server_with_daily_limit();
    let mut client = Http2::connect(&server.address);
    for left in [99, 98] {
        let answer = client.request("POST", "/check", &[], ALICE);
        assert_eq!((answer.status, answer.number("remaining")), (200, left));
    }
    server.terminate();
    client.end();
}

#[test]
fn invalid_rules_are_rejected_with_position_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let path = path.to_str().unwrap();
    let failure_with = |rules: &str| {
        fs::write(path, rules).unwrap();
        failure(&["--rules", path])
    };
    assert_eq!(
        failure_with("rules:\n  - id: a\n    limit: 0/s\n    algorithm: gcra\n"),
        format!(
            "error: {path}:3:12: error: an amount of 0 would deny everything: write at least 1, or put the key on a \
             deny list\n    3 |     limit: 0/s\n      |            ^\n\
             {path}:4:16: error: unknown algorithm \"gcra\": write one of token_bucket, leaky_bucket, fixed_window, \
             sliding_window_counter, sliding_window_log\n    4 |     algorithm: gcra\n      |                ^\n"
        )
    );
    let message = failure_with("rules:\n  - id: a\n    rate: 5\n");
    assert!(message.contains("rules.yaml:3:5: error: unknown field \"rate\""), "{message}");
    let message = failure_with("rules: [{id: one, limit: 5/s}, {id: two, limit: 4/s}]");
    assert!(
        message.contains("the rule is never used: \"one\" in line 1 also counts by api_key"),
        "{message}"
    );
    let message = failure(&["--rules", "no/such/file.yaml"]);
    assert!(
        message.starts_with("error: cannot read the rules in no/such/file.yaml: No such file"),
        "{message}"
    );
}
