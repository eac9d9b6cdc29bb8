//! A warm connection is answered without allocating.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

use std::future::pending;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tollgate::rules::{RuleSet, read};
use tollgate::{Cap, Gate, MemoryStore, Micros, SystemClock};
use tollgate_server::{Setup, serve};

/// Nobody asks for the rules to be read again.
fn reloads() -> mpsc::Receiver<()> {
    mpsc::channel(1).1
}

const CHECK: &str = "POST /check HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 43\r\n\r\n\
    {\"client_key\":\"alice\",\"endpoint\":\"/orders\"}";

/// A server on this thread, and a connection to it.
fn start() -> (Runtime, TcpStream) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = MemoryStore::with(SystemClock::new(), Cap::keys(1000)).unwrap();
        let rules = RuleSet::compile(&read("default: {limit: 100/s}", Micros::EPOCH).spec.unwrap()).unwrap();
        let gate = Gate::new(rules, store, SystemClock::new());
        tokio::spawn(serve(gate, Setup::http(listener), reloads(), pending()));
        TcpStream::connect(address).await.unwrap()
    });
    (runtime, stream)
}

/// Sends `requests` so many times, reads as many answers as they have checks, and counts allocations.
fn allocations(requests: &str, times: usize) -> u64 {
    let (runtime, mut stream) = start();
    let checks = requests.matches("POST").count();
    let mut read = vec![0; 64 * 1024];
    let mut exchange = |times: usize| {
        runtime.block_on(async {
            for _ in 0..times {
                stream.write_all(requests.as_bytes()).await.unwrap();
                let mut length = 0;
                while read[..length].windows(11).filter(|window| window == b"retry_after").count() < checks {
                    length += stream.read(&mut read[length..]).await.unwrap();
                }
            }
        });
    };
    // More than the limit lets go on, so that a denial is no news either.
    exchange(150);
    allocation_counter::measure(|| exchange(times)).count_total
}

#[test]
fn a_warm_check_allocates_nothing() {
    assert_eq!(allocations(CHECK, 1000), 0);
}

#[test]
fn a_warm_pipeline_allocates_nothing() {
    assert_eq!(allocations(&CHECK.repeat(50), 100), 0);
}
