//! The table of entries: one allocation of words, divided into shards.
//!
//! All slots are one allocation, sized for the capacity and zeroed by the operating system, which backs it with
//! physical memory only where it is touched: a table for ten million keys that holds a thousand is small. A shard owns
//! a fixed range of slots behind a lock and spreads its entries over a growing part of it. So nothing is ever
//! reallocated or copied to a larger table, and memory grows with the keys.
//!
//! Words are relaxed atomics although they are changed only under the lock, so that a batch can prefetch the slots that
//! it needs before it takes their locks.

use super::key_hash::KeyHash;
use super::shard::MemoryShard;
use super::sync::{Mutex, MutexGuard};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words per slot: the fingerprint and the packed entry.
pub(crate) const SLOT_WORDS: usize = 3;
/// Slots after the last ideal slot, for entries that were displaced. A run of entries reaches that far once in 10^16
/// shards at full load.
pub(crate) const OVERFLOW_SLOTS: usize = 128;
/// Keys per shard. Rebuilding a shard of that size takes some tens of microseconds; more shards would waste memory on
/// their overflow slots.
const KEYS_PER_SHARD: usize = 4096;
const MAX_SHARDS: usize = 1 << 16;

/// A table of entries for a bounded number of keys.
#[derive(Debug)]
pub(crate) struct EntryTable {
    words: Box<[AtomicU64]>,
    shards: Box<[ShardLock]>,
    geometry: TableGeometry,
}

/// A shard's lock, on its own cache line.
#[derive(Debug)]
#[repr(align(64))]
struct ShardLock {
    /// A copy of [`MemoryShard::span`] for prefetching without the lock. If it is stale, the prefetch misses.
    span: AtomicU64,
    shard: Mutex<MemoryShard>,
}

/// The number and the size of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableGeometry {
    pub(crate) shards: usize,
    /// The maximum number of keys per shard.
    pub(crate) keys: usize,
    /// The maximum [span](MemoryShard::span) of a shard.
    pub(crate) max_span: usize,
}

impl TableGeometry {
    /// The geometry for at most `keys` keys.
    pub(crate) fn for_keys(keys: usize) -> TableGeometry {
        let shards = (keys / KEYS_PER_SHARD).next_power_of_two().min(MAX_SHARDS);
        // A small table still gets several shards, so that threads seldom contend.
        let shards = shards.max((keys / 256).min(16)).next_power_of_two();
        let keys = (keys / shards).max(1);
        TableGeometry { shards, keys, max_span: MemoryShard::span_for(keys) }
    }

    /// Slots per shard.
    fn slots(&self) -> usize {
        self.max_span + OVERFLOW_SLOTS
    }

    /// The table's size in bytes once all of it has been touched.
    pub(crate) fn bytes(&self) -> usize {
        self.shards * (self.slots() * SLOT_WORDS * size_of::<u64>() + size_of::<ShardLock>())
    }
}

impl EntryTable {
    /// Creates a table. Returns `None` if the address space can't be allocated.
    pub(crate) fn new(geometry: TableGeometry) -> Option<EntryTable> {
        let words = geometry.shards.checked_mul(geometry.slots())?.checked_mul(SLOT_WORDS)?;
        let lock = |_| ShardLock { span: AtomicU64::new(0), shard: Mutex::new(MemoryShard::default()) };
        Some(EntryTable {
            words: bytemuck::allocation::try_zeroed_slice_box(words).ok()?,
            shards: (0..geometry.shards).map(lock).collect(),
            geometry,
        })
    }

    pub(crate) fn geometry(&self) -> TableGeometry {
        self.geometry
    }

    /// The shard of a key.
    #[inline(always)]
    pub(crate) fn shard_of(&self, key_hash: KeyHash) -> usize {
        // The number of shards is a power of two, so this is a mask.
        usize::try_from(key_hash.shard_bits & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }

    /// Locks a shard.
    #[inline(always)]
    pub(crate) fn lock(&self, shard: usize) -> ShardGuard<'_> {
        let lock = &self.shards[shard];
        let slots = self.geometry.slots() * SLOT_WORDS;
        ShardGuard {
            words: &self.words[shard * slots..][..slots],
            lock,
            shard: lock.shard.lock(),
            geometry: &self.geometry,
        }
    }

    /// Prefetches the ideal slot of a key: reads it and discards the value. The CPU does not wait for the load, so
    /// several prefetches in a row cost little more than one.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key_hash: KeyHash) {
        let shard = self.shard_of(key_hash);
        let slot = ideal_slot(key_hash.fingerprint, self.shards[shard].span.load(Relaxed));
        if let Some(word) = self.words.get((shard * self.geometry.slots() + slot) * SLOT_WORDS) {
            black_box(word.load(Relaxed));
        }
    }
}

/// The ideal slot of a fingerprint in a shard of `span` slots. It is monotonic: a larger fingerprint never has a
/// smaller ideal slot.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the slot is below `span`, which is a number of slots")]
pub(crate) fn ideal_slot(fingerprint: u64, span: u64) -> usize {
    let slot = (u128::from(fingerprint) * u128::from(span)) >> 64;
    slot as usize
}

/// Exclusive access to a locked shard.
pub(crate) struct ShardGuard<'a> {
    words: &'a [AtomicU64],
    lock: &'a ShardLock,
    pub(crate) shard: MutexGuard<'a, MemoryShard>,
    pub(crate) geometry: &'a TableGeometry,
}

impl ShardGuard<'_> {
    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.words.len() / SLOT_WORDS
    }

    /// The fingerprint in a slot, or 0 if the slot is empty or out of range.
    #[inline(always)]
    pub(crate) fn fingerprint(&self, slot: usize) -> u64 {
        self.words.get(slot * SLOT_WORDS).map_or(0, |word| word.load(Relaxed))
    }

    /// The packed entry in a slot.
    #[inline(always)]
    pub(crate) fn words(&self, slot: usize) -> [u64; 2] {
        [self.words[slot * SLOT_WORDS + 1].load(Relaxed), self.words[slot * SLOT_WORDS + 2].load(Relaxed)]
    }

    #[inline(always)]
    pub(crate) fn set_fingerprint(&self, slot: usize, fingerprint: u64) {
        self.words[slot * SLOT_WORDS].store(fingerprint, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn set_words(&self, slot: usize, words: [u64; 2]) {
        self.words[slot * SLOT_WORDS + 1].store(words[0], Relaxed);
        self.words[slot * SLOT_WORDS + 2].store(words[1], Relaxed);
    }

    pub(crate) fn set_span(&mut self, span: usize) {
        self.shard.span = span;
        self.lock.span.store(span as u64, Relaxed);
    }
}
