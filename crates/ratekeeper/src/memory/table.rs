//! The table of entries: one allocation of words, divided into shards.
//!
//! All slots are one allocation, sized for the capacity and zeroed by the operating system, which backs it with
//! physical memory only where it is touched: a table for ten million keys that holds a thousand is small. A shard owns
//! a fixed range of slots and spreads its entries over a growing part of it. So nothing is ever reallocated or copied
//! to a larger table, and memory grows with the keys.

use super::geometry::{SLOT_WORDS, TableGeometry};
use super::key_hash::KeyHash;
use super::shard::{Shard, ShardGuard, ShardHeader};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A table of entries for a bounded number of keys.
#[derive(Debug)]
pub(crate) struct EntryTable {
    words: Box<[AtomicU64]>,
    headers: Box<[ShardHeader]>,
    geometry: TableGeometry,
}

impl EntryTable {
    /// Creates a table. Returns `None` if the address space can't be allocated.
    pub(crate) fn new(geometry: TableGeometry) -> Option<EntryTable> {
        let words = geometry.shards.checked_mul(geometry.slots())?.checked_mul(SLOT_WORDS)?;
        Some(EntryTable {
            words: bytemuck::allocation::try_zeroed_slice_box(words).ok()?,
            headers: (0..geometry.shards).map(|_| ShardHeader::default()).collect(),
            geometry,
        })
    }

    pub(crate) fn geometry(&self) -> TableGeometry {
        self.geometry
    }

    /// The number of the shard of a key.
    #[inline(always)]
    pub(super) fn shard_of(&self, key_hash: KeyHash) -> usize {
        // The number of shards is a power of two, so this is a mask.
        usize::try_from(key_hash.shard_bits & (self.headers.len() as u64 - 1)).unwrap_or(0)
    }

    /// A shard by its number.
    #[inline(always)]
    pub(super) fn shard(&self, number: usize) -> Shard<'_> {
        let words = self.geometry.slots() * SLOT_WORDS;
        Shard {
            header: &self.headers[number],
            words: &self.words[number * words..][..words],
            geometry: &self.geometry,
        }
    }

    /// Locks a shard.
    #[inline]
    pub(super) fn lock(&self, number: usize) -> ShardGuard<'_> {
        self.shard(number).lock()
    }

    /// Prefetches the ideal slot of a key: reads it and discards the value. The CPU does not wait for the load, so
    /// several prefetches in a row cost little more than one.
    #[inline(always)]
    pub(super) fn prefetch(&self, key_hash: KeyHash) {
        let shard = self.shard_of(key_hash);
        let slot = self.headers[shard].ideal_slot(key_hash.fingerprint);
        if let Some(word) = self.words.get((shard * self.geometry.slots() + slot) * SLOT_WORDS) {
            black_box(word.load(Relaxed));
        }
    }
}
