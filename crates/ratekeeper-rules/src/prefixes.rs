//! Index of prefixes (or suffixes) that finds all those of a text.
//!
//! The prefixes in rule files have few different lengths, and each length is one hash lookup, so the cost does not grow
//! with the number of prefixes.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// A hash map with text keys.
pub(crate) type TextMap<T> = HashMap<Box<str>, T, RandomState>;

/// The positions of rules, in order. Nearly always there is only one, which needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Positions {
    One(u32),
    Many(Vec<u32>),
}

impl Positions {
    pub(crate) fn add(map: &mut TextMap<Positions>, text: &str, position: u32) {
        match map.get_mut(text) {
            None => drop(map.insert(text.into(), Positions::One(position))),
            Some(Positions::Many(many)) => many.push(position),
            Some(one @ Positions::One(_)) => {
                *one = Positions::Many(one.as_slice().iter().copied().chain([position]).collect());
            }
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u32] {
        match self {
            Positions::One(position) => std::slice::from_ref(position),
            Positions::Many(many) => many,
        }
    }
}

/// Positions of rules by prefix. An instance holds either prefixes or suffixes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    /// The distinct lengths, in ascending order.
    lengths: Vec<usize>,
    positions: TextMap<Positions>,
}

impl Prefixes {
    pub(crate) fn insert(&mut self, prefix: &str, position: u32) {
        if let Err(at) = self.lengths.binary_search(&prefix.len()) {
            self.lengths.insert(at, prefix.len());
        }
        Positions::add(&mut self.positions, prefix, position);
    }

    /// The positions for each suffix of `text`.
    #[inline]
    pub(crate) fn suffixes_of<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a [u32]> + 'a {
        let starts = self.lengths.iter().map_while(|length| text.len().checked_sub(*length));
        let suffixes = starts.filter_map(|start| text.get(start..));
        suffixes.filter_map(|suffix| self.positions.get(suffix)).map(Positions::as_slice)
    }

    /// The positions for each prefix of `text`.
    #[inline]
    pub(crate) fn prefixes_of<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a [u32]> + 'a {
        let lengths = self.lengths.iter().take_while(|length| **length <= text.len());
        // `get` returns `None` within a character, where no prefix ends.
        let prefixes = lengths.filter_map(|length| text.get(..*length));
        prefixes.filter_map(|prefix| self.positions.get(prefix)).map(Positions::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prefixes_of_a_text_are_found() {
        let mut prefixes = Prefixes::default();
        for (position, prefix) in ["sk_", "sk_prod_", "", "pk_", "sk_é", "sk_"].into_iter().enumerate() {
            prefixes.insert(prefix, u32::try_from(position).unwrap());
        }
        let find = |text| prefixes.prefixes_of(text).flatten().copied().collect::<Vec<_>>();
        assert_eq!(find("sk_prod_1"), [2, 0, 5, 1]);
        assert_eq!(find("sk_"), [2, 0, 5]);
        assert_eq!(find("sk_éa"), [2, 0, 5, 4]);
        assert_eq!(find("sk_ü"), [2, 0, 5]);
        assert_eq!(find("x"), [2]);
        assert_eq!(find(""), [2]);
    }
}
