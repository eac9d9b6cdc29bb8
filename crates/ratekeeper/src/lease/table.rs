//! The lease table: a bounded, sharded, 8-way set-associative table of entries.
//!
//! Each shard has a lock and is divided into sets of eight slots. A key belongs to one set. The fingerprints of a
//! set are one cache line, and the [hot fields](HotFields) of an entry are another. If all slots of its set hold
//! leases, a new key is not leased and goes to the store. A shard allocates its memory when its first key is
//! inserted.
//!
//! Both cache lines are relaxed atomics, so that a batch can prefetch them before it takes the locks. They are
//! only changed under the lock.

use super::cold_fields::ColdFields;
use super::counters::LeaseCounters;
use super::entry::EntryGuard;
use super::hot::{HotFields, PackedHot};
use super::parameters::LeasePolicy;
use crate::memory::key_hash::KeyHash;
use crate::memory::sync::{Mutex, MutexGuard};
use ratekeeper_core::{Micros, Span};
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Slots of a set.
const WAYS: usize = 8;
/// Target number of slots of a shard: some tens of kilobytes, swept in some tens of microseconds.
const SLOTS_PER_SHARD: usize = 512;
/// A small table has this many shards too, unless it is tiny, so that threads seldom contend for a lock.
const MIN_SHARDS: usize = 16;

/// A sharded table of entries.
#[derive(Debug)]
pub(super) struct LeaseTable {
    shards: Box<[LeaseShardLock]>,
    /// Sets of each shard.
    sets_per_shard: usize,
    policy: LeasePolicy,
}

/// A shard's lock, on its own cache line, and the slots, which can be prefetched without the lock.
#[derive(Debug)]
#[repr(align(64))]
struct LeaseShardLock {
    slots: OnceLock<ShardSlots>,
    shard: Mutex<LeaseShard>,
}

/// The slots of a shard.
#[derive(Debug)]
struct ShardSlots {
    sets: Box<[SetFingerprints]>,
    hot_fields: Box<[PackedHot]>,
}

/// The fingerprints of a set, in one cache line. 0 is an empty slot.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SetFingerprints([AtomicU64; WAYS]);

/// The part of a shard that is only accessed under the lock.
#[derive(Debug, Default)]
pub(super) struct LeaseShard {
    pub(super) clock: MonotonicClock,
    /// Whether the node is draining: no new lease is started.
    pub(super) is_closed: bool,
    cold: Vec<ColdFields>,
    pub(super) counters: LeaseCounters,
}

impl LeaseTable {
    pub(super) fn new(max_keys: usize, policy: LeasePolicy) -> LeaseTable {
        let shards =
            (max_keys / SLOTS_PER_SHARD).max((max_keys / (8 * WAYS)).min(MIN_SHARDS)).next_power_of_two();
        let sets_per_shard = max_keys.div_ceil(shards).div_ceil(WAYS).max(1);
        let lock = |_| LeaseShardLock { slots: OnceLock::new(), shard: Mutex::new(LeaseShard::default()) };
        LeaseTable { shards: (0..shards).map(lock).collect(), sets_per_shard, policy }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The maximum number of entries.
    pub(super) fn capacity(&self) -> usize {
        self.shards.len() * self.sets_per_shard * WAYS
    }

    /// The shard of a key.
    #[inline(always)]
    fn shard_of(&self, hash: KeyHash) -> usize {
        // The number of shards is a power of two, so this is a mask.
        usize::try_from(hash.shard_bits & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }

    /// Locks the shard of a key.
    #[inline(always)]
    pub(super) fn lock(&self, hash: KeyHash) -> LeaseShardGuard<'_> {
        self.lock_shard(self.shard_of(hash))
    }

    /// Locks a shard.
    #[inline(always)]
    pub(super) fn lock_shard(&self, index: usize) -> LeaseShardGuard<'_> {
        let lock = &self.shards[index];
        let shard = lock.shard.lock();
        LeaseShardGuard {
            shard,
            lock,
            slots: lock.slots.get(),
            index,
            sets_per_shard: self.sets_per_shard,
            policy: &self.policy,
        }
    }

    /// Prefetches the cache lines of these keys. The processor does not wait for the loads, so many of them in a
    /// row cost little more than one: first all fingerprints, then the entries that they lead to.
    ///
    /// A key that occurs several times in a row is prefetched once. Its line is cached already, and other threads
    /// may want to write to it: prefetching it each time made a batch on one key, contended by two threads, a
    /// third slower.
    #[inline]
    pub(super) fn prefetch(&self, hashes: &[KeyHash]) {
        let slots = |hash: KeyHash| self.shards[self.shard_of(hash)].slots.get();
        for hash in dedup_runs(hashes) {
            if let Some(slots) = slots(hash) {
                black_box(slots.sets[set_index(hash, self.sets_per_shard)].0[0].load(Relaxed));
            }
        }
        for hash in dedup_runs(hashes) {
            if let Some(slots) = slots(hash)
                && let Some(index) = slots.find(hash, self.sets_per_shard)
            {
                slots.hot_fields[index].prefetch();
            }
        }
    }
}

/// Hashes that differ from the one before.
#[inline(always)]
fn dedup_runs(hashes: &[KeyHash]) -> impl Iterator<Item = KeyHash> {
    let mut before = KeyHash::NONE;
    hashes.iter().copied().filter(move |hash| std::mem::replace(&mut before, *hash) != *hash)
}

/// The index of the set of a key.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the index is below the number of sets")]
fn set_index(hash: KeyHash, sets: usize) -> usize {
    ((u128::from(hash.fingerprint) * sets as u128) >> 64) as usize
}

impl ShardSlots {
    fn new(sets: usize) -> ShardSlots {
        ShardSlots {
            sets: (0..sets).map(|_| SetFingerprints::default()).collect(),
            hot_fields: (0..sets * WAYS).map(|_| PackedHot::default()).collect(),
        }
    }

    /// The slot of a key.
    #[inline(always)]
    fn find(&self, hash: KeyHash, sets: usize) -> Option<usize> {
        let set = set_index(hash, sets);
        let SetFingerprints(fingerprints) = &self.sets[set];
        // All eight are compared without branches, which could be mispredicted.
        let matches = (0..WAYS).fold(0_u32, |matches, way| {
            matches | u32::from(fingerprints[way].load(Relaxed) == hash.fingerprint) << way
        });
        if matches == 0 { None } else { Some(set * WAYS + matches.trailing_zeros() as usize) }
    }

    fn fingerprint(&self, index: usize) -> &AtomicU64 {
        &self.sets[index / WAYS].0[index % WAYS]
    }
}

/// A locked shard.
#[derive(Debug)]
pub(super) struct LeaseShardGuard<'a> {
    shard: MutexGuard<'a, LeaseShard>,
    lock: &'a LeaseShardLock,
    /// `None` until the first key is inserted.
    slots: Option<&'a ShardSlots>,
    index: usize,
    sets_per_shard: usize,
    policy: &'a LeasePolicy,
}

impl Deref for LeaseShardGuard<'_> {
    type Target = LeaseShard;

    #[inline(always)]
    fn deref(&self) -> &LeaseShard {
        &self.shard
    }
}

impl DerefMut for LeaseShardGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut LeaseShard {
        &mut self.shard
    }
}

impl<'a> LeaseShardGuard<'a> {
    /// The slot of a key.
    #[inline(always)]
    pub(super) fn find(&self, hash: KeyHash) -> Option<usize> {
        self.slots?.find(hash, self.sets_per_shard)
    }

    /// The packed hot fields of a slot.
    #[inline(always)]
    pub(super) fn packed_hot(&self, index: usize) -> Option<&'a PackedHot> {
        self.slots?.hot_fields.get(index)
    }

    /// The entry in a slot, with the shard's counters.
    pub(super) fn entry(&mut self, index: usize) -> Option<EntryGuard<'_>> {
        let packed = self.packed_hot(index)?;
        let shard = &mut *self.shard;
        Some(EntryGuard {
            hot: HotFields::read(packed),
            packed,
            cold: shard.cold.get_mut(index)?,
            policy: self.policy,
            counters: &mut shard.counters,
        })
    }

    /// The number of allocated slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.map_or(0, |slots| slots.hot_fields.len())
    }

    /// The number of entries.
    pub(super) fn entry_count(&self) -> usize {
        let fingerprints = self.slots.iter().flat_map(|slots| slots.sets.iter()).flat_map(|set| &set.0);
        fingerprints.filter(|fingerprint| fingerprint.load(Relaxed) != 0).count()
    }

    /// The hash of the key in a slot. Of the part that selects the shard, only the shard's index is known.
    pub(super) fn key_hash(&self, index: usize) -> Option<KeyHash> {
        let fingerprint = self.slots?.fingerprint(index).load(Relaxed);
        (fingerprint != 0).then_some(KeyHash { fingerprint, shard_bits: self.index as u64 })
    }

    /// Inserts a key: into an empty slot of its set, or in place of the entry without a lease whose last renewal
    /// was the longest ago. `None` if all entries of the set hold leases.
    pub(super) fn insert(&mut self, hash: KeyHash, now: Micros) -> Option<EntryGuard<'_>> {
        let slots = self.lock.slots.get_or_init(|| ShardSlots::new(self.sets_per_shard));
        self.slots = Some(slots);
        self.shard.cold.resize_with(slots.hot_fields.len(), ColdFields::default);
        let set = set_index(hash, self.sets_per_shard);
        let first = set * WAYS;
        let index = match slots.sets[set].0.iter().position(|fingerprint| fingerprint.load(Relaxed) == 0) {
            Some(way) => first + way,
            None => (first..first + WAYS)
                .filter(|index| {
                    !self.shard.cold[*index].is_renewing()
                        && !HotFields::read(&slots.hot_fields[*index]).has_lease(now)
                })
                .min_by_key(|index| self.shard.cold[*index].last_request_at())?,
        };
        self.entry(index)?.expire();
        self.remove(index);
        slots.fingerprint(index).store(hash.fingerprint, Relaxed);
        self.entry(index)
    }

    /// Empties a slot.
    pub(super) fn remove(&mut self, index: usize) {
        if let Some(slots) = self.slots {
            slots.fingerprint(index).store(0, Relaxed);
            self.shard.cold[index].name = None;
        }
    }
}

/// A clock that never goes back.
///
/// A lease must not last longer because the system clock was set back. The clock that this one reads already
/// limits that: it goes back by at most half a millisecond per second, far less than the margin by which leases
/// end early. Larger steps of up to [`STEP_THRESHOLD`](MonotonicClock::STEP_THRESHOLD) are readings that were
/// taken earlier, by a delayed thread or by a batch that reads the clock once: for them, time stands still. If
/// the clock falls back by more, this one continues from its last value. From then on it runs ahead by the
/// difference, so that every lease ends earlier by as much.
#[derive(Debug, Default)]
pub(super) struct MonotonicClock {
    latest: Micros,
    offset: Span,
}

impl MonotonicClock {
    const STEP_THRESHOLD: Span = Span::millis(100);

    /// The current time, given a reading taken just now.
    #[inline(always)]
    pub(super) fn read(&mut self, now: Micros) -> Micros {
        if now < self.latest {
            return self.read_backwards(now);
        }
        self.latest = now;
        now.plus(self.offset)
    }

    #[cold]
    fn read_backwards(&mut self, now: Micros) -> Micros {
        let back = self.latest.since(now);
        if back > MonotonicClock::STEP_THRESHOLD {
            self.offset = Span::micros(self.offset.get() + back.get());
            self.latest = now;
            return now.plus(self.offset);
        }
        self.latest.plus(self.offset)
    }

    /// The current time, given a reading taken a while ago.
    pub(super) fn read_stale(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest.plus(self.offset)
    }

    /// An upper bound for an earlier reading in the time of this clock.
    pub(super) fn convert_past(&self, then: Micros) -> Micros {
        then.min(self.latest).plus(self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_set_back_never_extends_a_lease() {
        let at = |millis: u64| Micros::new(millis * 1_000);
        let mut clock = MonotonicClock::default();
        assert_eq!(clock.read(at(10_000)), at(10_000));
        assert_eq!(clock.read(at(9_000)), at(10_000), "the clock was set back");
        assert_eq!(clock.read(at(9_010)), at(10_010), "and runs on from there");
        assert_eq!(clock.read_stale(at(9_009)), at(10_010));
        assert_eq!(clock.convert_past(at(9_009)), at(10_009));
        assert_eq!(clock.read(at(1)), at(10_010));
        assert_eq!(clock.read(at(2)), at(10_011));
    }

    #[test]
    fn stale_readings_do_not_advance_the_clock() {
        let mut clock = MonotonicClock::default();
        for millis in (1_000..61_000).step_by(10) {
            let (now, stale) = (Micros::new(millis * 1_000), Micros::new((millis - 50) * 1_000));
            assert_eq!(clock.read(now), now);
            assert_eq!(clock.read(stale), now);
        }
    }

    #[test]
    fn a_table_has_about_the_requested_capacity() {
        for max_keys in [0, 1, 8, 100, 1_000, 4_096, 100_000, 1_000_000] {
            let table = LeaseTable::new(max_keys, LeasePolicy::DEFAULT);
            let capacity = table.capacity();
            assert!(
                capacity >= max_keys && capacity <= max_keys + 8 * table.shards(),
                "{max_keys}: {capacity}"
            );
        }
    }
}
