//! A store that always times out: rules with `on_store_failure: local` are decided from memory, as one of three nodes.

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{
    BreakerState, Capacity, ClockDrift, Draws, DurationHistogram, FailureMode, KeyLease, KeyRef, LeaseCounts,
    Limit, ManualClock, MemoryStore, Micros, PermitId, RuleLimiter, Scope, ServerReport, Store, StoreCounts,
    StoreErrorCause, StoreErrorCounts, StoreFailure, StoreFailureCounts, StoreReport, Topology,
};
use std::sync::Arc;
use std::time::Duration;

/// A store that always times out.
#[derive(Debug)]
pub(crate) struct LocalOnlyStore(MemoryStore<Arc<ManualClock>>);

/// A limiter with these rules and a store that always times out.
pub(crate) fn degraded_limiter(rules: &str) -> RuleLimiter<LocalOnlyStore> {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let memory = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1_000)).unwrap();
    let parsed = read(rules, Micros::EPOCH);
    let spec = parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics));
    RuleLimiter::new(RuleSet::compile(&spec).unwrap(), LocalOnlyStore(memory), clock)
}

/// One rule per failure mode; inline limits fail open.
pub(crate) const RULES: &str = "
rules:
  - {id: login, match: {path: /login}, limit: 10/min, on_store_failure: closed}
  - {id: orders, match: {path: /orders}, limit: 3/min, on_store_failure: local}
default: {limit: 100/min}
on_store_failure: open
";

impl Store for LocalOnlyStore {
    async fn draw(&self, draws: &mut Draws) {
        let requested = draws.clone();
        for group in 0..draws.len() {
            draws.fail_group(group, StoreFailure::Timeout);
            for (draw, original) in draws.group_mut(group).iter_mut().zip(requested.group(group)) {
                if draw.options().on_failure == FailureMode::Local {
                    let (key, scope) = (requested.key(original), draw.scope());
                    draw.use_share(3);
                    let mut own = Draws::new();
                    own.push(key, scope, *draw.limit(), draw.op(), draw.permit());
                    self.0.draw_now(&mut own);
                    draw.decide_with(|_, _, _| *own.all()[0].result());
                }
            }
        }
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}

    fn health(&self) -> Option<StoreReport> {
        let mut calls = DurationHistogram::default();
        for nanos in [100_000, 200_000, 900_000] {
            calls.counts[DurationHistogram::bucket(nanos)] += 1;
            calls.sum_nanos += nanos;
        }
        let server = ServerReport {
            address: "10.0.0.1:6379".to_owned(),
            software: Some("redis 7.0.15".to_owned()),
            replicas: 1,
            breaker: BreakerState::Closed,
            problem: None,
            cause: None,
            accepts_writes: true,
            has_script: true,
            eviction_policy: Some("allkeys-lru".to_owned()),
            may_evict: true,
            clock_drift: Some(ClockDrift::Behind(Duration::from_millis(250))),
            latency: calls,
            failures: StoreFailureCounts { timeout: 3, ..StoreFailureCounts::default() },
            errors: StoreErrorCounts::default(),
            reconnects: 2,
            script_loads: 1,
        };
        let unreachable = ServerReport {
            address: "10.0.0.2:6379".to_owned(),
            software: None,
            replicas: 0,
            breaker: BreakerState::Open,
            problem: Some("connection refused".to_owned()),
            cause: Some(StoreErrorCause::Unreachable),
            accepts_writes: true,
            has_script: false,
            eviction_policy: None,
            may_evict: false,
            clock_drift: None,
            latency: DurationHistogram::default(),
            failures: StoreFailureCounts { unreachable: 7, ..StoreFailureCounts::default() },
            errors: StoreErrorCounts::from_fn(
                |cause| {
                    if cause == StoreErrorCause::Unreachable { 5 } else { 0 }
                },
            ),
            reconnects: 0,
            script_loads: 0,
        };
        Some(StoreReport {
            address: "redis+sharded://me:***@10.0.0.1:6379,10.0.0.2:6379".to_owned(),
            topology: Topology::Sharded,
            servers: vec![server, unreachable],
            uncovered_slots: 0,
            last_failure: None,
            live_nodes: 3,
            counts: StoreCounts {
                batches: 10,
                requests: 200,
                coalesced: 30,
                denied_from_memory: 40,
                decided_locally: 50,
                degraded_time: Duration::from_millis(2_500),
                leases: LeaseCounts { lent: 60, spent: 50, denied_stale: 2, ..LeaseCounts::default() },
            },
        })
    }

    /// Only the limit 3/min has a lease.
    fn key_lease(&self, _: KeyRef<'_>, _: Scope, limit: &Limit) -> Option<KeyLease> {
        (limit.capacity() == 3).then_some(KeyLease {
            unspent: 1,
            expires_in: Some(Duration::from_secs(20)),
            is_unacknowledged: true,
            denied_for: None,
            per_second: 0.5,
            lent: 9,
            spent: 5,
            returned: 2,
            expired: 1,
            draws: 8,
            misses: 2,
            denied: 1,
            denied_stale: 1,
        })
    }
}
