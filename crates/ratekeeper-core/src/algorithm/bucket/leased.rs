//! Leases of a bucket: a debt, plus units that are lent.
//!
//! Lent units take up capacity and don't refill. When they are reported as spent, or expire, they become ordinary
//! debt, which is refilled from then on: later than if each had been requested individually, never sooner.

use super::{Bucket, Debt};
use crate::algorithm::ShareChange;
use crate::lease::{LEASE_TERM, LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::limit::Step;
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

impl Bucket {
    /// Returns the length of a term in ticks.
    pub(crate) fn term_ticks(&self) -> u64 {
        self.tick.count(LEASE_TERM).max(1)
    }

    /// Subtracts the refill since the state was written, and turns lent units that were not reported in time into
    /// debt.
    fn age_leased(&self, leased: LeasedState, now: Micros) -> (Debt, LentUnits) {
        let mut lent = leased.lent;
        let Some(mut debt) = leased.state.map(Debt::from_state) else {
            return (self.age(None, now), LentUnits::default());
        };
        let (reached, term) = (self.tick.floor(now), self.term_ticks());
        while lent.total() > 0 {
            let ends = (debt.at / term + 1) * term;
            if reached < ends {
                break;
            }
            let paid = (ends - debt.at).saturating_mul(self.refill.get());
            let expired = u64::from(lent.older) * self.unit.get();
            debt = Debt { owed: debt.owed.saturating_sub(paid) + expired, at: ends };
            lent = LentUnits { older: lent.recent, recent: 0 };
        }
        let aged = self.age(Some(debt.to_state()), now);
        if self.tick.is_too_far_ahead(debt.at, reached) {
            // The clock was set back by more than is tolerated. Waiting for it would keep the units lent for as
            // long, so the terms restart: all lent units expire with the next term, at least one term from now.
            return (Debt { at: reached, ..aged }, LentUnits { older: 0, recent: lent.total() });
        }
        // Otherwise the term never goes back: units lent in one term would expire with another.
        let at = if lent.total() > 0 { aged.at.max(debt.at) } else { aged.at };
        (Debt { at, ..aged }, lent)
    }

    /// Returns whether the clock was set back so far behind the time of this state that it must be rebased.
    #[inline]
    pub(crate) fn needs_rebase(&self, leased: LeasedState, now: Micros) -> bool {
        let Some(debt) = leased.state.map(Debt::from_state) else { return false };
        (debt.owed > 0 || leased.lent.total() > 0)
            && self.tick.is_too_far_ahead(debt.at, self.tick.floor(now))
    }

    /// Returns the state rebased to `now` after the clock was set back.
    pub(crate) fn rebase(&self, leased: LeasedState, now: Micros) -> LeasedState {
        let (debt, lent) = self.age_leased(leased, now);
        LeasedState { state: Some(debt.to_state()), lent }
    }

    /// Returns how long until all lent units have expired and the debt is refilled.
    pub(crate) fn expires_in(&self, leased: LeasedState, now: Micros) -> Span {
        let (mut debt, mut lent) = self.age_leased(leased, now);
        while lent.total() > 0 {
            let ends = (debt.at / self.term_ticks() + 1) * self.term_ticks();
            (debt, lent) =
                self.age_leased(LeasedState { state: Some(debt.to_state()), lent }, self.tick.start(ends));
        }
        self.repaid_at(debt, debt.owed).since(now)
    }

    /// Like [`Bucket::step`], for a key with lent units.
    pub(crate) fn step_leased(&self, leased: LeasedState, now: Micros, amount: Amount) -> (Step, LentUnits) {
        let (debt, lent) = self.age_leased(leased, now);
        let rest = Bucket { capacity: self.capacity - self.units_to_parts(lent.total()), ..*self };
        let step = rest.step_aged(debt, now, amount);
        (step, lent)
    }

    /// Like [`Bucket::refund`], for a key with lent units. They stay lent, because nodes go on spending them.
    pub(crate) fn refund_leased(&self, leased: LeasedState, now: Micros, units: u32) -> LeasedState {
        let (debt, lent) = self.age_leased(leased, now);
        let returned = u64::from(units).saturating_mul(self.unit.get());
        LeasedState {
            state: Some(Debt { owed: debt.owed.saturating_sub(returned), ..debt }.to_state()),
            lent,
        }
    }

    /// Like [`Bucket::refund`], for the `unspent` units of a node. At least the units that it has `spent` stay
    /// owed.
    pub(crate) fn refund_unspent(&self, state: State, now: Micros, unspent: u32, spent: u32) -> State {
        let debt = self.age(Some(state), now);
        let [unspent, spent] = [unspent, spent].map(|units| self.units_to_parts(units.min(self.burst)));
        Debt { owed: debt.owed.saturating_sub(unspent).max(spent), ..debt }.to_state()
    }

    /// Like [`Bucket::adopt`], for a key with lent units. They are out regardless of the new quota and so take
    /// precedence over the debt. The units left are computed as if lent units were owed.
    pub(crate) fn adopt_leased(
        &self,
        leased: LeasedState,
        before: &Bucket,
        change: ShareChange,
        now: Micros,
    ) -> LeasedState {
        let (debt, lent) = before.age_leased(leased, now);
        let owed = debt.owed + before.units_to_parts(lent.total());
        if owed == 0 {
            return LeasedState::default();
        }
        let adopted = Debt::from_state(self.adopt(Debt { owed, ..debt }.to_state(), before, change, now));
        // Terms begin at the same times under every quota whose ticks are shorter than a term.
        let recent = lent.recent.min(self.burst);
        let lent = LentUnits { older: lent.older.min(self.burst - recent), recent };
        let owed = adopted.owed.saturating_sub(self.units_to_parts(lent.total()));
        LeasedState { state: Some(Debt { owed, ..adopted }.to_state()), lent }
    }

    /// Processes a node's report on its lent units and lends it more.
    pub(crate) fn grant_lease(
        &self,
        leased: LeasedState,
        now: Micros,
        report: LeaseReport,
        request: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let (mut debt, mut lent) = self.age_leased(leased, now);
        let term = debt.at / self.term_ticks();
        let mut reported = match term.checked_sub(report.term) {
            Some(0) => Some(&mut lent.recent),
            Some(1) => Some(&mut lent.older),
            _ => None,
        };
        let is_report_accepted = reported.is_some();
        // A node can't report more units than were lent in that term; any excess is ignored.
        let mut deduct = |units: u32| match &mut reported {
            Some(lent) => {
                let deducted = units.min(**lent);
                **lent -= deducted;
                deducted
            }
            None => 0,
        };
        let spent = deduct(report.spent);
        deduct(report.returned);
        let kept = deduct(report.kept);
        debt.owed += self.units_to_parts(spent);
        lent.recent += kept;
        let left = self.capacity - debt.owed - self.units_to_parts(lent.total());
        let left = u32::try_from(left / self.unit).unwrap_or(u32::MAX);
        let units = request.grant_from(left);
        lent.recent += units;
        let until = self.tick.start((term + 2) * self.term_ticks());
        (
            LeasedState { state: Some(debt.to_state()), lent },
            LeaseGrant { units, term, expires_at: until, is_report_accepted },
        )
    }

    /// Converts units to parts.
    fn units_to_parts(&self, units: u32) -> u64 {
        u64::from(units) * self.unit.get()
    }
}
