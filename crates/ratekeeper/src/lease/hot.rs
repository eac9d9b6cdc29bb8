//! What a draw from hand needs of a cell: a line of the cache.
//!
//! It lies in memory as words that are relaxed atomics, so that a batch may touch it before it takes the lock, and is read
//! and written as a whole by whoever has the lock.

use super::demand::DrawCounters;
use ratekeeper_core::{DrawOutcome, DrawResult, Limit, Micros, State};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words of a line.
const WORDS: usize = 8;

/// What a draw from hand needs. In memory it is [a line](PackedHot) of the cache.
#[derive(Debug, Default)]
pub(super) struct HotFields {
    /// What the store said last, with all that is lent counted as taken.
    pub(super) seen: State,
    /// By how many microseconds the store's clock is ahead of this one, or a little less.
    pub(super) ahead: i64,
    /// When the lease ends.
    pub(super) ends: Micros,
    /// Units that may be spent.
    pub(super) hand: u32,
    /// With how many in hand it is time to ask for more.
    pub(super) low: u32,
    /// Units of the lease that were spent and not told of.
    pub(super) spent: u32,
    /// The limit that they are of.
    pub(super) page: u32,
    pub(super) counts: DrawCounters,
    /// Changes whenever something is said or heard of the lease. It is here because every draw is given it.
    pub(super) serial: u32,
}

/// What a draw from hand needs of a cell, as it lies in memory.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct PackedHot([AtomicU64; WORDS]);

impl PackedHot {
    /// Reads it and forgets what it said, so that it is near when it is needed.
    #[inline(always)]
    pub(super) fn touch(&self) {
        black_box(self.0[0].load(Relaxed));
    }
}

impl HotFields {
    #[inline(always)]
    pub(super) fn read(line: &PackedHot) -> HotFields {
        let word = |index: usize| line.0[index].load(Relaxed);
        let ((hand, low), (spent, page), (draws, units)) =
            (halves(word(4)), halves(word(5)), halves(word(6)));
        HotFields {
            seen: State::new(word(0), word(1)),
            ahead: word(2).cast_signed(),
            ends: Micros::new(word(3)),
            hand,
            low,
            spent,
            page,
            counts: DrawCounters { draws, units },
            serial: halves(word(7)).0,
        }
    }

    /// Writes what has changed. What has not is left alone: other cores may have it in their caches.
    pub(super) fn write(&self, line: &PackedHot) {
        let (first, second) = self.seen.numbers();
        let words = [first, second, self.ahead.cast_unsigned(), self.ends.get()];
        for (word, value) in line.0.iter().zip(words.into_iter().chain(self.small())) {
            if word.load(Relaxed) != value {
                word.store(value, Relaxed);
            }
        }
    }

    /// Writes what a draw from hand changes.
    #[inline(always)]
    pub(super) fn write_taken(&self, line: &PackedHot) {
        let [hand, spent, counts, _] = self.small();
        line.0[4].store(hand, Relaxed);
        line.0[5].store(spent, Relaxed);
        line.0[6].store(counts, Relaxed);
    }

    /// The last four words: two small numbers each.
    #[inline(always)]
    fn small(&self) -> [u64; 4] {
        [
            word(self.hand, self.low),
            word(self.spent, self.page),
            word(self.counts.draws, self.counts.units),
            word(self.serial, 0),
        ]
    }

    /// Whether there is something of a lease to spend or to tell.
    pub(super) fn is_lent(&self, now: Micros) -> bool {
        now < self.ends && (self.hand > 0 || self.spent > 0)
    }

    /// Spends units that are in hand, and words what the limit says: all that is left at the store and here.
    #[inline(always)]
    pub(super) fn take(&mut self, limit: &Limit, units: u32, now: Micros) -> DrawResult {
        self.hand -= units;
        self.spent += units;
        self.count(units);
        let at = self.store_time(now);
        let left = limit.give_unspent(self.seen, at, self.hand, self.spent);
        DrawResult::of_state(DrawOutcome::Granted(units), at, left)
    }

    #[inline(always)]
    pub(super) fn count(&mut self, units: u32) {
        self.counts.draws = self.counts.draws.wrapping_add(1);
        self.counts.units = self.counts.units.wrapping_add(units);
    }

    /// What the store's clock shows: never less, and more by the time that its last question took to get there.
    #[inline(always)]
    pub(super) fn store_time(&self, now: Micros) -> Micros {
        Micros::new(now.get().saturating_add_signed(self.ahead))
    }
}

/// Two small numbers as one word, and back.
#[inline(always)]
fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a half has 32 bits")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
