//! Counters of the calls to one server.

use ratekeeper::{
    DURATION_BOUNDS_MICROS, DurationHistogram, StoreErrorCause, StoreErrorCounts, StoreFailureCounts,
};
use ratekeeper_core::StoreFailure;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Counters of the calls to one server.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) script_loads: AtomicU64,
    pub(crate) redirects: AtomicU64,
    timeouts: AtomicU64,
    unreachable: AtomicU64,
    busy: AtomicU64,
    error_replies: AtomicU64,
    errors: [AtomicU64; StoreErrorCause::ALL.len()],
    buckets: [AtomicU64; DURATION_BOUNDS_MICROS.len() + 1],
    sum_nanos: AtomicU64,
}

/// A snapshot of a server's call counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    /// Batches sent.
    pub(crate) calls: u64,
    /// Commands in them.
    pub(crate) commands: u64,
    /// Commands that failed, by kind of failure.
    pub(crate) failures: StoreFailureCounts,
    /// Error replies, and failed attempts to connect to the server, by cause.
    pub(crate) errors: StoreErrorCounts,
    /// Connections established, including the initial ones.
    pub(crate) connects: u64,
    /// Times that the script was loaded.
    pub(crate) script_loads: u64,
    /// Commands that the server redirected to another one.
    pub(crate) redirects: u64,
    /// Latency of batches that got a reply.
    pub(crate) latency: DurationHistogram,
}

impl CallCounters {
    pub(crate) fn record_latency(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[DurationHistogram::bucket(nanos)].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn record_failures(&self, failure: StoreFailure, commands: usize) {
        let counter = match failure {
            StoreFailure::Timeout => &self.timeouts,
            StoreFailure::Busy => &self.busy,
            StoreFailure::StoreError => &self.error_replies,
            _ => &self.unreachable,
        };
        counter.fetch_add(commands as u64, Relaxed);
    }

    pub(crate) fn record_errors(&self, cause: StoreErrorCause, count: usize) {
        self.errors[cause as usize].fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> CallCounts {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        CallCounts {
            calls: read(&self.calls),
            commands: read(&self.commands),
            failures: StoreFailureCounts {
                timeout: read(&self.timeouts),
                unreachable: read(&self.unreachable),
                busy: read(&self.busy),
                error: read(&self.error_replies),
            },
            errors: StoreErrorCounts::from_fn(|cause| read(&self.errors[cause as usize])),
            connects: read(&self.connects),
            script_loads: read(&self.script_loads),
            redirects: read(&self.redirects),
            latency: DurationHistogram {
                counts: std::array::from_fn(|bucket| read(&self.buckets[bucket])),
                sum_nanos: read(&self.sum_nanos),
            },
        }
    }
}
