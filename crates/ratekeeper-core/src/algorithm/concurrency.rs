//! The concurrency limit: so many at the same time.
//!
//! Every holder has a permit of its own, so that a late release can't free a place twice, and every permit lapses, so
//! that a holder that died can't keep its place.

use crate::op::{Amount, PermitId};
use crate::status::{Forecast, Retry};
use crate::time::{Micros, Span};
use std::collections::VecDeque;

/// A concurrency limit's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    pub(crate) amount: u32,
    /// How long a permit lasts if nobody releases it.
    pub(crate) lapse: Span,
}

/// Those who hold places under a concurrency limit, the next to lapse first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    holds: VecDeque<PermitHold>,
    used: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PermitHold {
    permit: PermitId,
    units: u32,
    lapses: Micros,
}

impl Holders {
    /// How many entries it holds: what its memory grows with.
    pub fn entries(&self) -> usize {
        self.holds.len()
    }

    /// Who holds how many places until when, the next to lapse first.
    pub fn holds(&self) -> impl Iterator<Item = (PermitId, u32, Micros)> {
        self.holds.iter().map(|hold| (hold.permit, hold.units, hold.lapses))
    }

    pub(super) fn shrink(&mut self) {
        super::shrink(&mut self.holds);
    }

    /// Frees the places that `permit` holds. A permit that lapsed or was released before frees nothing.
    pub(crate) fn release(&mut self, permit: PermitId) {
        self.holds.retain(|hold| hold.permit != permit);
        self.used = self.holds.iter().map(|hold| hold.units).sum();
    }

    fn admit(&mut self, hold: PermitHold) {
        // The end, unless the clock stepped back or permits now last less long.
        let index = self.holds.partition_point(|other| other.lapses <= hold.lapses);
        self.holds.insert(index, hold);
        self.used += hold.units;
    }
}

impl Concurrency {
    /// Lets lapsed permits go, then gives `permit` as many places of `ask` as are free.
    pub(crate) fn draw(
        &self,
        holders: &mut Holders,
        now: Micros,
        ask: Amount,
        permit: PermitId,
    ) -> Option<u32> {
        self.age(holders, now);
        let room = self.amount.saturating_sub(holders.used);
        if ask.at_least() > room {
            return None;
        }
        let granted = ask.at_most().min(room);
        if granted > 0 {
            holders.admit(PermitHold { permit, units: granted, lapses: now.plus(self.lapse) });
        }
        Some(granted)
    }

    /// Lets lapsed permits go.
    pub(crate) fn age(&self, holders: &mut Holders, now: Micros) {
        while let Some(hold) = holders.holds.pop_front_if(|hold| hold.lapses <= now) {
            holders.used -= hold.units;
        }
    }

    /// What the holders promise: `ask` was answered with `granted` at `now`. The waits are the longest possible: a
    /// release comes when it comes.
    pub(crate) fn outlook(
        &self,
        holders: &Holders,
        now: Micros,
        ask: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        let last = holders.holds.back().map(|hold| hold.lapses);
        Forecast {
            remaining: self.amount.saturating_sub(holders.used),
            reset: last.map_or(Span::ZERO, |last| last.since(now)),
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(holders, now, ask)) } else { None },
        }
    }

    /// When enough permits will have lapsed.
    fn retry(&self, holders: &Holders, now: Micros, ask: Amount) -> Retry {
        let Some(room) = self.amount.checked_sub(ask.at_least()) else { return Retry::Never };
        let mut left = holders.used;
        let last_in_the_way = holders.holds.iter().find(|hold| {
            left -= hold.units;
            left <= room
        });
        Retry::After(last_in_the_way.map_or(Span::ZERO, |hold| hold.lapses.since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::ListState;

    #[test]
    fn permits_that_have_lapsed_give_their_memory_back() {
        let hold = |at: u64| PermitHold { permit: PermitId(at), units: 1, lapses: Micros::new(at) };
        let mut roll = ListState::Holders(Holders { holds: (1..=1000).map(hold).collect(), used: 1000 });
        let ListState::Holders(holders) = &mut roll else { return };
        Concurrency { amount: 1000, lapse: Span::SECOND }.age(holders, Micros::new(999));
        assert_eq!((holders.entries(), holders.used), (1, 1));
        roll.shrink();
        assert!(matches!(&roll, ListState::Holders(holders) if holders.holds.capacity() < 100));
    }
}
