//! The states of a key under quotas that other nodes still use.
//!
//! During a rolling change of rules some nodes draw from a key under the old quota and some under the new one. Each
//! switch between quotas carries over the remaining units. But the carried state follows the other quota, which may
//! be smaller or expire sooner, so the units used under the first quota would be lost by the time a node draws
//! under it again. Therefore the state that a quota leaves behind is kept until it expires. When that quota is used
//! again, it has at most the units that its own state leaves and at most the units that were carried over. As a
//! result each quota admits, through its own draws, at most what it would admit alone, and all quotas together
//! admit at most their sum.

use crate::lease::LeasedState;
use crate::limit::Limit;
use crate::op::Amount;
use crate::time::{Micros, Span};

/// The states that quotas left behind for a key before the current one took over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorStates {
    states: Vec<(Limit, LeasedState)>,
}

impl PriorStates {
    /// The maximum number of states kept. Beyond it, the state that expires first is dropped.
    pub const MAX: usize = 7;

    /// Returns whether no state is kept.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns each limit and the state it left, the most recently used one last.
    pub fn iter(&self) -> impl Iterator<Item = &(Limit, LeasedState)> {
        self.states.iter()
    }

    /// Adds the state that `limit` left, unless it has expired by `now`.
    pub fn push(&mut self, limit: Limit, leased: LeasedState, now: Micros) {
        if limit.expires_in(leased, now) > Span::ZERO {
            self.states.push((limit, leased));
        }
        if self.states.len() > PriorStates::MAX {
            self.drop_soonest_expiring(now);
        }
    }

    /// Drops the state that expires first.
    pub fn drop_soonest_expiring(&mut self, now: Micros) {
        let first = (0..self.states.len())
            .min_by_key(|index| self.states[*index].0.expires_in(self.states[*index].1, now));
        if let Some(first) = first {
            self.states.remove(first);
        }
    }

    /// Removes and returns the state that `limit` left, and drops all states that have expired by `now`. Returns
    /// `None` if `limit` left no state or it has expired.
    pub fn remove(&mut self, limit: &Limit, now: Micros) -> Option<LeasedState> {
        for (limit, leased) in &mut self.states {
            *leased = limit.rebase(*leased, now).unwrap_or(*leased);
        }
        self.states.retain(|(limit, leased)| limit.expires_in(*leased, now) > Span::ZERO);
        let index = self.states.iter().position(|(other, _)| other == limit)?;
        Some(self.states.remove(index).1)
    }

    /// Returns when the last of these states expires.
    pub fn expires_at(&self, now: Micros) -> Micros {
        let drains = self.states.iter().map(|(limit, leased)| limit.expires_in(*leased, now));
        now.plus(drains.max().unwrap_or(Span::ZERO))
    }
}

impl Limit {
    /// Converts the state that `before` wrote into a state of this limit, as [`Limit::adopt_leased`] does. If this
    /// limit itself left a state in `prior`, the result has at most as many units left as that state. The state of
    /// `before` is added to `prior`.
    pub fn adopt_with_prior(
        &self,
        leased: LeasedState,
        before: &Limit,
        prior: &mut PriorStates,
        now: Micros,
    ) -> LeasedState {
        let leased = before.rebase(leased, now).unwrap_or(leased);
        let carried = self.adopt_leased(leased, before, now);
        // Shares of one limit are parts of the same limit, and its remaining units are divided along with it.
        if (self.algorithm(), self.quota()) == (before.algorithm(), before.quota()) {
            return carried;
        }
        let own = prior.remove(self, now);
        prior.push(*before, leased, now);
        own.map_or(carried, |own| self.cap_remaining(own, carried, now))
    }

    /// Returns `own` after taking units from it until it has at most as many left as `carried`.
    fn cap_remaining(&self, own: LeasedState, carried: LeasedState, now: Micros) -> LeasedState {
        let left =
            |leased| self.step_leased(leased, now, Amount::between(0, u32::MAX)).0.granted.unwrap_or(0);
        let excess = left(own).saturating_sub(left(carried));
        if excess == 0 {
            return own;
        }
        let (step, lent) = self.step_leased(own, now, Amount::exactly(excess));
        LeasedState { state: Some(step.state), lent }
    }
}
