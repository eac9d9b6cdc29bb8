//! Eviction of idle connections from a full listener.
//!
//! A health check that can't connect would get a healthy server restarted. So on the admin listener, a new connection
//! replaces the one that has been idle for longest. Connections with a request in flight are
//! evicted only if all have one.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// The open connections of a listener.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRegistry {
    connections: Mutex<Vec<Arc<ConnectionRecord>>>,
    /// The number of reads and writes so far, which orders connections by their last activity.
    events: AtomicU64,
}

/// The activity of one connection.
#[derive(Debug, Default)]
struct ConnectionRecord {
    /// Whether bytes were read since the last write.
    has_request: AtomicBool,
    last_event: AtomicU64,
    eviction: Notify,
}

impl ConnectionRegistry {
    /// Registers a new connection.
    pub(crate) fn register<S>(
        self: &Arc<ConnectionRegistry>,
        stream: S,
    ) -> (ObservedStream<S>, RegisteredConnection) {
        let record = Arc::new(ConnectionRecord::default());
        self.record_activity(&record);
        self.connections.lock().push(Arc::clone(&record));
        let observed = ObservedStream { stream, record: Arc::clone(&record), registry: Arc::clone(self) };
        (observed, RegisteredConnection { record, registry: Arc::clone(self) })
    }

    /// Evicts the connection that has been idle for longest. Returns `false` if there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut all = self.connections.lock();
        let idleness =
            |record: &ConnectionRecord| (record.has_request.load(Relaxed), record.last_event.load(Relaxed));
        let Some((index, _)) = all.iter().enumerate().min_by_key(|(_, record)| idleness(record)) else {
            return false;
        };
        all.swap_remove(index).eviction.notify_one();
        true
    }

    /// Records activity on a connection.
    fn record_activity(&self, record: &ConnectionRecord) {
        record.last_event.store(self.events.fetch_add(1, Relaxed), Relaxed);
    }
}

/// A connection in the registry, removed on drop.
#[derive(Debug)]
pub(crate) struct RegisteredConnection {
    record: Arc<ConnectionRecord>,
    registry: Arc<ConnectionRegistry>,
}

impl RegisteredConnection {
    /// Waits until the connection is evicted.
    pub(crate) async fn wait_for_eviction(&self) {
        self.record.eviction.notified().await;
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.registry.connections.lock().retain(|record| !Arc::ptr_eq(record, &self.record));
    }
}

/// A stream that records its reads and writes in the registry.
#[derive(Debug)]
pub(crate) struct ObservedStream<S> {
    stream: S,
    record: Arc<ConnectionRecord>,
    registry: Arc<ConnectionRegistry>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.record.has_request.store(true, Relaxed);
        self.registry.record_activity(&self.record);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.record.has_request.store(false, Relaxed);
        self.registry.record_activity(&self.record);
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

    async fn is_evicted((_, registered): &Ours) -> bool {
        timeout(Duration::ZERO, registered.wait_for_eviction()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_evicted_and_pending_requests_come_last() {
        let registry = Arc::new(ConnectionRegistry::default());
        let (mut ours, mut theirs): (Vec<Ours>, Vec<DuplexStream>) = (0..3)
            .map(|_| {
                let (ours, theirs) = duplex(64);
                (registry.register(ours), theirs)
            })
            .unzip();
        // The first has a request in flight, the second was answered, the third never sent anything.
        for index in 0..2 {
            theirs[index].write_all(b"?").await.unwrap();
            assert_eq!(ours[index].0.read_u8().await.unwrap(), b'?');
        }
        ours[1].0.write_all(b"!").await.unwrap();
        for expected in [2, 1, 0] {
            assert!(registry.evict());
            for (index, one) in ours.iter().enumerate() {
                assert_eq!(is_evicted(one).await, index == expected, "{index} of {expected}");
            }
        }
        assert!(!registry.evict(), "all are evicted already");
        ours.clear();
        let (stream, registered) = registry.register(duplex(1).0);
        drop((stream, registered));
        assert!(!registry.evict(), "the connection has closed");
    }
}
