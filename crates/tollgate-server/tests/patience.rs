//! How long a server waits for those who say nothing. Time is tokio's own and jumps ahead when nothing else can happen.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tollgate::{Cap, Limiter, MemoryStore, SystemClock};

const CHECK: &str = "POST /check HTTP/1.1\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"a\"}";

async fn serve_until(
    stop: impl Future<Output = ()> + Send + 'static,
) -> (SocketAddr, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = MemoryStore::with(SystemClock::new(), Cap::keys(1)).unwrap();
    let limiter = Limiter::with_store("100/s", store).unwrap();
    let serving = tokio::spawn(tollgate_server::serve(listener, limiter, stop));
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
    for bytes in ["", "PRI * HTTP/2.0\r\n", "POST /check HTTP/1.1\r\nContent-"] {
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
