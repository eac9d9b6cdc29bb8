//! Where leases are kept: a bounded table of cells, in shards behind a lock each.
//!
//! A shard is cut into sets of eight places, and a key belongs to one set. The marks of a set are one line of the cache,
//! and what a draw from hand needs of a cell is another. A key that finds its set full of leases has to do without: it
//! is asked for at the store. A shard takes its memory when its first key comes.
//!
//! Both lines are relaxed atomics, not because they are shared without the lock (they are only ever changed under it), but
//! so that a batch may touch what it will need before it takes the locks.

use super::counters::LeaseCounters;
use super::entry::{ColdFields, EntryGuard};
use super::hot::{HotFields, PackedHot};
use crate::memory::key_hash::KeyHash;
use crate::memory::sync::{Mutex, MutexGuard};
use ratekeeper_core::{Micros, Span};
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Places of a set.
const WAYS: usize = 8;
/// Places that a shard is made for: some tens of kilobytes, swept in some tens of microseconds.
const PLACES: usize = 512;
/// Even a small table has some shards, so that threads seldom wait for each other, unless it is tiny.
const FEW_SHARDS: usize = 16;

/// A table of cells.
#[derive(Debug)]
pub(super) struct LeaseTable {
    shards: Box<[LeaseShardLock]>,
    /// Sets of each shard.
    sets: usize,
}

/// A shard's lock, on a cache line of its own, and what is touched without it.
#[derive(Debug)]
#[repr(align(64))]
struct LeaseShardLock {
    places: OnceLock<ShardEntries>,
    shard: Mutex<LeaseShard>,
}

/// The places of a shard.
#[derive(Debug)]
struct ShardEntries {
    sets: Box<[SetTags]>,
    lines: Box<[PackedHot]>,
}

/// What stands in the places of a set, 0 where one is empty: a line of the cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SetTags([AtomicU64; WAYS]);

/// What else there is of some cells.
#[derive(Debug, Default)]
pub(super) struct LeaseShard {
    pub(super) clock: MonotonicClock,
    /// Whether nothing is lent any more, because the node stops.
    pub(super) is_closed: bool,
    cold: Vec<ColdFields>,
    pub(super) tally: LeaseCounters,
}

impl LeaseTable {
    pub(super) fn new(cells: usize) -> LeaseTable {
        let shards = (cells / PLACES).max((cells / (8 * WAYS)).min(FEW_SHARDS)).next_power_of_two();
        let sets = cells.div_ceil(shards).div_ceil(WAYS).max(1);
        let lane = |_| LeaseShardLock { places: OnceLock::new(), shard: Mutex::new(LeaseShard::default()) };
        LeaseTable { shards: (0..shards).map(lane).collect(), sets }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// How many cells there can be.
    pub(super) fn capacity(&self) -> usize {
        self.shards.len() * self.sets * WAYS
    }

    /// Which shard a tag belongs to.
    #[inline(always)]
    fn shard_of(&self, tag: KeyHash) -> usize {
        // The number of shards is a power of two, so this is a mask.
        usize::try_from(tag.spread & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }

    /// Waits for the shard that a tag belongs to.
    #[inline(always)]
    pub(super) fn lock(&self, tag: KeyHash) -> LeaseShardGuard<'_> {
        self.lock_at(self.shard_of(tag))
    }

    /// Waits for a shard.
    #[inline(always)]
    pub(super) fn lock_at(&self, index: usize) -> LeaseShardGuard<'_> {
        let lane = &self.shards[index];
        let shard = lane.shard.lock();
        LeaseShardGuard { shard, lane, places: lane.places.get(), index, sets: self.sets }
    }

    /// Reads what draws with these tags will need, and forgets what it said. The processor does not wait for the answers,
    /// so that many touches in a row cost little more than one: first of all marks, then of the cells that they lead to.
    /// A key that comes several times in a row is touched once. It is near already, and other threads may want to write to
    /// it: touched each time, a batch on one key that two threads fight for took a third longer.
    #[inline]
    pub(super) fn touch(&self, tags: &[KeyHash]) {
        let places = |tag: KeyHash| self.shards[self.shard_of(tag)].places.get();
        for tag in changes(tags) {
            if let Some(places) = places(tag) {
                black_box(places.sets[set(tag, self.sets)].0[0].load(Relaxed));
            }
        }
        for tag in changes(tags) {
            if let Some(places) = places(tag)
                && let Some(index) = places.find(tag, self.sets)
            {
                places.lines[index].touch();
            }
        }
    }
}

/// Tags that differ from the one before.
#[inline(always)]
fn changes(tags: &[KeyHash]) -> impl Iterator<Item = KeyHash> {
    let mut before = KeyHash::NONE;
    tags.iter().copied().filter(move |tag| std::mem::replace(&mut before, *tag) != *tag)
}

/// The set that a key belongs to, of so many.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the set is below their number")]
fn set(tag: KeyHash, sets: usize) -> usize {
    ((u128::from(tag.mark) * sets as u128) >> 64) as usize
}

impl ShardEntries {
    fn new(sets: usize) -> ShardEntries {
        ShardEntries {
            sets: (0..sets).map(|_| SetTags::default()).collect(),
            lines: (0..sets * WAYS).map(|_| PackedHot::default()).collect(),
        }
    }

    /// Where a key's cell is.
    #[inline(always)]
    fn find(&self, tag: KeyHash, sets: usize) -> Option<usize> {
        let set = set(tag, sets);
        let SetTags(marks) = &self.sets[set];
        // All eight are compared, without a branch that could be guessed wrong.
        let met =
            (0..WAYS).fold(0_u32, |met, way| met | u32::from(marks[way].load(Relaxed) == tag.mark) << way);
        if met == 0 { None } else { Some(set * WAYS + met.trailing_zeros() as usize) }
    }

    fn mark(&self, index: usize) -> &AtomicU64 {
        &self.sets[index / WAYS].0[index % WAYS]
    }
}

/// A shard that this thread alone may change.
#[derive(Debug)]
pub(super) struct LeaseShardGuard<'a> {
    shard: MutexGuard<'a, LeaseShard>,
    lane: &'a LeaseShardLock,
    /// Nothing until the first key comes.
    places: Option<&'a ShardEntries>,
    index: usize,
    sets: usize,
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
    /// Where a key's cell is.
    #[inline(always)]
    pub(super) fn find(&self, tag: KeyHash) -> Option<usize> {
        self.places?.find(tag, self.sets)
    }

    /// What a draw from hand needs of a cell.
    #[inline(always)]
    pub(super) fn line(&self, index: usize) -> Option<&'a PackedHot> {
        self.places?.lines.get(index)
    }

    /// A cell, and where what it does is counted.
    pub(super) fn slot(&mut self, index: usize) -> Option<EntryGuard<'_>> {
        let line = self.line(index)?;
        let shard = &mut *self.shard;
        Some(EntryGuard {
            hot: HotFields::read(line),
            line,
            cold: shard.cold.get_mut(index)?,
            tally: &mut shard.tally,
        })
    }

    /// How many places there are by now.
    pub(super) fn places(&self) -> usize {
        self.places.map_or(0, |places| places.lines.len())
    }

    /// How many cells there are.
    pub(super) fn cells(&self) -> usize {
        let marks = self.places.iter().flat_map(|places| places.sets.iter()).flat_map(|set| &set.0);
        marks.filter(|mark| mark.load(Relaxed) != 0).count()
    }

    /// Whose cell is in a place. Of what picks a shard, only that it picks this one is known.
    pub(super) fn tag(&self, index: usize) -> Option<KeyHash> {
        let mark = self.places?.mark(index).load(Relaxed);
        (mark != 0).then_some(KeyHash { mark, spread: self.index as u64 })
    }

    /// A place for a newcomer: an empty one, or that of the key that was asked for the longest ago among those that hold
    /// no lease.
    pub(super) fn make_room(&mut self, tag: KeyHash, now: Micros) -> Option<EntryGuard<'_>> {
        let places = self.lane.places.get_or_init(|| ShardEntries::new(self.sets));
        self.places = Some(places);
        self.shard.cold.resize_with(places.lines.len(), ColdFields::default);
        let set = set(tag, self.sets);
        let first = set * WAYS;
        let index = match places.sets[set].0.iter().position(|mark| mark.load(Relaxed) == 0) {
            Some(way) => first + way,
            None => (first..first + WAYS)
                .filter(|index| {
                    !self.shard.cold[*index].is_asked()
                        && !HotFields::read(&places.lines[*index]).is_lent(now)
                })
                .min_by_key(|index| self.shard.cold[*index].asked_at())?,
        };
        self.slot(index)?.forfeit();
        self.remove(index);
        places.mark(index).store(tag.mark, Relaxed);
        self.slot(index)
    }

    /// Empties a place.
    pub(super) fn remove(&mut self, index: usize) {
        if let Some(places) = self.places {
            places.mark(index).store(0, Relaxed);
            self.shard.cold[index].name = None;
        }
    }
}

/// A clock that never goes back.
///
/// A lease must not last longer because somebody has set the clock back. The clock that it reads sees to that already: it goes
/// back by half a millisecond each second at the most, which is far within what leases end too early anyway. What looks like
/// more was read earlier, by a thread that was held up or by a batch that reads the clock once, and time stands still for
/// it. Where the clock falls back by more than that can explain, this one goes on from where it was: by what was lost it runs
/// ahead, so that every lease ends earlier by as much.
#[derive(Debug, Default)]
pub(super) struct MonotonicClock {
    latest: Micros,
    lost: Span,
}

impl MonotonicClock {
    const STEP: Span = Span::millis(100);

    /// The time, when the clock has just been read.
    #[inline(always)]
    pub(super) fn read(&mut self, now: Micros) -> Micros {
        if now < self.latest {
            return self.read_back(now);
        }
        self.latest = now;
        now.plus(self.lost)
    }

    #[cold]
    fn read_back(&mut self, now: Micros) -> Micros {
        let back = self.latest.since(now);
        if back > MonotonicClock::STEP {
            self.lost = Span::micros(self.lost.get() + back.get());
            self.latest = now;
            return now.plus(self.lost);
        }
        self.latest.plus(self.lost)
    }

    /// The time, when the clock was read a while ago.
    pub(super) fn about(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest.plus(self.lost)
    }

    /// What an earlier reading of the clock was in this time, at the most.
    pub(super) fn past(&self, then: Micros) -> Micros {
        then.min(self.latest).plus(self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_falls_back_takes_time_away_and_never_lends_any() {
        let at = |millis: u64| Micros::new(millis * 1_000);
        let mut clock = MonotonicClock::default();
        assert_eq!(clock.read(at(10_000)), at(10_000));
        assert_eq!(clock.read(at(9_000)), at(10_000), "somebody has set it back");
        assert_eq!(clock.read(at(9_010)), at(10_010), "and it goes on");
        assert_eq!(clock.about(at(9_009)), at(10_010));
        assert_eq!(clock.past(at(9_009)), at(10_009));
        assert_eq!(clock.read(at(1)), at(10_010));
        assert_eq!(clock.read(at(2)), at(10_011));
    }

    #[test]
    fn threads_that_are_held_up_do_not_make_time_pass_faster() {
        let mut clock = MonotonicClock::default();
        for millis in (1_000..61_000).step_by(10) {
            let (now, held_up) = (Micros::new(millis * 1_000), Micros::new((millis - 50) * 1_000));
            assert_eq!(clock.read(now), now);
            assert_eq!(clock.read(held_up), now);
        }
    }

    #[test]
    fn a_table_has_about_as_many_places_as_were_asked_for() {
        for cells in [0, 1, 8, 100, 1_000, 4_096, 100_000, 1_000_000] {
            let table = LeaseTable::new(cells);
            let capacity = table.capacity();
            assert!(capacity >= cells && capacity <= cells + 8 * table.shards(), "{cells}: {capacity}");
        }
    }
}
