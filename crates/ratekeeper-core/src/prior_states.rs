//! States that a key has under quotas that other nodes still draw from.
//!
//! While a change of rules rolls over a fleet, some nodes draw from a key under the old quota and some under the new one. Each
//! change of hands carries over what is left, as a change of quota does; but a carried state follows the other quota, which may
//! be smaller or forget sooner, so that what the first quota had used would be lost when a node draws under it again. So the state
//! that a quota leaves is kept until it has drained, and when the quota is drawn from again, it has no more left than that
//! state says, nor more than what was carried over. Then every quota admits, of its own draws, what it would admit alone, and all
//! of them together no more than their sum.

use crate::lease::LeasedState;
use crate::limit::Limit;
use crate::op::Amount;
use crate::time::{Micros, Span};

/// What the quotas that a key was drawn from before the current one have left of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorStates {
    states: Vec<(Limit, LeasedState)>,
}

impl PriorStates {
    /// The most states that are kept. If there are more, the one that drains first is dropped.
    pub const MOST: usize = 7;

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The limits and what each has left, the one that was drawn from last at the end.
    pub fn iter(&self) -> impl Iterator<Item = &(Limit, LeasedState)> {
        self.states.iter()
    }

    /// Adds what `limit` left. Nothing is added if it has drained by `now`.
    pub fn push(&mut self, limit: Limit, held: LeasedState, now: Micros) {
        if limit.drains_in(held, now) > Span::ZERO {
            self.states.push((limit, held));
        }
        if self.states.len() > PriorStates::MOST {
            self.drop_first(now);
        }
    }

    /// Drops the state that drains first.
    pub fn drop_first(&mut self, now: Micros) {
        let first = (0..self.states.len())
            .min_by_key(|index| self.states[*index].0.drains_in(self.states[*index].1, now));
        if let Some(first) = first {
            self.states.remove(first);
        }
    }

    /// Takes out what `limit` left, and drops what has drained by `now`.
    pub fn take(&mut self, limit: &Limit, now: Micros) -> Option<LeasedState> {
        for (limit, held) in &mut self.states {
            *held = limit.rebase(*held, now).unwrap_or(*held);
        }
        self.states.retain(|(limit, held)| limit.drains_in(*held, now) > Span::ZERO);
        let place = self.states.iter().position(|(other, _)| other == limit)?;
        Some(self.states.remove(place).1)
    }

    /// When all of them will have drained.
    pub fn until(&self, now: Micros) -> Micros {
        let drains = self.states.iter().map(|(limit, held)| limit.drains_in(*held, now));
        now.plus(drains.max().unwrap_or(Span::ZERO))
    }
}

impl Limit {
    /// The state that `before` wrote, under this limit, as [`Limit::adopt_beside`] carries it over; but if this limit has
    /// itself left a state in `former`, no more is left than that says. What `before` leaves is added to `former`.
    pub fn take_over(
        &self,
        held: LeasedState,
        before: &Limit,
        former: &mut PriorStates,
        now: Micros,
    ) -> LeasedState {
        let held = before.rebase(held, now).unwrap_or(held);
        let carried = self.adopt_beside(held, before, now);
        // Shares of one limit are that limit, divided; what is left of it is divided with it.
        if (self.law(), self.quota()) == (before.law(), before.quota()) {
            return carried;
        }
        let own = former.take(self, now);
        former.push(*before, held, now);
        own.map_or(carried, |own| self.no_more_than(own, carried, now))
    }

    /// What `own` says, with so many units taken that no more are left than `carried` says.
    fn no_more_than(&self, own: LeasedState, carried: LeasedState, now: Micros) -> LeasedState {
        let left = |held| self.step_beside(held, now, Amount::between(0, u32::MAX)).0.granted.unwrap_or(0);
        let excess = left(own).saturating_sub(left(carried));
        if excess == 0 {
            return own;
        }
        let (step, lent) = self.step_beside(own, now, Amount::exactly(excess));
        LeasedState { state: Some(step.state), lent }
    }
}
