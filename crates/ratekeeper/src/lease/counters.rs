//! What leases were good for, in numbers.

use crate::health::LeaseCounts;

impl LeaseCounts {
    /// Adds what one shard has counted.
    pub(super) fn add(&mut self, tally: &LeaseCounters, keys: usize) {
        self.lent += tally.lent;
        self.spent += tally.spent;
        self.returned += tally.returned;
        self.forfeited += tally.forfeited;
        self.granted += tally.granted;
        self.refused += tally.paused;
        self.stale += tally.stale;
        self.asked += tally.asks;
        self.refills += tally.refills;
        self.lost += tally.lost;
        self.crowded += tally.crowded;
        self.keys += keys;
    }
}

/// What one shard counts. It is changed under the shard's lock, so that counting takes no atomics.
#[derive(Debug, Default)]
pub(super) struct LeaseCounters {
    pub(super) granted: u64,
    pub(super) spent: u64,
    pub(super) lent: u64,
    pub(super) returned: u64,
    pub(super) forfeited: u64,
    pub(super) paused: u64,
    pub(super) stale: u64,
    pub(super) asks: u64,
    pub(super) refills: u64,
    pub(super) lost: u64,
    pub(super) crowded: u64,
}

impl LeaseCounters {
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

/// What became of one key's units and draws since it has a cell. Draws are counted up to 2^32, and then anew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyCounters {
    pub(super) lent: u64,
    pub(super) returned: u64,
    pub(super) forfeited: u64,
    pub(super) asked: u32,
    pub(super) refused: u32,
    pub(super) stale: u32,
}
