//! How the store is doing, for whoever runs it.

use super::fleet::{self, Description};
use super::node::Phase;
use super::store::RedisStore;
use crate::health::{BreakerState, Drift, ServerReport, StoreHealth, StoreReport, Topology};
use std::time::Duration;

impl StoreHealth for RedisStore {
    fn health(&self) -> Option<StoreReport> {
        let Description { url, topology, servers, .. } = self.describe();
        Some(StoreReport {
            address: url,
            topology: match topology {
                "sentinel" => Topology::Sentinel,
                "cluster" => Topology::Cluster,
                "sharded" => Topology::Sharded,
                _ => Topology::Standalone,
            },
            servers: servers.into_iter().map(report).collect(),
            live_nodes: self.live_nodes(),
            counts: self.counts(),
        })
    }
}

fn report(server: fleet::ServerReport) -> ServerReport {
    let facts = server.facts;
    let eviction = facts.as_ref().map(|facts| facts.eviction.clone());
    ServerReport {
        address: server.server,
        software: facts.as_ref().map(|facts| format!("{} {}", facts.kind, facts.version)),
        replicas: facts.as_ref().map_or(0, |facts| facts.replicas),
        breaker: match server.phase {
            Phase::Up => server.breaker,
            // One that was never there is as good as one that is left alone.
            Phase::New | Phase::Down | Phase::Retired => match server.breaker {
                BreakerState::HalfOpen => BreakerState::HalfOpen,
                BreakerState::Closed | BreakerState::Open => BreakerState::Open,
            },
        },
        trouble: server.trouble,
        has_script: server.phase == Phase::Up,
        eviction_policy: eviction.filter(|policy| !policy.is_empty()),
        may_forget: facts.as_ref().is_some_and(super::Facts::can_drop_limits),
        drift: server.drift_micros.map(|micros| {
            let by = Duration::from_micros(micros.unsigned_abs());
            if micros < 0 { Drift::Behind(by) } else { Drift::Ahead(by) }
        }),
        calls: server.counts.latency,
        failures: server.counts.failures,
        reconnects: server.counts.connects.saturating_sub(server.links as u64),
        script_loads: server.counts.script_loads,
    }
}
