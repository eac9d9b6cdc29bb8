//! A warm HTTP connection is served without allocation.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, MemoryStore, Micros, RuleLimiter, SystemClock};
use ratekeeper_server::{ServerSetup, serve};
use std::future::pending;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

/// A channel on which no rule reload is ever requested.
fn no_reloads() -> mpsc::Receiver<()> {
    mpsc::channel(1).1
}

const CHECK: &str = "POST /check HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 43\r\n\r\n\
    {\"client_key\":\"alice\",\"endpoint\":\"/orders\"}";

/// A proxy's forward-auth request.
const FORWARD_AUTH: &str = "GET /v1/forward-auth?key=header:x-api-key,query:api_key,ip&deny_status=429 HTTP/1.1\r\n\
    Host: test\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\nAuthorization: Bearer 0123456789abcdef\r\n\
    X-Forwarded-For: 203.0.113.7, 127.0.0.1\r\nX-Forwarded-Method: POST\r\nX-Forwarded-Proto: https\r\n\
    X-Forwarded-Uri: /orders?page=2\r\nX-Forwarded-Host: shop.example\r\n\r\n";

/// A server on the current thread, and a connection to it.
fn start(rules: &str) -> (Runtime, TcpStream) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = MemoryStore::with(SystemClock::new(), Capacity::keys(1000)).unwrap();
        let rules = RuleSet::compile(&read(rules, Micros::EPOCH).spec.unwrap()).unwrap();
        let limiter = RuleLimiter::new(rules, store, SystemClock::new());
        tokio::spawn(serve(limiter, ServerSetup::http(listener), no_reloads(), pending()));
        TcpStream::connect(address).await.unwrap()
    });
    (runtime, stream)
}

/// Sends `requests` `times` times, reads one response per request, and returns the number of allocations.
fn allocations(rules: &str, requests: &str, times: usize) -> u64 {
    let (runtime, mut stream) = start(rules);
    let checks = requests.matches(" HTTP/1.1\r\n").count();
    let mut read = vec![0; 64 * 1024];
    let mut exchange = |times: usize| {
        runtime.block_on(async {
            for _ in 0..times {
                stream.write_all(requests.as_bytes()).await.unwrap();
                let mut length = 0;
                while read[..length].windows(6).filter(|window| window == b"date: ").count() < checks {
                    length += stream.read(&mut read[length..]).await.unwrap();
                }
            }
        });
    };
    // Warm up beyond the limit, so that denials are warm too.
    exchange(150);
    allocation_counter::measure(|| exchange(times)).count_total
}

#[test]
fn a_warm_check_allocates_nothing() {
    assert_eq!(allocations("default: {limit: 100/s}", CHECK, 1000), 0);
}

#[test]
fn a_warm_pipeline_allocates_nothing() {
    assert_eq!(allocations("default: {limit: 100/s}", &CHECK.repeat(50), 100), 0);
}

#[test]
fn a_warm_forward_auth_request_allocates_nothing() {
    let rules = |amount: u32| {
        format!(
            "rules:
  - {{id: addresses, key: [ip, host], limit: 1000000/s}}
  - {{id: orders, match: {{path: /orders, method: POST}}, limit: {amount}/s}}
"
        )
    };
    for amount in [1, 1_000_000] {
        assert_eq!(allocations(&rules(amount), FORWARD_AUTH, 1000), 0);
        assert_eq!(
            allocations(&rules(amount), &FORWARD_AUTH.replace("ip&", "header:authorization&"), 1000),
            0
        );
        assert_eq!(allocations(&rules(amount), &FORWARD_AUTH.repeat(50), 100), 0);
    }
}
