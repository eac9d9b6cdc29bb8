//! The size of the table and of its shards.

/// Words per slot: the fingerprint and the packed entry.
pub(super) const SLOT_WORDS: usize = 3;
/// Slots after the last ideal slot, for entries that were displaced. A run of entries reaches that far once in 10^16
/// shards at full load.
pub(super) const OVERFLOW_SLOTS: usize = 128;
/// The size of a shard's lock and bookkeeping: a cache line.
pub(super) const SHARD_HEADER_BYTES: usize = 64;
/// Keys per shard. Rebuilding a shard of that size takes some tens of microseconds; more shards would waste memory on
/// their overflow slots.
const KEYS_PER_SHARD: usize = 4096;
const MAX_SHARDS: usize = 1 << 16;

/// The number and the size of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableGeometry {
    pub(crate) shards: usize,
    /// The maximum number of keys per shard.
    pub(crate) keys: usize,
    /// The maximum span of a shard: the number of slots that ideal slots are computed over.
    pub(crate) max_span: usize,
}

impl TableGeometry {
    /// The geometry for at most `keys` keys.
    pub(crate) fn for_keys(keys: usize) -> TableGeometry {
        let shards = (keys / KEYS_PER_SHARD).next_power_of_two().min(MAX_SHARDS);
        // A small table still gets several shards, so that threads seldom contend.
        let shards = shards.max((keys / 256).min(16)).next_power_of_two();
        let keys = (keys / shards).max(1);
        TableGeometry { shards, keys, max_span: span_for(keys) }
    }

    /// Slots per shard.
    #[inline(always)]
    pub(super) fn slots(&self) -> usize {
        self.max_span + OVERFLOW_SLOTS
    }

    /// The table's size in bytes once all of it has been touched.
    pub(crate) fn bytes(&self) -> usize {
        self.shards * (self.slots() * SLOT_WORDS * size_of::<u64>() + SHARD_HEADER_BYTES)
    }
}

/// The smallest span for `keys` keys: 85 % full. A look-up then passes three other entries on average.
pub(super) fn span_for(keys: usize) -> usize {
    keys + keys * 3 / 17 + 1
}
