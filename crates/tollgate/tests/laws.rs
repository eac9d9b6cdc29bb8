//! The memory store under the suite that every engine passes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;
use tollgate::{Cap, Draws, Law, ManualClock, MemoryStore, Micros, Scope, Span};
use tollgate_testkit::suite::{self, Cases};
use tollgate_testkit::{Engine, Reply, test_each_law};

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
        let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(5_000)).unwrap();
        Crowded { clock, store, turn: 0, is_swept }
    }
}

impl Engine for Crowded {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<Reply> {
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
        Reply::all(&draws)
    }
}

#[test]
fn scenarios() {
    suite::check_scenarios(|| Crowded::new(false));
}

fn traces(law: Law) {
    // What has drained may be dropped for good. A clock that then steps back finds it gone; the model does not.
    suite::check_traces(law, Span::MAX, Cases::Many, |trace| Crowded::new(!trace.steps_back()));
}

test_each_law!(traces);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    suite::check_requests(Cases::Many, || Crowded::new(true));
}
