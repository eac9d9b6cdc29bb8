//! How the store is doing, for whoever runs it.

use super::ServerInfo;
use super::node::{NodePhase, RedisNode};
use super::server_set::ServerSetReport;
use super::store::RedisStore;
use crate::health::{BreakerState, ClockDrift, KeyLease, ServerReport, StoreHealth, StoreReport};
use ratekeeper_core::{Clock, KeyRef, Limit, Scope};
use std::time::Duration;

impl StoreHealth for RedisStore {
    fn health(&self) -> Option<StoreReport> {
        let ServerSetReport { url, topology, servers, uncovered_slots, .. } = self.describe();
        Some(StoreReport {
            address: url,
            topology,
            servers,
            uncovered_slots,
            last_miss: self.last_miss(),
            live_nodes: self.live_nodes(),
            counts: self.counts(),
        })
    }

    fn lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        let tag = self.memory.tag(key, scope, limit);
        self.post.leases.describe(tag, limit, self.post.clock.now())
    }
}

/// How one server is doing.
pub(super) fn of_server(node: &RedisNode) -> ServerReport {
    let (phase, facts, counts) = (node.phase(), node.facts(), node.counts());
    let trouble = node.find_trouble();
    let eviction = facts.as_ref().map(|facts| facts.eviction.clone());
    ServerReport {
        address: node.server().to_string(),
        software: facts.as_ref().map(|facts| format!("{} {}", facts.kind, facts.version)),
        replicas: facts.as_ref().map_or(0, |facts| facts.replicas),
        breaker: match (phase, node.breaker()) {
            (NodePhase::Up, breaker) => breaker,
            // One that was never there is as good as one that is left alone.
            (NodePhase::New | NodePhase::Down | NodePhase::Retired, BreakerState::HalfOpen) => {
                BreakerState::HalfOpen
            }
            (
                NodePhase::New | NodePhase::Down | NodePhase::Retired,
                BreakerState::Closed | BreakerState::Open,
            ) => BreakerState::Open,
        },
        cause: trouble.as_ref().map(|trouble| trouble.cause),
        trouble: trouble.map(|trouble| trouble.words),
        takes_writes: node.takes_writes(),
        has_script: phase == NodePhase::Up,
        eviction_policy: eviction.filter(|policy| !policy.is_empty()),
        may_forget: facts.as_ref().is_some_and(ServerInfo::can_drop_limits),
        drift: node.drift_micros().map(|micros| {
            let by = Duration::from_micros(micros.unsigned_abs());
            if micros < 0 { ClockDrift::Behind(by) } else { ClockDrift::Ahead(by) }
        }),
        calls: counts.latency,
        failures: counts.failures,
        errors: counts.errors,
        reconnects: node.reconnects(),
        script_loads: counts.script_loads,
    }
}
