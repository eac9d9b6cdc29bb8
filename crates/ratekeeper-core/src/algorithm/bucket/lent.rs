//! Leases of a bucket: a debt, and beside it units that are lent.
//!
//! What is lent takes up room and does not flow back. When it is reported as spent, or lapses, it becomes a debt like any
//! other, which is paid back from then on: later than if it had been asked for one by one, never sooner.

use super::{Bucket, Debt};
use crate::algorithm::ShareChange;
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits, TERM};
use crate::limit::Step;
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

impl Bucket {
    /// How many ticks a term has.
    pub(crate) fn term(&self) -> u64 {
        self.tick.count(TERM).max(1)
    }

    /// Pays back what has been refilled since, and lets lapse what was not reported in time.
    fn age_lent(&self, held: LeasedState, now: Micros) -> (Debt, LentUnits) {
        let mut lent = held.lent;
        let Some(mut debt) = held.state.map(Debt::of) else {
            return (self.age(None, now), LentUnits::default());
        };
        let (reached, term) = (self.tick.of(now), self.term());
        while lent.units() > 0 {
            let ends = (debt.at / term + 1) * term;
            if reached < ends {
                break;
            }
            let paid = (ends - debt.at).saturating_mul(self.refill.get());
            let lapsed = u64::from(lent.older) * self.unit.get();
            debt = Debt { owed: debt.owed.saturating_sub(paid) + lapsed, at: ends };
            lent = LentUnits { older: lent.recent, recent: 0 };
        }
        let aged = self.age(Some(debt.state()), now);
        if self.tick.is_ahead(debt.at, reached) {
            // The clock was set back by more than it may be. Waiting for it would keep what is lent for as long, so terms
            // begin again: what is lent lapses with the next term, at least one term from now.
            return (Debt { at: reached, ..aged }, LentUnits { older: 0, recent: lent.units() });
        }
        // Else terms never begin again: what is lent in one would lapse with another.
        let at = if lent.units() > 0 { aged.at.max(debt.at) } else { aged.at };
        (Debt { at, ..aged }, lent)
    }

    /// Whether the clock was set back far behind the time of this state, so that it must be counted from now on.
    #[inline]
    pub(crate) fn is_ahead(&self, held: LeasedState, now: Micros) -> bool {
        let Some(debt) = held.state.map(Debt::of) else { return false };
        (debt.owed > 0 || held.lent.units() > 0) && self.tick.is_ahead(debt.at, self.tick.of(now))
    }

    /// The state as it is counted from `now` on, after the clock was set back.
    pub(crate) fn rebase(&self, held: LeasedState, now: Micros) -> LeasedState {
        let (debt, lent) = self.age_lent(held, now);
        LeasedState { state: Some(debt.state()), lent }
    }

    /// How long until all that is lent has lapsed and all that is owed is paid back.
    pub(crate) fn drains_in(&self, held: LeasedState, now: Micros) -> Span {
        let (mut debt, mut lent) = self.age_lent(held, now);
        while lent.units() > 0 {
            let ends = (debt.at / self.term() + 1) * self.term();
            (debt, lent) =
                self.age_lent(LeasedState { state: Some(debt.state()), lent }, self.tick.start(ends));
        }
        self.paid_at(debt, debt.owed).since(now)
    }

    /// Like [`Bucket::step`], beside what is lent.
    pub(crate) fn step_lent(&self, held: LeasedState, now: Micros, ask: Amount) -> (Step, LentUnits) {
        let (debt, lent) = self.age_lent(held, now);
        let rest = Bucket { capacity: self.capacity - self.parts(lent.units()), ..*self };
        let step = rest.step_aged(debt, now, ask);
        (step, lent)
    }

    /// Like [`Bucket::give`], beside what is lent, which stays lent: those who have it go on spending it.
    pub(crate) fn give_lent(&self, held: LeasedState, now: Micros, units: u32) -> LeasedState {
        let (debt, lent) = self.age_lent(held, now);
        let given = u64::from(units).saturating_mul(self.unit.get());
        LeasedState { state: Some(Debt { owed: debt.owed.saturating_sub(given), ..debt }.state()), lent }
    }

    /// Like [`Bucket::give`], for a node that was lent what it gives: what it has `spent` of that is owed still.
    pub(crate) fn give_unspent(&self, state: State, now: Micros, hand: u32, spent: u32) -> State {
        let debt = self.age(Some(state), now);
        let [hand, spent] = [hand, spent].map(|units| self.parts(units.min(self.burst)));
        Debt { owed: debt.owed.saturating_sub(hand).max(spent), ..debt }.state()
    }

    /// Like [`Bucket::adopt`], beside what is lent: that is out, whatever the quota is now, and so goes before what is
    /// owed. What is left is worked out as if it were owed.
    pub(crate) fn adopt_lent(
        &self,
        held: LeasedState,
        before: &Bucket,
        passage: ShareChange,
        now: Micros,
    ) -> LeasedState {
        let (debt, lent) = before.age_lent(held, now);
        let owed = debt.owed + before.parts(lent.units());
        if owed == 0 {
            return LeasedState::default();
        }
        let adopted = Debt::of(self.adopt(Debt { owed, ..debt }.state(), before, passage, now));
        // Terms begin at the same times under every quota whose ticks are shorter than a term.
        let recent = lent.recent.min(self.burst);
        let lent = LentUnits { older: lent.older.min(self.burst - recent), recent };
        let owed = adopted.owed.saturating_sub(self.parts(lent.units()));
        LeasedState { state: Some(Debt { owed, ..adopted }.state()), lent }
    }

    /// Takes note of what a node says of the units it was lent, and lends more.
    pub(crate) fn lend(
        &self,
        held: LeasedState,
        now: Micros,
        report: LeaseReport,
        wish: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let (mut debt, mut lent) = self.age_lent(held, now);
        let term = debt.at / self.term();
        let mut known = match term.checked_sub(report.term) {
            Some(0) => Some(&mut lent.recent),
            Some(1) => Some(&mut lent.older),
            _ => None,
        };
        let is_known = known.is_some();
        // More than was lent can't be reported; if a node does, the most that it can do is to be believed less.
        let mut close = |units: u32| match &mut known {
            Some(lent) => {
                let closed = units.min(**lent);
                **lent -= closed;
                closed
            }
            None => 0,
        };
        let spent = close(report.spent);
        close(report.back);
        let kept = close(report.kept);
        debt.owed += self.parts(spent);
        lent.recent += kept;
        let room = self.capacity - debt.owed - self.parts(lent.units());
        let room = u32::try_from(room / self.unit).unwrap_or(u32::MAX);
        let units = wish.of(room);
        lent.recent += units;
        let until = self.tick.start((term + 2) * self.term());
        (LeasedState { state: Some(debt.state()), lent }, LeaseGrant { units, term, until, is_known })
    }

    /// So many units in parts.
    fn parts(&self, units: u32) -> u64 {
        u64::from(units) * self.unit.get()
    }
}
