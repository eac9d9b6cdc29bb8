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
    /// Batches sent.
    pub(crate) calls: AtomicU64,
    /// Commands in them.
    pub(crate) commands: AtomicU64,
    /// Connections established, including the initial ones.
    pub(crate) connects: AtomicU64,
    /// Times that the script was loaded.
    pub(crate) script_loads: AtomicU64,
    /// Commands that the server redirected to another one.
    pub(crate) redirects: AtomicU64,
    /// Commands that failed: timeouts, unreachable, busy, error replies.
    failures: [AtomicU64; 4],
    /// Error replies, and failed attempts to connect to the server, by cause.
    errors: [AtomicU64; StoreErrorCause::ALL.len()],
    /// Latency of batches that got a reply.
    buckets: [AtomicU64; DURATION_BOUNDS_MICROS.len() + 1],
    sum_nanos: AtomicU64,
}

impl CallCounters {
    pub(crate) fn record_latency(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[DurationHistogram::bucket(nanos)].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn record_failures(&self, failure: StoreFailure, commands: usize) {
        let kind = match failure {
            StoreFailure::Timeout => 0,
            StoreFailure::Busy => 2,
            StoreFailure::StoreError => 3,
            _ => 1,
        };
        self.failures[kind].fetch_add(commands as u64, Relaxed);
    }

    pub(crate) fn record_errors(&self, cause: StoreErrorCause, count: usize) {
        self.errors[cause as usize].fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn failures(&self) -> StoreFailureCounts {
        let [timeout, unreachable, busy, error] = self.failures.each_ref().map(|count| count.load(Relaxed));
        StoreFailureCounts { timeout, unreachable, busy, error }
    }

    pub(super) fn errors(&self) -> StoreErrorCounts {
        StoreErrorCounts::from_fn(|cause| self.errors[cause as usize].load(Relaxed))
    }

    pub(super) fn latency(&self) -> DurationHistogram {
        let counts = self.buckets.each_ref().map(|count| count.load(Relaxed));
        DurationHistogram { counts, sum_nanos: self.sum_nanos.load(Relaxed) }
    }
}
