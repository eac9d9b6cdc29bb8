//! The long answers of a connection that its client has not taken yet.
//!
//! Over HTTP/2 a client asks for many things at once and says itself when it has room for the answers. One that never
//! says so would have the server keep them all, so a connection has few long answers at a time, the others wait for
//! their turn, and one that is not taken in time ends the connection.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// How many long answers a connection has at once. Those that are taken leave sooner than the next is made.
const TURNS: usize = 4;
/// How long a client may take over a long answer: as long as over a body of its own.
const ANSWER_PATIENCE: Duration = super::timeouts::BODY_PATIENCE;

/// The long answers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct LongResponses {
    turns: Arc<Semaphore>,
    overdue: Arc<Notify>,
}

/// The turn of one long answer, until it is dropped.
#[derive(Debug)]
pub(crate) struct LongResponse {
    _permit: OwnedSemaphorePermit,
    alarm: AbortHandle,
}

impl LongResponses {
    pub(crate) fn new() -> LongResponses {
        LongResponses { turns: Arc::new(Semaphore::new(TURNS)), overdue: Arc::default() }
    }

    /// Waits until there may be one more.
    pub(crate) async fn turn(&self) -> LongResponse {
        let permit = Arc::clone(&self.turns).acquire_owned().await.expect("the semaphore is never closed");
        let overdue = Arc::clone(&self.overdue);
        let alarm = tokio::spawn(async move {
            sleep(ANSWER_PATIENCE).await;
            overdue.notify_one();
        });
        LongResponse { _permit: permit, alarm: alarm.abort_handle() }
    }

    /// Until one of them has been waiting for too long.
    pub(crate) async fn is_overdue(&self) {
        self.overdue.notified().await;
    }
}

impl Drop for LongResponse {
    fn drop(&mut self) {
        self.alarm.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BodyPermits, Http, ShutdownPhase};
    use super::*;
    use crate::api::ApiOptions;
    use crate::api::testing::api;
    use crate::listener::Protocol;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_few_at_a_time_and_none_for_long() {
        let backlog = LongResponses::new();
        let mut held = Vec::new();
        for _ in 0..TURNS {
            held.push(backlog.turn().await);
        }
        assert!(timeout(ANSWER_PATIENCE / 2, backlog.turn()).await.is_err(), "the next one waits");
        held.pop();
        let begun = Instant::now();
        let last = backlog.turn().await;
        assert!(begun.elapsed().is_zero());
        held.clear();
        assert!(
            timeout(ANSWER_PATIENCE / 2, backlog.is_overdue()).await.is_err(),
            "what is taken is in time"
        );
        backlog.is_overdue().await;
        assert_eq!(begun.elapsed(), ANSWER_PATIENCE);
        drop(last);
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// A batch of checks over HTTP/2, from a client that has room for so many bytes of the answer; after how many
    /// seconds the connection ends, and how many bytes were answered.
    async fn asked_with_room_for(window: u32) -> (u64, usize) {
        let (api, _) = api("default: {limit: 100000/h}", ApiOptions::default());
        let (stream, mut client) = duplex(1 << 20);
        let (_phase, told) = watch::channel(ShutdownPhase::Open);
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        let path = "/v1/check/batch";
        let fields = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 15], path.as_bytes()].concat();
        let body = format!("{{\"checks\":[{}]}}", vec![r#"{"client_key":"a"}"#; 300].join(","));
        let begun = Instant::now();
        let asked = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &settings),
            frame(1, 4, 1, &fields),
            frame(0, 1, 1, body.as_bytes()),
        ];
        client.write_all(&asked.concat()).await.unwrap();
        let (http, mut read) = (Http::new(api, BodyPermits::default()), Vec::new());
        let ((), all) = tokio::join!(
            http.attend(stream, Ipv4Addr::LOCALHOST.into(), told),
            client.read_to_end(&mut read)
        );
        all.unwrap();
        (begun.elapsed().as_secs(), read.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_answer_is_given_up() {
        for window in [0, 1, 100, 20_000] {
            let (seconds, bytes) = asked_with_room_for(window).await;
            assert_eq!(seconds, 10, "with room for {window}");
            assert!(bytes < window as usize + 1000, "{bytes}");
        }
        let (seconds, bytes) = asked_with_room_for(1 << 20).await;
        assert!(seconds > 10 && bytes > 40_000, "who has taken it may stay: {seconds}, {bytes}");
    }
}
