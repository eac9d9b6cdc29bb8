//! The table: one stretch of words, cut into shards.
//!
//! All slots are one allocation, sized for the cap and zeroed by the operating system, which lends real memory only
//! for pages that are touched: a table for ten million keys that holds a thousand is small. A shard owns a fixed run
//! of slots behind a lock and spreads its entries over a growing part of it, so nothing is ever reallocated or copied
//! to a larger table, and memory grows with the keys.
//!
//! Words are relaxed atomics, not because they are shared without the lock (they are only ever changed under it), but
//! so that a batch may touch the slots that it will need before it takes their locks.

use super::key_hash::KeyHash;
use super::shard::MemoryShard;
use super::sync::{Mutex, MutexGuard};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words of a slot: the mark and the packed entry.
pub(crate) const SLOT: usize = 3;
/// Slots behind the last place that an entry may call home, for those that were pushed on. A run of entries reaches
/// that far once in 10^16 shards at full load.
pub(crate) const MARGIN: usize = 128;
/// Keys that a shard is made for. Rearranging that many takes some tens of microseconds; more shards would waste memory
/// on their margins.
const KEYS_A_SHARD: usize = 4096;
const MOST_SHARDS: usize = 1 << 16;

/// A table for a bounded number of keys.
#[derive(Debug)]
pub(crate) struct EntryTable {
    words: Box<[AtomicU64]>,
    shards: Box<[ShardLock]>,
    geometry: TableGeometry,
}

/// A shard's lock, on a cache line of its own, and how far its entries are spread.
#[derive(Debug)]
#[repr(align(64))]
struct ShardLock {
    /// A copy of the shard's own number, for touching slots without the lock. It may be stale: then it misses.
    spread: AtomicU64,
    shard: Mutex<MemoryShard>,
}

/// How many shards there are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableGeometry {
    pub(crate) shards: usize,
    /// The most keys of one shard.
    pub(crate) keys: usize,
    /// The most places of one shard that an entry may call home.
    pub(crate) homes: usize,
}

impl TableGeometry {
    /// A geometry for at most so many keys.
    pub(crate) fn for_keys(keys: usize) -> TableGeometry {
        let shards = (keys / KEYS_A_SHARD).next_power_of_two().min(MOST_SHARDS);
        // A small table still gets some shards, so that threads seldom wait for each other.
        let shards = shards.max((keys / 256).min(16)).next_power_of_two();
        let keys = (keys / shards).max(1);
        TableGeometry { shards, keys, homes: MemoryShard::homes_for(keys) }
    }

    /// Slots of one shard.
    fn slots(&self) -> usize {
        self.homes + MARGIN
    }

    /// Memory that the table takes when every page of it is in use.
    pub(crate) fn bytes(&self) -> usize {
        self.shards * (self.slots() * SLOT * size_of::<u64>() + size_of::<ShardLock>())
    }
}

impl EntryTable {
    /// A table of that geometry; nothing if the system won't lend so much address space.
    pub(crate) fn new(geometry: TableGeometry) -> Option<EntryTable> {
        let words = geometry.shards.checked_mul(geometry.slots())?.checked_mul(SLOT)?;
        let lane = |_| ShardLock { spread: AtomicU64::new(0), shard: Mutex::new(MemoryShard::default()) };
        Some(EntryTable {
            words: bytemuck::allocation::try_zeroed_slice_box(words).ok()?,
            shards: (0..geometry.shards).map(lane).collect(),
            geometry,
        })
    }

    pub(crate) fn geometry(&self) -> TableGeometry {
        self.geometry
    }

    /// Which shard a tag belongs to.
    #[inline(always)]
    pub(crate) fn shard_of(&self, tag: KeyHash) -> usize {
        // The number of shards is a power of two, so this is a mask.
        usize::try_from(tag.spread & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }

    /// Waits for a shard.
    #[inline(always)]
    pub(crate) fn lock(&self, shard: usize) -> ShardGuard<'_> {
        let lane = &self.shards[shard];
        let slots = self.geometry.slots() * SLOT;
        ShardGuard {
            words: &self.words[shard * slots..][..slots],
            lane,
            shard: lane.shard.lock(),
            geometry: &self.geometry,
        }
    }

    /// Reads the slot that a tag calls home and forgets what it said. The processor does not wait for the answer, so
    /// that several touches in a row cost little more than one, and the slots are near when they are needed.
    #[inline(always)]
    pub(crate) fn touch(&self, tag: KeyHash) {
        let shard = self.shard_of(tag);
        let home = home(tag.mark, self.shards[shard].spread.load(Relaxed));
        if let Some(word) = self.words.get((shard * self.geometry.slots() + home) * SLOT) {
            black_box(word.load(Relaxed));
        }
    }
}

/// Where a mark belongs in a shard that is spread over so many slots. Larger marks never belong before smaller ones.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the place is below `spread`, which is a number of slots"
)]
pub(crate) fn home(mark: u64, spread: u64) -> usize {
    let place = (u128::from(mark) * u128::from(spread)) >> 64;
    place as usize
}

/// A shard that this thread alone may change.
pub(crate) struct ShardGuard<'a> {
    words: &'a [AtomicU64],
    lane: &'a ShardLock,
    pub(crate) shard: MutexGuard<'a, MemoryShard>,
    pub(crate) geometry: &'a TableGeometry,
}

impl ShardGuard<'_> {
    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.words.len() / SLOT
    }

    /// The mark in a slot; 0 if the slot is empty or there is no such slot.
    #[inline(always)]
    pub(crate) fn mark(&self, slot: usize) -> u64 {
        self.words.get(slot * SLOT).map_or(0, |word| word.load(Relaxed))
    }

    /// The packed entry in a slot.
    #[inline(always)]
    pub(crate) fn words(&self, slot: usize) -> [u64; 2] {
        [self.words[slot * SLOT + 1].load(Relaxed), self.words[slot * SLOT + 2].load(Relaxed)]
    }

    #[inline(always)]
    pub(crate) fn set_mark(&self, slot: usize, mark: u64) {
        self.words[slot * SLOT].store(mark, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn set_words(&self, slot: usize, words: [u64; 2]) {
        self.words[slot * SLOT + 1].store(words[0], Relaxed);
        self.words[slot * SLOT + 2].store(words[1], Relaxed);
    }

    pub(crate) fn set_spread(&mut self, spread: usize) {
        self.shard.spread = spread;
        self.lane.spread.store(spread as u64, Relaxed);
    }
}
