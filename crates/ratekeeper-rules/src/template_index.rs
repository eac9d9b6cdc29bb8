//! Finding all templates that a path matches.
//!
//! There are few different shapes among the templates that people write: how many segments, and which of them are wild.
//! A path is tried in each shape that has as many segments: its wild segments are taken out, and what is left is looked
//! up. What that costs grows with the shapes and not with the templates.

use crate::pattern::Segment;
use crate::prefixes::{Positions, TextMap};

/// Templates by their shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct TemplateIndex(Vec<(TemplateShape, TextMap<Positions>)>);

/// How many segments there are and which are wild.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TemplateShape {
    wild: Box<[bool]>,
    /// Whether any one or more segments may follow.
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
            push(&mut text, if let Segment::Literal(literal) = segment { literal } else { "" });
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

    /// Adds the templates that a path in canonical form matches.
    #[inline]
    pub(crate) fn find(&self, path: &str, shaped: &mut String, found: &mut Vec<u32>) {
        let segments = &path[1..];
        let count =
            if segments.is_empty() { 0 } else { 1 + segments.bytes().filter(|byte| *byte == b'/').count() };
        for (shape, templates) in &self.0 {
            let fits = match shape.has_rest {
                true => count > shape.wild.len(),
                false => count == shape.wild.len(),
            };
            if fits {
                shaped.clear();
                for (segment, is_wild) in segments.split('/').zip(&shape.wild) {
                    push(shaped, if *is_wild { "" } else { segment });
                }
                found.extend_from_slice(templates.get(shaped.as_str()).map_or(&[], Positions::as_slice));
            }
        }
    }
}

/// No literal segment is empty, so that a wild one can stand as nothing.
fn push(text: &mut String, segment: &str) {
    text.push('/');
    text.push_str(segment);
}
