//! Fuzz tests: whatever a client sends, the API answers once, with a decision or 400, and a rejected request takes no
//! units.

use super::testing::{TestApi, api};
use super::*;
use crate::conn::{BodyPermits, ShutdownPhase};
use crate::http::Http;
use crate::listener::Protocol;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::panic::AssertUnwindSafe;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

const RULES: &str = "
rules:
  - {id: users, match: {path: '/users/{id}'}, key: [api_key, endpoint], limits: [5/s, 100/h]}
  - {id: tenants, key: [tenant], algorithm: sliding_window_log, limit: 50/min}
  - {id: addresses, match: {method: [GET, POST]}, key: [ip], algorithm: fixed_window, limit: 7/min}
  - {id: tried-out, key: [method], shadow: true, limit: 1/min}
default: {limit: 100/min burst 20}
tiers: {pro: 1000/min}
allow: ['in*']
deny: ['0*', 192.0.2.0/24]
";

const PATHS: [&str; 8] = [
    "/check",
    "/v1/check",
    "/v1/check?deny_status=429",
    "/v1/peek",
    "/v1/refund",
    "/v1/reset",
    "/v1/check/batch",
    "/v1/check/batch?deny_status=403",
];

/// Pieces of valid and invalid checks.
const PIECES: [&[u8]; 48] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"\"",
    b"\\",
    b"null",
    b"true",
    b"0",
    b"-0",
    b"1.0",
    b"1e3",
    b"1e400",
    b"-1",
    b"4294967295",
    b"4294967296",
    b"99999999999999999999",
    b"{\"checks\":[",
    b"]}",
    b"{\"client_key\":\"a\"}",
    b"{\"client_key\":\"a\",",
    b"{\"client_key\":\"0\",\"cost\":2}",
    b"\"client_key\":",
    b"\"client\\u005fkey\":",
    b"\"endpoint\":",
    b"\"method\":",
    b"\"tier\":",
    b"\"ip\":",
    b"\"attributes\":",
    b"\"cost\":",
    b"\"weight\":",
    b"\"a\"",
    b"\"\"",
    b"\"in\"",
    b"\"pro\"",
    b"\"GET\"",
    b"\"/users/%37/../8\"",
    b"\"192.0.2.7\"",
    b"\"2001:db8::1\"",
    b"{\"tenant\":\"acme\"}",
    b"\"\\u0000\\ud83d\\ude00\"",
    b"\"\\ud800\"",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\n",
];

struct FuzzServer {
    runtime: Runtime,
    http: Http<TestApi>,
    api: Arc<TestApi>,
}

impl FuzzServer {
    fn new() -> FuzzServer {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (api, _) = api(RULES, ApiOptions { max_batch: 5, ..ApiOptions::default() });
        FuzzServer { runtime, http: Http::new(Arc::clone(&api), BodyPermits::default()), api }
    }

    /// Sends bytes on a new connection, and reads to its end.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        self.runtime.block_on(async {
            let (stream, client) = duplex(1 << 20);
            let (_phase, receiver) = watch::channel(ShutdownPhase::Running);
            let (mut from, mut to) = tokio::io::split(client);
            let send = async {
                // The server may close early.
                let _ = to.write_all(bytes).await;
                let _ = to.shutdown().await;
            };
            let mut read = Vec::new();
            let serve = self.http.serve(stream, Ipv4Addr::LOCALHOST.into(), receiver);
            let ((), (), all) = tokio::join!(serve, send, from.read_to_end(&mut read));
            all.unwrap();
            read
        })
    }

    fn keys(&self) -> u64 {
        self.api.limiter.store().stats().keys as u64
    }

    /// Sends a body on the fast path and through hyper.
    fn send(&self, path: u8, body: &[u8]) {
        let path = PATHS[usize::from(path) % PATHS.len()];
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n", body.len());
        let fast_path = [head.as_bytes(), b"\r\n", body].concat();
        let hyper = [head.as_bytes(), b"TE: trailers\r\n\r\n", body].concat();
        for request in [fast_path, hyper] {
            let before = self.keys();
            let (status, response) = only_response(&self.exchange(&request));
            match status {
                200 | 403 | 429 => check_response(path, body, status, &response),
                400 => {
                    assert_eq!(response["error"]["code"], "BAD_REQUEST");
                    assert_eq!(self.keys(), before, "{}", String::from_utf8_lossy(body));
                }
                status => panic!("{status} to {}", String::from_utf8_lossy(body)),
            }
        }
    }
}

/// The status and the body of the only response.
fn only_response(read: &[u8]) -> (u16, Value) {
    let text = str::from_utf8(read).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert_eq!(length, body.len().to_string(), "there is no second response");
    (status, serde_json::from_str(body).unwrap())
}

/// Asserts that a decided request is valid as `serde_json` parses it.
fn check_response(path: &str, body: &[u8], status: u16, response: &Value) {
    let request: Value = serde_json::from_slice(body).unwrap();
    let request = request.as_object().unwrap();
    if path.starts_with("/v1/check/batch") {
        let (checks, results) =
            (request["checks"].as_array().unwrap(), response["results"].as_array().unwrap());
        assert_eq!((status, checks.len()), (200, results.len()));
        assert!(checks.len() <= 5);
        return;
    }
    let known = ["client_key", "endpoint", "method", "tier", "ip", "attributes", "cost"];
    assert!(request.keys().all(|field| known.contains(&&**field)), "{request:?}");
    assert!(request.contains_key("client_key") || path != "/check");
    let cost = request.get("cost").and_then(Value::as_f64).unwrap_or(1.0);
    assert!(cost.fract() == 0.0 && (0.0..=4_294_967_295.0).contains(&cost), "{request:?}");
    match status {
        200 => assert!(response["allowed"].is_boolean()),
        _ => assert!(path.ends_with(&format!("deny_status={status}")) && response["error"].is_object()),
    }
}

#[test]
fn bodies_of_any_bytes() {
    let fuzz = AssertUnwindSafe(FuzzServer::new());
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(path, body)| fuzz.send(*path, body));
}

#[test]
fn nearly_valid_bodies() {
    let fuzz = AssertUnwindSafe(FuzzServer::new());
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(path, choices)| {
        let chosen = choices.iter().flat_map(|choice| PIECES[usize::from(*choice) % PIECES.len()]);
        fuzz.send(*path, &chosen.copied().collect::<Vec<u8>>());
    });
}

#[test]
fn valid_bodies_with_changes() {
    let good = [
        &br#"{"client_key":"user:1","endpoint":"/users/7","method":"GET","cost":12,"ip":"10.0.0.1"}"#[..],
        br#"{"checks":[{"client_key":"a","cost":1},{"ip":"::1","tier":"pro"},{"attributes":{"tenant":"x"}}]}"#,
    ];
    let fuzz = AssertUnwindSafe(FuzzServer::new());
    bolero::check!().with_type::<(u8, bool, Vec<(u8, u8, u8)>)>().for_each(|(path, is_batch, changes)| {
        let mut body = good[usize::from(*is_batch)].to_vec();
        for (at, length, piece) in changes.iter().take(4) {
            let start = usize::from(*at) % (body.len() + 1);
            let end = (start + usize::from(*length) % 8).min(body.len());
            body.splice(start..end, PIECES[usize::from(*piece) % PIECES.len()].iter().copied());
        }
        fuzz.send(*path, &body);
    });
}

/// Forward-auth requests with any headers that a client could add: the fast path and hyper agree, and an invalid one is
/// never accepted.
#[test]
fn forward_auth_with_any_headers() {
    const NAMES: [&str; 10] = [
        "X-Forwarded-Method",
        "X-Forwarded-Uri",
        "X-Original-Method",
        "X-Original-URI",
        "X-Forwarded-Host",
        "X-Forwarded-For",
        "X-Api-Key",
        "Host",
        "Accept",
        "Authorization",
    ];
    const VALUES: [&[u8]; 16] = [
        b"",
        b"GET",
        b"/users/7",
        b"/users/7?api_key=a",
        b"http://a/b?c",
        b"?",
        b"\xe9\xff",
        b"Shop.Example:443",
        b"203.0.113.7, unknown",
        b"[::1]:80",
        b"a",
        b"ip:203.0.113.7",
        b"Bearer in",
        b"application/problem+json",
        b"*",
        b"/%zz%00//../",
    ];
    const URLS: [&str; 8] = [
        "",
        "?key=header:x-api-key,query:api_key,ip",
        "?key=header:authorization",
        "?api_key=a",
        "?cost=0",
        "?cost=4294967295&deny_status=403&tier=pro",
        "?key=%ff",
        "?=&&",
    ];
    let fuzz = AssertUnwindSafe(FuzzServer::new());
    bolero::check!().with_type::<(u8, Vec<(u8, u8)>, Vec<u8>)>().for_each(|(url, fields, noise)| {
        let url = URLS[usize::from(*url) % URLS.len()];
        let mut request = format!("GET /v1/forward-auth{url} HTTP/1.1\r\nHost: a\r\n").into_bytes();
        for (name, value) in fields.iter().take(12) {
            request.extend_from_slice(NAMES[usize::from(*name) % NAMES.len()].as_bytes());
            request.extend_from_slice(b": ");
            request.extend_from_slice(VALUES[usize::from(*value) % VALUES.len()]);
            request.extend(noise.iter().take(4).filter(|byte| **byte > b' ' && **byte != 127));
            request.extend_from_slice(b"\r\n");
        }
        let before = fuzz.keys();
        let mut statuses = Vec::new();
        for more in [&b"\r\n"[..], b"TE: trailers\r\n\r\n"] {
            let read = fuzz.exchange(&[&request, more].concat());
            let status: u16 = str::from_utf8(&read[9..12]).unwrap().parse().unwrap();
            assert!([200, 400, 403, 429].contains(&status), "{status} to {request:?}");
            assert!(read.windows(12).all(|window| window != b"\r\n\r\nHTTP/1."), "one response");
            statuses.push(status);
            if status == 400 {
                assert_eq!(fuzz.keys(), before, "a rejected request is not counted");
            }
        }
        // The second may be denied where the first was allowed.
        let is_valid = |status: &u16| *status != 400;
        assert_eq!(is_valid(&statuses[0]), is_valid(&statuses[1]), "{request:?}");
    });
}

/// Connections of any bytes: no response has a 5xx status, and the server survives them all.
#[test]
fn connections_of_any_bytes() {
    let wire: [&[u8]; 28] = [
        b"POST /check HTTP/1.1\r\nHost: a\r\n",
        b"POST /v1/check/batch HTTP/1.1\r\nHost: a\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\n",
        b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n",
        b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/forward-auth HTTP/1.1\r\nHost: a\r\n",
        b"X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /users/7\r\n",
        b"X-Forwarded-For: 203.0.113.7\r\n",
        b"X-Original-URI: ",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"Content-Length: 18\r\n",
        b"Content-Length: 0\r\n",
        b"Content-Length: 5000000\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b"Content-Type: text/plain\r\n",
        b"\r\n",
        b"12\r\n",
        b"0\r\n\r\n",
        b"{\"client_key\":\"a\"}",
        b"{\"checks\":[]}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0\x04\0\0\0\0\0",
        b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x86\x01\x01a\x04\x06/livez",
        b"\0\0\0\x00\0\0\0\0\x01",
        b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\0",
        b"\xff\0\x01",
    ];
    let fuzz = AssertUnwindSafe(FuzzServer::new());
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(noise, choices)| {
        let chosen = choices.iter().flat_map(|choice| wire[usize::from(*choice) % wire.len()]);
        let bytes: Vec<u8> = chosen.chain(noise).copied().collect();
        let read = fuzz.exchange(&bytes);
        assert!(!read.windows(10).any(|window| window == b"HTTP/1.1 5"), "{bytes:?}");
    });
}
