//! Keys that were denied a moment ago.
//!
//! A key that the store has just denied is likely to be requested again at once. The cached state shows exactly
//! whether it is still exhausted, with one exception: another node may have returned units or reset the key. So
//! the cached state is trusted for one second only, and then the store is asked again.

use foldhash::quality::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::{Duration, Instant};

/// Number of slots. Of two keys that share a slot, the older one is dropped.
const SLOTS: usize = 1 << 14;
/// How long an entry is valid, in milliseconds.
const TTL_MILLIS: u64 = 1000;

/// Keys that were denied a moment ago.
#[derive(Debug)]
pub(crate) struct DenialCache {
    hasher: RandomState,
    origin: Instant,
    /// The upper half of a key's hash, and the time of the denial in milliseconds.
    slots: Box<[AtomicU64]>,
}

impl DenialCache {
    pub(crate) fn new() -> DenialCache {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        // The origin is in the past, so that empty slots are not taken for denials at the origin.
        let now = Instant::now();
        let origin = now.checked_sub(Duration::from_millis(2 * TTL_MILLIS)).unwrap_or(now);
        DenialCache { hasher: RandomState::default(), origin, slots }
    }

    /// The hash of a key in this cache.
    pub(crate) fn hash(&self, key: impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Records that the key was denied now.
    pub(crate) fn insert(&self, hash: u64, now: Instant) {
        self.slot(hash).store(hash & HIGH_BITS | self.millis(now), Relaxed);
    }

    /// Forgets that the key was denied.
    pub(crate) fn remove(&self, hash: u64) {
        let slot = self.slot(hash);
        if slot.load(Relaxed) & HIGH_BITS == hash & HIGH_BITS {
            slot.store(0, Relaxed);
        }
    }

    /// Whether the key was denied less than a second ago.
    pub(crate) fn contains(&self, hash: u64, now: Instant) -> bool {
        let entry = self.slot(hash).load(Relaxed);
        let age = self.millis(now).wrapping_sub(entry) & LOW_BITS;
        entry & HIGH_BITS == hash & HIGH_BITS && age < TTL_MILLIS
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        let slot = usize::try_from(hash & LOW_BITS).unwrap_or(0) % SLOTS;
        &self.slots[slot]
    }

    /// Milliseconds since the origin, in 32 bits: they wrap around after seven weeks.
    fn millis(&self, now: Instant) -> u64 {
        let millis = now.saturating_duration_since(self.origin).as_millis();
        u64::try_from(millis).unwrap_or(0) & LOW_BITS
    }
}

const LOW_BITS: u64 = 0xffff_ffff;
const HIGH_BITS: u64 = !LOW_BITS;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_valid_for_a_second() {
        let cache = DenialCache::new();
        let (hash, other) = (cache.hash("a"), cache.hash("b"));
        assert!(!cache.contains(hash, Instant::now()));
        cache.insert(hash, Instant::now());
        assert!(cache.contains(hash, Instant::now()) && !cache.contains(other, Instant::now()));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(cache.contains(hash, Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!cache.contains(hash, Instant::now()));
    }
}
