//! Finding all templates that a path matches.
//!
//! A node stands for the segments up to it. From each, a path can go on by the very segment, or by a name in braces that
//! takes any; both ways are walked, so that every template is found. There are at most as many ways as templates.

use crate::pattern::Segment;
use crate::prefixes::Map;

/// Templates by their segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trie {
    literals: Map<Trie>,
    any: Option<Box<Trie>>,
    /// Templates that end here.
    ends: Vec<u32>,
    /// Templates whose `{*rest}` begins here.
    rests: Vec<u32>,
}

impl Trie {
    pub(crate) fn insert(&mut self, segments: &[Segment], position: u32) {
        match segments.split_first() {
            None => self.ends.push(position),
            Some((Segment::Rest, _)) => self.rests.push(position),
            Some((Segment::Any, behind)) => self.any.get_or_insert_default().insert(behind, position),
            Some((Segment::Literal(text), behind)) => {
                self.literals.entry(text.clone()).or_default().insert(behind, position);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.any.is_none() && self.ends.is_empty() && self.rests.is_empty()
    }

    /// Adds the templates that a path in canonical form matches.
    pub(crate) fn find(&self, path: &str, found: &mut Vec<u32>) {
        match &path[1..] {
            "" => found.extend_from_slice(&self.ends),
            segments => self.walk(segments, found),
        }
    }

    /// Goes on with what is left of the path, which is not empty.
    fn walk(&self, left: &str, found: &mut Vec<u32>) {
        found.extend_from_slice(&self.rests);
        let (segment, behind) = match left.split_once('/') {
            Some((segment, behind)) => (segment, Some(behind)),
            None => (left, None),
        };
        for next in self.literals.get(segment).into_iter().chain(self.any.as_deref()) {
            match behind {
                Some(behind) => next.walk(behind, found),
                None => found.extend_from_slice(&next.ends),
            }
        }
    }
}
