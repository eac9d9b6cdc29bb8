//! Which keys were found empty a moment ago.
//!
//! A key that the store has just refused is likely to be asked for again at once. That it is still empty can be worked
//! out from what is remembered of it, exactly, but for one thing: another node may have given something back, or have
//! cleared it. So the memory is trusted for a second only, and then the store is asked once more.

use foldhash::quality::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::{Duration, Instant};

/// How many keys there are notes of: one of two that share a place is forgotten.
const PLACES: usize = 1 << 14;
/// For how long a note holds, in milliseconds.
const HOLDS_MILLIS: u64 = 1000;

/// Notes of keys that were found empty.
#[derive(Debug)]
pub(super) struct DenialCache {
    random: RandomState,
    origin: Instant,
    /// The upper half of a key's hash, and when it was noted, in milliseconds.
    places: Box<[AtomicU64]>,
}

impl DenialCache {
    pub(super) fn new() -> DenialCache {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        // Time begins a while ago, so that nothing seems to have been noted at its beginning.
        let now = Instant::now();
        let origin = now.checked_sub(Duration::from_millis(2 * HOLDS_MILLIS)).unwrap_or(now);
        DenialCache { random: RandomState::default(), origin, places }
    }

    /// What stands for something in these notes.
    pub(super) fn hash(&self, what: impl Hash) -> u64 {
        self.random.hash_one(what)
    }

    /// Notes that it was found empty now.
    pub(super) fn note(&self, hash: u64, now: Instant) {
        self.place(hash).store(hash & UPPER | self.millis(now), Relaxed);
    }

    /// Whether it was found empty less than a second ago.
    pub(super) fn is_fresh(&self, hash: u64, now: Instant) -> bool {
        let noted = self.place(hash).load(Relaxed);
        let age = self.millis(now).wrapping_sub(noted) & LOWER;
        noted & UPPER == hash & UPPER && age < HOLDS_MILLIS
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        let place = usize::try_from(hash & LOWER).unwrap_or(0) % PLACES;
        &self.places[place]
    }

    /// Milliseconds since the beginning, in 32 bits: they come round in seven weeks.
    fn millis(&self, now: Instant) -> u64 {
        let millis = now.saturating_duration_since(self.origin).as_millis();
        u64::try_from(millis).unwrap_or(0) & LOWER
    }
}

const LOWER: u64 = 0xffff_ffff;
const UPPER: u64 = !LOWER;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_note_holds_for_a_second() {
        let notes = DenialCache::new();
        let (hash, other) = (notes.hash("a"), notes.hash("b"));
        assert!(!notes.is_fresh(hash, Instant::now()));
        notes.note(hash, Instant::now());
        assert!(notes.is_fresh(hash, Instant::now()) && !notes.is_fresh(other, Instant::now()));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(notes.is_fresh(hash, Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!notes.is_fresh(hash, Instant::now()));
    }
}
