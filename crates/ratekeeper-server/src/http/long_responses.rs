//! A limit on the long responses that a connection has in memory.
//!
//! Over HTTP/2 a client sends many requests at once, and flow control lets it decide when to read the responses. A
//! client that never reads would make the server keep them all. So a connection has few long responses at a time, the
//! others wait for a permit, and a response that is not read in time closes the connection.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The most long responses of a connection at once. A client that reads takes one sooner than the next is ready.
const MAX_LONG_RESPONSES: usize = 4;
/// How long a client may take to read a long response: as long as it may take to send a body.
const RESPONSE_TIMEOUT: Duration = super::timeouts::BODY_TIMEOUT;

/// The long-response permits of one connection.
#[derive(Clone, Debug)]
pub(crate) struct LongResponses {
    permits: Arc<Semaphore>,
    overdue: Arc<Notify>,
}

/// The permit of one long response. Dropping it releases the permit and stops the timeout.
#[derive(Debug)]
pub(crate) struct LongResponse {
    _permit: OwnedSemaphorePermit,
    timeout_task: AbortHandle,
}

impl LongResponses {
    pub(crate) fn new() -> LongResponses {
        LongResponses { permits: Arc::new(Semaphore::new(MAX_LONG_RESPONSES)), overdue: Arc::default() }
    }

    /// Waits for a permit and starts its timeout.
    pub(crate) async fn acquire(&self) -> LongResponse {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let overdue = Arc::clone(&self.overdue);
        let timeout = tokio::spawn(async move {
            sleep(RESPONSE_TIMEOUT).await;
            overdue.notify_one();
        });
        LongResponse { _permit: permit, timeout_task: timeout.abort_handle() }
    }

    /// Waits until a long response has not been read in time.
    pub(crate) async fn wait_until_overdue(&self) {
        self.overdue.notified().await;
    }
}

impl Drop for LongResponse {
    fn drop(&mut self) {
        self.timeout_task.abort();
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
    async fn permits_are_limited_and_time_out() {
        let long_responses = LongResponses::new();
        let mut held = Vec::new();
        for _ in 0..MAX_LONG_RESPONSES {
            held.push(long_responses.acquire().await);
        }
        assert!(timeout(RESPONSE_TIMEOUT / 2, long_responses.acquire()).await.is_err(), "the next one waits");
        held.pop();
        let start = Instant::now();
        let last = long_responses.acquire().await;
        assert!(start.elapsed().is_zero());
        held.clear();
        assert!(
            timeout(RESPONSE_TIMEOUT / 2, long_responses.wait_until_overdue()).await.is_err(),
            "a dropped permit does not time out"
        );
        long_responses.wait_until_overdue().await;
        assert_eq!(start.elapsed(), RESPONSE_TIMEOUT);
        drop(last);
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// Sends a batch of checks over HTTP/2 with a flow-control window of `window` bytes for the response. Returns the
    /// seconds until the connection closed, and the bytes that were read.
    async fn batch_with_window(window: u32) -> (u64, usize) {
        let (api, _) = api("default: {limit: 100000/h}", ApiOptions::default());
        let (stream, mut client) = duplex(1 << 20);
        let (_phase, receiver) = watch::channel(ShutdownPhase::Running);
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        let path = "/v1/check/batch";
        let fields = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 15], path.as_bytes()].concat();
        let body = format!("{{\"checks\":[{}]}}", vec![r#"{"client_key":"a"}"#; 300].join(","));
        let start = Instant::now();
        let request = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &settings),
            frame(1, 4, 1, &fields),
            frame(0, 1, 1, body.as_bytes()),
        ];
        client.write_all(&request.concat()).await.unwrap();
        let (http, mut read) = (Http::new(api, BodyPermits::default()), Vec::new());
        let ((), all) = tokio::join!(
            http.serve(stream, Ipv4Addr::LOCALHOST.into(), receiver),
            client.read_to_end(&mut read)
        );
        all.unwrap();
        (start.elapsed().as_secs(), read.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_response_is_disconnected() {
        for window in [0, 1, 100, 20_000] {
            let (seconds, bytes) = batch_with_window(window).await;
            assert_eq!(seconds, 10, "window {window}");
            assert!(bytes < window as usize + 1000, "{bytes}");
        }
        let (seconds, bytes) = batch_with_window(1 << 20).await;
        assert!(seconds > 10 && bytes > 40_000, "a client that read it stays connected: {seconds}, {bytes}");
    }
}
