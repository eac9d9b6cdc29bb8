//! A limit of which units may be lent.

use super::{CompiledAlgorithm, Limit, Step};
use crate::algorithm::{Algorithm, Leak, ShareChange};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

impl Limit {
    /// Whether units of it may be lent ahead. Of those that wait in a queue, of logs and of places they may not.
    pub fn can_lend(&self) -> bool {
        match &self.form {
            CompiledAlgorithm::Bucket(_) => !matches!(self.law, Algorithm::LeakyBucket(Leak::Queue)),
            CompiledAlgorithm::FixedWindow(_) | CompiledAlgorithm::SlidingWindow(_) => true,
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => false,
        }
    }

    /// Like [`Limit::step`], for a key of which units are lent: what is lent leaves so much less room.
    pub fn step_beside(&self, held: LeasedState, now: Micros, ask: Amount) -> (Step, LentUnits) {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.step_lent(held, now, ask),
            _ => (self.step(held.state, now, ask), LentUnits::default()),
        }
    }

    /// Like [`Limit::give`], for a key of which units are lent: those stay lent. To give back [`u32::MAX`] is to reset.
    pub fn give_beside(&self, held: LeasedState, now: Micros, units: u32) -> LeasedState {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.give_lent(held, now, units),
            _ => {
                let state = held.state.map(|state| self.give(state, now, units));
                LeasedState { state, lent: LentUnits::default() }
            }
        }
    }

    /// Like [`Limit::adopt`], for a key of which units are lent: as many as this limit can hold stay lent, and leave so
    /// much less room.
    pub fn adopt_beside(&self, held: LeasedState, before: &Limit, now: Micros) -> LeasedState {
        match (&self.form, &before.form) {
            (CompiledAlgorithm::Bucket(after), CompiledAlgorithm::Bucket(bucket))
                if self.family() == before.family() =>
            {
                let passage = ShareChange { from: before.shares(), to: self.shares() };
                after.adopt_lent(held, bucket, passage, now)
            }
            _ => {
                let state = held.state.and_then(|state| self.adopt(state, before, now));
                LeasedState { state, lent: LentUnits::default() }
            }
        }
    }

    /// The state as it is counted from `now` on, if the clock was set back by more than
    /// [`MOST_BACK`](crate::MOST_BACK); nothing if it was not, and the state holds as it is.
    ///
    /// What was used stays used, so a step back lends at most what a full bucket or one window holds. What is lent stays
    /// lent, and lapses between one term and two from now.
    #[inline]
    pub fn rebase(&self, held: LeasedState, now: Micros) -> Option<LeasedState> {
        let state = held.state?;
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) if bucket.is_ahead(held, now) => Some(bucket.rebase(held, now)),
            CompiledAlgorithm::FixedWindow(window) if window.is_ahead(state, now) => {
                Some(LeasedState { state: Some(window.rebase(state, now)), ..held })
            }
            CompiledAlgorithm::SlidingWindow(window) if window.is_ahead(state, now) => {
                Some(LeasedState { state: Some(window.rebase(state, now)), ..held })
            }
            _ => None,
        }
    }

    /// How long until nothing is lent and nothing is owed or counted any more.
    pub fn drains_in(&self, held: LeasedState, now: Micros) -> Span {
        match (&self.form, held.state) {
            (_, None) => Span::ZERO,
            (CompiledAlgorithm::Bucket(bucket), Some(_)) => bucket.drains_in(held, now),
            (_, Some(state)) => self.outlook(state, now, Amount::PEEK, Some(0)).reset,
        }
    }

    /// Takes note of what a node says of the units that it was lent, and lends it more. A limit that
    /// [can't](Limit::can_lend) lends nothing.
    pub fn lend(
        &self,
        held: LeasedState,
        now: Micros,
        report: LeaseReport,
        wish: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) if self.can_lend() => bucket.lend(held, now, report, wish),
            CompiledAlgorithm::FixedWindow(window) => window.lend(held.state, now, report, wish),
            CompiledAlgorithm::SlidingWindow(window) => window.lend(held.state, now, report, wish),
            _ => (held, LeaseGrant { units: 0, term: 0, until: now, is_known: false }),
        }
    }

    /// What a node knows that was lent units which `state` counts as taken: `hand` of them are not spent. The `spent` are,
    /// and the store has not heard of them: until then nothing of them flows back, however long that takes.
    #[inline]
    pub fn give_unspent(&self, state: State, now: Micros, hand: u32, spent: u32) -> State {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.give_unspent(state, now, hand, spent),
            // Nothing flows back in a window.
            _ => self.give(state, now, hand),
        }
    }
}
