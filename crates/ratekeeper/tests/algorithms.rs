//! The memory store under the suite that every engine must pass.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    Algorithm, Amount, Capacity, Draws, Limit, ManualClock, MemoryStore, Micros, Op, PermitId, Scope, Span,
};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply, test_each_algorithm};
use std::sync::Arc;

/// A memory store in which other keys come and go around the suite's keys.
struct BusyStoreEngine {
    clock: Arc<ManualClock>,
    store: MemoryStore<Arc<ManualClock>>,
    turn: u32,
    is_swept: bool,
}

impl BusyStoreEngine {
    fn new(is_swept: bool) -> BusyStoreEngine {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(5_000)).unwrap();
        BusyStoreEngine { clock, store, turn: 0, is_swept }
    }
}

impl Engine for BusyStoreEngine {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        self.clock.set(now);
        self.turn += 1;
        // Another key draws before each decision, and every third decision is followed by a sweep.
        let (mut other, first) = (Draws::new(), &draws.all()[0]);
        let name = format!("other {}", self.turn);
        other.push(name.as_str().into(), Scope(0), *first.limit(), first.op(), first.permit());
        self.store.draw_now(&mut other);
        let mut draws = draws.clone();
        self.store.draw_now(&mut draws);
        if self.is_swept && self.turn.is_multiple_of(3) {
            self.store.sweep(usize::MAX);
        }
        EngineReply::from_draws(&draws)
    }
}

#[test]
fn scenarios() {
    suite::check_scenarios(|| BusyStoreEngine::new(false));
}

fn traces(algorithm: Algorithm) {
    // A sweep drops drained states for good. After a clock step back the model still has them, so such traces are not
    // swept.
    suite::check_traces(algorithm, Span::MAX, SuiteCases::Many, |trace| {
        BusyStoreEngine::new(!trace.steps_back())
    });
}

test_each_algorithm!(traces);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    suite::check_requests(SuiteCases::Many, || BusyStoreEngine::new(true));
}

/// A sweep drops a state that has drained under the last quota, but keeps the units used under another quota.
#[test]
fn alternating_quotas_stay_within_each_while_the_store_is_swept() {
    let limits = ["100/s burst 200", "100/s burst 5"]
        .map(|quota| Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap());
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let mut granted = [0; 2];
    for turn in 0..80 {
        let mut draws = Draws::new();
        let op = Op::Take(Amount::between(0, u32::MAX));
        draws.push("key".into(), Scope(0), limits[turn % 2], op, PermitId(0));
        store.draw_now(&mut draws);
        if let ratekeeper::DrawOutcome::Granted(units) = draws.all()[0].outcome() {
            granted[turn % 2] += units;
        }
        clock.advance(Span::millis(100));
        store.sweep(usize::MAX);
    }
    assert!(granted[0] <= 200 + 800 && granted[1] <= 5 + 800, "{granted:?} in eight seconds");
    assert!(granted[0] + granted[1] >= 200, "{granted:?} in eight seconds");
}
