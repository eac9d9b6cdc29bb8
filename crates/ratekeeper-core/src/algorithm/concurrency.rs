//! The concurrency limit: a maximum number of units held at the same time.
//!
//! Every holder has its own permit, so that a late release can't free a slot twice, and every permit expires, so
//! that a crashed holder can't keep its slots.

use crate::op::{Amount, PermitId};
use crate::status::{Forecast, Retry};
use crate::time::{Micros, Span};
use std::collections::VecDeque;

/// The constants of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    pub(crate) amount: u32,
    /// How long a permit lasts if it is never released.
    pub(crate) permit_ttl: Span,
}

/// The permits held under a concurrency limit, the next to expire first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    holds: VecDeque<PermitHold>,
    used: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PermitHold {
    permit: PermitId,
    units: u32,
    expires_at: Micros,
}

impl Holders {
    /// Returns the number of entries, which its memory use is proportional to.
    pub fn entries(&self) -> usize {
        self.holds.len()
    }

    /// Returns each permit, the slots that it holds, and when it expires, the next to expire first.
    pub fn holds(&self) -> impl Iterator<Item = (PermitId, u32, Micros)> {
        self.holds.iter().map(|hold| (hold.permit, hold.units, hold.expires_at))
    }

    pub(super) fn shrink(&mut self) {
        super::shrink(&mut self.holds);
    }

    /// Frees the slots that `permit` holds. An expired or already released permit frees nothing.
    pub(crate) fn release(&mut self, permit: PermitId) {
        self.holds.retain(|hold| hold.permit != permit);
        self.used = self.holds.iter().map(|hold| hold.units).sum();
    }

    fn insert(&mut self, hold: PermitHold) {
        // This is the end of the list, unless the clock stepped back or permits now last less long.
        let index = self.holds.partition_point(|other| other.expires_at <= hold.expires_at);
        self.holds.insert(index, hold);
        self.used += hold.units;
    }
}

impl Concurrency {
    /// Removes expired permits, then gives `permit` as many slots of `amount` as are free.
    pub(crate) fn take(
        &self,
        holders: &mut Holders,
        now: Micros,
        amount: Amount,
        permit: PermitId,
    ) -> Option<u32> {
        self.age(holders, now);
        let free = self.amount.saturating_sub(holders.used);
        if amount.at_least() > free {
            return None;
        }
        let granted = amount.at_most().min(free);
        if granted > 0 {
            holders.insert(PermitHold { permit, units: granted, expires_at: now.plus(self.permit_ttl) });
        }
        Some(granted)
    }

    /// Removes expired permits.
    pub(crate) fn age(&self, holders: &mut Holders, now: Micros) {
        while let Some(hold) = holders.holds.pop_front_if(|hold| hold.expires_at <= now) {
            holders.used -= hold.units;
        }
    }

    /// Returns the forecast after a draw of `amount` at `now` that got `granted`. The times are upper bounds, since
    /// a permit may be released early.
    pub(crate) fn forecast(
        &self,
        holders: &Holders,
        now: Micros,
        amount: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        let last = holders.holds.back().map(|hold| hold.expires_at);
        Forecast {
            remaining: self.amount.saturating_sub(holders.used),
            reset: last.map_or(Span::ZERO, |last| last.since(now)),
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(holders, now, amount)) } else { None },
        }
    }

    /// Returns when enough permits will have expired.
    fn retry(&self, holders: &Holders, now: Micros, amount: Amount) -> Retry {
        let Some(allowed) = self.amount.checked_sub(amount.at_least()) else { return Retry::Never };
        let mut left = holders.used;
        let last_blocking = holders.holds.iter().find(|hold| {
            left -= hold.units;
            left <= allowed
        });
        Retry::After(last_blocking.map_or(Span::ZERO, |hold| hold.expires_at.since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::ListState;

    #[test]
    fn expired_permits_free_their_memory() {
        let hold = |at: u64| PermitHold { permit: PermitId(at), units: 1, expires_at: Micros::new(at) };
        let mut list = ListState::Holders(Holders { holds: (1..=1000).map(hold).collect(), used: 1000 });
        let ListState::Holders(holders) = &mut list else { return };
        Concurrency { amount: 1000, permit_ttl: Span::SECOND }.age(holders, Micros::new(999));
        assert_eq!((holders.entries(), holders.used), (1, 1));
        list.shrink();
        assert!(matches!(&list, ListState::Holders(holders) if holders.holds.capacity() < 100));
    }
}
