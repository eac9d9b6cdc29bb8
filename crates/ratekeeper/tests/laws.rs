//! The memory store under the suite that every engine passes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    Algorithm, Amount, Capacity, Draws, Limit, ManualClock, MemoryStore, Micros, Op, PermitId, Scope, Span,
};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply, test_each_law};
use std::sync::Arc;

/// A few keys of a store that others crowd.
struct Crowded {
    clock: Arc<ManualClock>,
    store: MemoryStore<Arc<ManualClock>>,
    turn: u32,
    is_swept: bool,
}

impl Crowded {
    fn new(is_swept: bool) -> Crowded {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(5_000)).unwrap();
        Crowded { clock, store, turn: 0, is_swept }
    }
}

impl Engine for Crowded {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        self.clock.set(now);
        self.turn += 1;
        // Strangers come and go around the keys, and the broom passes.
        let (mut stranger, first) = (Draws::new(), &draws.all()[0]);
        let name = format!("stranger {}", self.turn);
        stranger.push(name.as_str().into(), Scope(0), *first.limit(), first.act(), first.permit());
        self.store.draw_now(&mut stranger);
        let mut draws = draws.clone();
        self.store.draw_now(&mut draws);
        if self.is_swept && self.turn.is_multiple_of(3) {
            self.store.sweep(usize::MAX);
        }
        EngineReply::all(&draws)
    }
}

#[test]
fn scenarios() {
    suite::check_scenarios(|| Crowded::new(false));
}

fn traces(law: Algorithm) {
    // What has drained may be dropped for good. A clock that then steps back finds it gone; the model does not.
    suite::check_traces(law, Span::MAX, SuiteCases::Many, |trace| Crowded::new(!trace.steps_back()));
}

test_each_law!(traces);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    suite::check_requests(SuiteCases::Many, || Crowded::new(true));
}

/// A sweep drops what has drained under the quota that drew last, and not what another one has used.
#[test]
fn quotas_by_turns_stay_within_each_though_the_store_is_swept() {
    let limits = ["100/s burst 200", "100/s burst 5"]
        .map(|quota| Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap());
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let mut granted = [0; 2];
    for turn in 0..80 {
        let mut draws = Draws::new();
        let act = Op::Take(Amount::between(0, u32::MAX));
        draws.push("key".into(), Scope(0), limits[turn % 2], act, PermitId(0));
        store.draw_now(&mut draws);
        if let ratekeeper::DrawOutcome::Granted(units) = draws.all()[0].answer() {
            granted[turn % 2] += units;
        }
        clock.advance(Span::millis(100));
        store.sweep(usize::MAX);
    }
    assert!(granted[0] <= 200 + 800 && granted[1] <= 5 + 800, "{granted:?} in eight seconds");
    assert!(granted[0] + granted[1] >= 200, "{granted:?} in eight seconds");
}
