//! The health report of a server, for the admin API and metrics.

use super::{NodeCore, NodePhase, ServerInfo};
use ratekeeper::{BreakerState, ClockDrift, ServerReport};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl NodeCore {
    /// The report of the server.
    pub(crate) fn report(&self) -> ServerReport {
        let (phase, info, failure) = (self.phase(), self.info.lock().clone(), self.failure());
        let breaker = self.breaker_state.lock().state();
        let warning = self.warning.lock().failure.clone();
        ServerReport {
            address: self.server.to_string(),
            software: info.as_ref().map(|info| format!("{} {}", info.kind, info.version)),
            replicas: info.as_ref().map_or(0, |info| info.replicas),
            breaker: match breaker {
                // A server that was never connected is reported like one whose breaker is open.
                BreakerState::Closed if phase != NodePhase::Up => BreakerState::Open,
                breaker => breaker,
            },
            cause: failure.as_ref().map(|failure| failure.cause),
            problem: failure.map(|failure| failure.message),
            accepts_writes: warning.is_none_or(|failure| !failure.cause.blocks_writes_only()),
            has_script: phase == NodePhase::Up,
            may_evict: info.as_ref().is_some_and(ServerInfo::may_evict),
            eviction_policy: info.map(|info| info.eviction_policy).filter(|policy| !policy.is_empty()),
            clock_drift: self.clock_offset.lock().drift_micros().map(|micros| {
                let by = Duration::from_micros(micros.unsigned_abs());
                if micros < 0 { ClockDrift::Behind(by) } else { ClockDrift::Ahead(by) }
            }),
            latency: self.counters.latency(),
            failures: self.counters.failures(),
            errors: self.counters.errors(),
            reconnects: self
                .counters
                .connects
                .load(Relaxed)
                .saturating_sub(self.options.bounds.connections as u64),
            script_loads: self.counters.script_loads.load(Relaxed),
        }
    }
}
