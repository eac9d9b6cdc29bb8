//! The traces and models of the test kit, through the script.

use super::embedded::Embedded;
use super::settle;
use crate::redis::wire::Parcel;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tollgate_core::{Act, Align, Draws, Law, Leak, Limit, LogSize, Micros, PermitId, Scope, Span, Zone};
use tollgate_testkit::{Engine, Model, Reply, Shift, replay, traces};

/// One key of the script's. The models forget nothing, even if the clock steps back, so keys stay here as well: for ever,
/// or, where the time in a state is cut short, for a day longer than a server keeps them.
struct OneKey(Embedded);

const DAY_MS: u64 = 86_400_000;

impl Engine for OneKey {
    fn act(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reply {
        let mut draws = Draws::new();
        draws.push("the key".into(), Scope(0), *limit, act, permit);
        let settled = settle(&mut |parcel: &Parcel| self.0.run(parcel, now.get()), &draws, &[1], now);
        Reply::from(&settled[0].requests[0].group(0)[0])
    }
}

fn check(law: Law) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let is_cut_short = matches!(law, Law::TokenBucket | Law::LeakyBucket(_));
    let grace_ms = is_cut_short.then_some(DAY_MS);
    let outcome = runner.run(&traces(law), |mut trace| {
        for op in &mut trace.ops {
            op.shift = match op.shift {
                Shift::Back(span) if is_cut_short => Shift::Back(span.min(Span::HOUR)),
                shift => shift,
            };
        }
        let mut model = Model::new(&trace.limits[0]);
        let mut failed = None;
        replay(&trace, &mut OneKey(Embedded::new(grace_ms)), |_, now, limit, act, permit, reply| {
            let expected = model.act(now, limit, act, permit);
            if reply != expected && failed.is_none() {
                failed =
                    Some(format!("at {now:?} {limit} {act:?}\n  script {reply:?}\n  model  {expected:?}"));
            }
        });
        failed.map_or(Ok(()), |failed| Err(TestCaseError::fail(failed)))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn token_bucket_in_lua_equals_its_model() {
    check(Law::TokenBucket);
}

#[test]
fn leaky_meter_in_lua_equals_its_model() {
    check(Law::LeakyBucket(Leak::Meter));
}

#[test]
fn leaky_queue_in_lua_equals_its_model() {
    check(Law::LeakyBucket(Leak::Queue));
}

#[test]
fn wall_window_in_lua_equals_its_model() {
    check(Law::FixedWindow(Align::Wall(Zone::UTC)));
}

#[test]
fn first_hit_window_in_lua_equals_its_model() {
    check(Law::FixedWindow(Align::FirstHit));
}

#[test]
fn sliding_window_counter_in_lua_equals_its_model() {
    check(Law::SlidingWindowCounter);
}

#[test]
fn sliding_window_log_in_lua_equals_its_model() {
    check(Law::SlidingWindowLog(LogSize::Modest));
}

#[test]
fn concurrency_in_lua_equals_its_model() {
    check(Law::Concurrency);
}
