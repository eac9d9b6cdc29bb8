//! One shard: entries ordered by fingerprint and spread over its slots, behind a lock that readers need not take.
//!
//! **Order.** A fingerprint is a random number, so its position in an ordered array can be interpolated: a fingerprint
//! a third of the way through the value range belongs a third of the way into the slots. An entry is stored in that
//! *ideal slot* or after it, displaced by smaller fingerprints. A look-up starts at the ideal slot and ends at the
//! fingerprint, at a larger one, or at an empty slot. Because the order never changes, rebuilding a shard for more
//! slots takes one pass to the right and one to the left within the same memory.
//!
//! **Lock.** A sequence lock: a version that is odd while the shard is locked and grows with every lock and unlock. A
//! reader that finds the same even version before and after has read what was there at one moment. So a draw reads its
//! entry, decides, and locks only to write the result, provided that the version is still the one it read. A denial
//! that changes nothing writes nothing, not even the lock. All words are relaxed atomics; the version orders them.

use super::entry::TableEntry;
use super::geometry::{OVERFLOW_SLOTS, SLOT_WORDS, TableGeometry, span_for};
use super::list_states::ListStates;
use super::sync::{self, Mutex, MutexGuard, VersionWord};
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};

/// How many slots a read without the lock looks at. At the usual loads of a shard, 94 to 75 % of its entries are there.
const WINDOW_SLOTS: usize = 4;
const WINDOW_WORDS: usize = WINDOW_SLOTS * SLOT_WORDS;

/// The words of a slot: the fingerprint and the packed entry.
type SlotWords = [AtomicU64; SLOT_WORDS];

/// The lock and the bookkeeping of a shard, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct ShardHeader {
    /// The number of times that the shard was locked or unlocked: odd while it is locked.
    version: VersionWord,
    /// The number of slots that ideal slots are computed over.
    span: AtomicU64,
    /// The number of entries.
    keys: AtomicUsize,
    /// Where the next search for an entry to evict starts.
    evict_cursor: AtomicUsize,
    /// States of algorithms that keep a list per key, once there was one. Only used while the shard is locked, so that
    /// this lock is always free.
    lists: OnceLock<Box<Mutex<ListStates>>>,
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<ShardHeader>() == super::geometry::SHARD_HEADER_BYTES);

impl ShardHeader {
    /// The ideal slot of a fingerprint.
    #[inline(always)]
    pub(super) fn ideal_slot(&self, fingerprint: u64) -> usize {
        ideal_slot(fingerprint, self.span.load(Relaxed))
    }
}

/// A shard of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shard<'a> {
    pub(super) header: &'a ShardHeader,
    pub(super) words: &'a [AtomicU64],
    pub(super) geometry: &'a TableGeometry,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotPosition {
    /// The fingerprint is in this slot.
    Found(usize),
    /// The fingerprint is absent and would be inserted before this slot.
    InsertAt(usize),
}

/// An entry that was read without the lock, and the version of the shard that it was read at.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadEntry<'a> {
    pub(super) entry: TableEntry,
    words: &'a SlotWords,
    version: u64,
}

impl<'a> Shard<'a> {
    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(self) -> ShardGuard<'a> {
        loop {
            let version = self.header.version.load(Relaxed);
            if version.is_multiple_of(2)
                && let Some(guard) = self.lock_at(version)
            {
                return guard;
            }
            sync::relax();
        }
    }

    /// Locks the shard if it has still this even version.
    #[inline(always)]
    fn lock_at(self, version: u64) -> Option<ShardGuard<'a>> {
        self.header.version.compare_exchange(version, version + 1, Acquire, Relaxed).ok()?;
        // A reader that sees any write from here on also sees that the version is odd.
        fence(Release);
        Some(ShardGuard { shard: self, version: version + 1 })
    }

    /// Reads the entry of a key without locking the shard. It may be a mixture of two entries until
    /// [`is_unchanged`](Shard::is_unchanged) has confirmed it. Returns `None` if the shard is locked, or the entry is
    /// not near its ideal slot.
    #[inline(always)]
    pub(super) fn read(self, fingerprint: u64) -> Option<ReadEntry<'a>> {
        let version = self.header.version.load(Acquire);
        if !version.is_multiple_of(2) {
            return None;
        }
        let words = self.find_near(fingerprint)?;
        Some(ReadEntry { entry: TableEntry::unpack(load_entry(words)), words, version })
    }

    /// Whether the shard has not changed since an entry was read.
    #[inline(always)]
    pub(super) fn is_unchanged(self, read: &ReadEntry<'_>) -> bool {
        fence(Acquire);
        self.header.version.load(Relaxed) == read.version
    }

    /// Overwrites an entry if the shard has not changed since it was read. Returns whether it did.
    #[inline(always)]
    pub(super) fn replace_unchanged(self, read: &ReadEntry<'_>, entry: TableEntry) -> bool {
        let guard = self.lock_at(read.version);
        if guard.is_some() {
            store_entry(read.words, entry.pack());
        }
        guard.is_some()
    }

    /// Looks up a fingerprint in the first slots from its ideal one, where nearly all are.
    ///
    /// In which of them it is can't be predicted, so each has a bit instead of a branch: with 1000 random keys a check
    /// takes 41 ns instead of 48.
    #[inline(always)]
    fn find_near(self, fingerprint: u64) -> Option<&'a SlotWords> {
        let ideal = self.header.ideal_slot(fingerprint);
        let window: &[AtomicU64; WINDOW_WORDS] = self.words.get(ideal * SLOT_WORDS..)?.first_chunk()?;
        // The last bit means that it is in none of them.
        let mut found = 1_u32 << WINDOW_SLOTS;
        for slot in 0..WINDOW_SLOTS {
            found |= u32::from(window[slot * SLOT_WORDS].load(Relaxed) == fingerprint) << slot;
        }
        window.get(found.trailing_zeros() as usize * SLOT_WORDS..)?.first_chunk()
    }

    /// Looks up a fingerprint.
    #[inline(always)]
    pub(super) fn find(&self, fingerprint: u64) -> SlotPosition {
        let mut slot = self.header.ideal_slot(fingerprint);
        loop {
            match self.fingerprint(slot) {
                found if found == fingerprint => return SlotPosition::Found(slot),
                found if found == 0 || found > fingerprint => return SlotPosition::InsertAt(slot),
                _ => slot += 1,
            }
        }
    }

    /// The number of slots.
    fn slots(&self) -> usize {
        self.words.len() / SLOT_WORDS
    }

    /// The fingerprint in a slot, or 0 if the slot is empty or out of range.
    #[inline(always)]
    pub(super) fn fingerprint(&self, slot: usize) -> u64 {
        self.words.get(slot * SLOT_WORDS).map_or(0, |word| word.load(Relaxed))
    }

    #[inline(always)]
    fn slot_words(self, slot: usize) -> &'a SlotWords {
        self.words[slot * SLOT_WORDS..].first_chunk().expect("a slot has three words")
    }

    /// The entry in a slot.
    #[inline(always)]
    pub(super) fn entry(self, slot: usize) -> TableEntry {
        TableEntry::unpack(load_entry(self.slot_words(slot)))
    }

    /// The number of slots that ideal slots are computed over.
    pub(super) fn span(&self) -> usize {
        usize::try_from(self.header.span.load(Relaxed)).unwrap_or(0)
    }

    /// The number of entries.
    pub(super) fn keys(&self) -> usize {
        self.header.keys.load(Relaxed)
    }

    /// The end of the slots that may hold an entry.
    pub(super) fn occupied_end(&self) -> usize {
        match self.span() {
            0 => 0,
            span => (span + OVERFLOW_SLOTS).min(self.slots()),
        }
    }

    /// Whether one more entry would make look-ups slow or exceed the capacity.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        span_for(self.keys() + 1) > self.span() || self.is_at_capacity()
    }

    /// Whether the shard has the maximum number of keys.
    pub(super) fn is_at_capacity(&self) -> bool {
        self.keys() >= self.geometry.keys
    }
}

/// Exclusive access to a locked shard.
#[derive(Debug)]
pub(super) struct ShardGuard<'a> {
    shard: Shard<'a>,
    /// The version while it is locked.
    version: u64,
}

impl Drop for ShardGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.shard.header.version.store(self.version + 1, Release);
    }
}

impl<'a> Deref for ShardGuard<'a> {
    type Target = Shard<'a>;

    #[inline(always)]
    fn deref(&self) -> &Shard<'a> {
        &self.shard
    }
}

impl<'a> ShardGuard<'a> {
    /// The list states of the shard.
    pub(super) fn lists(&self) -> MutexGuard<'a, ListStates> {
        self.shard.header.lists.get_or_init(Box::default).lock()
    }

    /// The list states of the shard. Returns `None` if it never had one.
    #[inline]
    pub(super) fn lists_if_any(&self) -> Option<MutexGuard<'a, ListStates>> {
        self.shard.header.lists.get().map(|lists| lists.lock())
    }

    /// Overwrites the entry in a slot.
    #[inline(always)]
    pub(super) fn set_entry(&self, slot: usize, entry: TableEntry) {
        store_entry(self.slot_words(slot), entry.pack());
    }

    #[inline(always)]
    fn set_fingerprint(&self, slot: usize, fingerprint: u64) {
        self.words[slot * SLOT_WORDS].store(fingerprint, Relaxed);
    }

    /// The slot at which the next search for an entry to evict starts, which moves on by one.
    pub(super) fn advance_evict_cursor(&self) -> usize {
        let slot = self.header.evict_cursor.load(Relaxed) % self.occupied_end();
        self.header.evict_cursor.store(slot + 1, Relaxed);
        slot
    }

    /// Inserts an entry before a slot returned by [`Shard::find`]. Returns `false` if there is no empty slot to shift
    /// the following entries into.
    pub(super) fn insert(&self, slot: usize, fingerprint: u64, entry: TableEntry) -> bool {
        let Some(gap) = (slot..self.occupied_end()).find(|slot| self.fingerprint(*slot) == 0) else {
            return false;
        };
        for to in (slot + 1..=gap).rev() {
            self.copy_slot(to - 1, to);
        }
        self.set_fingerprint(slot, fingerprint);
        self.set_entry(slot, entry);
        self.header.keys.store(self.keys() + 1, Relaxed);
        true
    }

    /// Removes an entry and moves the entries that it displaced back.
    pub(super) fn remove(&self, slot: usize) {
        let mut hole = slot;
        while self.fingerprint(hole + 1) != 0 && self.header.ideal_slot(self.fingerprint(hole + 1)) <= hole {
            self.copy_slot(hole + 1, hole);
            hole += 1;
        }
        self.set_fingerprint(hole, 0);
        self.header.keys.store(self.keys() - 1, Relaxed);
    }

    /// Rebuilds the shard over `span` slots with the entries that pass `keep`.
    pub(super) fn rebuild(&self, span: usize, mut keep: impl FnMut(&TableEntry) -> bool) {
        let end = self.occupied_end().max((span + OVERFLOW_SLOTS).min(self.slots()));
        let mut kept = 0;
        for slot in 0..self.occupied_end() {
            if self.fingerprint(slot) != 0 && keep(&self.entry(slot)) {
                self.copy_slot(slot, kept);
                kept += 1;
            }
        }
        self.header.span.store(span as u64, Relaxed);
        self.header.keys.store(kept, Relaxed);
        self.redistribute(kept, end);
    }

    /// Moves the first `kept` entries to the end of the range, then each to its ideal slot or the nearest free one
    /// after it.
    fn redistribute(&self, kept: usize, end: usize) {
        for from in (0..kept).rev() {
            self.copy_slot(from, end - kept + from);
        }
        let mut free = 0;
        for from in end - kept..end {
            // Entries only move left here, so an entry that is yet to be moved is never overwritten.
            let to = self.header.ideal_slot(self.fingerprint(from)).max(free).min(from);
            for slot in free..to {
                self.set_fingerprint(slot, 0);
            }
            self.copy_slot(from, to);
            free = to + 1;
        }
        for slot in free..end {
            self.set_fingerprint(slot, 0);
        }
    }

    #[inline]
    fn copy_slot(&self, from: usize, to: usize) {
        store_entry(self.slot_words(to), load_entry(self.slot_words(from)));
        self.set_fingerprint(to, self.fingerprint(from));
    }
}

#[inline(always)]
fn load_entry([_, first, second]: &SlotWords) -> [u64; 2] {
    let first = first.load(Relaxed);
    sync::interleave();
    [first, second.load(Relaxed)]
}

#[inline(always)]
fn store_entry([_, first, second]: &SlotWords, words: [u64; 2]) {
    first.store(words[0], Relaxed);
    sync::interleave();
    second.store(words[1], Relaxed);
}

/// The ideal slot of a fingerprint in a shard of `span` slots. It is monotonic: a larger fingerprint never has a
/// smaller ideal slot.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the slot is below `span`, which is a number of slots")]
fn ideal_slot(fingerprint: u64, span: u64) -> usize {
    let slot = (u128::from(fingerprint) * u128::from(span)) >> 64;
    slot as usize
}
