//! `tollgate serve` from outside: the real binary, byte by byte.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::{SystemTime, UNIX_EPOCH};
use support::{Server, check, failure, request, rules};

const ALICE: &str = r#"{"client_key":"alice"}"#;

#[expect(clippy::disallowed_methods, reason = "what the server says is held against the wall clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_hundred_a_minute_count_down_to_a_denial() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    let begun = unix_seconds();
    let mut asked = 0;
    let denied = loop {
        let answer = client.check(ALICE);
        assert_eq!(answer.status, 200);
        if !answer.body.contains("\"allowed\":true") {
            break answer;
        }
        asked += 1;
        let (remaining, reset_at) = (answer.number("remaining"), answer.number("reset_at"));
        let body =
            format!(r#"{{"allowed":true,"remaining":{remaining},"reset_at":{reset_at},"retry_after":null}}"#);
        assert_eq!(answer.body, body);
        assert!(answer.head.contains("\r\ncontent-type: application/json\r\n"));
        // A machine slow enough to win units back while it asks is no failure; gaining more than that would be.
        let regained = (unix_seconds() - begun + 1) * 100 / 60 + 1;
        assert!((100..=100 + regained).contains(&(remaining + asked)), "{remaining} left after {asked}");
        assert!((begun..=unix_seconds() + 61).contains(&reset_at), "{reset_at}");
    };
    assert!(asked >= 100);
    let reset_at = denied.number("reset_at");
    let body = format!(r#"{{"allowed":false,"remaining":0,"reset_at":{reset_at},"retry_after":1}}"#);
    assert_eq!(denied.body, body);
    let other = client.check(r#"{"client_key":"bob"}"#);
    assert_eq!((other.status, other.number("remaining")), (200, 99), "a key has nothing to do with another");
}

#[test]
fn what_never_fits_is_denied_without_a_time_to_come_back() {
    let server = Server::start(&[]);
    let answer = server.check(r#"{"client_key":"alice","cost":101}"#);
    assert_eq!(answer.status, 200);
    assert!(answer.body.starts_with(r#"{"allowed":false,"remaining":100,"#), "{answer:?}");
    assert!(answer.body.ends_with(r#","retry_after":null}"#), "{answer:?}");
}

#[test]
fn several_limits_must_all_be_passed() {
    let mut server = Server::with_rules(
        "several",
        "
rules:
  - id: burst
    limit: 3/h
    algorithm: sliding_window_log
  - id: sustained
    limits: [5/day]
    algorithm: fixed_window
  - id: polite
    limits: [4/h, 1000/day]
",
    );
    let mut client = server.connect();
    for left in [2, 1, 0] {
        let answer = client.check(ALICE);
        assert!(answer.body.contains("\"allowed\":true"), "{answer:?}");
        assert_eq!(answer.number("remaining"), left);
    }
    let answer = client.check(ALICE);
    assert!(answer.body.starts_with(r#"{"allowed":false,"remaining":0,"#), "{answer:?}");
    assert!((3590..=3600).contains(&answer.number("retry_after")), "the first hit leaves the log in an hour");
    let greeting = server.rest_of_greeting(4);
    assert!(greeting.contains("several.yaml"), "{greeting}");
    assert!(
        greeting.contains("  burst: sliding_window_log 3/h\n  sustained: fixed_window 5/day\n"),
        "{greeting}"
    );
}

#[test]
fn bad_input_gets_a_clear_error_and_costs_nothing() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    let big = format!(r#"{{"client_key":"alice","endpoint":"{}"}}"#, "x".repeat(70_000));
    let sent = |body: &str| check(body);
    let typed = |kind: &str| {
        let head = format!(
            "POST /check HTTP/1.1\r\nHost: test\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            ALICE.len()
        );
        format!("{head}{ALICE}").into_bytes()
    };
    let cases = [
        (sent("{"), 400, "BAD_REQUEST", "cannot read the body: EOF"),
        (sent(""), 400, "BAD_REQUEST", "the body is not a JSON object: write one like {"),
        (sent("{}"), 400, "BAD_REQUEST", "cannot read the body: missing field `client_key`"),
        (
            sent(r#"{"client_key":""}"#),
            400,
            "BAD_REQUEST",
            "expected client_key to be text of 1 to 4096 bytes",
        ),
        (
            sent(r#"{"client_key":"a","cost":-1}"#),
            400,
            "BAD_REQUEST",
            "integer `-1`, expected cost to be a whole number",
        ),
        (
            sent(r#"{"client_key":"a","cost":0.5}"#),
            400,
            "BAD_REQUEST",
            "`0.5`, expected cost to be a whole number",
        ),
        (
            sent(r#"{"client_key":"a","cost":4294967296}"#),
            400,
            "BAD_REQUEST",
            "whole number from 0 to 4294967295",
        ),
        (
            sent(r#"{"client_key":"a","weight":1}"#),
            400,
            "BAD_REQUEST",
            "unknown field `weight`, expected one of",
        ),
        (check(b"{\"client_key\":\"\xff\"}"), 400, "BAD_REQUEST", "invalid unicode"),
        (request("GET", "/check", ""), 405, "METHOD_NOT_ALLOWED", "/check is not for GET: use POST"),
        (
            request("DELETE", "/livez", ""),
            405,
            "METHOD_NOT_ALLOWED",
            "/livez is not for DELETE: use GET, HEAD",
        ),
        (
            request("POST", "/chekc?x=1", ALICE),
            404,
            "NOT_FOUND",
            "there is nothing at /chekc: check with POST /check",
        ),
        (
            typed("text/plain"),
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "a body of type text/plain can't be read: send JSON",
        ),
        (sent(&big), 413, "PAYLOAD_TOO_LARGE", "the body has more than 65536 bytes"),
    ];
    for (bytes, status, code, said) in cases {
        client.send(&bytes);
        let answer = client.answer();
        let begin = format!(r#"{{"error":{{"code":"{code}","message":""#);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(
            answer.body.starts_with(&begin) && answer.body.replace("\\\"", "\"").contains(said),
            "{answer:?}"
        );
        assert!(answer.head.contains("\r\ncontent-type: application/json\r\n"), "{answer:?}");
        assert_eq!(answer.head.contains("\r\nallow: "), status == 405, "{answer:?}");
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
fn whatever_is_sent_the_server_lives() {
    let server = Server::start(&[]);
    let chunked = "POST /check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let huge = format!("GET /livez HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let strange: [&[u8]; 9] = [
        b"\0\0\0\0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /check HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /check HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        huge.as_bytes(),
        &[chunked.as_bytes(), b"ffffffffffffffffff\r\n"].concat(),
    ];
    for bytes in strange {
        // The server may well have closed the connection before it was sent everything.
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let _ = std::io::Write::write_all(&mut stream, bytes);
        drop(stream);
        let mut client = server.connect();
        client.send(request("GET", "/livez", ""));
        let answer = client.answer();
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    }
    let mut client = server.connect();
    client.send(format!("{chunked}9\r\n{{\"client_\r\n"));
    client.send("e\r\nkey\":\"alice\"} \r\n0\r\n\r\n");
    assert_eq!(client.answer().number("remaining"), 99, "a body may come in pieces");
}

#[test]
fn what_is_no_http_is_answered_too() {
    let server = Server::start(&[]);
    for head in ["alice\r\n\r\n", "GET /livez HTTP/7.3\r\n\r\n", "GET /livez HTTP/1.1\r\nno colon\r\n\r\n"] {
        let mut client = server.connect();
        client.send(head);
        assert_eq!(client.answer().status, 400, "{head:?}");
    }
}

#[test]
fn requests_share_a_connection_and_a_segment() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    client.send(
        [check(ALICE), request("GET", "/livez", ""), check(r#"{"client_key":"bob"}"#), check(ALICE)].concat(),
    );
    assert_eq!(client.answer().number("remaining"), 98);
    assert_eq!(client.answer().body, "ok");
    assert_eq!(client.answer().number("remaining"), 99);
    assert_eq!(client.answer().number("remaining"), 97);
    let (half, rest) = ("POST /check HTTP/1.1\r\nConn", "ection: close");
    client.send([&check(ALICE), half.as_bytes()].concat());
    assert_eq!(client.answer().number("remaining"), 96, "an answer does not wait for the next request");
    client.send(rest);
    client.send(["\r\nContent-Length: 22\r\n\r\n", ALICE].concat());
    assert_eq!(client.answer().number("remaining"), 95);
    assert!(client.has_ended());
}

#[tokio::test]
async fn http2_is_spoken_to_those_who_begin_with_it() {
    let server = Server::start(&[]);
    let stream = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for left in [99, 98] {
        let request = hyper::Request::post("http://test/check").body(Full::new(Bytes::from(ALICE))).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(format!(r#"{{"allowed":true,"remaining":{left},"#).as_bytes()), "{body:?}");
    }
    server.terminate();
    connection.await.unwrap().unwrap();
}

#[test]
fn a_signal_stops_it_though_an_idle_connection_is_open() {
    let mut server = Server::start(&[]);
    let (mut used, mut fresh) = (server.connect(), server.connect());
    assert_eq!(used.check(ALICE).status, 200);
    server.terminate();
    assert!(used.has_ended() && fresh.has_ended());
    assert_eq!(server.exit_code(), Some(0));
}

/// A client whose request has begun: the server has asked for the body.
fn begun(server: &Server) -> support::Client {
    let mut client = server.connect();
    client.send("POST /check HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 22\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    client
}

#[test]
fn a_signal_lets_a_request_finish_that_has_begun() {
    let mut server = Server::start(&[]);
    let (mut idle, mut begun) = (server.connect(), begun(&server));
    server.terminate();
    assert!(idle.has_ended());
    assert!(std::net::TcpStream::connect(&server.address).is_err(), "nobody else is let in");
    begun.send(ALICE);
    assert_eq!(begun.answer().number("remaining"), 99);
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_second_signal_stops_it_at_once() {
    let mut server = Server::start(&[]);
    let (mut idle, mut begun) = (server.connect(), begun(&server));
    server.terminate();
    assert!(idle.has_ended());
    server.terminate();
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(1));
}

#[test]
fn bad_rules_are_refused_with_the_place_and_a_remedy() {
    let path = rules("bad", "rules:\n  - id: a\n    limit: 0/s\n    algorithm: gcra\n");
    let path = path.to_str().unwrap();
    assert_eq!(
        failure(&["--rules", path]),
        format!(
            "error: {path}:3:12: an amount of 0 would refuse everything: write at least 1, or put the key on a deny list\n\
             {path}:4:16: unknown algorithm \"gcra\": write one of token_bucket, leaky_bucket, fixed_window, \
             sliding_window_counter, sliding_window_log\n"
        )
    );
    let said = failure(&["--rules", rules("shape", "rules:\n  - id: a\n    rate: 5\n").to_str().unwrap()]);
    assert!(
        said.contains("shape.yaml:3:5: unknown field \"rate\": the fields here are id, limit,"),
        "{said}"
    );
    let said = failure(&["--rules", "no/such/file.yaml"]);
    assert!(said.starts_with("error: cannot read the rules in no/such/file.yaml: No such file"), "{said}");
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let server = Server::start(&[]);
    let said = failure(&["--http", &server.address]);
    assert!(
        said.starts_with(&format!(
            "error: cannot listen on {}: something else listens there: stop it, or",
            server.address
        )),
        "{said}"
    );
    let said = failure(&["--http", "nowhere"]);
    assert!(
        said.starts_with("error: cannot listen on nowhere: write an address and a port, like 127.0.0.1:8080"),
        "{said}"
    );
}
