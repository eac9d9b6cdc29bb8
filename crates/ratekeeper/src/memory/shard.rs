//! One shard: entries in the order of their marks, spread over its slots.
//!
//! A mark is a random number, so its place in an ordered row can be guessed: a mark a third of the way through all
//! marks belongs a third of the way into the row. An entry stands at that place, its *home*, or after it, pushed on by
//! smaller marks before it. Looking one up starts at home and ends at the mark, at a larger one, or at a gap.
//! Because the order never changes, rearranging a shard for more slots is one pass to the right and one to the left
//! within the same memory.

use super::entry::TableEntry;
use super::list_states::ListStates;
use super::table::{MARGIN, ShardGuard, home};

/// What a shard knows of itself.
#[derive(Debug, Default)]
pub(crate) struct MemoryShard {
    /// Over how many slots the homes are spread.
    pub(crate) spread: usize,
    /// How many entries it has.
    pub(crate) keys: usize,
    /// Where the search for something to drop goes on.
    pub(crate) hand: usize,
    /// The keys whose laws keep a roll. Boxed, so that a shard and its lock fit one cache line.
    pub(crate) rolls: Box<ListStates>,
}

impl MemoryShard {
    /// Slots that so many keys are spread over when there are no more: 85 % full. A look-up then passes three
    /// strangers on average.
    pub(crate) fn homes_for(keys: usize) -> usize {
        keys + keys * 3 / 17 + 1
    }
}

/// Where a mark is, or where it would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotPosition {
    Here(usize),
    Before(usize),
}

impl ShardGuard<'_> {
    /// Looks a mark up.
    #[inline(always)]
    pub(crate) fn find(&self, mark: u64) -> SlotPosition {
        let mut slot = home(mark, self.shard.spread as u64);
        loop {
            match self.mark(slot) {
                found if found == mark => return SlotPosition::Here(slot),
                found if found == 0 || found > mark => return SlotPosition::Before(slot),
                _ => slot += 1,
            }
        }
    }

    /// The entry in a slot.
    #[inline(always)]
    pub(crate) fn entry(&self, slot: usize) -> TableEntry {
        TableEntry::unpack(self.words(slot))
    }

    /// Changes the entry in a slot.
    #[inline(always)]
    pub(crate) fn set(&self, slot: usize, entry: TableEntry) {
        self.set_words(slot, entry.pack());
    }

    /// Whether one more entry would make look-ups slow, or the shard too large.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        MemoryShard::homes_for(self.shard.keys + 1) > self.shard.spread || self.is_at_cap()
    }

    /// Whether it has as many keys as it may.
    pub(crate) fn is_at_cap(&self) -> bool {
        self.shard.keys >= self.geometry.keys
    }

    /// Adds an entry before a slot that [`ShardGuard::find`] named; says whether there was a gap to push the others into.
    pub(crate) fn insert(&mut self, slot: usize, mark: u64, entry: TableEntry) -> bool {
        let Some(gap) = (slot..self.reach()).find(|slot| self.mark(*slot) == 0) else { return false };
        for to in (slot + 1..=gap).rev() {
            self.copy(to - 1, to);
        }
        self.set_mark(slot, mark);
        self.set(slot, entry);
        self.shard.keys += 1;
        true
    }

    /// Takes an entry out and lets those it had pushed on move back.
    pub(crate) fn remove(&mut self, slot: usize) {
        let mut hole = slot;
        while self.mark(hole + 1) != 0 && home(self.mark(hole + 1), self.shard.spread as u64) <= hole {
            self.copy(hole + 1, hole);
            hole += 1;
        }
        self.set_mark(hole, 0);
        self.shard.keys -= 1;
    }

    /// Spreads the entries that pass `keep` over so many slots.
    pub(crate) fn spread(&mut self, spread: usize, mut keep: impl FnMut(&TableEntry) -> bool) {
        let reach = self.reach().max((spread + MARGIN).min(self.slots()));
        let mut kept = 0;
        for slot in 0..self.reach() {
            if self.mark(slot) != 0 && keep(&self.entry(slot)) {
                self.copy(slot, kept);
                kept += 1;
            }
        }
        self.set_spread(spread);
        self.shard.keys = kept;
        self.lay_out(kept, reach);
    }

    /// Moves the first `kept` entries to the end of the row, then each to its home or as near behind it as it can be.
    fn lay_out(&mut self, kept: usize, reach: usize) {
        for from in (0..kept).rev() {
            self.copy(from, reach - kept + from);
        }
        let mut free = 0;
        for from in reach - kept..reach {
            // An entry never moves to the right here, so none that is still to come is overwritten.
            let to = home(self.mark(from), self.shard.spread as u64).max(free).min(from);
            for slot in free..to {
                self.set_mark(slot, 0);
            }
            self.copy(from, to);
            free = to + 1;
        }
        for slot in free..reach {
            self.set_mark(slot, 0);
        }
    }

    /// The end of the slots that may hold an entry.
    pub(crate) fn reach(&self) -> usize {
        match self.shard.spread {
            0 => 0,
            spread => (spread + MARGIN).min(self.slots()),
        }
    }

    #[inline]
    fn copy(&self, from: usize, to: usize) {
        self.set_words(to, self.words(from));
        self.set_mark(to, self.mark(from));
    }
}
