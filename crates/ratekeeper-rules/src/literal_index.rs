//! Index of expressions by the literals that their matches must contain.
//!
//! An expression without a fixed prefix can't be looked up by its prefix. But every match of nearly any expression
//! contains some literal, and one pass of an Aho-Corasick automaton over a path finds all literals in it, however many
//! there are. The cost grows with the length of the path only; the automaton is built when rules are compiled.

use crate::prefixes::{Positions, TextMap};
use aho_corasick::AhoCorasick;

/// Expressions by literals of which every match contains at least one.
#[derive(Clone, Debug)]
pub(crate) struct LiteralIndex {
    automaton: AhoCorasick,
    /// For each literal, the expressions that it belongs to.
    positions: Box<[Positions]>,
}

impl LiteralIndex {
    /// Returns `None` if there are no literals, or too many for an automaton.
    pub(crate) fn new<'r>(expressions: impl Iterator<Item = (u32, &'r [Box<str>])>) -> Option<LiteralIndex> {
        let mut by_literal: TextMap<Positions> = TextMap::default();
        for (position, literals) in expressions {
            for literal in literals {
                Positions::add(&mut by_literal, literal, position);
            }
        }
        let (literals, positions): (Vec<_>, Vec<_>) = by_literal.into_iter().unzip();
        let automaton = AhoCorasick::new(literals.iter().map(|literal| literal.as_bytes())).ok()?;
        (!literals.is_empty()).then(|| LiteralIndex { automaton, positions: positions.into() })
    }

    /// Appends the expressions that may match the path to `found`. `seen` is a scratch buffer.
    pub(crate) fn find(&self, path: &str, seen: &mut Vec<u64>, found: &mut Vec<u32>) {
        seen.clear();
        seen.resize(self.positions.len().div_ceil(64), 0);
        for occurrence in self.automaton.find_overlapping_iter(path) {
            let index = occurrence.pattern().as_usize();
            let (word, bit) = (index / 64, 1 << (index % 64));
            // A literal that occurs several times counts once.
            if seen[word] & bit == 0 {
                seen[word] |= bit;
                found.extend_from_slice(self.positions[index].as_slice());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_literal_is_found_once() {
        let all: Vec<(u32, Vec<Box<str>>)> =
            [(7, &["ab", "cd"][..]), (8, &["b/c"]), (9, &["abc"]), (10, &["ab"])]
                .into_iter()
                .map(|(position, literals)| (position, literals.iter().map(|text| (*text).into()).collect()))
                .collect();
        let index =
            LiteralIndex::new(all.iter().map(|(position, literals)| (*position, &**literals))).unwrap();
        let find = |path: &str| {
            let (mut seen, mut found) = (vec![9; 3], Vec::new());
            index.find(path, &mut seen, &mut found);
            found.sort_unstable();
            found
        };
        assert_eq!(find("/ab/ab/ab"), [7, 10]);
        assert_eq!(find("/abc/cd"), [7, 7, 9, 10], "by two of its literals");
        assert_eq!(find("/ab/c"), [7, 8, 10]);
        assert_eq!(find("/"), [0_u32; 0]);
        assert!(LiteralIndex::new(std::iter::empty()).is_none());
    }
}
