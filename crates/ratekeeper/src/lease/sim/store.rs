//! The store: what is remembered of each key under each of its limits, by the laws.

use super::super::{LeaseRenewal, LeaseReply};
use super::simulation::{MOST_LIMITS, PerLimit};
use ratekeeper_core::{Amount, DrawResult, LeaseReport, LeaseRequest, LeasedState, Limit, Micros, State};

/// What a store remembers.
#[derive(Debug)]
pub(super) struct SimStore {
    limits: Vec<Limit>,
    keys: Vec<PerLimit<LeasedState>>,
}

/// What a store says of each limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimReply {
    /// To a request; `None` if there was none.
    pub(super) outcomes: Option<PerLimit<DrawResult>>,
    /// To orders.
    pub(super) told: PerLimit<Option<LeaseReply>>,
}

impl SimReply {
    /// Whether a request was granted.
    pub(super) fn is_granted(&self, limits: usize) -> bool {
        self.outcomes.is_some_and(|outcomes| !outcomes[..limits].iter().any(DrawResult::is_refused))
    }
}

impl SimStore {
    pub(super) fn new(limits: &[Limit], keys: usize) -> SimStore {
        SimStore { limits: limits.to_vec(), keys: vec![PerLimit::default(); keys] }
    }

    /// Hears what orders tell, then decides the request all or nothing, then lends: what is given back can be drawn, and who
    /// draws now comes before who may draw later.
    pub(super) fn answer(
        &mut self,
        key: usize,
        units: Option<PerLimit<u32>>,
        orders: &PerLimit<Option<LeaseRenewal>>,
        now: Micros,
    ) -> SimReply {
        let held = &mut self.keys[key];
        let mut heard = [None; MOST_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let Some(order) = orders[index] {
                let (after, loan) = limit.lend(held[index], now, order.report, LeaseRequest::default());
                (held[index], heard[index]) = (after, Some(loan.is_known));
            }
        }
        let outcomes = units.map(|units| decide(&self.limits, held, units, now));
        let mut told = [None; MOST_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let (Some(order), Some(is_known)) = (orders[index], heard[index]) {
                let (after, mut loan) = limit.lend(held[index], now, LeaseReport::default(), order.wish);
                held[index] = after;
                loan.is_known = is_known;
                told[index] = Some(LeaseReply { loan, seen: Some(folded(limit, after, now)), at: now });
            }
        }
        SimReply { outcomes, told }
    }
}

fn decide(
    limits: &[Limit],
    held: &mut PerLimit<LeasedState>,
    units: PerLimit<u32>,
    now: Micros,
) -> PerLimit<DrawResult> {
    let mut after = *held;
    let mut answers = [ratekeeper_core::DrawOutcome::Spared; MOST_LIMITS];
    for (index, limit) in limits.iter().enumerate() {
        let (step, lent) = limit.step_beside(held[index], now, Amount::exactly(units[index]));
        if step.changed {
            after[index] = LeasedState { state: Some(step.state), lent };
        }
        answers[index] = step.answer();
    }
    if !answers.contains(&ratekeeper_core::DrawOutcome::Refused) {
        *held = after;
    }
    let outcome = |index: usize| match limits.get(index) {
        Some(limit) => DrawResult::of_state(answers[index], now, folded(limit, held[index], now)),
        None => DrawResult::of_state(answers[index], now, State::default()),
    };
    std::array::from_fn(outcome)
}

/// A key's state, with what is lent of it counted as taken.
fn folded(limit: &Limit, held: LeasedState, now: Micros) -> State {
    limit.step(held.state, now, Amount::between(0, held.lent.units())).state
}
