//! A table entry: 24 bytes per key.
//!
//! The fingerprint, followed by the state's two 53-bit numbers in a word each. The eleven spare bits of both words hold
//! the limit slot of the limit that wrote the state, and whether the last decision was a denial.

use ratekeeper_core::State;

const NUMBER_MASK: u64 = (1 << 53) - 1;
const DENIED_BIT: u32 = 1 << 21;

/// The state of a key under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) state: State,
    /// The slot of the limit that wrote the state in the [`LimitTable`](super::limit_table::LimitTable), below 2^21.
    pub(crate) limit_slot: u32,
    /// Whether the last decision was a denial. Such an entry is never evicted before it has drained.
    pub(crate) is_denied: bool,
}

impl TableEntry {
    #[inline(always)]
    pub(crate) fn unpack(words: [u64; 2]) -> TableEntry {
        let spare = words[0] >> 53 | (words[1] >> 53) << 11;
        // At most 22 bits.
        let spare = u32::try_from(spare).unwrap_or(0);
        TableEntry {
            state: State::new(words[0] & NUMBER_MASK, words[1] & NUMBER_MASK),
            limit_slot: spare & (DENIED_BIT - 1),
            is_denied: spare & DENIED_BIT != 0,
        }
    }

    #[inline(always)]
    pub(crate) fn pack(self) -> [u64; 2] {
        let (first, second) = self.state.numbers();
        let spare = u64::from(self.limit_slot | if self.is_denied { DENIED_BIT } else { 0 });
        [first | spare << 53, second | (spare >> 11) << 53]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_and_unpack_round_trip_at_the_bounds() {
        for state in [
            State::new(0, 0),
            State::new(NUMBER_MASK, 0),
            State::new(0, NUMBER_MASK),
            State::new(NUMBER_MASK, NUMBER_MASK),
        ] {
            for limit_slot in [0, 1, 2047, 2048, (1 << 21) - 1] {
                for is_denied in [false, true] {
                    let entry = TableEntry { state, limit_slot, is_denied };
                    assert_eq!(TableEntry::unpack(entry.pack()), entry);
                }
            }
        }
    }
}
