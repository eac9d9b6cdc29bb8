//! What stands for a key in the table: a keyed hash.
//!
//! The key itself is not kept. One SipHash-1-3 with a random key of this process gives 128 bits: the first half is the
//! tag and the place, the second half picks the shard. Nobody outside can find two keys that meet, or keys that crowd
//! one place, because nobody outside knows the hash; by chance, two of ten million keys meet once in some 10^9 such
//! tables. Every law family and key shape hashes with a key of its own, so that their states never meet either.

use ratekeeper_core::{Algorithm, KeyRef, Limit, Scope};
use siphasher::sip128::SipHasher13;
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// An odd number without a pattern, 2^64 divided by the golden ratio: it spreads small scopes over all marks.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A key's stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash {
    /// Tells keys of a shard apart, and orders them. Never 0, which marks an empty slot.
    pub(crate) mark: u64,
    /// Picks the shard.
    pub(crate) spread: u64,
}

/// This process's hash keys: one for each law family and key shape.
pub(crate) struct KeyHasher {
    hashers: [[SipHasher13; 2]; Algorithm::FAMILIES],
    /// Tells this tagger's notes from others'.
    id: u64,
}

impl KeyHasher {
    /// Keys that nobody can guess: each is what the system's random hasher makes of a number.
    pub(crate) fn random() -> KeyHasher {
        let random = RandomState::new();
        let hasher = |family: usize, shape: usize| {
            SipHasher13::new_with_keys(
                random.hash_one((family, shape, 0)),
                random.hash_one((family, shape, 1)),
            )
        };
        let hashers = std::array::from_fn(|family| std::array::from_fn(|shape| hasher(family, shape)));
        KeyHasher { hashers, id: TAGGERS.fetch_add(1, Relaxed) }
    }

    /// The tag of a key under a limit of some law: from this thread's notes, or hashed.
    #[inline(always)]
    pub(crate) fn tag(&self, key: KeyRef<'_>, limit: &Limit) -> KeyHash {
        let (bytes, shape) = (key.bytes(), usize::from(key.has_several_parts()));
        let Some(words) = words(bytes) else { return self.hash(bytes, limit.family(), shape) };
        let label = self.id << 16 | (limit.family() << 9 | shape << 8 | bytes.len()) as u64;
        NOTES.with(|notes| {
            let note = &notes[place(words)];
            let noted = note.get();
            if noted.is_of(words, label) {
                return noted.tag;
            }
            let tag = self.hash(bytes, limit.family(), shape);
            note.set(CachedHash { words, label, tag });
            tag
        })
    }

    #[inline(never)]
    fn hash(&self, bytes: &[u8], family: usize, shape: usize) -> KeyHash {
        let hash = self.hashers[family][shape].hash(bytes);
        KeyHash { mark: hash.h1, spread: hash.h2 }
    }
}

static TAGGERS: AtomicU64 = AtomicU64::new(1);

/// How many keys a thread takes note of: four kilobytes' worth.
const NOTED: usize = 64;

thread_local! {
    static NOTES: [Cell<CachedHash>; NOTED] = const { [const { Cell::new(CachedHash::NONE) }; NOTED] };
}

/// A key of 8 to 32 bytes that this thread hashed not long ago. Traffic is skewed: a few keys come again and again, and
/// comparing one is much quicker than hashing it.
#[derive(Clone, Copy)]
struct CachedHash {
    words: [u64; 4],
    /// Whose note it is, of which law family and shape, and the key's length.
    label: u64,
    tag: KeyHash,
}

impl CachedHash {
    const NONE: CachedHash = CachedHash { words: [0; 4], label: 0, tag: KeyHash::NONE };

    /// Compares word by word, so that the words stay in registers: comparing the arrays would write them to memory
    /// first and wait for it.
    #[inline(always)]
    fn is_of(&self, words: [u64; 4], label: u64) -> bool {
        let [a, b, c, d] = self.words;
        let differ = (a ^ words[0]) | (b ^ words[1]) | (c ^ words[2]) | (d ^ words[3]) | (self.label ^ label);
        differ == 0
    }
}

/// The bytes of a key of 8 to 32 bytes as four words that may overlap. With the length they tell it from any other.
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

/// Where a key is noted. It need not be unguessable: whoever shares the place is told apart and only hashed again.
#[inline]
fn place(words: [u64; 4]) -> usize {
    let mixed = words[0] ^ words[1].rotate_left(17) ^ words[2].rotate_left(31) ^ words[3].rotate_left(47);
    (mixed.wrapping_mul(GOLDEN) >> 58) as usize
}

impl KeyHash {
    /// Nobody's tag.
    pub(crate) const NONE: KeyHash = KeyHash { mark: 0, spread: 0 };

    /// The tag of the same key in a scope of its own. Adding a number known to all leaves a secret as secret as it
    /// was, so several limits of a key share one hash.
    #[inline]
    pub(crate) fn in_scope(self, scope: Scope) -> KeyHash {
        let shift = scope.0.wrapping_mul(GOLDEN);
        KeyHash {
            mark: self.mark.wrapping_add(shift).max(1),
            spread: self.spread.wrapping_add(shift.rotate_left(32)),
        }
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys are a secret, even from a log.
        f.write_str("Tagger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::Quota;
    use std::collections::HashSet;

    /// Keys of every length around the bounds of a note, alike but for one byte, asked for in an order that makes each
    /// find the notes of the others: a note must never answer for another key, law, shape or store.
    #[test]
    fn a_note_never_answers_for_another_key() {
        let limit = |law| Limit::new(law, Quota::per_second(1)).unwrap();
        let limits = [limit(Algorithm::TokenBucket), limit(Algorithm::SlidingWindowCounter)];
        let taggers = [KeyHasher::random(), KeyHasher::random()];
        let mut seen = HashSet::new();
        for length in 0..40 {
            for changed in 0..=length {
                let mut bytes = vec![b'a'; length];
                if let Some(byte) = bytes.get_mut(changed) {
                    *byte = b'b';
                }
                let text = String::from_utf8(bytes).unwrap();
                for (store, tagger) in taggers.iter().enumerate() {
                    for limit in &limits {
                        let tag = tagger.tag(text.as_str().into(), limit);
                        assert_eq!(tag, tagger.hash(text.as_bytes(), limit.family(), 0), "{text:?}");
                        assert_eq!(tag, tagger.tag(text.as_str().into(), limit), "{text:?} from its note");
                        assert!(seen.insert((tag.mark, tag.spread)), "{text:?} in store {store} met another");
                    }
                }
            }
        }
    }

    #[test]
    fn scopes_of_a_key_are_apart_and_no_mark_is_empty() {
        let tag = KeyHash { mark: 7, spread: 9 };
        let scoped: HashSet<u64> = (0..1000).map(|scope| tag.in_scope(Scope(scope)).mark).collect();
        assert_eq!(scoped.len(), 1000);
        assert_eq!(tag.in_scope(Scope(0)), tag);
        assert_ne!(KeyHash::NONE.in_scope(Scope(0)).mark, 0);
    }
}
