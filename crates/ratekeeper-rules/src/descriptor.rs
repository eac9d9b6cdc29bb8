//! Whether a descriptor is what a rule asks for, and how it is counted.

use crate::pattern::Pattern;
use crate::request::Descriptor;
use std::fmt;

/// Why a request's descriptor is not the one that a rule asks for. Entries are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorMismatch {
    /// The request has none.
    Missing,
    /// It has so many entries, which are too many or too few.
    Length(usize),
    /// This entry has another name.
    Name(usize),
    /// This entry's value does not match.
    Value(usize),
}

impl DescriptorMismatch {
    /// How a descriptor differs from what a rule asks for, if it does.
    #[inline]
    pub(crate) fn of(
        wanted: &[(String, Pattern)],
        descriptor: Option<&Descriptor<'_>>,
    ) -> Option<DescriptorMismatch> {
        let Some(Descriptor { entries, .. }) = descriptor else { return Some(DescriptorMismatch::Missing) };
        if entries.len() != wanted.len() {
            return Some(DescriptorMismatch::Length(entries.len()));
        }
        let both = || wanted.iter().zip(*entries);
        if let Some(at) = both().position(|((name, _), (found, _))| name != found) {
            return Some(DescriptorMismatch::Name(at));
        }
        both().position(|((_, pattern), (_, value))| !pattern.matches(value)).map(DescriptorMismatch::Value)
    }

    /// Says it in words of one who asked for `wanted`.
    pub(crate) fn describe(self, wanted: &[(String, Pattern)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorMismatch::Missing => f.write_str("the request has no descriptor"),
            DescriptorMismatch::Length(found) => {
                write!(f, "the descriptor is not {}: it has {}", DescriptorDisplay(wanted), count(found))
            }
            DescriptorMismatch::Name(at) => {
                let name = wanted.get(at).map_or("", |(name, _)| name);
                write!(f, "entry {} of the descriptor is not named {name}", at + 1)
            }
            DescriptorMismatch::Value(at) => {
                let (name, pattern) = wanted.get(at).map_or(("", ""), |(name, value)| (name, value.as_str()));
                write!(f, "entry {} of the descriptor, {name}, does not match {pattern}", at + 1)
            }
        }
    }
}

fn count(entries: usize) -> String {
    match entries {
        0 => "no entries".to_owned(),
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    }
}

/// The entries that a rule asks for, as one would write them.
pub(crate) struct DescriptorDisplay<'r>(pub(crate) &'r [(String, Pattern)]);

impl fmt::Display for DescriptorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, (name, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match value.is_any() {
                true => write!(f, "{comma}{name}")?,
                false => write!(f, "{comma}{name}: {value}")?,
            }
        }
        f.write_str("]")
    }
}

/// Writes a descriptor as rules count it: `edge;generic_key=slowpath;remote_address=10.0.0.1`.
///
/// No two descriptors are written alike: what separates is escaped where it does not. It allocates nothing that `text`
/// does not keep.
pub(crate) fn write(descriptor: &Descriptor<'_>, text: &mut String) {
    text.clear();
    push(text, descriptor.domain, &['%', ';']);
    for (name, value) in descriptor.entries {
        text.push(';');
        push(text, name, &['%', ';', '=']);
        text.push('=');
        push(text, value, &['%', ';']);
    }
}

fn push(text: &mut String, piece: &str, special: &[char]) {
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
    fn a_descriptor_is_counted_under_what_one_can_read() {
        assert_eq!(written("edge", &[]), "edge");
        assert_eq!(written("edge", &[("path", "/a?b=c"), ("ip", "::1")]), "edge;path=/a?b=c;ip=::1");
        assert_eq!(written("a;b", &[("n=m", "100%;")]), "a%3Bb;n%3Dm=100%25%3B");
    }

    /// Reads back what was written, which can only be done if nothing else is written alike.
    fn read(text: &str) -> (String, Vec<(String, String)>) {
        let undo = |piece: &str| piece.replace("%3B", ";").replace("%3D", "=").replace("%25", "%");
        let mut pieces = text.split(';');
        let domain = undo(pieces.next().unwrap());
        let entry = |piece: &str| {
            let (name, value) = piece.split_once('=').unwrap();
            (undo(name), undo(value))
        };
        (domain, pieces.map(entry).collect())
    }

    proptest! {
        #[test]
        fn no_two_descriptors_are_written_alike(
            domain in "[a;=%32BD]{0,6}",
            entries in prop::collection::vec(("[a;=%32BD]{0,6}", "[a;=%32BD]{0,6}"), 0..4),
        ) {
            let pairs: Vec<_> = entries.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(read(&written(&domain, &pairs)), (domain, entries));
        }
    }
}
