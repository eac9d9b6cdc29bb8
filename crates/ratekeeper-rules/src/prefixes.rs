//! Finding all prefixes of a text among many.
//!
//! There are few different lengths among the prefixes that people write, so each length is one lookup: what it costs
//! does not grow with their number.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// What belongs to the texts of a map, by position.
pub(crate) type TextMap<T> = HashMap<Box<str>, T, RandomState>;

/// Where rules stand, in order. Nearly always there is one, which then needs no memory of its own.
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

/// Positions by the prefixes that texts must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    /// Every length that occurs, shortest first.
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

    /// The positions of each of them that `text` ends with.
    #[inline]
    pub(crate) fn of_end<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a [u32]> + 'a {
        let starts = self.lengths.iter().map_while(|length| text.len().checked_sub(*length));
        let suffixes = starts.filter_map(|start| text.get(start..));
        suffixes.filter_map(|suffix| self.positions.get(suffix)).map(Positions::as_slice)
    }

    /// The positions of each prefix of `text`.
    #[inline]
    pub(crate) fn of<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a [u32]> + 'a {
        let lengths = self.lengths.iter().take_while(|length| **length <= text.len());
        // A cut within a character is no prefix of any text.
        let prefixes = lengths.filter_map(|length| text.get(..*length));
        prefixes.filter_map(|prefix| self.positions.get(prefix)).map(Positions::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_found_and_nothing_else() {
        let mut prefixes = Prefixes::default();
        for (position, prefix) in ["sk_", "sk_prod_", "", "pk_", "sk_é", "sk_"].into_iter().enumerate() {
            prefixes.insert(prefix, u32::try_from(position).unwrap());
        }
        let of = |text| prefixes.of(text).flatten().copied().collect::<Vec<_>>();
        assert_eq!(of("sk_prod_1"), [2, 0, 5, 1]);
        assert_eq!(of("sk_"), [2, 0, 5]);
        assert_eq!(of("sk_éa"), [2, 0, 5, 4]);
        assert_eq!(of("sk_ü"), [2, 0, 5]);
        assert_eq!(of("x"), [2]);
        assert_eq!(of(""), [2]);
    }
}
