//! How long a server waits for those who say nothing. Time is tokio's own and jumps ahead when nothing else can happen.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, MemoryStore, Micros, RuleLimiter, SystemClock};
use ratekeeper_server::{ServerSetup, serve};
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// Nobody asks for the rules to be read again.
fn reloads() -> mpsc::Receiver<()> {
    mpsc::channel(1).1
}

const CHECK: &str = "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"a\"}";

async fn serve_until(
    stop: impl Future<Output = ()> + Send + 'static,
) -> (SocketAddr, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = MemoryStore::with(SystemClock::new(), Capacity::keys(1)).unwrap();
    let rules = RuleSet::compile(&read("default: {limit: 100/s}", Micros::EPOCH).spec.unwrap()).unwrap();
    let gate = RuleLimiter::new(rules, store, SystemClock::new());
    let serving = tokio::spawn(serve(gate, ServerSetup::http(listener), reloads(), stop));
    (address, async { serving.await.unwrap() })
}

/// Sends `bytes` and reads to the end; gives what was read, and after how many whole seconds it ended.
async fn last_words(mut stream: TcpStream, bytes: &str) -> (String, u64) {
    let begun = Instant::now();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut read = String::new();
    stream.read_to_string(&mut read).await.unwrap();
    (read, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_asks_is_closed() {
    let (address, _serving) = serve_until(pending()).await;
    // Nothing; half of HTTP/2's greeting; half of a head.
    for bytes in ["", "PRI * HTTP/2.0\r\n", "POST /check HTTP/1.1\r\nHost: a\r\nContent-"] {
        let stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(last_words(stream, bytes).await, (String::new(), 15), "after {bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_comes_is_not_waited_for() {
    let (address, _serving) = serve_until(pending()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (read, seconds) = last_words(stream, CHECK.trim_end_matches('}')).await;
    assert!(read.starts_with("HTTP/1.1 408 ") && read.contains("REQUEST_TIMEOUT"), "{read}");
    assert_eq!(seconds, 10);
}

/// Sends `first`, then `bytes` one by one, a second apart; gives what was read, and after how many seconds it ended.
async fn dripped(stream: TcpStream, first: &str, bytes: &str) -> (String, u64) {
    let begun = Instant::now();
    let (mut from, mut to) = stream.into_split();
    let drip = async {
        to.write_all(first.as_bytes()).await.unwrap();
        for byte in bytes.as_bytes() {
            sleep(Duration::from_secs(1)).await;
            // The server may have had enough.
            let _ = to.write_all(&[*byte]).await;
        }
        pending::<()>().await;
    };
    let mut read = Vec::new();
    tokio::select! {
        () = drip => {}
        _ = from.read_to_end(&mut read) => {}
    }
    (String::from_utf8(read).unwrap(), begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn who_drips_is_borne_with_no_longer_than_who_says_nothing() {
    let (address, _serving) = serve_until(pending()).await;
    let connect = || async { TcpStream::connect(address).await.unwrap() };
    // Heads that go on and on: plain so far; and not for the lane, which renews nobody's time when it gives one away.
    for first in ["POST /check HTTP/1.1\r\nHost: a\r\n", "", "\r\n", "DELETE / HTTP/1.1\r\nHost: a\r\n"] {
        let (read, seconds) = dripped(connect().await, first, &"X: y\r\n".repeat(10)).await;
        assert_eq!((read.as_str(), seconds), ("", 15), "after {first:?}");
    }
    let (read, seconds) = dripped(connect().await, "", &("\r\n".repeat(5) + &"X".repeat(50))).await;
    assert_eq!((read.as_str(), seconds), ("", 15));

    let (head, body) = CHECK.split_at(CHECK.len() - 18);
    for first in [head.to_owned(), [CHECK, head].concat()] {
        let (read, seconds) = dripped(connect().await, &first, body).await;
        let answers = read.matches("HTTP/1.1 ").count();
        assert!(read.contains("HTTP/1.1 408 ") && answers == first.matches("POST").count(), "{read}");
        assert_eq!(seconds, 10);
    }

    // It has asked in the first 15 seconds, and begins nothing in the next 75.
    let (read, seconds) =
        dripped(connect().await, CHECK, &"POST /check HTTP/1.1\r\nHost: a\r\n".repeat(10)).await;
    assert!(read.starts_with("HTTP/1.1 200 ") && seconds == 90, "{read} after {seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_given_up() {
    let (address, _serving) = serve_until(pending()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let requests = CHECK.repeat(100);
    while let Ok(Ok(_)) = timeout(Duration::from_secs(1), stream.write(requests.as_bytes())).await {}
    sleep(Duration::from_secs(150)).await;
    let begun = Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 0, "it had been closed, and reading revives nothing");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_while_it_asks_and_closed_when_it_stops() {
    let (address, _serving) = serve_until(pending()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = [0; 512];
    for _ in 0..5 {
        stream.write_all(CHECK.as_bytes()).await.unwrap();
        let length = stream.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 "));
        sleep(Duration::from_secs(60)).await;
    }
    // It last asked 60 seconds ago, and the server looks every 75.
    let (read, seconds) = last_words(stream, "").await;
    assert!(read.is_empty() && seconds <= 90, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_nobody_for_long() {
    let (address, serving) = serve_until(sleep(Duration::from_secs(1))).await;
    let mut begun = TcpStream::connect(address).await.unwrap();
    let half = CHECK.trim_end_matches('}');
    begun.write_all(half.as_bytes()).await.unwrap();
    let start = Instant::now();
    serving.await;
    assert!(start.elapsed().as_secs() <= 11);
    let mut read = String::new();
    let _ = begun.read_to_string(&mut read).await;
    assert!(!read.contains(" 200 "), "{read}");
}
