//! Traces: random sequences of operations on one key, biased towards edge cases.

use crate::engine::{Engine, KeyEngine};

use crate::model::Model;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use ratekeeper_core::{
    Algorithm, Amount, DrawOptions, Draws, Limit, LogSize, Micros, Op, PermitId, Quota, Retry, Scope, Span,
};

/// One operation of a trace.
#[derive(Clone, Debug)]
struct TraceOp {
    /// How the clock moves before the operation.
    shift: ClockShift,
    /// The index of the limit in force.
    limit: usize,
    /// The operation.
    op: Op,
    /// The permit, under a concurrency limit.
    permit: PermitId,
}

/// How the clock moves.
#[derive(Clone, Copy, Debug)]
enum ClockShift {
    /// Forward, or not at all.
    Forward(Span),
    /// Back.
    Back(Span),
    /// Forward to the retry time of the last denied draw.
    Retry,
}

/// A sequence of operations on one key.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The limits in force, one after the other: the same algorithm with different quotas.
    limits: Vec<Limit>,
    /// The operations, in order.
    ops: Vec<TraceOp>,
    /// How far the clock may fall behind its latest time.
    max_step_back: Span,
}

/// The start of every trace: in 2023, at an odd microsecond.
const TRACE_START: Micros = Micros::new(1_700_000_000_123_457);

/// The latest time of a trace: in 2100, a century before the largest `Micros`, where waits would be cut short.
const LATEST_TIME: Micros = Micros::new(4_102_444_800_000_000);

impl Trace {
    /// Runs the trace through an engine and the model, which must reply the same.
    ///
    /// # Errors
    /// If a reply differs; the error names the operation.
    pub(crate) fn check(&self, engine: &mut impl Engine) -> Result<(), TestCaseError> {
        let (mut now, mut latest, mut retry_after) = (TRACE_START, TRACE_START, Span::ZERO);
        let mut model = Model::new(&self.limits[0]);
        let mut draws = Draws::new();
        for (index, op) in self.ops.iter().enumerate() {
            now = match op.shift {
                ClockShift::Forward(span) => now.plus(span),
                ClockShift::Back(span) => now.minus(span),
                ClockShift::Retry => now.plus(retry_after),
            };
            now = now.min(LATEST_TIME).max(latest.minus(self.max_step_back));
            latest = latest.max(now);
            let limit = self.limits[op.limit % self.limits.len()];
            draws.clear();
            draws.push("the key".into(), Scope(0), limit, op.op, op.permit);
            draws.set_options(DrawOptions::EXACT);
            let (replies, expected) =
                (engine.decide(now, &draws), model.apply(now, &limit, op.op, op.permit));
            if replies != [expected] {
                return Err(TestCaseError::fail(format!(
                    "op {index} at {now:?}: {limit} {:?}\n  engine {replies:?}\n  model  {expected:?}",
                    op.op
                )));
            }
            if let Some(Retry::After(span)) = expected.retry {
                retry_after = span;
            }
        }
        Ok(())
    }

    /// Whether the clock steps back during the trace.
    pub fn steps_back(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.shift, ClockShift::Back(_)))
    }
}

/// Traces of one algorithm: any quota it accepts, any cost, and a clock that falls behind by at most `max_step_back`.
/// Where quotas change, the bound is 0.9 s, unless `max_step_back` is [`Span::MAX`].
pub(crate) fn traces(algorithm: Algorithm, max_step_back: Span) -> impl Strategy<Value = Trace> {
    vec(limits(algorithm), 1..3).prop_flat_map(move |limits| {
        let (first, spans) = (limits[0], spans(&limits));
        let ops = vec(op(&first, spans), 1..40);
        (Just(limits), ops).prop_map(move |(limits, ops)| {
            // A store drops the state of an earlier quota one second after it has drained.
            let is_changing = limits.len() > 1 && max_step_back != Span::MAX;
            let back = if is_changing { max_step_back.min(Span::millis(900)) } else { max_step_back };
            Trace { limits, ops, max_step_back: back }
        })
    })
}

fn limits(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    let max_amount = match algorithm {
        Algorithm::SlidingWindowLog(LogSize::Standard) => Limit::STANDARD_LOG_UNITS,
        _ => 10_000_000,
    };
    let amounts =
        prop_oneof![select(vec![1, 2, 3, 7, 10, 60, 100, 999, 1000, 9_999_991, 10_000_000]), 1..=max_amount];
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
        "the algorithm rejects the quota",
        move |(amount, per, burst)| {
            let quota = Quota::new(amount.min(max_amount), per).ok()?;
            let quota = match (algorithm, burst) {
                (Algorithm::TokenBucket | Algorithm::LeakyBucket(_), Some(burst)) => {
                    quota.with_burst(burst).ok()?
                }
                _ => quota,
            };
            Limit::new(algorithm, quota).ok()
        },
    )
}

/// Clock steps at which the limits' state changes, and their neighbours.
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

/// Adds microseconds to a span.
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
    let max_delay = prop_oneof![4 => Just(Span::MAX), 1 => (0..2_000_000_u64).prop_map(Span::micros)];
    let take = (costs, any::<Option<u16>>(), max_delay).prop_map(|(cost, more, max_delay)| {
        let amount = match more {
            Some(more) if more % 4 == 0 => Amount::between(cost, cost.saturating_add(u32::from(more))),
            _ => Amount::exactly(cost),
        };
        amount.with_max_delay(max_delay)
    });
    let act = prop_oneof![
        14 => take.clone().prop_map(Op::Take),
        2 => take.prop_map(Op::Peek),
        2 => (0..4_u32).prop_map(Op::Refund),
        1 => Just(Op::Refund(u32::MAX)),
        1 => Just(Op::Reset),
    ];
    let limit = prop_oneof![6 => Just(0_usize), 1 => Just(1)];
    (shift, limit, act, 0..6_u64).prop_map(|(shift, limit, act, permit)| TraceOp {
        shift,
        limit,
        op: act,
        permit: PermitId(permit),
    })
}
