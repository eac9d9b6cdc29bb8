//! What leases were good for, in numbers.

use crate::health::LeaseCounts;

/// What became of the units that were lent, and of the draws that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseStats {
    /// Units that the store lent.
    pub(crate) lent: u64,
    /// Of those, spent.
    pub(crate) spent: u64,
    /// Given back.
    pub(crate) returned: u64,
    /// Neither: the lease was over before.
    pub(crate) forfeited: u64,
    /// Draws that were granted from hand.
    pub(crate) granted: u64,
    /// Draws that were refused without asking.
    pub(crate) paused: u64,
    /// Draws for which the store was to be asked.
    pub(crate) asks: u64,
    /// Orders that went their own way, without a draw.
    pub(crate) refills: u64,
    /// Orders that got no answer.
    pub(crate) lost: u64,
    /// Draws that found no place for their key.
    pub(crate) crowded: u64,
    /// Keys that have a place.
    pub(crate) cells: usize,
    /// The most of those.
    pub(crate) capacity: usize,
}

impl From<LeaseStats> for LeaseCounts {
    fn from(stats: LeaseStats) -> LeaseCounts {
        LeaseCounts {
            lent: stats.lent,
            spent: stats.spent,
            returned: stats.returned,
            forfeited: stats.forfeited,
            granted: stats.granted,
            refused: stats.paused,
            asked: stats.asks,
            refills: stats.refills,
            lost: stats.lost,
            crowded: stats.crowded,
            keys: stats.cells,
            max_keys: stats.capacity,
        }
    }
}

impl LeaseStats {
    /// Adds what one shard has counted.
    pub(super) fn add(&mut self, tally: &Tally, cells: usize) {
        self.lent += tally.lent;
        self.spent += tally.spent;
        self.returned += tally.returned;
        self.forfeited += tally.forfeited;
        self.granted += tally.granted;
        self.paused += tally.paused;
        self.asks += tally.asks;
        self.refills += tally.refills;
        self.lost += tally.lost;
        self.crowded += tally.crowded;
        self.cells += cells;
    }
}

/// What one shard counts. It is changed under the shard's lock, so that counting takes no atomics.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) granted: u64,
    pub(super) spent: u64,
    pub(super) lent: u64,
    pub(super) returned: u64,
    pub(super) forfeited: u64,
    pub(super) paused: u64,
    pub(super) asks: u64,
    pub(super) refills: u64,
    pub(super) lost: u64,
    pub(super) crowded: u64,
}

impl Tally {
    #[inline]
    pub(super) fn spend(&mut self, units: u32) {
        self.granted += 1;
        self.spent += u64::from(units);
    }

    /// What was spent was put back.
    pub(super) fn put_back(&mut self, units: u32) {
        self.granted = self.granted.saturating_sub(1);
        self.spent = self.spent.saturating_sub(u64::from(units));
    }
}
