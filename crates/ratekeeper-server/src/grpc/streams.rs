//! Bounds the check streams of a connection: their number, and how long a client may leave an answer unread.
//!
//! The next answer is produced only when the client has read the previous one. A client that does not read is not
//! answered, and what it sends is buffered only until its flow control window is full. That bounds the memory held for
//! it; if it does not read for too long, the connection is closed.

use crate::conn::BODY_TIMEOUT;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The maximum number of check streams per connection. One is enough for any rate; more only help if several threads
/// share a connection.
const MAX_STREAMS: usize = 16;

/// The open check streams of one connection.
#[derive(Clone, Debug)]
pub(super) struct StreamRegistry {
    permits: Arc<Semaphore>,
    overdue: Arc<Notify>,
}

/// An open stream, until dropped.
#[derive(Debug)]
pub(super) struct StreamGuard {
    /// Incremented when an answer is passed to hyper and when it has been sent, so odd in between.
    transfers: Arc<AtomicU64>,
    watchdog: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl StreamRegistry {
    pub(super) fn new() -> StreamRegistry {
        StreamRegistry { permits: Arc::new(Semaphore::new(MAX_STREAMS)), overdue: Arc::default() }
    }

    /// Opens a stream. Returns `None` if the maximum is reached.
    pub(super) fn open(&self) -> Option<StreamGuard> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let transfers = Arc::new(AtomicU64::new(0));
        let (seen, overdue) = (Arc::clone(&transfers), Arc::clone(&self.overdue));
        let watchdog = tokio::spawn(async move {
            let mut before = 0;
            loop {
                sleep(BODY_TIMEOUT).await;
                let now = seen.load(Relaxed);
                if now % 2 == 1 && now == before {
                    return overdue.notify_one();
                }
                before = now;
            }
        });
        Some(StreamGuard { transfers, watchdog: watchdog.abort_handle(), _permit: permit })
    }

    /// Completes when a client has not read an answer for too long.
    pub(super) async fn wait_until_overdue(&self) {
        self.overdue.notified().await;
    }
}

impl StreamGuard {
    /// Records that an answer is passed to hyper.
    pub(super) fn begin_send(&self) {
        self.transfers.fetch_add(1, Relaxed);
    }

    /// Records that hyper asks for the next answer: the previous one has been sent.
    pub(super) fn finish_send(&self) {
        let transfers = self.transfers.load(Relaxed);
        self.transfers.store(transfers + transfers % 2, Relaxed);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_becomes_overdue_and_an_idle_stream_does_not() {
        let streams = StreamRegistry::new();
        let (idle, busy) = (streams.open().unwrap(), streams.open().unwrap());
        idle.finish_send();
        let work = async {
            for _ in 0..100 {
                busy.begin_send();
                sleep(Duration::from_secs(9)).await;
                busy.finish_send();
            }
            busy.begin_send();
            Instant::now()
        };
        tokio::select! {
            () = streams.wait_until_overdue() => panic!("each was read in time"),
            last = work => {
                streams.wait_until_overdue().await;
                assert!((10..=20).contains(&last.elapsed().as_secs()), "{:?}", last.elapsed());
            }
        }
        drop(busy);
        assert!(timeout(Duration::from_secs(100), streams.wait_until_overdue()).await.is_err());
    }

    #[tokio::test]
    async fn the_number_of_streams_is_bounded() {
        let streams = StreamRegistry::new();
        let mut open: Vec<_> = std::iter::from_fn(|| streams.open()).collect();
        assert_eq!(open.len(), MAX_STREAMS);
        open.pop();
        assert!(streams.open().is_some() && streams.clone().open().is_some());
    }
}
