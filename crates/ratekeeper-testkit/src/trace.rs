//! Traces: what may happen to one key, at its worst.

use crate::engine::Engine;
use crate::key_engine::KeyEngine;
use crate::model::Model;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use ratekeeper_core::{
    Algorithm, Amount, DrawOptions, Draws, Limit, LogSize, Micros, Op, PermitId, Quota, Retry, Scope, Span,
};

/// One thing that happens.
#[derive(Clone, Debug)]
struct TraceOp {
    /// How the clock moves first.
    shift: ClockShift,
    /// Which of the trace's limits is in force.
    limit: usize,
    /// What is asked.
    act: Op,
    /// Who asks, under a concurrency limit.
    permit: PermitId,
}

/// How the clock moves.
#[derive(Clone, Copy, Debug)]
enum ClockShift {
    /// Not at all, or forward.
    Forward(Span),
    /// Back.
    Back(Span),
    /// Just to when the last refused draw was told to come back.
    Retry,
}

/// What happens to one key.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The limits it is under, one after the other: the same law, different quotas.
    limits: Vec<Limit>,
    /// What happens.
    ops: Vec<TraceOp>,
    /// How far behind the latest time it has shown the clock may fall.
    back: Span,
}

/// When traces begin: in 2023, at an odd microsecond.
const START: Micros = Micros::new(1_700_000_000_123_457);

/// Where the clock stops: in 2100, a good century before the end of time, where waits would be cut short.
const HORIZON: Micros = Micros::new(4_102_444_800_000_000);

impl Trace {
    /// Runs it through an engine and the model, which must tell the same.
    ///
    /// # Errors
    /// They do not: it says where.
    pub(crate) fn check(&self, engine: &mut impl Engine) -> Result<(), TestCaseError> {
        let (mut now, mut latest, mut come_back) = (START, START, Span::ZERO);
        let mut model = Model::new(&self.limits[0]);
        let mut draws = Draws::new();
        for (index, op) in self.ops.iter().enumerate() {
            now = match op.shift {
                ClockShift::Forward(span) => now.plus(span),
                ClockShift::Back(span) => now.less(span),
                ClockShift::Retry => now.plus(come_back),
            };
            now = now.min(HORIZON).max(latest.less(self.back));
            latest = latest.max(now);
            let limit = self.limits[op.limit % self.limits.len()];
            draws.clear();
            draws.push("the key".into(), Scope(0), limit, op.act, op.permit);
            draws.set_terms(DrawOptions::EXACT);
            let (told, expected) = (engine.decide(now, &draws), model.act(now, &limit, op.act, op.permit));
            if told != [expected] {
                return Err(TestCaseError::fail(format!(
                    "op {index} at {now:?}: {limit} {:?}\n  engine {told:?}\n  model  {expected:?}",
                    op.act
                )));
            }
            if let Some(Retry::After(span)) = expected.retry {
                come_back = span;
            }
        }
        Ok(())
    }

    /// Whether the clock steps back on the way.
    pub fn steps_back(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.shift, ClockShift::Back(_)))
    }
}

/// Traces under a law: any quota it takes, any cost, and any clock that falls no further behind than `back`; nor, where quotas
/// change, than a second, unless `back` is [`Span::MAX`].
pub(crate) fn traces(law: Algorithm, back: Span) -> impl Strategy<Value = Trace> {
    vec(limits(law), 1..3).prop_flat_map(move |limits| {
        let (first, spans) = (limits[0], spans(&limits));
        let ops = vec(op(&first, spans), 1..40);
        (Just(limits), ops).prop_map(move |(limits, ops)| {
            // A store drops what an earlier quota left a second after it has drained.
            let is_changing = limits.len() > 1 && back != Span::MAX;
            let back = if is_changing { back.min(Span::millis(900)) } else { back };
            Trace { limits, ops, back }
        })
    })
}

fn limits(law: Algorithm) -> impl Strategy<Value = Limit> {
    let most = match law {
        Algorithm::SlidingWindowLog(LogSize::Modest) => Limit::MODEST_LOG,
        _ => 10_000_000,
    };
    let amounts =
        prop_oneof![select(vec![1, 2, 3, 7, 10, 60, 100, 999, 1000, 9_999_991, 10_000_000]), 1..=most];
    let periods = select(vec![
        Span::millis(10),
        Span::millis(250),
        Span::SECOND,
        Span::secs(7),
        Span::MINUTE,
        Span::secs(90),
        Span::HOUR,
        Span::DAY,
        Span::WEEK,
        Span::MONTH,
    ]);
    let bursts =
        prop_oneof![Just(None), select(vec![Some(1), Some(2), Some(5)]), (1..10_000_u32).prop_map(Some)];
    (amounts, periods, bursts).prop_filter_map(
        "the law can't honour the quota",
        move |(amount, per, burst)| {
            let quota = Quota::new(amount.min(most), per).ok()?;
            let quota = match (law, burst) {
                (Algorithm::TokenBucket | Algorithm::LeakyBucket(_), Some(burst)) => {
                    quota.with_burst(burst).ok()?
                }
                _ => quota,
            };
            Limit::new(law, quota).ok()
        },
    )
}

/// Spans at which something may happen under these limits.
fn spans(limits: &[Limit]) -> Vec<Span> {
    let mut spans = vec![Span::ZERO, Span::ZERO, Span::micros(1), Span::millis(1)];
    for quota in limits.iter().map(Limit::quota) {
        let unit = Span::micros(quota.per().get() / u64::from(quota.amount()));
        let near = |span: Span| [span, span.plus(1), Span::micros(span.get().saturating_sub(1))];
        spans.extend(near(unit));
        spans.extend(near(quota.per()));
        spans.push(Span::micros(quota.per().get() / 2));
        spans.push(Span::micros(quota.per().get() * 2));
    }
    spans
}

/// A span and a little more.
trait NearSpan {
    fn plus(self, micros: u64) -> Span;
}

impl NearSpan for Span {
    fn plus(self, micros: u64) -> Span {
        Span::micros(self.get() + micros)
    }
}

fn op(limit: &Limit, spans: Vec<Span>) -> impl Strategy<Value = TraceOp> + use<> {
    let shift = prop_oneof![
        8 => select(spans.clone()).prop_map(ClockShift::Forward),
        2 => (0..10_000_000_u64).prop_map(|micros| ClockShift::Forward(Span::micros(micros))),
        1 => select(spans).prop_map(ClockShift::Back),
        1 => (1..4_u64).prop_map(|years| ClockShift::Forward(Span::micros(years * Span::YEAR.get()))),
        3 => Just(ClockShift::Retry),
    ];
    let capacity = limit.capacity();
    let costs = prop_oneof![
        6 => select(vec![0, 1, 1, 1, 2, 3]),
        4 => select(vec![capacity, capacity / 2 + 1, capacity.saturating_add(1), u32::MAX, capacity - 1]),
        2 => 0..=capacity,
    ];
    let patience = prop_oneof![4 => Just(Span::MAX), 1 => (0..2_000_000_u64).prop_map(Span::micros)];
    let take = (costs, any::<Option<u16>>(), patience).prop_map(|(cost, more, patience)| {
        let ask = match more {
            Some(more) if more % 4 == 0 => Amount::between(cost, cost.saturating_add(u32::from(more))),
            _ => Amount::exactly(cost),
        };
        ask.within(patience)
    });
    let act = prop_oneof![
        14 => take.clone().prop_map(Op::Take),
        2 => take.prop_map(Op::Look),
        2 => (0..4_u32).prop_map(Op::Give),
        1 => Just(Op::Give(u32::MAX)),
        1 => Just(Op::Clear),
    ];
    let limit = prop_oneof![6 => Just(0_usize), 1 => Just(1)];
    (shift, limit, act, 0..6_u64).prop_map(|(shift, limit, act, permit)| TraceOp {
        shift,
        limit,
        act,
        permit: PermitId(permit),
    })
}
