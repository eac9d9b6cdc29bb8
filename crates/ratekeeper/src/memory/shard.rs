//! One shard: entries ordered by fingerprint and spread over its slots.
//!
//! A fingerprint is a random number, so its position in an ordered array can be interpolated: a fingerprint a third of
//! the way through the value range belongs a third of the way into the slots. An entry is stored in that *ideal slot*
//! or after it, displaced by smaller fingerprints. A look-up starts at the ideal slot and ends at the fingerprint, at a
//! larger one, or at an empty slot. Because the order never changes, rebuilding a shard for more slots takes one pass
//! to the right and one to the left within the same memory.

use super::entry::TableEntry;
use super::list_states::ListStates;
use super::table::{OVERFLOW_SLOTS, ShardGuard, ideal_slot};

/// The bookkeeping of a shard.
#[derive(Debug, Default)]
pub(crate) struct MemoryShard {
    /// The number of slots that ideal slots are computed over.
    pub(crate) span: usize,
    /// The number of entries.
    pub(crate) keys: usize,
    /// Where the next search for an entry to evict starts.
    pub(crate) evict_cursor: usize,
    /// States of algorithms that keep a list per key. Boxed so that a shard and its lock fit one cache line.
    pub(crate) lists: Box<ListStates>,
}

impl MemoryShard {
    /// The smallest span for `keys` keys: 85 % full. A look-up then passes three other entries on average.
    pub(crate) fn span_for(keys: usize) -> usize {
        keys + keys * 3 / 17 + 1
    }
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotPosition {
    /// The fingerprint is in this slot.
    Found(usize),
    /// The fingerprint is absent and would be inserted before this slot.
    InsertAt(usize),
}

impl ShardGuard<'_> {
    /// Looks up a fingerprint.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> SlotPosition {
        let mut slot = ideal_slot(fingerprint, self.shard.span as u64);
        loop {
            match self.fingerprint(slot) {
                found if found == fingerprint => return SlotPosition::Found(slot),
                found if found == 0 || found > fingerprint => return SlotPosition::InsertAt(slot),
                _ => slot += 1,
            }
        }
    }

    /// The entry in a slot.
    #[inline(always)]
    pub(crate) fn entry(&self, slot: usize) -> TableEntry {
        TableEntry::unpack(self.words(slot))
    }

    /// Overwrites the entry in a slot.
    #[inline(always)]
    pub(crate) fn set_entry(&self, slot: usize, entry: TableEntry) {
        self.set_words(slot, entry.pack());
    }

    /// Whether one more entry would make look-ups slow or exceed the capacity.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        MemoryShard::span_for(self.shard.keys + 1) > self.shard.span || self.is_at_capacity()
    }

    /// Whether the shard has the maximum number of keys.
    pub(crate) fn is_at_capacity(&self) -> bool {
        self.shard.keys >= self.geometry.keys
    }

    /// Inserts an entry before a slot returned by [`ShardGuard::find`]. Returns `false` if there is no empty slot to
    /// shift the following entries into.
    pub(crate) fn insert(&mut self, slot: usize, fingerprint: u64, entry: TableEntry) -> bool {
        let Some(gap) = (slot..self.occupied_end()).find(|slot| self.fingerprint(*slot) == 0) else {
            return false;
        };
        for to in (slot + 1..=gap).rev() {
            self.copy_slot(to - 1, to);
        }
        self.set_fingerprint(slot, fingerprint);
        self.set_entry(slot, entry);
        self.shard.keys += 1;
        true
    }

    /// Removes an entry and moves the entries that it displaced back.
    pub(crate) fn remove(&mut self, slot: usize) {
        let mut hole = slot;
        while self.fingerprint(hole + 1) != 0
            && ideal_slot(self.fingerprint(hole + 1), self.shard.span as u64) <= hole
        {
            self.copy_slot(hole + 1, hole);
            hole += 1;
        }
        self.set_fingerprint(hole, 0);
        self.shard.keys -= 1;
    }

    /// Rebuilds the shard over `span` slots with the entries that pass `keep`.
    pub(crate) fn rebuild(&mut self, span: usize, mut keep: impl FnMut(&TableEntry) -> bool) {
        let end = self.occupied_end().max((span + OVERFLOW_SLOTS).min(self.slots()));
        let mut kept = 0;
        for slot in 0..self.occupied_end() {
            if self.fingerprint(slot) != 0 && keep(&self.entry(slot)) {
                self.copy_slot(slot, kept);
                kept += 1;
            }
        }
        self.set_span(span);
        self.shard.keys = kept;
        self.redistribute(kept, end);
    }

    /// Moves the first `kept` entries to the end of the range, then each to its ideal slot or the nearest free one
    /// after it.
    fn redistribute(&mut self, kept: usize, end: usize) {
        for from in (0..kept).rev() {
            self.copy_slot(from, end - kept + from);
        }
        let mut free = 0;
        for from in end - kept..end {
            // Entries only move left here, so an entry that is yet to be moved is never overwritten.
            let to = ideal_slot(self.fingerprint(from), self.shard.span as u64).max(free).min(from);
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

    /// The end of the slots that may hold an entry.
    pub(crate) fn occupied_end(&self) -> usize {
        match self.shard.span {
            0 => 0,
            span => (span + OVERFLOW_SLOTS).min(self.slots()),
        }
    }

    #[inline]
    fn copy_slot(&self, from: usize, to: usize) {
        self.set_words(to, self.words(from));
        self.set_fingerprint(to, self.fingerprint(from));
    }
}
