//! HTTP timeouts. tokio's time is paused and jumps ahead whenever every task is idle.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

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

/// A channel on which no rule reload is ever requested.
fn no_reloads() -> mpsc::Receiver<()> {
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
    let limiter = RuleLimiter::new(rules, store, SystemClock::new());
    let serving = tokio::spawn(serve(limiter, ServerSetup::http(listener), no_reloads(), stop));
    (address, async { serving.await.unwrap() })
}

/// Sends `bytes` and reads to the end. Returns the bytes read, and after how many whole seconds the connection ended.
async fn send_and_read(mut stream: TcpStream, bytes: &str) -> (String, u64) {
    let begun = Instant::now();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut read = String::new();
    stream.read_to_string(&mut read).await.unwrap();
    (read, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed() {
    let (address, _serving) = serve_until(pending()).await;
    // Nothing; half of the HTTP/2 preface; half of a request head.
    for bytes in ["", "PRI * HTTP/2.0\r\n", "POST /check HTTP/1.1\r\nHost: a\r\nContent-"] {
        let stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(send_and_read(stream, bytes).await, (String::new(), 15), "after {bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_body_times_out() {
    let (address, _serving) = serve_until(pending()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (read, seconds) = send_and_read(stream, CHECK.trim_end_matches('}')).await;
    assert!(read.starts_with("HTTP/1.1 408 ") && read.contains("REQUEST_TIMEOUT"), "{read}");
    assert_eq!(seconds, 10);
}

/// Sends `first`, then `bytes` one at a time, a second apart. Returns the bytes read, and after how many whole seconds
/// the connection ended.
async fn drip_bytes(stream: TcpStream, first: &str, bytes: &str) -> (String, u64) {
    let begun = Instant::now();
    let (mut from, mut to) = stream.into_split();
    let drip = async {
        to.write_all(first.as_bytes()).await.unwrap();
        for byte in bytes.as_bytes() {
            sleep(Duration::from_secs(1)).await;
            // The server may have closed the connection.
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
async fn dripping_bytes_does_not_extend_a_timeout() {
    let (address, _serving) = serve_until(pending()).await;
    let connect = || async { TcpStream::connect(address).await.unwrap() };
    // Endless heads: on the fast path, and ones it hands to hyper, which must not restart the timeout.
    for first in ["POST /check HTTP/1.1\r\nHost: a\r\n", "", "\r\n", "DELETE / HTTP/1.1\r\nHost: a\r\n"] {
        let (read, seconds) = drip_bytes(connect().await, first, &"X: y\r\n".repeat(10)).await;
        assert_eq!((read.as_str(), seconds), ("", 15), "after {first:?}");
    }
    let (read, seconds) = drip_bytes(connect().await, "", &("\r\n".repeat(5) + &"X".repeat(50))).await;
    assert_eq!((read.as_str(), seconds), ("", 15));

    let (head, body) = CHECK.split_at(CHECK.len() - 18);
    for first in [head.to_owned(), [CHECK, head].concat()] {
        let (read, seconds) = drip_bytes(connect().await, &first, body).await;
        let answers = read.matches("HTTP/1.1 ").count();
        assert!(read.contains("HTTP/1.1 408 ") && answers == first.matches("POST").count(), "{read}");
        assert_eq!(seconds, 10);
    }

    // It sends a request in the first 15 seconds, and completes none in the next 75.
    let (read, seconds) =
        drip_bytes(connect().await, CHECK, &"POST /check HTTP/1.1\r\nHost: a\r\n".repeat(10)).await;
    assert!(read.starts_with("HTTP/1.1 200 ") && seconds == 90, "{read} after {seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_disconnected() {
    let (address, _serving) = serve_until(pending()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let requests = CHECK.repeat(100);
    while let Ok(Ok(_)) = timeout(Duration::from_secs(1), stream.write(requests.as_bytes())).await {}
    sleep(Duration::from_secs(150)).await;
    let begun = Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 0, "the connection was already closed");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_while_in_use_and_closed_when_idle() {
    let (address, _serving) = serve_until(pending()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = [0; 512];
    for _ in 0..5 {
        stream.write_all(CHECK.as_bytes()).await.unwrap();
        let length = stream.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 "));
        sleep(Duration::from_secs(60)).await;
    }
    // Its last request was 60 seconds ago, and the server checks every 75 seconds.
    let (read, seconds) = send_and_read(stream, "").await;
    assert!(read.is_empty() && seconds <= 90, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_long_for_a_stalled_client() {
    let (address, serving) = serve_until(sleep(Duration::from_secs(1))).await;
    let mut begun = TcpStream::connect(address).await.unwrap();
    let unfinished = CHECK.trim_end_matches('}');
    begun.write_all(unfinished.as_bytes()).await.unwrap();
    let start = Instant::now();
    serving.await;
    assert!(start.elapsed().as_secs() <= 11);
    let mut read = String::new();
    let _ = begun.read_to_string(&mut read).await;
    assert!(!read.contains(" 200 "), "{read}");
}
