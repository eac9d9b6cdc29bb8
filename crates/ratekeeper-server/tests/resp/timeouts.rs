//! RESP timeouts. tokio's time is paused and jumps ahead whenever every task is idle.

use crate::server::{RespTestClient, TOKEN, command, serve_until};
use std::future::pending;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

/// Sends `bytes` and reads to the end. Returns the bytes read, and after how many whole seconds the connection ended.
async fn send_and_read(mut client: RespTestClient, bytes: &[u8]) -> (String, u64) {
    let begun = Instant::now();
    client.0.write_all(bytes).await.unwrap();
    let reply = client.read_lines(usize::MAX).await;
    (reply, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_command_is_closed() {
    let (address, _serving) = serve_until(None, pending()).await;
    assert_eq!(send_and_read(RespTestClient::connect(address).await, b"").await, (String::new(), 60));
    // Empty commands do not count as commands.
    assert_eq!(
        send_and_read(RespTestClient::connect(address).await, b"\r\n*0\r\n").await,
        (String::new(), 60)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unauthenticated_connection_is_closed_even_if_active() {
    let (address, _serving) = serve_until(Some(TOKEN), pending()).await;
    let mut client = RespTestClient::connect(address).await;
    let begun = Instant::now();
    while client.send_command("PING", 1).await == "-NOAUTH Authentication required.\r\n" {
        sleep(Duration::from_secs(1)).await;
    }
    assert!((59..=61).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let mut client = RespTestClient::connect(address).await;
    assert_eq!(client.send_command(&format!("AUTH {TOKEN}"), 1).await, "+OK\r\n");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(client.send_command("PING", 1).await, "+PONG\r\n");
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_command_times_out() {
    let (address, _serving) = serve_until(None, pending()).await;
    let full = command("CL.THROTTLE a 1 1 1");
    let timeout_error = "-ERR Protocol error: the rest of a command did not arrive within 10 seconds\r\n";
    for begin in [&b"PIN"[..], b"*", b"*2\r\n", &full[..full.len() - 1]] {
        let (reply, seconds) = send_and_read(RespTestClient::connect(address).await, begin).await;
        assert_eq!((reply.as_str(), seconds), (timeout_error, 10), "after {begin:?}");
    }
    // Single bytes do not extend the timeout; a complete command does.
    let mut client = RespTestClient::connect(address).await;
    let begun = Instant::now();
    for byte in &full {
        if client.0.write_all(&[*byte]).await.is_err() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(client.read_lines(1).await, timeout_error);
    assert!(begun.elapsed() < Duration::from_secs(60));
    let mut client = RespTestClient::connect(address).await;
    for _ in 0..5 {
        client.0.write_all(&full[..9]).await.unwrap();
        sleep(Duration::from_secs(9)).await;
        client.0.write_all(&full[9..]).await.unwrap();
        assert!(client.read_lines(6).await.starts_with("*5\r\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_for_an_hour() {
    let (address, _serving) = serve_until(None, pending()).await;
    let mut client = RespTestClient::connect(address).await;
    for _ in 0..5 {
        assert_eq!(client.send_command("PING", 1).await, "+PONG\r\n");
        sleep(Duration::from_secs(3599)).await;
    }
    let (reply, seconds) = send_and_read(client, b"").await;
    assert!(reply.is_empty() && seconds <= 3600 + 60, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_disconnected() {
    let (address, _serving) = serve_until(None, pending()).await;
    let mut client = RespTestClient::connect(address).await;
    let commands = command("CL.THROTTLE a 9 1 1").repeat(100);
    while let Ok(Ok(_)) = timeout(Duration::from_secs(1), client.0.write(&commands)).await {}
    sleep(Duration::from_secs(70)).await;
    let begun = Instant::now();
    let _ = client.0.read_to_end(&mut Vec::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 0, "the connection was already closed");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_received_commands_and_does_not_wait_long() {
    let (address, serving) = serve_until(None, sleep(Duration::from_secs(5))).await;
    let mut idle = RespTestClient::connect(address).await;
    assert_eq!(idle.send_command("PING", 1).await, "+PONG\r\n");
    let mut busy = RespTestClient::connect(address).await;
    let mut half = RespTestClient::connect(address).await;
    half.0.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    let begun = Instant::now();
    let sending = async {
        let mut answers = 0_u32;
        while busy.send_command("CL.THROTTLE a 1000000 1000 1", 6).await.starts_with("*5\r\n") {
            answers += 1;
            sleep(Duration::from_millis(10)).await;
        }
        answers
    };
    let finishing = async {
        sleep(Duration::from_secs(6)).await;
        half.0.write_all(b"NG\r\n").await.unwrap();
        half.read_lines(usize::MAX).await
    };
    let (answers, finished, ()) = tokio::join!(sending, finishing, serving);
    assert!(answers > 100, "{answers}");
    assert_eq!(finished, "+PONG\r\n");
    assert_eq!(idle.read_lines(1).await, "");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
