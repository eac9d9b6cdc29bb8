//! Differential tests: the fast path and hyper give the same responses to the same bytes.
//!
//! Every exchange goes over a real socket, twice: to a connection that starts on the fast path, as all do, and to one
//! that hyper serves from its first byte. The clock behind the limits stands still, so the responses can be compared
//! byte for byte; only the date is masked. Tokio's time is paused: sleeping for a millisecond lets all ready tasks run.

use super::ApiOptions;
use super::testing::{TestApi, api};
use crate::conn::{BodyPermits, ShutdownPhase};
use crate::http::{Handler, Http};
use crate::listener::Protocol;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const CHECK: &str = "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"a\"}";
/// Sent last, to see whether the server still finds the start of a request.
const PROBE: &str = "POST /check HTTP/1.1\r\nHost: probe\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"p\"}";
const CHUNKED: &str = "POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n{\"client_key\":\"a\"}\r\n0\r\n\r\n";

#[derive(Clone, Copy, Debug)]
enum Side {
    FastPath,
    Hyper,
}

/// A connection to a server, seen from the client.
struct TestConnection {
    client: TcpStream,
    phase: watch::Sender<ShutdownPhase>,
    api: Arc<TestApi>,
}

async fn connect(side: Side) -> TestConnection {
    connect_to(side, "default: {limit: 100000/h}", ApiOptions::default()).await
}

async fn connect_to(side: Side, rules: &str, options: ApiOptions) -> TestConnection {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.set_nodelay(true).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (api, _) = api(rules, options);
    let (phase, receiver) = watch::channel(ShutdownPhase::Running);
    spawn_server(side, Arc::clone(&api), stream, receiver);
    TestConnection { client, phase, api }
}

fn spawn_server<T: Handler>(
    side: Side,
    handler: Arc<T>,
    stream: TcpStream,
    phase: watch::Receiver<ShutdownPhase>,
) {
    tokio::spawn(async move {
        let http = Http::new(handler, BodyPermits::default());
        let peer = Ipv4Addr::LOCALHOST.into();
        match side {
            Side::FastPath => http.serve(stream, peer, phase).await,
            Side::Hyper => http.serve_without_fast_path(stream, peer, phase).await,
        }
    });
}

impl TestConnection {
    /// Sends bytes and lets the server process them.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The server may close before it has received everything.
        let _ = self.client.write_all(bytes.as_ref()).await;
        let_server_run().await;
    }

    async fn shutdown_write(&mut self) {
        let _ = self.client.shutdown().await;
    }

    /// Reads until the server closes the connection or sends nothing more.
    async fn read(&mut self) -> ServerOutput {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match timeout(Duration::from_millis(1), self.client.read(&mut piece)).await {
                Ok(Ok(0) | Err(_)) => return ServerOutput { bytes: masked(&bytes), is_closed: true },
                Ok(Ok(length)) => bytes.extend_from_slice(&piece[..length]),
                Err(_) => return ServerOutput { bytes: masked(&bytes), is_closed: false },
            }
        }
    }
}

async fn let_server_run() {
    sleep(Duration::from_millis(1)).await;
}

#[derive(Debug, PartialEq, Eq)]
struct ServerOutput {
    bytes: String,
    is_closed: bool,
}

impl ServerOutput {
    /// The statuses of all responses, in order.
    fn statuses(&self) -> String {
        let lines = self
            .bytes
            .split("\r\n")
            .filter_map(|line| line.split_once("HTTP/1."))
            .map(|(_, rest)| &rest[2..5]);
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// Sends `pieces` to one side, optionally shuts down the sending side, and returns the responses.
async fn exchange(side: Side, pieces: &[&[u8]], half_closes: bool) -> ServerOutput {
    let mut connection = connect(side).await;
    for piece in pieces {
        connection.send(piece).await;
    }
    if half_closes {
        connection.shutdown_write().await;
    }
    connection.read().await
}

/// Asserts that both sides answer `pieces` alike and with these statuses, whether or not the client then shuts down its
/// sending side.
async fn check(name: &str, pieces: &[&[u8]], statuses: &str) {
    for half_closes in [false, true] {
        let fast_path = exchange(Side::FastPath, pieces, half_closes).await;
        let hyper = exchange(Side::Hyper, pieces, half_closes).await;
        assert_eq!(fast_path, hyper, "{name}");
        assert_eq!(fast_path.statuses(), statuses, "{name}: {}", fast_path.bytes);
    }
}

fn masked(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    let dates: Vec<usize> = text.match_indices("\r\ndate: ").map(|(at, found)| at + found.len()).collect();
    for at in dates {
        assert!(text[at..].split("\r\n").next().unwrap().ends_with(" GMT"), "{text}");
        text.replace_range(at..at + 29, &"-".repeat(29));
    }
    text
}

/// A check with these additional header lines.
fn with(lines: &str) -> String {
    format!("POST /check HTTP/1.1\r\nHost: a\r\n{lines}\r\n{{\"client_key\":\"a\"}}")
}

#[tokio::test(start_paused = true)]
async fn plain_requests_are_answered_alike() {
    let length = "Content-Length: 18\r\n";
    let cases = [
        ("check", CHECK.to_owned(), "200 200"),
        ("type", with(&format!("{length}Content-Type: application/json; charset=utf-8\r\n")), "200 200"),
        ("kept alive", with(&format!("connection: Keep-Alive\r\n{length}")), "200 200"),
        ("closed", with(&format!("{length}Connection: CLOSE\r\n")), "200"),
        ("query", CHECK.replace("/check", "/check?a=%20b&c=/?"), "200 200"),
        ("no JSON", CHECK.replace('{', "["), "400 200"),
        ("no key", CHECK.replace("client_key", "client_kex"), "400 200"),
        ("no body", "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".to_owned(), "400 200"),
        ("livez", "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "200 200"),
        (
            "livez with a length",
            "GET /livez HTTP/1.1\r\nHost: a\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "200 200",
        ),
        ("livez closed", "GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "200"),
        ("many headers", with(&("X: y\r\n".repeat(62) + length)), "200 200"),
        ("a long header", with(&format!("X: {}\r\n{length}", "y".repeat(30_000))), "200 200"),
        ("blanks in values", with("X: \t a b \t\r\nContent-Length:  18\t \r\n"), "200 200"),
        ("high bytes in values", with(&format!("X: é\r\n{length}")), "200 200"),
        (
            "several types",
            with(&format!("{length}Content-Type: text/json+json\r\nContent-Type: a\r\n")),
            "200 200",
        ),
    ];
    for (name, request, statuses) in cases {
        check(name, &[(request + PROBE).as_bytes()], statuses).await;
    }
}

/// A forward-auth request with these additional header lines.
fn forward_auth(url: &str, lines: &str) -> String {
    let forwarded =
        "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /orders?page=2\r\nX-Forwarded-Host: shop.example\r\n";
    format!("GET /v1/forward-auth{url} HTTP/1.1\r\nHost: ratekeeper\r\n{forwarded}{lines}\r\n")
}

#[tokio::test(start_paused = true)]
async fn forward_auth_requests_are_answered_alike() {
    let client = "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 203.0.113.7, 127.0.0.1\r\n";
    let key = "?key=header:x-api-key,ip";
    let cases = [
        ("address", forward_auth("", client), "200 200"),
        ("key", forward_auth(key, "X-Api-Key: sk_1\r\n"), "200 200"),
        ("no key", forward_auth("?key=header:x-api-key", ""), "200 200"),
        ("two keys", forward_auth(key, "X-Api-Key: sk_1\r\nX-Api-Key: sk_2\r\n"), "400 200"),
        ("denied", forward_auth("?cost=100001", client), "429 200"),
        ("denied for nginx", forward_auth("?cost=100001&deny_status=403", client), "403 200"),
        (
            "denied with problem details",
            forward_auth("?cost=100001", "Accept: text/html, application/problem+json\r\n"),
            "429 200",
        ),
        ("closed", forward_auth("", "Connection: close\r\n"), "200"),
        ("upgrade", forward_auth("", "Upgrade: websocket\r\nConnection: Upgrade\r\n"), "200 200"),
        ("with a body", forward_auth("", "Content-Length: 4\r\n").replace("GET", "POST") + "body", "200 200"),
        ("another method", forward_auth("", "").replace("GET", "PUT"), "200 200"),
        ("head", forward_auth("?cost=100001", "").replace("GET", "HEAD"), "429 200"),
        ("expect continue", forward_auth("", "Expect: 100-continue\r\n"), "200 200"),
        ("unknown parameter", forward_auth("?page=2", ""), "400 200"),
        ("URI sent twice", forward_auth("", "x-forwarded-uri: /cheap\r\n"), "400 200"),
        ("conflicting header families", forward_auth("", "X-Original-URI: /cheap\r\n"), "400 200"),
        ("no forwarded headers", "GET /v1/forward-auth HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "400 200"),
        ("high bytes", forward_auth("", "X: \u{e9}\r\n").replace("/orders", "/caf\u{e9}"), "200 200"),
    ];
    for (name, request, statuses) in cases {
        check(name, &[(request + PROBE).as_bytes()], statuses).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cross_site_requests_are_answered_alike() {
    let length = "Content-Length: 18\r\n";
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let cases = [
        ("another origin", with(&format!("Origin: https://evil.example\r\n{length}")), "403 200"),
        ("a form from a null origin", with(&format!("Origin: null\r\n{form}{length}")), "403 200"),
        ("another site", with(&format!("Sec-Fetch-Site: cross-site\r\n{length}")), "403 200"),
        ("same origin", with(&format!("Origin: http://a\r\n{length}")), "200 200"),
        ("the content type of curl -d", with(&format!("{form}{length}")), "200 200"),
        (
            "a cross-site GET",
            "GET /livez HTTP/1.1\r\nHost: a\r\nOrigin: https://b\r\n\r\n".to_owned(),
            "200 200",
        ),
        (
            "a cross-site client behind a proxy",
            forward_auth("", "Origin: https://b\r\nSec-Fetch-Site: cross-site\r\n"),
            "200 200",
        ),
    ];
    for (name, request, statuses) in cases {
        check(name, &[(request + PROBE).as_bytes()], statuses).await;
    }
}

#[tokio::test(start_paused = true)]
async fn odd_requests_are_answered_alike() {
    let length = "Content-Length: 18\r\n";
    let huge = "y".repeat(40_000);
    let body = |bytes: usize| {
        format!("POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: {bytes}\r\n\r\n{}", "y".repeat(bytes))
    };
    let cases = [
        ("HTTP/1.0", CHECK.replace("1.1", "1.0"), "200"),
        ("HTTP/1.0 kept alive", CHECK.replace("1.1\r\n", "1.0\r\nConnection: keep-alive\r\n"), "200 200"),
        ("HTTP/1.2", CHECK.replace("1.1", "1.2"), "400"),
        ("HTTP/0.9", "GET /livez\r\n".to_owned(), "400"),
        (
            "HTTP/2 preface after HTTP/1",
            format!("{CHECK}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
            "200",
        ),
        ("chunked", CHUNKED.to_owned(), "200 200"),
        ("expect continue", with(&format!("Expect: 100-continue\r\n{length}")), "100 200 200"),
        ("unknown expectation", with(&format!("Expect: tea\r\n{length}")), "200 200"),
        ("upgrade", with(&format!("Upgrade: h2c\r\nConnection: upgrade\r\n{length}")), "200 200"),
        ("trailers", with(&format!("TE: trailers\r\n{length}")), "200 200"),
        ("connection with two options", with(&format!("Connection: close, x\r\n{length}")), "200"),
        (
            "two connection headers",
            with(&format!("Connection: close\r\nConnection: keep-alive\r\n{length}")),
            "200",
        ),
        ("no length", "POST /check HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "400 200"),
        ("absolute form", CHECK.replace("/check", "http://test/check"), "200 200"),
        ("asterisk form", CHECK.replace("/check", "*"), "404 200"),
        ("invalid form", CHECK.replace("/check", "check"), "404 200"),
        ("fragment", CHECK.replace("/check", "/check#a"), "200 200"),
        ("odd query", CHECK.replace("/check", "/check?<\">"), "400"),
        ("high bytes in a path", CHECK.replace("/check", "/chéck"), "404 200"),
        ("another path", CHECK.replace("/check", "/chekc"), "404 200"),
        ("another path, escaped", CHECK.replace("/check", "/%63heck"), "404 200"),
        ("another method", CHECK.replace("POST", "PUT"), "405 200"),
        ("unknown method", CHECK.replace("POST", "GETT"), "405 200"),
        ("get", "GET /check HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405 200"),
        ("get with a body", CHECK.replace("POST /check", "GET /livez"), "200 200"),
        ("head", "HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "200 200"),
        ("another type", with(&format!("{length}Content-Type: text/plain\r\n")), "415 200"),
        ("too many headers", with(&("X: y\r\n".repeat(100) + length)), "431"),
        ("headers over the fast path's maximum", with(&("X: y\r\n".repeat(98) + length)), "200 200"),
        ("a header too long", with(&format!("X: {huge}\r\n{length}")), "431"),
        ("a name too long", with(&format!("{huge}: x\r\n{length}")), "431"),
        ("a path too long", CHECK.replace("/check", &format!("/{huge}")), "431"),
        ("the largest body", body(64 * 1024), "400 200"),
        ("a body too large", body(64 * 1024 + 1), "413 200"),
        ("not HTTP", "alice\r\n\r\n".to_owned(), "400"),
        ("only empty lines", "\r\n\r\n".to_owned(), "200"),
    ];
    for (name, request, statuses) in cases {
        check(name, &[(request + PROBE).as_bytes()], statuses).await;
    }
}

#[tokio::test(start_paused = true)]
async fn smuggling_attempts_are_answered_alike() {
    let length = "Content-Length: 18\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let in_chunks = |size: &str| {
        format!(
            "POST /check HTTP/1.1\r\nHost: a\r\n{chunked}\r\n{size}\r\n{{\"client_key\":\"a\"}}\r\n0\r\n\r\n"
        )
    };
    let cases = [
        ("length and chunks", with(&format!("{length}{chunked}")), "400"),
        ("chunks and length", with(&format!("{chunked}{length}")), "400"),
        ("two lengths", with(&format!("{length}Content-Length: 19\r\n")), "400"),
        ("one length twice", with(&format!("{length}{length}")), "200 200"),
        ("a list of lengths", with("Content-Length: 18, 18\r\n"), "400"),
        ("plus", with("Content-Length: +18\r\n"), "400"),
        ("minus", with("Content-Length: -18\r\n"), "400"),
        ("leading zeros", with("Content-Length: 0018\r\n"), "200 200"),
        ("hexadecimal", with("Content-Length: 0x12\r\n"), "400"),
        ("a space within", with("Content-Length: 1 8\r\n"), "400"),
        ("a space before the colon", with("Content-Length : 18\r\n"), "400"),
        ("empty", with("Content-Length:\r\n"), "400"),
        ("too long to count", with("Content-Length: 18446744073709551634\r\n"), "400"),
        ("folded", with("Content-Length: 1\r\n 8\r\n"), "400"),
        ("folded header", with(&format!("X: a\r\n\tb\r\n{length}")), "400"),
        ("space before the first header", with(&format!(" X: a\r\n{length}")), "400"),
        ("lines that end in LF", CHECK.replace("\r\n", "\n"), "400"),
        ("one line that ends in LF", with("Content-Length: 18\n"), "400"),
        ("an end in LF", CHECK.replace("\r\n\r\n", "\r\n\n"), "400"),
        ("a bare CR", with(&format!("X: a\rContent-Length: 3\r\n{length}")), "400"),
        ("a header after a bare LF in a value", with(&format!("X: a\nContent-Length: 3\r\n{length}")), "400"),
        ("NUL in a value", with(&format!("X: a\0\r\n{length}")), "400"),
        ("NUL in a name", with(&format!("X\0: a\r\n{length}")), "400"),
        ("a similar name", with(&format!("Content_Length: 3\r\n{length}")), "200 200"),
        ("a name with a high byte", with(&format!("Contént-Length: 3\r\n{length}")), "400"),
        ("leading empty lines", format!("\r\n\r\n{CHECK}"), "200 200"),
        ("a leading bare LF", format!("\n{CHECK}"), "400"),
        ("a leading space", format!(" {CHECK}"), "400"),
        ("two spaces in the request line", CHECK.replace(" /check", "  /check"), "400"),
        ("a tab in the request line", CHECK.replace(" /check", "\t/check"), "400"),
        ("a space after the version", CHECK.replace("1.1\r\n", "1.1 \r\n"), "400"),
        ("unknown encoding", with("Transfer-Encoding: xchunked\r\n"), "400"),
        (
            "chunked before another encoding",
            with(&format!("Transfer-Encoding: chunked, gzip\r\n{length}")),
            "400",
        ),
        ("chunked after a tab", with(&format!("Transfer-Encoding:\tchunked\r\n{length}")), "400"),
        ("identity encoding", with(&format!("Transfer-Encoding: identity\r\n{length}")), "400"),
        ("empty encoding", with(&format!("Transfer-Encoding:\r\n{length}")), "400"),
        ("a chunk size", in_chunks("12"), "200 200"),
        ("a chunk size in words", in_chunks("twelve"), "400"),
        ("a chunk size with a sign", in_chunks("+12"), "400"),
        ("a chunk size with a 0x prefix", in_chunks("0x12"), "400"),
        ("a chunk too large", in_chunks("ffffffffffffffffff"), "400"),
        ("a chunk too small", in_chunks("11"), "400"),
        ("chunked after another encoding", with("Transfer-Encoding: gzip, chunked\r\n"), "400"),
        ("chunked twice", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), "400"),
        (
            "chunked in a second header",
            in_chunks("12").replace("chunked", "gzip\r\nTransfer-Encoding: chunked"),
            "400",
        ),
        ("chunked in capitals", in_chunks("12").replace("chunked", "CHUNKED"), "200 200"),
        ("no host", CHECK.replace("Host: a\r\n", ""), "400"),
        ("no host in chunks", in_chunks("12").replace("Host: a\r\n", ""), "400"),
        ("two hosts", with(&format!("Host: b\r\n{length}")), "400"),
        ("one host twice", with(&format!("HOST: a\r\n{length}")), "400"),
        (
            "no host and an absolute form",
            CHECK.replace("Host: a\r\n", "").replace("/check", "http://a/check"),
            "400",
        ),
        ("HTTP/1.0 without a host", CHECK.replace("Host: a\r\n", "").replace("1.1", "1.0"), "200"),
        ("HTTP/1.0 with two hosts", with(&format!("Host: b\r\n{length}")).replace("1.1", "1.0"), "400"),
        ("HTTP/1.0 in chunks", CHUNKED.replace("1.1", "1.0"), "400"),
    ];
    for (name, request, statuses) in cases {
        check(name, &[(request.clone() + PROBE).as_bytes()], statuses).await;
        // After a request that the fast path has answered.
        check(name, &[(CHECK.to_owned() + &request + PROBE).as_bytes()], &format!("200 {statuses}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_requests_are_answered_alike() {
    let cases = [
        ("", ""),
        ("P", ""),
        ("POST /check HTTP/1.1\r\nHost: a\r\nContent-", ""),
        ("POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"client", "400"),
        ("POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n", "400"),
    ];
    for (bytes, statuses) in cases {
        for (begin, before) in [("", ""), (CHECK, "200 ")] {
            let bytes = format!("{begin}{bytes}");
            let fast_path = exchange(Side::FastPath, &[bytes.as_bytes()], true).await;
            assert_eq!(fast_path, exchange(Side::Hyper, &[bytes.as_bytes()], true).await, "{bytes:?}");
            assert_eq!(fast_path.statuses(), format!("{before}{statuses}").trim_end(), "{bytes:?}");
            assert!(fast_path.is_closed, "{bytes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_may_be_split_anywhere() {
    let long = with(&format!("Content-Length: 18\r\nConnection: keep-alive\r\nX: {}\r\n", "y".repeat(20)));
    let cases = [
        (&long[..], "200 200"),
        (CHUNKED, "200 200"),
        (&CHECK.replace("1.1", "1.0"), "200 200"),
        (&CHECK.replace("\r\n", "\n"), "200 400"),
    ];
    for (second, statuses) in cases {
        let whole = [CHECK, second].concat();
        let expected = exchange(Side::Hyper, &[whole.as_bytes()], true).await;
        assert_eq!(expected.statuses(), statuses);
        for cut in 1..whole.len() {
            let (first, rest) = whole.as_bytes().split_at(cut);
            let fast_path = exchange(Side::FastPath, &[first, rest], true).await;
            assert_eq!(fast_path, expected, "cut at {cut}");
        }
    }
    let bytes: Vec<&[u8]> = long.as_bytes().chunks(1).collect();
    check("byte by byte", &bytes, "200").await;
}

#[tokio::test(start_paused = true)]
async fn http2_may_be_split_anywhere() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for cut in 1..preface.len() {
        let (first, rest) = preface.split_at(cut);
        let fast_path = exchange(Side::FastPath, &[first, rest], false).await;
        assert_eq!(fast_path, exchange(Side::Hyper, &[first, rest], false).await, "cut at {cut}");
        // The server's SETTINGS, and its acknowledgement of the client's.
        assert!(
            fast_path.bytes.contains("\0\0\x18\x04\0") && fast_path.bytes.contains("\0\0\0\x04\x01"),
            "cut at {cut}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_pipelined_requests_are_answered_in_order() {
    let requests: String = (1..=1000)
        .map(|cost| format!(r#"{{"client_key":"a","cost":{cost}}}"#))
        .map(|body| {
            format!("POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        })
        .collect();
    let fast_path = exchange(Side::FastPath, &[requests.as_bytes()], true).await;
    assert_eq!(fast_path, exchange(Side::Hyper, &[requests.as_bytes()], true).await);
    assert_eq!(fast_path.statuses().split(' ').count(), 1000);
    assert!(fast_path.is_closed, "the client shut down its sending side");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_late_loses_no_response() {
    let mut connection = connect(Side::FastPath).await;
    let requests = CHECK.repeat(100);
    let mut sent = 0;
    // Until all socket buffers are full.
    while let Ok(Ok(length)) = timeout(
        Duration::from_millis(10),
        connection.client.write(&requests.as_bytes()[sent % requests.len()..]),
    )
    .await
    {
        sent += length;
    }
    let answered = 100_000 - connection.api.left("a").await;
    assert!(
        (answered as usize) * CHECK.len() < sent,
        "some of {sent} bytes were left unread, {answered} answered"
    );
    let rest = CHECK.len() - sent % CHECK.len();
    let (mut from, mut to) = connection.client.split();
    let finish = async {
        to.write_all(&CHECK.as_bytes()[CHECK.len() - rest..]).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut read = Vec::new();
    let (all, ()) = tokio::join!(from.read_to_end(&mut read), finish);
    assert!(all.is_ok());
    let responses = ServerOutput { bytes: masked(&read), is_closed: true };
    let requested = (sent + rest) / CHECK.len();
    assert_eq!(responses.statuses().split(' ').filter(|status| *status == "200").count(), requested);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_closes_when_the_server_drains() {
    for begin in ["", CHECK] {
        let mut connection = connect(Side::FastPath).await;
        connection.send(begin).await;
        assert!(!connection.read().await.is_closed);
        connection.phase.send_replace(ShutdownPhase::Draining);
        let_server_run().await;
        assert_eq!(
            connection.read().await,
            ServerOutput { bytes: String::new(), is_closed: true },
            "after {begin:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn started_requests_are_answered_while_the_server_drains() {
    for (request, cut) in [(CHECK, 5), (CHECK, 30), (CHECK, CHECK.len() - 1), (CHUNKED, 5), (CHUNKED, 60)] {
        for begin in ["", CHECK] {
            let (first, rest) = request.split_at(cut);
            let mut connection = connect(Side::FastPath).await;
            connection.send([begin, first].concat()).await;
            let _ = connection.read().await;
            connection.phase.send_replace(ShutdownPhase::Draining);
            let_server_run().await;
            connection.send(rest).await;
            let read = connection.read().await;
            assert_eq!((read.statuses().as_str(), read.is_closed), ("200", true), "{request:?} cut at {cut}");
            assert_eq!(read.bytes.matches("\r\nconnection: close\r\n").count(), 1, "{}", read.bytes);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_close_when_the_server_stops() {
    for begin in ["", CHECK, "POST /che", CHUNKED] {
        let mut connection = connect(Side::FastPath).await;
        connection.send(begin).await;
        let _ = connection.read().await;
        let (never, _) = watch::channel(ShutdownPhase::Running);
        drop(std::mem::replace(&mut connection.phase, never));
        let_server_run().await;
        assert!(connection.read().await.is_closed, "after {begin:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_limit_is_evaluated_at_most_once_per_request() {
    for side in [Side::FastPath, Side::Hyper] {
        let options =
            ApiOptions { deny_status: hyper::StatusCode::TOO_MANY_REQUESTS, ..ApiOptions::default() };
        let mut connection = connect_to(side, "rules: [{id: both, limits: [2/min, 3/h]}]", options).await;
        let before = ratekeeper_core::forecast_count();
        connection.send(CHECK.repeat(2)).await;
        connection.send(CHECK.replacen("Host", "Accept: application/problem+json\r\nHost", 1)).await;
        connection.send(CHECK).await;
        assert_eq!(connection.read().await.statuses(), "200 200 429 429");
        assert_eq!(ratekeeper_core::forecast_count() - before, 4 * 2);
    }
}
