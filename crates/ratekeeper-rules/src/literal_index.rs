//! Finding all expressions of which a path has a required text.
//!
//! An expression that may begin with anything can't be looked up by its beginning. But nearly all have some text that
//! every match has, and one pass over a path finds all such texts in it, however many there are. What that costs grows
//! with the path, and the automaton is built when rules are compiled.

use crate::prefixes::{Positions, TextMap};
use aho_corasick::AhoCorasick;

/// Expressions by texts of which every match has at least one.
#[derive(Clone, Debug)]
pub(crate) struct LiteralIndex {
    automaton: AhoCorasick,
    /// For each text, whose it is.
    positions: Box<[Positions]>,
}

impl LiteralIndex {
    /// Nothing if there are no texts, or too many for an automaton.
    pub(crate) fn new<'r>(expressions: impl Iterator<Item = (u32, &'r [Box<str>])>) -> Option<LiteralIndex> {
        let mut by_text: TextMap<Positions> = TextMap::default();
        for (position, texts) in expressions {
            for text in texts {
                Positions::add(&mut by_text, text, position);
            }
        }
        let (texts, positions): (Vec<_>, Vec<_>) = by_text.into_iter().unzip();
        let automaton = AhoCorasick::new(texts.iter().map(|text| text.as_bytes())).ok()?;
        (!texts.is_empty()).then(|| LiteralIndex { automaton, positions: positions.into() })
    }

    /// Adds the expressions that a path may match. `met` is memory to be used again.
    pub(crate) fn find(&self, path: &str, met: &mut Vec<u64>, found: &mut Vec<u32>) {
        met.clear();
        met.resize(self.positions.len().div_ceil(64), 0);
        for text in self.automaton.find_overlapping_iter(path) {
            let index = text.pattern().as_usize();
            let (word, bit) = (index / 64, 1 << (index % 64));
            // A text that a path has a hundred times is one text.
            if met[word] & bit == 0 {
                met[word] |= bit;
                found.extend_from_slice(self.positions[index].as_slice());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found_once_wherever_it_is() {
        let all: Vec<(u32, Vec<Box<str>>)> =
            [(7, &["ab", "cd"][..]), (8, &["b/c"]), (9, &["abc"]), (10, &["ab"])]
                .into_iter()
                .map(|(position, texts)| (position, texts.iter().map(|text| (*text).into()).collect()))
                .collect();
        let texts = LiteralIndex::new(all.iter().map(|(position, texts)| (*position, &**texts))).unwrap();
        let of = |path: &str| {
            let (mut met, mut found) = (vec![9; 3], Vec::new());
            texts.find(path, &mut met, &mut found);
            found.sort_unstable();
            found
        };
        assert_eq!(of("/ab/ab/ab"), [7, 10]);
        assert_eq!(of("/abc/cd"), [7, 7, 9, 10], "by two of its texts");
        assert_eq!(of("/ab/c"), [7, 8, 10]);
        assert_eq!(of("/"), [0_u32; 0]);
        assert!(LiteralIndex::new(std::iter::empty()).is_none());
    }
}
