//! Finding all rules whose descriptor a request has.
//!
//! There are few different forms among the descriptors that people write: how many entries, and which of their values
//! are written out. A request's descriptor is tried in each form that has as many entries: what the form leaves open is
//! taken out, and what is left, the names among it, is looked up. What that costs grows with the forms and not with the
//! rules. What is found may still not match, where a value is a pattern.

use crate::pattern::Pattern;
use crate::prefixes::{Positions, TextMap};
use crate::request::Descriptor;
use std::hash::{Hash, Hasher};

/// Rules by the form of their descriptors.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorIndex(Vec<(DescriptorShape, TextMap<Positions>)>);

/// What of a descriptor is written out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DescriptorShape {
    has_domain: bool,
    /// For each entry, whether its value is.
    has_value: Box<[bool]>,
}

/// What a rule's descriptor is looked up by: its names, and of the rest what is written out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorKey<'r> {
    domain: Option<&'r str>,
    entries: &'r [(String, Pattern)],
}

impl<'r> DescriptorKey<'r> {
    pub(crate) fn new(domain: Option<&'r Pattern>, entries: &'r [(String, Pattern)]) -> DescriptorKey<'r> {
        DescriptorKey { domain: domain.and_then(Pattern::exact), entries }
    }

    fn pieces(&self) -> impl Iterator<Item = (&'r str, Option<&'r str>)> + use<'r> {
        let entries = self.entries.iter().map(|(name, value)| (name.as_str(), value.exact()));
        [("", self.domain)].into_iter().chain(entries)
    }
}

impl PartialEq for DescriptorKey<'_> {
    fn eq(&self, other: &DescriptorKey<'_>) -> bool {
        self.pieces().eq(other.pieces())
    }
}

impl Eq for DescriptorKey<'_> {}

impl Hash for DescriptorKey<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.pieces().for_each(|piece| piece.hash(hasher));
    }
}

impl DescriptorIndex {
    pub(crate) fn insert(&mut self, sought: DescriptorKey<'_>, position: u32) {
        let DescriptorKey { domain, entries } = sought;
        let form = DescriptorShape {
            has_domain: domain.is_some(),
            has_value: entries.iter().map(|(_, value)| value.exact().is_some()).collect(),
        };
        let mut text = String::new();
        push(&mut text, domain.unwrap_or_default());
        for (name, value) in entries {
            push(&mut text, name);
            push(&mut text, value.exact().unwrap_or_default());
        }
        let known = self.0.iter().position(|(known, _)| *known == form);
        let at = known.unwrap_or_else(|| {
            self.0.push((form, TextMap::default()));
            self.0.len() - 1
        });
        Positions::add(&mut self.0[at].1, &text, position);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the rules that may bind a request with this descriptor. `text` is memory to be used again.
    pub(crate) fn find(&self, descriptor: &Descriptor<'_>, text: &mut String, found: &mut Vec<u32>) {
        let Descriptor { domain, entries } = descriptor;
        for (form, rules) in self.0.iter().filter(|(form, _)| form.has_value.len() == entries.len()) {
            text.clear();
            push(text, if form.has_domain { domain } else { "" });
            for ((name, value), has_value) in entries.iter().zip(&form.has_value) {
                push(text, name);
                push(text, if *has_value { value } else { "" });
            }
            found.extend_from_slice(rules.get(text.as_str()).map_or(&[], Positions::as_slice));
        }
    }
}

/// Two that are written alike are found alike; whoever finds looks again whether they match.
fn push(text: &mut String, piece: &str) {
    text.push_str(piece);
    text.push('\0');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(all: &mut DescriptorIndex, domain: &str, entries: &[(&str, &str)], position: u32) {
        let entries: Vec<_> =
            entries.iter().map(|(name, value)| ((*name).to_owned(), Pattern::new(value))).collect();
        all.insert(DescriptorKey::new(Some(&Pattern::new(domain)), &entries), position);
    }

    #[test]
    fn among_ten_thousand_only_those_that_may_match_are_found() {
        let mut all = DescriptorIndex::default();
        for index in 0..10_000 {
            let value = format!("u{index}");
            insert(&mut all, "edge", &[("user", &value), ("path", "*")], index);
        }
        insert(&mut all, "*", &[("user", "u*"), ("path", "*")], 10_000);
        insert(&mut all, "*", &[("path", "*"), ("user", "*")], 10_001);
        insert(&mut all, "other", &[("user", "*"), ("path", "*")], 10_002);
        assert_eq!(all.0.len(), 3);
        let of = |domain, entries: &[(&str, &str)]| {
            let (mut text, mut found) = (String::new(), Vec::new());
            all.find(&Descriptor { domain, entries }, &mut text, &mut found);
            found
        };
        assert_eq!(of("edge", &[("user", "u77"), ("path", "/x")]), [77, 10_000]);
        assert_eq!(of("other", &[("user", "u77"), ("path", "/x")]), [10_000, 10_002]);
        assert_eq!(of("edge", &[("path", "/x"), ("user", "u77")]), [10_001]);
        assert_eq!(of("edge", &[("user", "u77")]), [0_u32; 0]);
    }
}
