//! Leasing: limits from which units may be lent ahead.

use super::{CompiledAlgorithm, Limit, Step};
use crate::algorithm::{Algorithm, Leak, ShareChange};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

impl Limit {
    /// Returns whether units may be leased ahead. Queues, logs and concurrency limits don't support it.
    pub fn is_leasable(&self) -> bool {
        match &self.compiled {
            CompiledAlgorithm::Bucket(_) => !matches!(self.algorithm, Algorithm::LeakyBucket(Leak::Queue)),
            CompiledAlgorithm::FixedWindow(_) | CompiledAlgorithm::SlidingWindow(_) => true,
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => false,
        }
    }

    /// Like [`Limit::step`], for a key with lent units. They reduce the capacity.
    pub fn step_leased(&self, leased: LeasedState, now: Micros, amount: Amount) -> (Step, LentUnits) {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.step_leased(leased, now, amount),
            _ => (self.step(leased.state, now, amount), LentUnits::default()),
        }
    }

    /// Like [`Limit::refund`], for a key with lent units, which stay lent. Refunding [`u32::MAX`] resets the key.
    pub fn refund_leased(&self, leased: LeasedState, now: Micros, units: u32) -> LeasedState {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.refund_leased(leased, now, units),
            _ => {
                let state = leased.state.map(|state| self.refund(state, now, units));
                LeasedState { state, lent: LentUnits::default() }
            }
        }
    }

    /// Like [`Limit::adopt`], for a key with lent units. They stay lent, up to the capacity of this limit, and
    /// reduce its capacity.
    pub fn adopt_leased(&self, leased: LeasedState, before: &Limit, now: Micros) -> LeasedState {
        match (&self.compiled, &before.compiled) {
            (CompiledAlgorithm::Bucket(after), CompiledAlgorithm::Bucket(bucket))
                if self.family() == before.family() =>
            {
                let change = ShareChange { from: before.share_count(), to: self.share_count() };
                after.adopt_leased(leased, bucket, change, now)
            }
            _ => {
                let state = leased.state.and_then(|state| self.adopt(state, before, now));
                LeasedState { state, lent: LentUnits::default() }
            }
        }
    }

    /// Returns the state rebased to `now` if the clock was set back by more than
    /// [`MAX_CLOCK_STEP_BACK`](crate::MAX_CLOCK_STEP_BACK), or `None` if it was not and the state stays valid.
    ///
    /// Used units stay used, so a step back grants at most one extra bucket or window of units. Lent units stay
    /// lent and expire between one and two terms from now.
    #[inline]
    pub fn rebase(&self, leased: LeasedState, now: Micros) -> Option<LeasedState> {
        let state = leased.state?;
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) if bucket.needs_rebase(leased, now) => {
                Some(bucket.rebase(leased, now))
            }
            CompiledAlgorithm::FixedWindow(window) if window.needs_rebase(state, now) => {
                Some(LeasedState { state: Some(window.rebase(state, now)), ..leased })
            }
            CompiledAlgorithm::SlidingWindow(window) if window.needs_rebase(state, now) => {
                Some(LeasedState { state: Some(window.rebase(state, now)), ..leased })
            }
            _ => None,
        }
    }

    /// Returns how long until no units are lent, owed or counted.
    pub fn expires_in(&self, leased: LeasedState, now: Micros) -> Span {
        match (&self.compiled, leased.state) {
            (_, None) => Span::ZERO,
            (CompiledAlgorithm::Bucket(bucket), Some(_)) => bucket.expires_in(leased, now),
            (_, Some(state)) => self.forecast(state, now, Amount::ZERO, Some(0)).reset,
        }
    }

    /// Processes a node's report on its lent units and lends it more. A limit that [can't be
    /// leased](Limit::is_leasable) lends nothing.
    pub fn grant_lease(
        &self,
        leased: LeasedState,
        now: Micros,
        report: LeaseReport,
        request: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) if self.is_leasable() => {
                bucket.grant_lease(leased, now, report, request)
            }
            CompiledAlgorithm::FixedWindow(window) => window.grant_lease(leased.state, now, report, request),
            CompiledAlgorithm::SlidingWindow(window) => {
                window.grant_lease(leased.state, now, report, request)
            }
            _ => (leased, LeaseGrant { units: 0, term: 0, expires_at: now, is_report_accepted: false }),
        }
    }

    /// Returns `state`, which counts all units lent to a node as taken, corrected by what that node knows. The
    /// `unspent` units are returned. The `spent` units are spent but not yet reported to the store: until they are,
    /// they stay owed and don't refill, however long that takes.
    #[inline]
    pub fn refund_unspent(&self, state: State, now: Micros, unspent: u32, spent: u32) -> State {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.refund_unspent(state, now, unspent, spent),
            // Units don't refill within a window.
            _ => self.refund(state, now, unspent),
        }
    }
}
