//! The keyed hash that represents a key in the table.
//!
//! The key itself is not stored. One SipHash-1-3 with a random per-process key yields 128 bits: the first half is the
//! fingerprint, which also determines the slot, and the second half selects the shard. Without the hash key, an
//! attacker can't find keys that collide or crowd one slot. By chance, two of ten million keys collide in one of some
//! 10^9 such tables. Every algorithm family and key shape has its own hash key, so that their states never collide
//! either.

use ratekeeper_core::{Algorithm, Draws, KeyRef, Limit, Scope};
use siphasher::sip128::SipHasher13;
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// 2^64 divided by the golden ratio: an odd number without a pattern that spreads small scope numbers over all
/// fingerprints.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash {
    /// Identifies and orders the keys of a shard. Never 0, which denotes an empty slot.
    pub(crate) fingerprint: u64,
    /// Selects the shard.
    pub(crate) shard_bits: u64,
}

/// The hash keys of a store: one for each algorithm family and key shape.
pub(crate) struct KeyHasher {
    hashers: [[SipHasher13; 2]; Algorithm::FAMILIES],
    /// Distinguishes this hasher's cache entries from those of others.
    id: u64,
}

impl KeyHasher {
    /// Creates unpredictable hash keys: each is the hash of a number under a randomly keyed [`RandomState`].
    pub(crate) fn random() -> KeyHasher {
        let random = RandomState::new();
        KeyHasher::from_keys(|family, shape, half| random.hash_one((family, shape, half)))
    }

    /// Creates the hash keys of a seed. With the seed, a client can choose keys that collide.
    pub(crate) fn with_seed(seed: u64) -> KeyHasher {
        KeyHasher::from_keys(|family, shape, half| {
            seed.wrapping_add(((family << 2 | shape << 1 | half) as u64).wrapping_mul(GOLDEN_RATIO))
        })
    }

    fn from_keys(hash_key: impl Fn(usize, usize, usize) -> u64) -> KeyHasher {
        let hasher = |family: usize, shape: usize| {
            SipHasher13::new_with_keys(hash_key(family, shape, 0), hash_key(family, shape, 1))
        };
        let hashers = std::array::from_fn(|family| std::array::from_fn(|shape| hasher(family, shape)));
        KeyHasher { hashers, id: NEXT_HASHER_ID.fetch_add(1, Relaxed) }
    }

    /// The hash of a key under a limit: from this thread's cache, or computed.
    #[inline(always)]
    pub(crate) fn key_hash(&self, key: KeyRef<'_>, limit: &Limit) -> KeyHash {
        let (bytes, shape) = (key.bytes(), usize::from(key.is_composite()));
        let Some(words) = words(bytes) else { return self.hash_uncached(bytes, limit.family(), shape) };
        let label = self.id << 16 | (limit.family() << 9 | shape << 8 | bytes.len()) as u64;
        HASH_CACHE.with(|cache| {
            let slot = &cache[cache_index(words)];
            let cached = slot.get();
            if cached.matches(words, label) {
                return cached.key_hash;
            }
            self.hash_into(slot, bytes, label)
        })
    }

    /// Hashes the keys of a group into `key_hashes` and returns their number. A key that consecutive draws share is
    /// hashed once.
    pub(crate) fn hash_group(&self, draws: &Draws, group: usize, key_hashes: &mut [KeyHash]) -> usize {
        let draws_of_group = draws.group(group);
        let mut key_hash = KeyHash::NONE;
        for (index, draw) in draws_of_group.iter().enumerate() {
            let is_hashed = index > 0 && draw.has_same_hash_as(&draws_of_group[index - 1]);
            if !is_hashed {
                key_hash = self.key_hash(draws.key(draw), draw.limit());
            }
            key_hashes[index] = key_hash.in_scope(draw.scope());
        }
        draws_of_group.len()
    }

    /// Computes the hash of a key and caches it in a slot. The label tells the algorithm family and the key shape.
    ///
    /// Not inlined, and with few arguments, so that a hit pays nothing for it.
    #[inline(never)]
    fn hash_into(&self, slot: &Cell<CachedHash>, bytes: &[u8], label: u64) -> KeyHash {
        let (family, shape) = ((label >> 9 & 0x7f) as usize, (label >> 8 & 1) as usize);
        let key_hash = self.hash_uncached(bytes, family, shape);
        if let Some(words) = words(bytes) {
            slot.set(CachedHash { words, label, key_hash });
        }
        key_hash
    }

    #[inline]
    fn hash_uncached(&self, bytes: &[u8], family: usize, shape: usize) -> KeyHash {
        let hash = self.hashers[family][shape].hash(bytes);
        KeyHash { fingerprint: hash.h1, shard_bits: hash.h2 }
    }
}

static NEXT_HASHER_ID: AtomicU64 = AtomicU64::new(1);

/// The number of keys in a thread's cache, a power of two. It takes 64 KB: with 256 keys, a check of one of 1000 random
/// keys takes 40 ns instead of 36.
const CACHED_KEYS: usize = 1024;

thread_local! {
    static HASH_CACHE: [Cell<CachedHash>; CACHED_KEYS] = const { [const { Cell::new(CachedHash::NONE) }; CACHED_KEYS] };
}

/// The hash of a key of 8 to 32 bytes that this thread hashed recently. Traffic is skewed towards a few keys, and
/// comparing a key is much faster than hashing it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CachedHash {
    words: [u64; 4],
    /// The hasher's id, the algorithm family, the key shape, and the key's length.
    label: u64,
    key_hash: KeyHash,
}

impl CachedHash {
    const NONE: CachedHash = CachedHash { words: [0; 4], label: 0, key_hash: KeyHash::NONE };

    /// Compares word by word, so that the words stay in registers: comparing the arrays would write them to memory
    /// first and wait for it.
    #[inline(always)]
    fn matches(&self, words: [u64; 4], label: u64) -> bool {
        let [a, b, c, d] = self.words;
        let differ = (a ^ words[0]) | (b ^ words[1]) | (c ^ words[2]) | (d ^ words[3]) | (self.label ^ label);
        differ == 0
    }
}

/// The bytes of a key of 8 to 32 bytes as four words, which may overlap. Together with the length they identify the
/// key. Returns `None` for other lengths.
#[inline]
fn words(bytes: &[u8]) -> Option<[u64; 4]> {
    if bytes.len() > 32 {
        return None;
    }
    let first = u64::from_le_bytes(*bytes.first_chunk()?);
    let last = u64::from_le_bytes(*bytes.last_chunk()?);
    let (second, third) = match (bytes.first_chunk::<16>(), bytes.last_chunk::<16>()) {
        (Some(front), Some(back)) => {
            (u64::from_le_bytes(*front.last_chunk()?), u64::from_le_bytes(*back.first_chunk()?))
        }
        _ => (0, 0),
    };
    Some([first, second, third, last])
}

/// The cache slot of a key. It need not be unpredictable: a key that shares the slot is detected and hashed again.
#[inline]
fn cache_index(words: [u64; 4]) -> usize {
    let mixed = words[0] ^ words[1].rotate_left(17) ^ words[2].rotate_left(31) ^ words[3].rotate_left(47);
    let index = mixed.wrapping_mul(GOLDEN_RATIO) >> (u64::BITS - CACHED_KEYS.trailing_zeros());
    usize::try_from(index).unwrap_or(0)
}

impl KeyHash {
    /// The hash of no key.
    pub(crate) const NONE: KeyHash = KeyHash { fingerprint: 0, shard_bits: 0 };

    /// The hash of the same key in a scope. Adding a public number keeps a secret hash secret, so several limits of a
    /// key share one hash computation.
    #[inline]
    pub(crate) fn in_scope(self, scope: Scope) -> KeyHash {
        let offset = scope.0.wrapping_mul(GOLDEN_RATIO);
        KeyHash {
            fingerprint: self.fingerprint.wrapping_add(offset).max(1),
            shard_bits: self.shard_bits.wrapping_add(offset.rotate_left(32)),
        }
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The hash keys are secret and must not be logged.
        f.write_str("KeyHasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::Quota;
    use std::collections::HashSet;

    /// Keys of every length around the bounds of the cache, which differ in one byte, in an order in which each finds
    /// the cache entries of the others: an entry must never match another key, algorithm, shape or store.
    #[test]
    fn a_cached_hash_never_matches_another_key() {
        let limit = |algorithm| Limit::new(algorithm, Quota::per_second(1)).unwrap();
        let limits = [limit(Algorithm::TokenBucket), limit(Algorithm::SlidingWindowCounter)];
        let hashers = [KeyHasher::random(), KeyHasher::random()];
        let mut seen = HashSet::new();
        for length in 0..40 {
            for changed in 0..=length {
                let mut bytes = vec![b'a'; length];
                if let Some(byte) = bytes.get_mut(changed) {
                    *byte = b'b';
                }
                let text = String::from_utf8(bytes).unwrap();
                for (store, hasher) in hashers.iter().enumerate() {
                    for limit in &limits {
                        let key_hash = hasher.key_hash(text.as_str().into(), limit);
                        assert_eq!(
                            key_hash,
                            hasher.hash_uncached(text.as_bytes(), limit.family(), 0),
                            "{text:?}"
                        );
                        assert_eq!(
                            key_hash,
                            hasher.key_hash(text.as_str().into(), limit),
                            "{text:?} from the cache"
                        );
                        assert!(
                            seen.insert((key_hash.fingerprint, key_hash.shard_bits)),
                            "{text:?} in store {store} collided"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn scopes_of_a_key_differ_and_no_fingerprint_is_zero() {
        let key_hash = KeyHash { fingerprint: 7, shard_bits: 9 };
        let scoped: HashSet<u64> =
            (0..1000).map(|scope| key_hash.in_scope(Scope(scope)).fingerprint).collect();
        assert_eq!(scoped.len(), 1000);
        assert_eq!(key_hash.in_scope(Scope(0)), key_hash);
        assert_ne!(KeyHash::NONE.in_scope(Scope(0)).fingerprint, 0);
    }
}
