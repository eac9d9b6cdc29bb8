//! The streams of a connection: few at a time, and none whose client does not take its answers.
//!
//! Answers are handed over one at a time, the next when the client has room for it, so a client that does not read is not
//! answered, and what it sends waits with it until its own window is full. That bounds what is held for it; a client that
//! goes on like this is given up.

use crate::http::BODY_PATIENCE;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The most streams of checks on one connection. One takes whatever a client has to ask; more only help where several
/// threads of it share a connection.
const MAX_STREAMS: usize = 16;

/// The streams of one connection.
#[derive(Clone, Debug)]
pub(super) struct StreamRegistry {
    places: Arc<Semaphore>,
    overdue: Arc<Notify>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamGuard {
    /// Odd while an answer is on its way.
    beats: Arc<AtomicU64>,
    alarm: AbortHandle,
    _place: OwnedSemaphorePermit,
}

impl StreamRegistry {
    pub(super) fn new() -> StreamRegistry {
        StreamRegistry { places: Arc::new(Semaphore::new(MAX_STREAMS)), overdue: Arc::default() }
    }

    /// One more, if there may be.
    pub(super) fn open(&self) -> Option<StreamGuard> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let beats = Arc::new(AtomicU64::new(0));
        let (seen, overdue) = (Arc::clone(&beats), Arc::clone(&self.overdue));
        let alarm = tokio::spawn(async move {
            let mut before = 0;
            loop {
                sleep(BODY_PATIENCE).await;
                let now = seen.load(Relaxed);
                if now % 2 == 1 && now == before {
                    return overdue.notify_one();
                }
                before = now;
            }
        });
        Some(StreamGuard { beats, alarm: alarm.abort_handle(), _place: place })
    }

    /// Until a client has not taken an answer for long.
    pub(super) async fn is_overdue(&self) {
        self.overdue.notified().await;
    }
}

impl StreamGuard {
    /// Notes that an answer is on its way.
    pub(super) fn hand_over(&self) {
        self.beats.fetch_add(1, Relaxed);
    }

    /// Notes that the client has room for the next.
    pub(super) fn ask(&self) {
        let beats = self.beats.load(Relaxed);
        self.beats.store(beats + beats % 2, Relaxed);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.alarm.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn who_does_not_take_an_answer_is_found_and_who_is_idle_is_not() {
        let streams = StreamRegistry::new();
        let (idle, busy) = (streams.open().unwrap(), streams.open().unwrap());
        idle.ask();
        let work = async {
            for _ in 0..100 {
                busy.hand_over();
                sleep(Duration::from_secs(9)).await;
                busy.ask();
            }
            busy.hand_over();
            Instant::now()
        };
        tokio::select! {
            () = streams.is_overdue() => panic!("each was taken in time"),
            last = work => {
                streams.is_overdue().await;
                assert!((10..=20).contains(&last.elapsed().as_secs()), "{:?}", last.elapsed());
            }
        }
        drop(busy);
        assert!(timeout(Duration::from_secs(100), streams.is_overdue()).await.is_err());
    }

    #[tokio::test]
    async fn there_are_so_many_at_once() {
        let streams = StreamRegistry::new();
        let mut open: Vec<_> = std::iter::from_fn(|| streams.open()).collect();
        assert_eq!(open.len(), MAX_STREAMS);
        open.pop();
        assert!(streams.open().is_some() && streams.clone().open().is_some());
    }
}
