//! Accessors for tests that call a real server.

use super::{NodeCore, ServerInfo};
use ratekeeper::{BreakerState, DurationHistogram, StoreFailureCounts};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A snapshot of the counters of a server's calls.
pub(crate) struct CallSnapshot {
    pub(crate) calls: u64,
    pub(crate) commands: u64,
    pub(crate) connects: u64,
    pub(crate) script_loads: u64,
    pub(crate) redirects: u64,
    pub(crate) failures: StoreFailureCounts,
    pub(crate) latency: DurationHistogram,
}

impl NodeCore {
    pub(crate) fn counts(&self) -> CallSnapshot {
        let read = |count: &AtomicU64| count.load(Relaxed);
        CallSnapshot {
            calls: read(&self.counters.calls),
            commands: read(&self.counters.commands),
            connects: read(&self.counters.connects),
            script_loads: read(&self.counters.script_loads),
            redirects: read(&self.counters.redirects),
            failures: self.counters.failures(),
            latency: self.counters.latency(),
        }
    }

    pub(crate) fn breaker(&self) -> BreakerState {
        self.breaker_state.lock().state()
    }

    pub(crate) fn info(&self) -> Option<ServerInfo> {
        self.info.lock().clone()
    }

    pub(crate) fn drift_micros(&self) -> Option<i64> {
        self.clock_offset.lock().drift_micros()
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.connections.load().len()
    }
}
