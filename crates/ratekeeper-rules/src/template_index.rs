//! Index of path templates.
//!
//! The templates in rule files have few different shapes: the number of segments, and which of them are wildcards. For
//! each shape with as many segments as the path, the path without its wildcard segments is looked up in a hash map. So
//! the cost of a lookup grows with the number of shapes, not of templates.

use crate::pattern::Segment;
use crate::prefixes::{Positions, TextMap};

/// Positions of rules by the shape and the literal segments of their templates.
#[derive(Clone, Debug, Default)]
pub(crate) struct TemplateIndex(Vec<(TemplateShape, TextMap<Positions>)>);

/// The number of segments of a template, and which of them are wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TemplateShape {
    wild: Box<[bool]>,
    /// Whether one or more further segments must follow.
    has_rest: bool,
}

impl TemplateIndex {
    pub(crate) fn insert(&mut self, segments: &[Segment], position: u32) {
        let has_rest = segments.last() == Some(&Segment::Rest);
        let fixed = &segments[..segments.len() - usize::from(has_rest)];
        let shape =
            TemplateShape { wild: fixed.iter().map(|segment| *segment == Segment::Any).collect(), has_rest };
        let mut text = String::new();
        for segment in fixed {
            push_segment(&mut text, if let Segment::Literal(literal) = segment { literal } else { "" });
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

    /// Appends the rules whose template matches a path in canonical form to `found`. `text` is a scratch buffer.
    #[inline]
    pub(crate) fn find(&self, path: &str, text: &mut String, found: &mut Vec<u32>) {
        let segments = &path[1..];
        let count =
            if segments.is_empty() { 0 } else { 1 + segments.bytes().filter(|byte| *byte == b'/').count() };
        for (shape, templates) in &self.0 {
            let fits = if shape.has_rest { count > shape.wild.len() } else { count == shape.wild.len() };
            if fits {
                text.clear();
                for (segment, is_wild) in segments.split('/').zip(&shape.wild) {
                    push_segment(text, if *is_wild { "" } else { segment });
                }
                found.extend_from_slice(templates.get(text.as_str()).map_or(&[], Positions::as_slice));
            }
        }
    }
}

/// A wildcard is written as an empty segment, since no literal segment is empty.
fn push_segment(text: &mut String, segment: &str) {
    text.push('/');
    text.push_str(segment);
}
