//! How long a port waits for those who say nothing. Time is tokio's own and jumps ahead when nothing else can happen.

use crate::server::{Client, TOKEN, command, serve_until};
use std::future::pending;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

/// Sends `bytes` and reads to the end; gives what was read, and after how many whole seconds it ended.
async fn last_words(mut client: Client, bytes: &[u8]) -> (String, u64) {
    let begun = Instant::now();
    client.0.write_all(bytes).await.unwrap();
    let heard = client.lines(usize::MAX).await;
    (heard, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_asks_is_closed() {
    let (address, _serving) = serve_until(None, pending()).await;
    assert_eq!(last_words(Client::connect(address).await, b"").await, (String::new(), 60));
    // What means nothing is nothing.
    assert_eq!(last_words(Client::connect(address).await, b"\r\n*0\r\n").await, (String::new(), 60));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_show_the_token_is_closed_whatever_else_it_says() {
    let (address, _serving) = serve_until(Some(TOKEN), pending()).await;
    let mut client = Client::connect(address).await;
    let begun = Instant::now();
    while client.ask("PING", 1).await == "-NOAUTH Authentication required.\r\n" {
        sleep(Duration::from_secs(1)).await;
    }
    assert!((59..=61).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let mut client = Client::connect(address).await;
    assert_eq!(client.ask(&format!("AUTH {TOKEN}"), 1).await, "+OK\r\n");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(client.ask("PING", 1).await, "+PONG\r\n");
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_command_is_not_waited_for() {
    let (address, _serving) = serve_until(None, pending()).await;
    let whole = command("CL.THROTTLE a 1 1 1");
    let said = "-ERR Protocol error: the rest of a command did not come within 10 seconds\r\n";
    for begin in [&b"PIN"[..], b"*", b"*2\r\n", &whole[..whole.len() - 1]] {
        let (heard, seconds) = last_words(Client::connect(address).await, begin).await;
        assert_eq!((heard.as_str(), seconds), (said, 10), "after {begin:?}");
    }
    // A byte now and then does not help; a whole command does.
    let mut client = Client::connect(address).await;
    let begun = Instant::now();
    for byte in &whole {
        if client.0.write_all(&[*byte]).await.is_err() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(client.lines(1).await, said);
    assert!(begun.elapsed() < Duration::from_secs(60));
    let mut client = Client::connect(address).await;
    for _ in 0..5 {
        client.0.write_all(&whole[..9]).await.unwrap();
        sleep(Duration::from_secs(9)).await;
        client.0.write_all(&whole[9..]).await.unwrap();
        assert!(client.lines(6).await.starts_with("*5\r\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_kept_for_an_hour() {
    let (address, _serving) = serve_until(None, pending()).await;
    let mut client = Client::connect(address).await;
    for _ in 0..5 {
        assert_eq!(client.ask("PING", 1).await, "+PONG\r\n");
        sleep(Duration::from_secs(3599)).await;
    }
    let (heard, seconds) = last_words(client, b"").await;
    assert!(heard.is_empty() && seconds <= 3600 + 60, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_given_up() {
    let (address, _serving) = serve_until(None, pending()).await;
    let mut client = Client::connect(address).await;
    let commands = command("CL.THROTTLE a 9 1 1").repeat(100);
    while let Ok(Ok(_)) = timeout(Duration::from_secs(1), client.0.write(&commands)).await {}
    sleep(Duration::from_secs(70)).await;
    let begun = Instant::now();
    let _ = client.0.read_to_end(&mut Vec::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 0, "it had been closed, and reading revives nothing");
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_has_come_and_waits_for_nobody_for_long() {
    let (address, serving) = serve_until(None, sleep(Duration::from_secs(5))).await;
    let mut idle = Client::connect(address).await;
    assert_eq!(idle.ask("PING", 1).await, "+PONG\r\n");
    let mut busy = Client::connect(address).await;
    let mut half = Client::connect(address).await;
    half.0.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    let begun = Instant::now();
    let asking = async {
        let mut answers = 0_u32;
        while busy.ask("CL.THROTTLE a 1000000 1000 1", 6).await.starts_with("*5\r\n") {
            answers += 1;
            sleep(Duration::from_millis(10)).await;
        }
        answers
    };
    let finishing = async {
        sleep(Duration::from_secs(6)).await;
        half.0.write_all(b"NG\r\n").await.unwrap();
        half.lines(usize::MAX).await
    };
    let (answers, finished, ()) = tokio::join!(asking, finishing, serving);
    assert!(answers > 100, "{answers}");
    assert_eq!(finished, "+PONG\r\n");
    assert_eq!(idle.lines(1).await, "");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
