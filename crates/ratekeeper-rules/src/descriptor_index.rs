//! Index of rules by descriptor.
//!
//! The descriptors of rules have few different shapes: the number of entries, and which values are exact. For each
//! shape with as many entries as the request's descriptor, the request's names and the values that the shape has exact
//! are looked up in a hash map. So the cost of a lookup grows with the number of shapes, not of rules. A result may
//! still fail to match where a value is a pattern.

use crate::pattern::Pattern;
use crate::prefixes::{Positions, TextMap};
use crate::request::Descriptor;
use std::hash::{Hash, Hasher};

/// Positions of rules by the shape and the exact parts of their descriptors.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorIndex(Vec<(DescriptorShape, TextMap<Positions>)>);

/// Which parts of a rule's descriptor are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DescriptorShape {
    has_domain: bool,
    /// For each entry, whether its value is exact.
    has_value: Box<[bool]>,
}

/// The indexed parts of a rule's descriptor: its names, and the domain and values that are exact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorKey<'r> {
    domain: Option<&'r str>,
    entries: &'r [(String, Pattern)],
}

impl<'r> DescriptorKey<'r> {
    pub(crate) fn new(domain: Option<&'r Pattern>, entries: &'r [(String, Pattern)]) -> DescriptorKey<'r> {
        DescriptorKey { domain: domain.and_then(Pattern::exact), entries }
    }

    fn parts(&self) -> impl Iterator<Item = (&'r str, Option<&'r str>)> + use<'r> {
        let entries = self.entries.iter().map(|(name, value)| (name.as_str(), value.exact()));
        [("", self.domain)].into_iter().chain(entries)
    }
}

impl PartialEq for DescriptorKey<'_> {
    fn eq(&self, other: &DescriptorKey<'_>) -> bool {
        self.parts().eq(other.parts())
    }
}

impl Eq for DescriptorKey<'_> {}

impl Hash for DescriptorKey<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.parts().for_each(|piece| piece.hash(hasher));
    }
}

impl DescriptorIndex {
    pub(crate) fn insert(&mut self, key: DescriptorKey<'_>, position: u32) {
        let DescriptorKey { domain, entries } = key;
        let shape = DescriptorShape {
            has_domain: domain.is_some(),
            has_value: entries.iter().map(|(_, value)| value.exact().is_some()).collect(),
        };
        let mut text = String::new();
        push_part(&mut text, domain.unwrap_or_default());
        for (name, value) in entries {
            push_part(&mut text, name);
            push_part(&mut text, value.exact().unwrap_or_default());
        }
        let known = self.0.iter().position(|(known, _)| *known == shape);
        let at = known.unwrap_or_else(|| {
            self.0.push((shape, TextMap::default()));
            self.0.len() - 1
        });
        Positions::add(&mut self.0[at].1, &text, position);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the rules that may match this descriptor to `found`. `text` is a scratch buffer.
    pub(crate) fn find(&self, descriptor: &Descriptor<'_>, text: &mut String, found: &mut Vec<u32>) {
        let Descriptor { domain, entries } = descriptor;
        for (shape, rules) in self.0.iter().filter(|(shape, _)| shape.has_value.len() == entries.len()) {
            text.clear();
            push_part(text, if shape.has_domain { domain } else { "" });
            for ((name, value), has_value) in entries.iter().zip(&shape.has_value) {
                push_part(text, name);
                push_part(text, if *has_value { value } else { "" });
            }
            found.extend_from_slice(rules.get(text.as_str()).map_or(&[], Positions::as_slice));
        }
    }
}

/// A NUL within a part can make two keys equal. That only adds a candidate: callers match every result again.
fn push_part(text: &mut String, piece: &str) {
    text.push_str(piece);
    text.push('\0');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(index: &mut DescriptorIndex, domain: &str, entries: &[(&str, &str)], position: u32) {
        let entries: Vec<_> =
            entries.iter().map(|(name, value)| ((*name).to_owned(), Pattern::new(value))).collect();
        index.insert(DescriptorKey::new(Some(&Pattern::new(domain)), &entries), position);
    }

    #[test]
    fn only_possible_matches_are_found_among_ten_thousand() {
        let mut index = DescriptorIndex::default();
        for position in 0..10_000 {
            let value = format!("u{position}");
            insert(&mut index, "edge", &[("user", &value), ("path", "*")], position);
        }
        insert(&mut index, "*", &[("user", "u*"), ("path", "*")], 10_000);
        insert(&mut index, "*", &[("path", "*"), ("user", "*")], 10_001);
        insert(&mut index, "other", &[("user", "*"), ("path", "*")], 10_002);
        assert_eq!(index.0.len(), 3);
        let find = |domain, entries: &[(&str, &str)]| {
            let (mut text, mut found) = (String::new(), Vec::new());
            index.find(&Descriptor { domain, entries }, &mut text, &mut found);
            found
        };
        assert_eq!(find("edge", &[("user", "u77"), ("path", "/x")]), [77, 10_000]);
        assert_eq!(find("other", &[("user", "u77"), ("path", "/x")]), [10_000, 10_002]);
        assert_eq!(find("edge", &[("path", "/x"), ("user", "u77")]), [10_001]);
        assert_eq!(find("edge", &[("user", "u77")]), [0_u32; 0]);
    }
}
