//! Counters of lease activity, per shard and per key.

use crate::health::LeaseCounts;

impl LeaseCounts {
    /// Adds the counters of one shard.
    pub(super) fn add_shard(&mut self, shard: &LeaseCounters, keys: usize) {
        self.lent += shard.lent;
        self.spent += shard.spent;
        self.returned += shard.returned;
        self.expired += shard.expired;
        self.granted += shard.granted;
        self.denied += shard.denied;
        self.denied_stale += shard.denied_stale;
        self.misses += shard.misses;
        self.renewals += shard.renewals;
        self.unacknowledged += shard.unacknowledged;
        self.table_full += shard.table_full;
        self.keys += keys;
    }
}

/// Counters of one shard. They are changed under the shard's lock, so they need no atomics.
#[derive(Debug, Default)]
pub(super) struct LeaseCounters {
    pub(super) granted: u64,
    pub(super) spent: u64,
    pub(super) lent: u64,
    pub(super) returned: u64,
    pub(super) expired: u64,
    pub(super) denied: u64,
    pub(super) denied_stale: u64,
    pub(super) misses: u64,
    pub(super) renewals: u64,
    pub(super) unacknowledged: u64,
    pub(super) table_full: u64,
}

impl LeaseCounters {
    #[inline]
    pub(super) fn count_spend(&mut self, units: u32) {
        self.granted += 1;
        self.spent += u64::from(units);
    }

    /// Uncounts a spend that was undone.
    pub(super) fn uncount_spend(&mut self, units: u32) {
        self.granted = self.granted.saturating_sub(1);
        self.spent = self.spent.saturating_sub(u64::from(units));
    }
}

/// Counters of one key since it has an entry. Counts of draws wrap around at 2^32.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyCounters {
    pub(super) lent: u64,
    pub(super) returned: u64,
    pub(super) expired: u64,
    pub(super) misses: u32,
    pub(super) denied: u32,
    pub(super) denied_stale: u32,
}
