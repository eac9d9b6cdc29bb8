//! The store: what is remembered of each key under each of its limits, by the laws.

use super::super::{Order, Told};
use super::world::{Each, MOST_LIMITS};
use ratekeeper_core::{Ask, Held, Limit, Micros, Outcome, Report, State, Wish};

/// What a store remembers.
#[derive(Debug)]
pub(super) struct Store {
    limits: Vec<Limit>,
    keys: Vec<Each<Held>>,
}

/// What a store says of each limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// To a request; `None` if there was none.
    pub(super) outcomes: Option<Each<Outcome>>,
    /// To orders.
    pub(super) told: Each<Option<Told>>,
}

impl Answer {
    /// Whether a request was granted.
    pub(super) fn is_granted(&self, limits: usize) -> bool {
        self.outcomes.is_some_and(|outcomes| !outcomes[..limits].iter().any(Outcome::is_refused))
    }
}

impl Store {
    pub(super) fn new(limits: &[Limit], keys: usize) -> Store {
        Store { limits: limits.to_vec(), keys: vec![Each::default(); keys] }
    }

    /// Hears what orders tell, then decides the request all or nothing, then lends: what is given back can be drawn, and who
    /// draws now comes before who may draw later.
    pub(super) fn answer(
        &mut self,
        key: usize,
        units: Option<Each<u32>>,
        orders: &Each<Option<Order>>,
        now: Micros,
    ) -> Answer {
        let held = &mut self.keys[key];
        let mut heard = [None; MOST_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let Some(order) = orders[index] {
                let (after, loan) = limit.lend(held[index], now, order.report, Wish::default());
                (held[index], heard[index]) = (after, Some(loan.is_known));
            }
        }
        let outcomes = units.map(|units| decide(&self.limits, held, units, now));
        let mut told = [None; MOST_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let (Some(order), Some(is_known)) = (orders[index], heard[index]) {
                let (after, mut loan) = limit.lend(held[index], now, Report::default(), order.wish);
                held[index] = after;
                loan.is_known = is_known;
                told[index] = Some(Told { loan, seen: Some(folded(limit, after, now)), at: now });
            }
        }
        Answer { outcomes, told }
    }
}

fn decide(limits: &[Limit], held: &mut Each<Held>, units: Each<u32>, now: Micros) -> Each<Outcome> {
    let mut after = *held;
    let mut answers = [ratekeeper_core::Answer::Spared; MOST_LIMITS];
    for (index, limit) in limits.iter().enumerate() {
        let (step, lent) = limit.step_beside(held[index], now, Ask::exactly(units[index]));
        if step.changed {
            after[index] = Held { state: Some(step.state), lent };
        }
        answers[index] = step.answer();
    }
    if !answers.contains(&ratekeeper_core::Answer::Refused) {
        *held = after;
    }
    let outcome = |index: usize| match limits.get(index) {
        Some(limit) => Outcome::of_state(answers[index], now, folded(limit, held[index], now)),
        None => Outcome::of_state(answers[index], now, State::default()),
    };
    std::array::from_fn(outcome)
}

/// A key's state, with what is lent of it counted as taken.
fn folded(limit: &Limit, held: Held, now: Micros) -> State {
    limit.step(held.state, now, Ask::between(0, held.lent.units())).state
}
