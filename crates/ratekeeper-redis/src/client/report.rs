//! Health reports of servers, for the admin API and metrics.

use crate::client::node::ServerInfo;
use crate::client::node::{NodePhase, RedisNode};
use ratekeeper::{BreakerState, ClockDrift, ServerReport};
use std::time::Duration;

/// The report of one server.
pub(crate) fn server_report(node: &RedisNode) -> ServerReport {
    let (phase, info, counts) = (node.phase(), node.info(), node.counts());
    let failure = node.failure();
    let eviction = info.as_ref().map(|info| info.eviction_policy.clone());
    ServerReport {
        address: node.server().to_string(),
        software: info.as_ref().map(|info| format!("{} {}", info.kind, info.version)),
        replicas: info.as_ref().map_or(0, |info| info.replicas),
        breaker: match (phase, node.breaker()) {
            (NodePhase::Up, breaker) => breaker,
            // A server that was never connected is reported like one whose breaker is open.
            (NodePhase::New | NodePhase::Down | NodePhase::Retired, BreakerState::HalfOpen) => {
                BreakerState::HalfOpen
            }
            (
                NodePhase::New | NodePhase::Down | NodePhase::Retired,
                BreakerState::Closed | BreakerState::Open,
            ) => BreakerState::Open,
        },
        cause: failure.as_ref().map(|failure| failure.cause),
        problem: failure.map(|failure| failure.message),
        accepts_writes: node.takes_writes(),
        has_script: phase == NodePhase::Up,
        eviction_policy: eviction.filter(|policy| !policy.is_empty()),
        may_evict: info.as_ref().is_some_and(ServerInfo::may_evict),
        clock_drift: node.drift_micros().map(|micros| {
            let by = Duration::from_micros(micros.unsigned_abs());
            if micros < 0 { ClockDrift::Behind(by) } else { ClockDrift::Ahead(by) }
        }),
        latency: counts.latency,
        failures: counts.failures,
        errors: counts.errors,
        reconnects: node.reconnects(),
        script_loads: counts.script_loads,
    }
}
