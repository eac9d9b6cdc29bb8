//! Compares request descriptors with those of rules, and writes them as counting keys.

use crate::pattern::Pattern;
use crate::request::Descriptor;
use std::fmt;

/// Why a request's descriptor does not match a rule's. Entries are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorMismatch {
    /// The request has no descriptor.
    Missing,
    /// The request's descriptor has this many entries, not as many as the rule's.
    Length(usize),
    /// This entry has a different name.
    Name(usize),
    /// This entry's value does not match.
    Value(usize),
}

impl DescriptorMismatch {
    /// Returns the first difference between a rule's entries and a request's, or `None` if they match.
    #[inline]
    pub(crate) fn check(
        expected: &[(String, Pattern)],
        descriptor: Option<&Descriptor<'_>>,
    ) -> Option<DescriptorMismatch> {
        let Some(Descriptor { entries, .. }) = descriptor else { return Some(DescriptorMismatch::Missing) };
        if entries.len() != expected.len() {
            return Some(DescriptorMismatch::Length(entries.len()));
        }
        let both = || expected.iter().zip(*entries);
        if let Some(at) = both().position(|((name, _), (found, _))| name != found) {
            return Some(DescriptorMismatch::Name(at));
        }
        both().position(|((_, pattern), (_, value))| !pattern.matches(value)).map(DescriptorMismatch::Value)
    }

    /// Writes the mismatch as a sentence; `expected` are the rule's entries.
    pub(crate) fn describe(self, expected: &[(String, Pattern)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorMismatch::Missing => f.write_str("the request has no descriptor"),
            DescriptorMismatch::Length(found) => {
                write!(
                    f,
                    "the descriptor is not {}: it has {}",
                    DescriptorDisplay(expected),
                    entry_count(found)
                )
            }
            DescriptorMismatch::Name(at) => {
                let name = expected.get(at).map_or("", |(name, _)| name);
                write!(f, "entry {} of the descriptor is not named {name}", at + 1)
            }
            DescriptorMismatch::Value(at) => {
                let (name, pattern) =
                    expected.get(at).map_or(("", ""), |(name, value)| (name, value.as_str()));
                write!(f, "entry {} of the descriptor, {name}, does not match {pattern}", at + 1)
            }
        }
    }
}

fn entry_count(entries: usize) -> String {
    match entries {
        0 => "no entries".to_owned(),
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    }
}

/// Shows a rule's entries as they are written in a rule file.
pub(crate) struct DescriptorDisplay<'r>(pub(crate) &'r [(String, Pattern)]);

impl fmt::Display for DescriptorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, (name, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            if value.is_any() {
                write!(f, "{comma}{name}")?;
            } else {
                write!(f, "{comma}{name}: {value}")?;
            }
        }
        f.write_str("]")
    }
}

/// Writes the counting key of a descriptor into `text`: `edge;generic_key=slowpath;remote_address=10.0.0.1`.
///
/// Different descriptors give different keys, because separators within names and values are escaped. The only
/// allocation is the growth of `text`.
pub(crate) fn write(descriptor: &Descriptor<'_>, text: &mut String) {
    text.clear();
    push_escaped(text, descriptor.domain, &['%', ';']);
    for (name, value) in descriptor.entries {
        text.push(';');
        push_escaped(text, name, &['%', ';', '=']);
        text.push('=');
        push_escaped(text, value, &['%', ';']);
    }
}

fn push_escaped(text: &mut String, piece: &str, special: &[char]) {
    let mut rest = piece;
    while let Some(at) = rest.find(special) {
        text.push_str(&rest[..at]);
        text.push_str(match rest.as_bytes()[at] {
            b';' => "%3B",
            b'=' => "%3D",
            _ => "%25",
        });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(domain: &str, entries: &[(&str, &str)]) -> String {
        let mut text = "old".to_owned();
        write(&Descriptor { domain, entries }, &mut text);
        text
    }

    #[test]
    fn counting_keys_are_readable() {
        assert_eq!(written("edge", &[]), "edge");
        assert_eq!(written("edge", &[("path", "/a?b=c"), ("ip", "::1")]), "edge;path=/a?b=c;ip=::1");
        assert_eq!(written("a;b", &[("n=m", "100%;")]), "a%3Bb;n%3Dm=100%25%3B");
    }

    /// Parses a key back into its descriptor, which is possible only if no other descriptor has the same key.
    fn parse(text: &str) -> (String, Vec<(String, String)>) {
        let unescape = |piece: &str| piece.replace("%3B", ";").replace("%3D", "=").replace("%25", "%");
        let mut pieces = text.split(';');
        let domain = unescape(pieces.next().unwrap());
        let entry = |piece: &str| {
            let (name, value) = piece.split_once('=').unwrap();
            (unescape(name), unescape(value))
        };
        (domain, pieces.map(entry).collect())
    }

    proptest! {
        #[test]
        fn different_descriptors_have_different_keys(
            domain in "[a;=%32BD]{0,6}",
            entries in prop::collection::vec(("[a;=%32BD]{0,6}", "[a;=%32BD]{0,6}"), 0..4),
        ) {
            let pairs: Vec<_> = entries.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(parse(&written(&domain, &pairs)), (domain, entries));
        }
    }
}
