//! Counters of the calls to one server.

use crate::duration_histogram::{DURATION_BOUNDS_MICROS, DurationHistogram};
use crate::health::{StoreErrorCause, StoreErrorCounts, StoreFailureCounts};
use ratekeeper_core::StoreFailure;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Counters of the calls to one server.
#[derive(Debug, Default)]
pub(in crate::redis) struct CallCounters {
    pub(super) calls: AtomicU64,
    pub(super) commands: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) script_loads: AtomicU64,
    pub(super) redirects: AtomicU64,
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
pub struct CallCounts {
    /// Batches sent.
    pub calls: u64,
    /// Commands in them.
    pub commands: u64,
    /// Commands that failed, by kind of failure.
    pub failures: StoreFailureCounts,
    /// Error replies, and failed attempts to connect to the server, by cause.
    pub errors: StoreErrorCounts,
    /// Connections established, including the initial ones.
    pub connects: u64,
    /// Times that the script was loaded.
    pub script_loads: u64,
    /// Commands that the server redirected to another one.
    pub redirects: u64,
    /// Latency of batches that got a reply.
    pub latency: DurationHistogram,
}

impl CallCounters {
    pub(super) fn record_latency(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[DurationHistogram::bucket(nanos)].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn record_failures(&self, failure: StoreFailure, commands: usize) {
        let counter = match failure {
            StoreFailure::Timeout => &self.timeouts,
            StoreFailure::Busy => &self.busy,
            StoreFailure::StoreError => &self.error_replies,
            _ => &self.unreachable,
        };
        counter.fetch_add(commands as u64, Relaxed);
    }

    pub(super) fn record_errors(&self, cause: StoreErrorCause, count: usize) {
        self.errors[cause as usize].fetch_add(count as u64, Relaxed);
    }

    pub(super) fn snapshot(&self) -> CallCounts {
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
