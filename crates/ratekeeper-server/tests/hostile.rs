//! Hostile HTTP clients: the server answers with a clear 4xx or closes, charges nothing, keeps its memory bounded, and
//! keeps serving other clients.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

#[path = "hostile/attack.rs"]
mod attack;
#[path = "hostile/frames.rs"]
mod frames;
#[path = "hostile/grpc.rs"]
mod grpc;
#[path = "hostile/slow_clients.rs"]
mod slow_clients;
mod support;

use attack::{RULES, under_attack};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use support::HttpResponse;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const MB: usize = 1_000_000;
const CHUNK: usize = 9_973;

/// A request body that must be rejected.
struct InvalidBody {
    name: &'static str,
    path: &'static str,
    bytes: Bytes,
    status: u16,
}

/// All bodies except the oversized ones use the key `victim`, which must not be charged.
fn bodies() -> Vec<InvalidBody> {
    let check = |name, bytes: &[u8]| InvalidBody {
        name,
        path: "/v1/check",
        bytes: Bytes::copy_from_slice(bytes),
        status: 400,
    };
    let text = |name, text: &str| check(name, text.as_bytes());
    let with = |name, more: &str| text(name, &format!(r#"{{"client_key":"victim",{more}}}"#));
    let cost = |cost: &'static str| with(cost, &format!(r#""cost":{cost}"#));
    let batch =
        |name, bytes: String| InvalidBody { name, path: "/v1/check/batch", bytes: bytes.into(), status: 400 };
    let large = |body: InvalidBody| InvalidBody { status: 413, ..body };
    let attributes = |count: usize| {
        let names: Vec<_> = (0..count).map(|name| format!(r#""a{name}":"""#)).collect();
        format!(r#""attributes":{{{}}}"#, names.join(","))
    };
    let checks = |count: usize, last: &str| {
        let good = r#"{"client_key":"victim"},"#.repeat(count);
        format!(r#"{{"checks":[{good}{last}]}}"#)
    };
    let good = r#"{"client_key":"victim"}"#;
    let nested = |open: &str, depth: usize| open.repeat(depth);
    vec![
        large(with("an endpoint of 10 MB", &format!(r#""endpoint":"{}""#, "x".repeat(10 * MB)))),
        large(text("a key of 10 MB", &format!(r#"{{"client_key":"{}"}}"#, "x".repeat(10 * MB)))),
        large(with("a million attributes", &attributes(MB))),
        large(batch("a batch of 10 MB", checks(10 * MB / 24, good))),
        large(text("70 kB of blanks", &" ".repeat(70_000))),
        text("a key of 60 kB", &format!(r#"{{"client_key":"{}"}}"#, "x".repeat(60_000))),
        text("a key of 4097 bytes", &format!(r#"{{"client_key":"{}"}}"#, "x".repeat(4097))),
        text(
            "a key of 4098 bytes in 1366 characters",
            &format!(r#"{{"client_key":"{}"}}"#, "€".repeat(1366)),
        ),
        text("a key of escapes", &format!(r#"{{"client_key":"{}"}}"#, r"\u0061".repeat(4097))),
        with("an endpoint of 8193 bytes", &format!(r#""endpoint":"{}""#, "x".repeat(8193))),
        with("a method of 129 bytes", &format!(r#""method":"{}""#, "x".repeat(129))),
        with("a tier of 129 bytes", &format!(r#""tier":"{}""#, "x".repeat(129))),
        with("33 attributes", &attributes(33)),
        with("an attribute without a name", r#""attributes":{"":"x"}"#),
        with("an attribute's long name", &format!(r#""attributes":{{"{}":"x"}}"#, "x".repeat(129))),
        with("an attribute's long value", &format!(r#""attributes":{{"x":"{}"}}"#, "x".repeat(4097))),
        with("an attribute that is a number", r#""attributes":{"x":1}"#),
        with("attributes in a list", r#""attributes":["x"]"#),
        batch(
            "200 000 attributes in a batch",
            format!(r#"{{"checks":[{{"client_key":"victim",{}}}]}}"#, attributes(200_000)),
        ),
        text("lists within lists", &nested("[", 60_000)),
        text("objects within objects", &nested(r#"{"client_key":"#, 4_000)),
        with("lists within attributes", &format!(r#""attributes":{{"a":{}"#, nested("[", 50_000))),
        with("objects within attributes", &format!(r#""attributes":{}"#, nested(r#"{"a":"#, 10_000))),
        batch("lists within a batch", format!(r#"{{"checks":{}"#, nested("[", 1_000_000))),
        batch("batches within a batch", nested(r#"{"checks":["#, 100_000)),
        check("a key that is not UTF-8", b"{\"client_key\":\"victim\xff\"}"),
        check("a key with an overlong UTF-8 slash", b"{\"client_key\":\"\xc0\xaf\"}"),
        check("a lone surrogate in bytes", b"{\"client_key\":\"\xed\xa0\x80\"}"),
        check("a byte order mark", b"\xef\xbb\xbf{\"client_key\":\"victim\"}"),
        check("UTF-16", &good.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()),
        check("a control character", b"{\"client_key\":\"vic\ntim\"}"),
        check("NUL", b"{\"client_key\":\"vic\0tim\"}"),
        text("a lone surrogate", r#"{"client_key":"\ud800"}"#),
        text("an invalid escape", r#"{"client_key":"\x41"}"#),
        cost("-1"),
        cost("-9223372036854775809"),
        cost("0.5"),
        cost("1.0000001"),
        cost("1e-7"),
        cost("4294967296"),
        cost("18446744073709551616"),
        cost("1e400"),
        cost("-1e400"),
        cost("01"),
        cost("+1"),
        cost("0x1"),
        cost("1_000"),
        cost("NaN"),
        cost("Infinity"),
        cost("true"),
        cost(r#""1""#),
        cost("[1]"),
        with("a cost of 60 000 digits", &format!(r#""cost":{}"#, "9".repeat(60_000))),
        with("a cost with 60 000 decimals", &format!(r#""cost":0.{}"#, "1".repeat(60_000))),
        with("two keys", r#""client_key":"victim""#),
        with("two keys, one of them escaped", r#""client\u005fkey":"victim""#),
        with("two costs", r#""cost":1,"cost":1"#),
        with("two endpoints, one of them null", r#""endpoint":"/","endpoint":null"#),
        with("one attribute twice", r#""attributes":{"a":"x","\u0061":"y"}"#),
        with("attributes twice", r#""attributes":{},"attributes":{}"#),
        with("an unknown field", r#""weight":1"#),
        with("an address with a port", r#""ip":"192.0.2.7:80""#),
        with("an address with a zone", r#""ip":"fe80::1%eth0""#),
        with("an address in octal", r#""ip":"0300.0.2.7""#),
        with("an address of 60 kB", &format!(r#""ip":"{}""#, "1".repeat(60_000))),
        text("an empty object", "{}"),
        text("an empty body", ""),
        text("null", "null"),
        text("a list", r#"["victim"]"#),
        text("a key that is null", r#"{"client_key":null}"#),
        text("a key that is empty", r#"{"client_key":""}"#),
        text("an object and more", &format!("{good}{good}")),
        text("an object and a comment", &format!("{good} // please")),
        text("half an object", r#"{"client_key":"victim","#),
        text("a trailing comma", r#"{"client_key":"victim",}"#),
        batch("10 001 checks", checks(10_000, good)),
        batch("a batch with one bad check", checks(5_000, r#"{"client_key":"victim","cost":-1}"#)),
        batch("a batch with a check without a client", checks(3, r#"{"endpoint":"/"}"#)),
        batch("a batch with a list in it", checks(3, r#"["victim"]"#)),
        batch("a truncated batch", checks(100, good).replace(']', "")),
        batch("two batches", format!(r#"{{"checks":[{good}],"checks":[{good}]}}"#)),
        batch("a batch with an unknown field", format!(r#"{{"checks":[{good}],"x":1}}"#)),
        batch("a batch that is a list", format!("[{good}]")),
        batch("a batch that is null", r#"{"checks":null}"#.to_owned()),
    ]
}

#[test]
fn invalid_bodies_are_rejected_and_charge_nothing() {
    let bodies = bodies();
    under_attack(RULES, 48, async |server| {
        for body in &bodies {
            for response in [
                send_whole(server.address, body).await,
                send_in_chunks(server.address, body).await,
                send_by_http2(server.address, body).await,
            ] {
                let name = body.name;
                assert_eq!(response.status, body.status, "{name}: {response:?}");
                let error = &response.json()["error"];
                let code = if body.status == 413 { "PAYLOAD_TOO_LARGE" } else { "BAD_REQUEST" };
                assert_eq!(error["code"], code, "{name}: {response:?}");
                assert!(response.body.len() < 1000, "{name}: {response:?}");
            }
        }
        let left = server.connect().await.post("/v1/peek", br#"{"client_key":"victim"}"#).await;
        assert_eq!(left.json()["remaining"], 1_000_000_000, "the victim was charged");
    });
}

/// Sends the body with a Content-Length, as most clients do.
async fn send_whole(address: SocketAddr, body: &InvalidBody) -> HttpResponse {
    let head =
        format!("POST {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.path, body.bytes.len());
    exchange(address, [head.as_bytes(), &body.bytes]).await.expect(body.name)
}

/// Sends the body in chunks of an odd size, which hyper reassembles.
async fn send_in_chunks(address: SocketAddr, body: &InvalidBody) -> HttpResponse {
    let head = format!("POST {} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n", body.path);
    let (whole, rest) = body.bytes.split_at(body.bytes.len() - body.bytes.len() % CHUNK);
    let size = |bytes: usize| format!("{bytes:x}\r\n");
    let (full, last) = (size(CHUNK), size(rest.len()));
    let chunks = whole.chunks(CHUNK).flat_map(|chunk| [full.as_bytes(), chunk, b"\r\n"]);
    let end: &[&[u8]] = match rest {
        [] => &[b"0\r\n\r\n"],
        rest => &[last.as_bytes(), rest, b"\r\n0\r\n\r\n"],
    };
    let pieces = [head.as_bytes()].into_iter().chain(chunks).chain(end.iter().copied());
    exchange(address, pieces).await.expect(body.name)
}

async fn send_by_http2(address: SocketAddr, body: &InvalidBody) -> HttpResponse {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let uri = format!("http://{address}{}", body.path);
    let request = hyper::Request::post(uri).body(Full::new(body.bytes.clone())).unwrap();
    let response = sender.send_request(request).await.expect(body.name);
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect(body.name).to_bytes();
    connection.abort();
    HttpResponse { status, head: String::new(), body: String::from_utf8(bytes.to_vec()).unwrap() }
}

/// Sends pieces for as long as the server accepts them, and reads the first response meanwhile. Returns `None` if the
/// connection ends without one.
pub(crate) async fn exchange<'a>(
    address: SocketAddr,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Option<HttpResponse> {
    let (from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
    let send = async {
        for piece in pieces {
            // The server may have closed the connection.
            if to.write_all(piece).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut from = BufReader::new(from);
    tokio::select! {
        () = send => None,
        response = support::read_response(&mut from) => response,
    }
}

#[test]
fn oversized_heads_are_rejected() {
    let get = |more: String| format!("GET /livez HTTP/1.1\r\nHost: a\r\n{more}\r\n");
    let heads = [
        get("X: y\r\n".repeat(10_000)),
        get((0..10_000).map(|name| format!("X-{name}: y\r\n")).collect()),
        get(format!("X: {}\r\n", "y".repeat(MB))),
        get(format!("{}: y\r\n", "x".repeat(MB))),
        get(format!("Cookie: {}\r\n", "a=b; ".repeat(MB / 5))),
        format!("GET /livez?{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(MB)),
    ];
    under_attack(RULES, 24, async |server| {
        for head in &heads {
            let response = exchange(server.address, [head.as_bytes()]).await.expect("there is a response");
            assert_eq!(response.status, 431, "{:?}", &head[..50]);
        }
        let stream = TcpStream::connect(server.address).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        for (name, value) in [("x-long", "y".repeat(60_000)), ("cookie", "a=b; ".repeat(10_000))] {
            let request = hyper::Request::get(format!("http://{}/livez", server.address)).header(name, value);
            let response = sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await;
            assert_eq!(response.unwrap().status(), 431, "{name}");
        }
    });
}

/// However a path is spelled, exactly its own rule applies.
#[test]
fn spellings_of_a_path() {
    let rules = "
rules:
  - id: login
    match: {path: /admin/login}
    key: [ip]
    limit: 1000/day
  - id: users
    match: {path: '/users/{id}'}
    key: [ip]
    limit: 1000/day
  - id: files
    match: {path: '/files/**'}
    key: [ip]
    limit: 1000/day
  - id: reports
    match: {path_regex: '^/reports/[0-9]+$'}
    key: [ip]
    limit: 1000/day
default: {limit: 1000000000/day}
";
    let spellings: [(&str, &[&str]); 5] = [
        (
            "login",
            &[
                "/admin/login",
                "/admin/login/",
                "//admin///login//",
                "/./admin/./login/.",
                "/x/../admin/login",
                "/../../admin/login",
                "/admin/x/../login",
                "/admin/login/x/..",
                "admin/login",
                "/%61dmin/login",
                "/%61%64%6d%69%6e/%6C%6F%67%69%6E",
                "/admin%2Flogin",
                "/admin%2flogin",
                "%2fadmin%2flogin",
                "/admin/%2e/login",
                "/users/%2e%2e/admin/login",
                "/users/.%2E/admin/login",
                "/files/x/%2E%2e/%2e./admin/login",
                "/files/%2e%2e%2fadmin%2flogin",
                "/admin/login?next=/users/7",
                "/admin/login#top",
                "/admin/login/?/../../files/x",
                "/admin/login%2f%2f",
                r"/admin\/login",
                r"\u002fadmin\u002flogin",
                r"/admin\u002flogin",
                r"/admin%2\u0066login",
                "/admin/login;x",
                "/admin;a=b/login",
                "/users/..;/admin/login",
                "/admin/login%3Bx",
                "http://example.com/admin/login",
            ],
        ),
        (
            "users",
            &["/users/7", "/users/%37/", "/users/a/../7", "/users/..a", "/users/%20", "/users/%252e%252e"],
        ),
        ("files", &["/files/a/b", "/files//a", "/files/a/%2e%2e/b", "/files/../files/a", "/files/%2561dmin"]),
        ("reports", &["/reports/7", "/reports//7/", "/reports/%37", "/reports/x/../7?x", "/reports/7#8"]),
        (
            "default",
            &[
                "/Admin/login",
                "/admin/login%00",
                "/admin/login%3Fx",
                "/admin/login%23x",
                "/admin%252Flogin",
                "/admin/%2561dmin",
                "/admin/login%20",
                "/admin/login%E2%80%8B",
                "/admin/\u{ff4c}ogin",
                "/admin/l%6",
                "/admin/log%C0%AFin",
                "/admin%C0%AFlogin",
                r"/admin\\login",
                r"/admin\u0000/login",
                "/users/7/8",
                "/users/a%2Fb",
                "/users/",
                "/reports/x",
                "/reports/7%0A",
                "/reports/7x",
                "/",
                "",
                "%",
                "/..%00/admin/login",
            ],
        ),
    ];
    under_attack(rules, 16, async |server| {
        let mut client = server.connect().await;
        for (rule, paths) in spellings {
            for (checks, path) in (1..).zip(paths) {
                // JSON escapes in `path` are decoded before anything else.
                let body = format!(r#"{{"client_key":"a","ip":"192.0.2.7","endpoint":"{path}"}}"#);
                let response = client.post("/v1/check", body.as_bytes()).await;
                assert_eq!(response.json()["rule"], rule, "{path:?}: {response:?}");
                if rule != "default" {
                    assert_eq!(response.json()["remaining"], 1000 - checks, "{path:?}: {response:?}");
                }
            }
        }
    });
}
