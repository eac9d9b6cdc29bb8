//! A warm RESP connection is served without allocation.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, MemoryStore, Micros, RuleLimiter, SystemClock};
use ratekeeper_server::{ServerSetup, serve};
use std::future::pending;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

/// A server on the current thread, and a connection to it.
fn start() -> (Runtime, TcpStream) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = MemoryStore::with(SystemClock::new(), Capacity::keys(1000)).unwrap();
        let rules = RuleSet::compile(&read("default: {limit: 100/s}", Micros::EPOCH).spec.unwrap()).unwrap();
        let limiter = RuleLimiter::new(rules, store, SystemClock::new());
        let mut setup = ServerSetup::http(listener);
        setup.resp = setup.http.take();
        tokio::spawn(serve(limiter, setup, mpsc::channel(1).1, pending()));
        TcpStream::connect(address).await.unwrap()
    });
    (runtime, stream)
}

/// Sends `commands` `times` times, reads `lines` lines of replies each time, and returns the number of allocations.
fn allocations(commands: &str, lines: usize, times: usize) -> u64 {
    let (runtime, mut stream) = start();
    let mut read = vec![0; 64 * 1024];
    let mut exchange = |times: usize| {
        runtime.block_on(async {
            for _ in 0..times {
                stream.write_all(commands.as_bytes()).await.unwrap();
                let mut seen = 0;
                while seen < lines {
                    let length = stream.read(&mut read).await.unwrap();
                    seen += read[..length].iter().filter(|byte| **byte == b'\n').count();
                }
                assert_eq!(seen, lines);
            }
        });
    };
    // Warm up beyond the limits, so that denials are warm too.
    exchange(150);
    allocation_counter::measure(|| exchange(times)).count_total
}

fn command(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", line.split(' ').count())
}

#[test]
fn a_warm_command_allocates_nothing() {
    assert_eq!(allocations(&command("CL.THROTTLE alice 15 30 60"), 6, 1000), 0);
    assert_eq!(allocations(&command("CL.THROTTLE alice 1000000 1000000 1 0"), 6, 1000), 0);
    assert_eq!(allocations(&command("RK.CHECK alice /orders 1 METHOD GET ATTR tenant acme"), 6, 1000), 0);
    assert_eq!(allocations("CL.THROTTLE alice 15 30 60 1\r\n", 6, 1000), 0);
    assert_eq!(allocations(&command("PING"), 1, 1000), 0);
}

#[test]
fn a_warm_pipeline_allocates_nothing() {
    let several =
        ["CL.THROTTLE alice 15 30 60", "CL.THROTTLE bob 1000 100 1 5", "RK.CHECK carol /orders", "PING"];
    let several: String = several.map(command).concat();
    assert_eq!(allocations(&several.repeat(20), 19 * 20, 100), 0);
    assert_eq!(allocations(&command("CL.THROTTLE alice 15 30 60").repeat(64), 6 * 64, 100), 0);
}
