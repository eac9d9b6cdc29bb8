//! The store: what is remembered of each key, by the laws.

use super::super::{Order, Told};
use tollgate_core::{Ask, Held, Limit, Micros, Outcome, Report, State, Wish};

/// What a store remembers.
#[derive(Debug)]
pub(super) struct Store {
    limit: Limit,
    keys: Vec<Held>,
}

/// What a store says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// To a draw.
    pub(super) outcome: Option<Outcome>,
    /// To an order.
    pub(super) told: Option<Told>,
}

impl Store {
    pub(super) fn new(limit: Limit, keys: usize) -> Store {
        Store { limit, keys: vec![Held::default(); keys] }
    }

    /// Hears what an order tells, then decides the draw, then lends: what is given back can be drawn, and who draws now
    /// comes before who may draw later.
    pub(super) fn answer(
        &mut self,
        key: usize,
        units: Option<u32>,
        order: Option<&Order>,
        now: Micros,
    ) -> Answer {
        let limit = self.limit;
        let mut held = self.keys[key];
        let heard = order.map(|order| {
            let (after, loan) = limit.lend(held, now, order.report, Wish::default());
            held = after;
            loan
        });
        let outcome = units.map(|units| {
            let (step, lent) = limit.step_beside(held, now, Ask::exactly(units));
            if step.changed {
                held = Held { state: Some(step.state), lent };
            }
            Outcome::of_state(step.answer(), now, folded(&limit, held, now))
        });
        let told = order.zip(heard).map(|(order, heard)| {
            let (after, mut loan) = limit.lend(held, now, Report::default(), order.wish);
            held = after;
            loan.is_known = heard.is_known;
            Told { loan, seen: Some(folded(&limit, held, now)), at: now }
        });
        self.keys[key] = held;
        Answer { outcome, told }
    }
}

/// A key's state, with what is lent of it counted as taken.
fn folded(limit: &Limit, held: Held, now: Micros) -> State {
    limit.step(held.state, now, Ask::between(0, held.lent.units())).state
}
