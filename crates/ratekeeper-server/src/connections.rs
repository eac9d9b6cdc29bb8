//! The connections of a port that makes room for newcomers, and which of them has been idle for longest.
//!
//! A health check that finds no place would have a server restarted that is in order. So on the admin port a newcomer is let in
//! for the connection that has been silent for longest, one with a request in flight only if there is no other.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// All connections of a port.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRegistry {
    all: Mutex<Vec<Arc<ConnectionRecord>>>,
    /// Numbers what happens on all of them, in order.
    events: AtomicU64,
}

/// What is known of one of them.
#[derive(Debug, Default)]
struct ConnectionRecord {
    /// Something came since something was last sent.
    is_asking: AtomicBool,
    last_event: AtomicU64,
    leave: Notify,
}

impl ConnectionRegistry {
    /// A new connection.
    pub(crate) fn enter<S>(
        self: &Arc<ConnectionRegistry>,
        stream: S,
    ) -> (ObservedStream<S>, RegisteredConnection) {
        let resident = Arc::new(ConnectionRecord::default());
        self.note(&resident);
        self.all.lock().push(Arc::clone(&resident));
        let observed =
            ObservedStream { stream, resident: Arc::clone(&resident), residents: Arc::clone(self) };
        (observed, RegisteredConnection { resident, residents: Arc::clone(self) })
    }

    /// Has the one leave that has been idle for longest. Returns `false` if there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut all = self.all.lock();
        let idleness = |resident: &ConnectionRecord| {
            (resident.is_asking.load(Relaxed), resident.last_event.load(Relaxed))
        };
        let Some((index, _)) = all.iter().enumerate().min_by_key(|(_, resident)| idleness(resident)) else {
            return false;
        };
        all.swap_remove(index).leave.notify_one();
        true
    }

    fn note(&self, resident: &ConnectionRecord) {
        resident.last_event.store(self.events.fetch_add(1, Relaxed), Relaxed);
    }
}

/// A connection that is there until this is dropped.
#[derive(Debug)]
pub(crate) struct RegisteredConnection {
    resident: Arc<ConnectionRecord>,
    residents: Arc<ConnectionRegistry>,
}

impl RegisteredConnection {
    /// Until the connection has to leave.
    pub(crate) async fn is_evicted(&self) {
        self.resident.leave.notified().await;
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.residents.all.lock().retain(|resident| !Arc::ptr_eq(resident, &self.resident));
    }
}

/// A stream that is noted to be read from and written to.
#[derive(Debug)]
pub(crate) struct ObservedStream<S> {
    stream: S,
    resident: Arc<ConnectionRecord>,
    residents: Arc<ConnectionRegistry>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.resident.is_asking.store(true, Relaxed);
        self.residents.note(&self.resident);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.resident.is_asking.store(false, Relaxed);
        self.residents.note(&self.resident);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Duration, timeout};

    type Ours = (ObservedStream<DuplexStream>, RegisteredConnection);

    async fn has_to_leave((_, residence): &Ours) -> bool {
        timeout(Duration::ZERO, residence.is_evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_is_idle_for_longest_leaves_and_one_that_asks_goes_last() {
        let residents = Arc::new(ConnectionRegistry::default());
        let (mut ours, mut theirs): (Vec<Ours>, Vec<DuplexStream>) = (0..3)
            .map(|_| {
                let (ours, theirs) = duplex(64);
                (residents.enter(ours), theirs)
            })
            .unzip();
        // The first has asked and waits, the second was answered, the third never said a word.
        for index in 0..2 {
            theirs[index].write_all(b"?").await.unwrap();
            assert_eq!(ours[index].0.read_u8().await.unwrap(), b'?');
        }
        ours[1].0.write_all(b"!").await.unwrap();
        for expected in [2, 1, 0] {
            assert!(residents.evict());
            for (index, one) in ours.iter().enumerate() {
                assert_eq!(has_to_leave(one).await, index == expected, "{index} of {expected}");
            }
        }
        assert!(!residents.evict(), "all have to leave already");
        ours.clear();
        let (stream, residence) = residents.enter(duplex(1).0);
        drop((stream, residence));
        assert!(!residents.evict(), "it has left by itself");
    }
}
