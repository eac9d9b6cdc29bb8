//! The memory store against the slow, obvious models, under every law.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::sync::Arc;
use tollgate::{
    Act, Align, Cap, Draws, Law, Leak, Limit, LogSize, ManualClock, MemoryStore, Micros, PermitId, Scope,
    Zone,
};
use tollgate_testkit::{Engine, Model, Reply, Shift, replay, traces};

/// One key of a store that others crowd.
struct OneKey {
    clock: Arc<ManualClock>,
    store: MemoryStore<Arc<ManualClock>>,
    draws: Draws,
    turn: u32,
    is_swept: bool,
}

impl OneKey {
    fn new(is_swept: bool) -> OneKey {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(5_000)).unwrap();
        OneKey { clock, store, draws: Draws::new(), turn: 0, is_swept }
    }
}

impl Engine for OneKey {
    fn act(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reply {
        self.clock.set(now);
        self.turn += 1;
        // Strangers come and go around the key, and the broom passes.
        self.draws.clear();
        self.draws.push(format!("stranger {}", self.turn).as_str().into(), Scope(0), *limit, act, permit);
        self.draws.begin();
        self.draws.push("the key".into(), Scope(0), *limit, act, permit);
        self.store.draw_now(&mut self.draws);
        if self.is_swept && self.turn.is_multiple_of(3) {
            self.store.sweep(usize::MAX);
        }
        Reply::from(&self.draws.group(1)[0])
    }
}

fn check(law: Law) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&traces(law), |trace| {
        let mut model = Model::new(&trace.limits[0]);
        let mut failed = None;
        // What has drained may be dropped for good. A clock that then steps back finds it gone; the model does not.
        let is_swept = !trace.ops.iter().any(|op| matches!(op.shift, Shift::Back(_)));
        replay(&trace, &mut OneKey::new(is_swept), |_, now, limit, act, permit, reply| {
            let expected = model.act(now, limit, act, permit);
            if reply != expected && failed.is_none() {
                failed = Some(format!("at {now:?} {limit} {act:?}\n  store {reply:?}\n  model {expected:?}"));
            }
        });
        failed.map_or(Ok(()), |failed| Err(TestCaseError::fail(failed)))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn token_bucket_in_memory_equals_its_model() {
    check(Law::TokenBucket);
}

#[test]
fn leaky_meter_in_memory_equals_its_model() {
    check(Law::LeakyBucket(Leak::Meter));
}

#[test]
fn leaky_queue_in_memory_equals_its_model() {
    check(Law::LeakyBucket(Leak::Queue));
}

#[test]
fn wall_window_in_memory_equals_its_model() {
    check(Law::FixedWindow(Align::Wall(Zone::UTC)));
}

#[test]
fn first_hit_window_in_memory_equals_its_model() {
    check(Law::FixedWindow(Align::FirstHit));
}

#[test]
fn sliding_window_counter_in_memory_equals_its_model() {
    check(Law::SlidingWindowCounter);
}

#[test]
fn sliding_window_log_in_memory_equals_its_model() {
    check(Law::SlidingWindowLog(LogSize::Modest));
}

#[test]
fn concurrency_in_memory_equals_its_model() {
    check(Law::Concurrency);
}
