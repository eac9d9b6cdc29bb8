//! A limit on the long responses that a connection has in memory.
//!
//! Over HTTP/2 a client sends many requests at once, and flow control lets it decide when to read the responses. A
//! client that never reads would make the server keep them all. So a connection has few long responses at a time, the
//! others wait for a permit, and a response that is not read in time closes the connection.

use super::timeouts::BODY_TIMEOUT;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The most long responses of a connection at once. A client that reads takes one sooner than the next is ready.
const MAX_LONG_RESPONSES: usize = 4;
/// How long a client may take to read a long response: as long as it may take to send a body.
const RESPONSE_TIMEOUT: Duration = BODY_TIMEOUT;

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
    use super::*;
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
}
