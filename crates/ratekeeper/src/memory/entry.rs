//! One key's place in the table: 24 bytes.
//!
//! The mark, then the state's two 53-bit numbers, whose words have eleven bits each to spare: together they name the
//! limit that wrote the state and say whether its last answer was a refusal.

use ratekeeper_core::State;

const NUMBER: u64 = (1 << 53) - 1;
const REFUSED: u32 = 1 << 21;

/// What is remembered of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) state: State,
    /// Which limit wrote it: its page in the book, below 2^21.
    pub(crate) page: u32,
    /// Whether the key is being refused. Such an entry is never dropped before it has drained.
    pub(crate) refused: bool,
}

impl TableEntry {
    #[inline(always)]
    pub(crate) fn unpack(words: [u64; 2]) -> TableEntry {
        let spare = words[0] >> 53 | (words[1] >> 53) << 11;
        // Twenty-two bits.
        let spare = u32::try_from(spare).unwrap_or(0);
        TableEntry {
            state: State::new(words[0] & NUMBER, words[1] & NUMBER),
            page: spare & (REFUSED - 1),
            refused: spare & REFUSED != 0,
        }
    }

    #[inline(always)]
    pub(crate) fn pack(self) -> [u64; 2] {
        let (first, second) = self.state.numbers();
        let spare = u64::from(self.page | if self.refused { REFUSED } else { 0 });
        [first | spare << 53, second | (spare >> 11) << 53]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_packing_at_its_bounds() {
        for state in
            [State::new(0, 0), State::new(NUMBER, 0), State::new(0, NUMBER), State::new(NUMBER, NUMBER)]
        {
            for page in [0, 1, 2047, 2048, (1 << 21) - 1] {
                for refused in [false, true] {
                    let entry = TableEntry { state, page, refused };
                    assert_eq!(TableEntry::unpack(entry.pack()), entry);
                }
            }
        }
    }
}
