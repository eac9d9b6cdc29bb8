//! Every law against its slow, obvious model, over random traces: any quota, any cost, any clock.

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tollgate_core::{Act, Align, Ask, Law, Leak, Limit, LogSize, Micros, PermitId, Retry, Span, Zone};
use tollgate_testkit::{Cell, Engine, Model, Reply, replay, traces};

/// Runs random traces through the law and the model side by side.
fn check(law: Law) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&traces(law), |trace| {
        let mut model = Model::new(&trace.limits[0]);
        let mut failed = None;
        let mut cell = Promises::default();
        replay(&trace, &mut cell, |_, now, limit, act, permit, reply| {
            let expected = model.act(now, limit, act, permit);
            if reply != expected && failed.is_none() {
                failed = Some(format!("at {now:?} {limit} {act:?}\n  law   {reply:?}\n  model {expected:?}"));
            }
        });
        match failed.or(cell.broken) {
            Some(failed) => Err(TestCaseError::fail(failed)),
            None => Ok(()),
        }
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// The laws around one state, which also checks that each reply's promises hold to the microsecond.
#[derive(Default)]
struct Promises {
    cell: Cell,
    broken: Option<String>,
}

impl Engine for Promises {
    fn act(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reply {
        let reply = self.cell.act(now, limit, act, permit);
        let ask = match act {
            Act::Take(ask) | Act::Look(ask) => ask,
            Act::Give(_) | Act::Clear => return reply,
        };
        let refused_at =
            |at: Micros| self.cell.clone().act(at, limit, Act::Look(ask), permit).retry.is_some();
        let reset_at = |at: Micros| self.cell.clone().act(at, limit, Act::Look(Ask::PEEK), permit).reset;
        let just_before = |span: Span| now.plus(Span::micros(span.get() - 1));
        let broken = match reply.retry {
            Some(Retry::After(Span::ZERO)) => Some("refused with nothing to wait for"),
            Some(Retry::After(span)) if refused_at(now.plus(span)) => {
                Some("came back as told and was refused")
            }
            Some(Retry::After(span)) if !refused_at(just_before(span)) => Some("was told to wait too long"),
            Some(Retry::Never) if ask.at_least() <= limit.capacity() => Some("never, though it can fit"),
            _ if reset_at(now.plus(reply.reset)) != Span::ZERO => Some("not full when it should be"),
            _ if !reply.reset.is_zero() && reset_at(just_before(reply.reset)).is_zero() => {
                Some("full too early")
            }
            _ => None,
        };
        self.broken = self
            .broken
            .take()
            .or(broken.map(|what| format!("{what}: {limit} {act:?} at {now:?}: {reply:?}")));
        reply
    }
}

#[test]
fn token_bucket_equals_its_model() {
    check(Law::TokenBucket);
}

#[test]
fn leaky_meter_equals_its_model() {
    check(Law::LeakyBucket(Leak::Meter));
}

#[test]
fn leaky_queue_equals_its_model() {
    check(Law::LeakyBucket(Leak::Queue));
}

#[test]
fn wall_window_equals_its_model() {
    check(Law::FixedWindow(Align::Wall(Zone::UTC)));
}

#[test]
fn first_hit_window_equals_its_model() {
    check(Law::FixedWindow(Align::FirstHit));
}

#[test]
fn sliding_window_counter_equals_its_model() {
    check(Law::SlidingWindowCounter);
}

#[test]
fn sliding_window_log_equals_its_model() {
    check(Law::SlidingWindowLog(LogSize::Modest));
}

#[test]
fn concurrency_equals_its_model() {
    check(Law::Concurrency);
}
