//! The fields of an entry that a draw from the lease needs, in one cache line.
//!
//! In memory they are relaxed atomics, so that a batch can prefetch the line before it takes the lock. They are
//! read and written as a whole by the thread that holds the lock.

use super::demand::DrawCounters;
use ratekeeper_core::{DrawOutcome, DrawResult, Limit, Micros, State};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Number of words in the cache line.
const WORDS: usize = 8;

/// The fields that a draw from the lease needs. In memory they are a [cache line](PackedHot).
#[derive(Debug, Default)]
pub(super) struct HotFields {
    /// The state that the store last sent, with all leased units counted as taken.
    pub(super) store_state: State,
    /// How far the store's clock is ahead of this node's, in microseconds. It is never too small, and too large
    /// by at most the time that the last request took to reach the store.
    pub(super) store_offset: i64,
    /// The deadline of the lease.
    pub(super) deadline: Micros,
    /// Units that may be spent.
    pub(super) unspent: u32,
    /// A draw that leaves fewer unspent units than this triggers a renewal.
    pub(super) renew_below: u32,
    /// Units that were spent and not yet reported.
    pub(super) unreported: u32,
    /// The limit's slot in the limit table.
    pub(super) limit_slot: u32,
    pub(super) draw_counters: DrawCounters,
    /// Serial number of the lease. It changes with each renewal and each reply. It is here because every draw
    /// needs it for its receipt.
    pub(super) serial: u32,
}

/// [`HotFields`] as they are in memory.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct PackedHot([AtomicU64; WORDS]);

impl PackedHot {
    /// Loads the line into the cache.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        black_box(self.0[0].load(Relaxed));
    }
}

impl HotFields {
    #[inline(always)]
    pub(super) fn read(packed: &PackedHot) -> HotFields {
        let word = |index: usize| packed.0[index].load(Relaxed);
        let ((unspent, renew_below), (unreported, limit_slot), (draws, units)) =
            (unpack_pair(word(4)), unpack_pair(word(5)), unpack_pair(word(6)));
        HotFields {
            store_state: State::new(word(0), word(1)),
            store_offset: word(2).cast_signed(),
            deadline: Micros::new(word(3)),
            unspent,
            renew_below,
            unreported,
            limit_slot,
            draw_counters: DrawCounters { draws, units },
            serial: unpack_pair(word(7)).0,
        }
    }

    /// Writes the words that have changed. The others are not written, because other cores may have the line in
    /// their caches.
    pub(super) fn write(&self, packed: &PackedHot) {
        let (first, second) = self.store_state.numbers();
        let words = [first, second, self.store_offset.cast_unsigned(), self.deadline.get()];
        for (word, value) in packed.0.iter().zip(words.into_iter().chain(self.small_words())) {
            if word.load(Relaxed) != value {
                word.store(value, Relaxed);
            }
        }
    }

    /// Writes the words that a draw from the lease changes.
    #[inline(always)]
    pub(super) fn write_spent(&self, packed: &PackedHot) {
        let [unspent, unreported, counters, _] = self.small_words();
        packed.0[4].store(unspent, Relaxed);
        packed.0[5].store(unreported, Relaxed);
        packed.0[6].store(counters, Relaxed);
    }

    /// The last four words, each of two 32-bit fields.
    #[inline(always)]
    fn small_words(&self) -> [u64; 4] {
        [
            pack_pair(self.unspent, self.renew_below),
            pack_pair(self.unreported, self.limit_slot),
            pack_pair(self.draw_counters.draws, self.draw_counters.units),
            pack_pair(self.serial, 0),
        ]
    }

    /// Whether there are units to spend or to report.
    pub(super) fn has_lease(&self, now: Micros) -> bool {
        now < self.deadline && (self.unspent > 0 || self.unreported > 0)
    }

    /// Spends units and returns the result for the client, which counts what is left at the store and in the
    /// lease. The caller checks that there are enough units.
    #[inline(always)]
    pub(super) fn spend(&mut self, limit: &Limit, units: u32, now: Micros) -> DrawResult {
        self.unspent -= units;
        self.unreported += units;
        self.count_draw(units);
        let at = self.store_time(now);
        let left = limit.refund_unspent(self.store_state, at, self.unspent, self.unreported);
        DrawResult::from_state(DrawOutcome::Granted(units), at, left)
    }

    #[inline(always)]
    pub(super) fn count_draw(&mut self, units: u32) {
        self.draw_counters.draws = self.draw_counters.draws.wrapping_add(1);
        self.draw_counters.units = self.draw_counters.units.wrapping_add(units);
    }

    /// The store's time: never too early, and late by at most the time that the last request took to reach the
    /// store.
    #[inline(always)]
    pub(super) fn store_time(&self, now: Micros) -> Micros {
        Micros::new(now.get().saturating_add_signed(self.store_offset))
    }
}

/// Packs two 32-bit numbers into one word.
#[inline(always)]
fn pack_pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a half has 32 bits")]
fn unpack_pair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
