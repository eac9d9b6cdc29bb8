//! The number of open connections of each listener.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The listeners of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerName {
    Http,
    Grpc,
    Resp,
    Admin,
}

impl ListenerName {
    pub(crate) const ALL: [ListenerName; 4] =
        [ListenerName::Http, ListenerName::Grpc, ListenerName::Resp, ListenerName::Admin];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ListenerName::Http => "http",
            ListenerName::Grpc => "grpc",
            ListenerName::Resp => "resp",
            ListenerName::Admin => "admin",
        }
    }
}

/// The number of open connections of each listener.
#[derive(Debug, Default)]
pub(crate) struct ConnectionGauge {
    open: [AtomicUsize; ListenerName::ALL.len()],
    evicted: AtomicU64,
}

impl ConnectionGauge {
    /// Counts a connection until the result is dropped.
    pub(crate) fn count(&self, listener: ListenerName) -> CountedConnection<'_> {
        let open = &self.open[listener as usize];
        open.fetch_add(1, Relaxed);
        CountedConnection(open)
    }

    /// Counts a connection that was closed in favour of a new one.
    pub(crate) fn count_evicted(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// The number of open connections of a listener.
    pub(crate) fn open_connections(&self, listener: ListenerName) -> usize {
        self.open[listener as usize].load(Relaxed)
    }

    /// The number of connections that were closed in favour of new ones.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }
}

/// A connection in the gauge, until it is dropped.
pub(crate) struct CountedConnection<'a>(&'a AtomicUsize);

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
