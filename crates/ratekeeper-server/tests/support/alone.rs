//! A store that gives no answer: what its rules let a node decide by itself it decides from memory, among three nodes.

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{
    BreakerState, Capacity, ClockDrift, Draws, DurationHistogram, FailureMode, KeyLease, KeyRef, LeaseCounts,
    Limit, ManualClock, MemoryStats, MemoryStore, Micros, PermitId, RuleLimiter, Scope, ServerReport, Store,
    StoreCounts, StoreErrorCause, StoreErrorCounts, StoreFailure, StoreFailureCounts, StoreHealth,
    StoreReport, Topology,
};
use ratekeeper_server::StoreMaintenance;
use std::sync::Arc;
use std::time::Duration;

/// A store that gives no answer.
#[derive(Debug)]
pub(crate) struct Alone(MemoryStore<Arc<ManualClock>>);

/// A gate with these rules and without a store.
pub(crate) fn gate(rules: &str) -> RuleLimiter<Alone> {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let memory = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1_000)).unwrap();
    let review = read(rules, Micros::EPOCH);
    let spec = review.spec.unwrap_or_else(|| panic!("{:#?}", review.complaints));
    RuleLimiter::new(RuleSet::compile(&spec).unwrap(), Alone(memory), clock)
}

/// A rule for each way to go without a store, and what comes with requests fails open.
pub(crate) const RULES: &str = "
rules:
  - {id: login, match: {path: /login}, limit: 10/min, on_store_failure: closed}
  - {id: orders, match: {path: /orders}, limit: 3/min, on_store_failure: local}
default: {limit: 100/min}
on_store_failure: open
";

impl Store for Alone {
    async fn draw(&self, draws: &mut Draws) {
        let asked = draws.clone();
        for group in 0..draws.len() {
            draws.fail(group, StoreFailure::Timeout);
            for (draw, asked_of) in draws.group_mut(group).iter_mut().zip(asked.group(group)) {
                if draw.terms().on_failure == FailureMode::Local {
                    let (key, scope) = (asked.key(asked_of), draw.scope());
                    draw.divide(3);
                    let mut own = Draws::new();
                    own.push(key, scope, *draw.limit(), draw.act(), draw.permit());
                    self.0.draw_now(&mut own);
                    draw.settle(|_, _, _| *own.all()[0].outcome());
                }
            }
        }
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

impl StoreMaintenance for Alone {
    async fn keep(&self) {
        std::future::pending::<()>().await;
    }

    fn census(&self) -> Option<MemoryStats> {
        None
    }
}

impl StoreHealth for Alone {
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
            trouble: None,
            cause: None,
            takes_writes: true,
            has_script: true,
            eviction_policy: Some("allkeys-lru".to_owned()),
            may_forget: true,
            drift: Some(ClockDrift::Behind(Duration::from_millis(250))),
            calls,
            failures: StoreFailureCounts { timeout: 3, ..StoreFailureCounts::default() },
            errors: StoreErrorCounts::default(),
            reconnects: 2,
            script_loads: 1,
        };
        let away = ServerReport {
            address: "10.0.0.2:6379".to_owned(),
            software: None,
            replicas: 0,
            breaker: BreakerState::Open,
            trouble: Some("connection refused".to_owned()),
            cause: Some(StoreErrorCause::Unreachable),
            takes_writes: true,
            has_script: false,
            eviction_policy: None,
            may_forget: false,
            drift: None,
            calls: DurationHistogram::default(),
            failures: StoreFailureCounts { unreachable: 7, ..StoreFailureCounts::default() },
            errors: StoreErrorCounts::count(
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
            servers: vec![server, away],
            uncovered_slots: 0,
            last_miss: None,
            live_nodes: 3,
            counts: StoreCounts {
                batches: 10,
                requests: 200,
                coalesced: 30,
                denied_from_memory: 40,
                local: 50,
                away: Duration::from_millis(2_500),
                leases: LeaseCounts { lent: 60, spent: 50, stale: 2, ..LeaseCounts::default() },
            },
        })
    }

    /// Of what is held to 3/min some is in hand.
    fn lease(&self, _: KeyRef<'_>, _: Scope, limit: &Limit) -> Option<KeyLease> {
        (limit.capacity() == 3).then_some(KeyLease {
            in_hand: 1,
            lasts: Some(Duration::from_secs(20)),
            is_mute: true,
            paused: None,
            per_second: 0.5,
            lent: 9,
            spent: 5,
            returned: 2,
            forfeited: 1,
            draws: 8,
            asked: 2,
            refused: 1,
            stale: 1,
        })
    }
}
