//! Regular expressions, split into a literal prefix and a tail.
//!
//! Thousands of rules may differ in their first segments only: `^/orders/[0-9]+$`, `^/users/[0-9]+$`. The index finds
//! the prefix, so only the tail has to be matched, and rules with the same tail share it. So a tail is compiled once,
//! and stays in the CPU cache however many rules there are.

use crate::expression::Expression;
use crate::path::PathStyle;
use crate::path_pattern_error::PathPatternError;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};
use std::sync::Arc;

/// The most literals in a set of required literals.
const MAX_REQUIRED_LITERALS: usize = 16;

/// A regular expression, split into a literal prefix and a tail.
#[derive(Clone, Debug)]
pub struct PrefixedRegex {
    prefix: Box<str>,
    /// Literals of which every match contains at least one; empty if none are known.
    required_literals: Box<[Box<str>]>,
    /// The byte of a path at which the tail begins: 0 if it is the whole expression.
    tail_start: usize,
    /// `None` if anything may follow the prefix.
    tail: Option<Arc<Expression>>,
}

impl PrefixedRegex {
    pub(crate) fn new(expression: &str, style: PathStyle) -> Result<PrefixedRegex, PathPatternError> {
        let hir = parse(expression)?;
        let (prefix, rest) = split_prefix(&hir);
        // Paths are lowercased in ASCII only, so other letters of a prefix could differ in case.
        let prefix = if style.ignore_case && !prefix.is_ascii() {
            String::new()
        } else if style.ignore_case {
            prefix.to_ascii_lowercase()
        } else {
            prefix
        };
        let (tail, skipped) = match rest.filter(|_| !prefix.is_empty()) {
            Some(rest) if matches_anything(&rest) => (None, prefix.len()),
            Some(rest) => (Some(Expression::interned(&format!("^(?:{rest})"), style, true)?), prefix.len()),
            None => (Some(Expression::interned(expression, style, false)?), 0),
        };
        let required =
            find_required_literals(&hir).map(|texts| normalise_literals(texts, style)).unwrap_or_default();
        Ok(PrefixedRegex {
            prefix: prefix.into(),
            required_literals: required.into(),
            tail_start: skipped,
            tail,
        })
    }

    /// Literals of which every match contains at least one; empty if none are known.
    pub(crate) fn required_literals(&self) -> &[Box<str>] {
        &self.required_literals
    }

    /// The tail, which other expressions may share. Returns `None` if anything may follow the prefix.
    pub(crate) fn tail(&self) -> Option<&Arc<Expression>> {
        self.tail.as_ref()
    }

    /// The text that every match begins with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        path.starts_with(&*self.prefix)
            && self.tail.as_ref().is_none_or(|tail| tail.is_match(&path[self.tail_start..]))
    }
}

fn parse(expression: &str) -> Result<Hir, PathPatternError> {
    // `.` matches line breaks too: canonical paths have none, and the expression is faster.
    let parsed = ParserBuilder::new().dot_matches_new_line(true).build().parse(expression);
    parsed.map_err(|error| {
        let message = error.to_string();
        // The lines before the last one only point into the expression.
        let last = message.lines().last().unwrap_or_default().trim();
        PathPatternError::InvalidRegex { message: last.trim_start_matches("error: ").to_owned() }
    })
}

/// Splits off the leading literals of an anchored expression. The rest is `None` if it can't be matched without the
/// text before it.
fn split_prefix(hir: &Hir) -> (String, Option<Hir>) {
    let HirKind::Concat(parts) = hir.kind() else { return (String::new(), None) };
    let [start, parts @ ..] = parts.as_slice() else { return (String::new(), None) };
    if *start.kind() != HirKind::Look(Look::Start) {
        return (String::new(), None);
    }
    let mut prefix = Vec::new();
    let mut rest = parts;
    while let [part, after @ ..] = rest {
        let HirKind::Literal(literal) = part.kind() else { break };
        prefix.extend_from_slice(&literal.0);
        rest = after;
    }
    let Ok(prefix) = String::from_utf8(prefix) else { return (String::new(), None) };
    let looks_back =
        rest.iter().any(|part| part.properties().look_set().iter().any(|look| look != Look::End));
    let rest = (!looks_back).then(|| Hir::concat(rest.to_vec()));
    (prefix, rest)
}

/// Whether the rest of an expression matches any text.
fn matches_anything(rest: &Hir) -> bool {
    ["", ".*", ".*$"].iter().any(|known| parse(known).is_ok_and(|known| known == *rest))
}

/// Literals of which every match contains at least one: of several such sets, the one with the longest literals.
fn find_required_literals(hir: &Hir) -> Option<Vec<String>> {
    let texts = match hir.kind() {
        HirKind::Literal(literal) => vec![String::from_utf8(literal.0.to_vec()).ok()?],
        HirKind::Capture(capture) => find_required_literals(&capture.sub)?,
        HirKind::Repetition(repetition) if repetition.min > 0 => find_required_literals(&repetition.sub)?,
        HirKind::Concat(parts) => {
            parts.iter().filter_map(find_required_literals).max_by_key(|texts| shortest_len(texts))?
        }
        HirKind::Alternation(parts) => {
            let texts: Option<Vec<_>> = parts.iter().map(find_required_literals).collect();
            texts?.concat()
        }
        _ => return None,
    };
    (texts.len() <= MAX_REQUIRED_LITERALS).then_some(texts)
}

fn shortest_len(texts: &[String]) -> usize {
    texts.iter().map(String::len).min().unwrap_or(0)
}

/// Required literals as they occur in canonical paths; empty if one of them is a single byte, which nearly every path
/// contains.
fn normalise_literals(texts: Vec<String>, style: PathStyle) -> Vec<Box<str>> {
    let one = |text: String| -> Option<Box<str>> {
        let text = if style.ignore_case {
            // Where case is ignored, some letters beyond ASCII match too: the Kelvin sign for k, the long s for s.
            let has_variants = |c: char| !c.is_ascii() || matches!(c, 'k' | 'K' | 's' | 'S');
            text.split(has_variants).max_by_key(|piece| piece.len()).unwrap_or_default().to_ascii_lowercase()
        } else {
            text
        };
        (text.len() > 1).then(|| text.into())
    };
    texts.into_iter().map(one).collect::<Option<Vec<_>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use regex::RegexBuilder;

    fn regex(expression: &str) -> PrefixedRegex {
        PrefixedRegex::new(expression, PathStyle::default())
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    #[test]
    fn literal_prefixes_are_split_off() {
        for (expression, prefix, is_whole) in [
            ("^/v1/orders.*", "/v1/orders", false),
            ("^/v1/(a|b)", "/v1/", false),
            ("^/v1/orders/[0-9]+$", "/v1/orders/", false),
            ("^/a?", "/", false),
            ("/v1", "", true),
            (".*", "", true),
            ("(?i)^/v1", "/", false),
            ("(?m)^/v1", "", true),
            (r"^/v1\b", "/v1", true),
            ("^/v1$", "/v1", false),
        ] {
            let regex = regex(expression);
            assert_eq!((&*regex.prefix, regex.tail_start == 0), (prefix, is_whole), "{expression}");
        }
        assert!(
            regex("^/v1/.*").tail.is_none()
                && regex("^/v1/.*$").tail.is_none()
                && regex("^/v1/").tail.is_none()
        );
        let (one, other) = (regex("^/a/[0-9]+$").tail, regex("^/b/[0-9]+$").tail);
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()), "equal tails are compiled once");
    }

    #[test]
    fn required_literals_are_found() {
        for (expression, literals) in [
            ("orders/[0-9]+", &["orders/"][..]),
            ("[a-z]+/(?:users|teams)/[0-9]+", &["/users/", "/teams/"]),
            ("(?:ab|cc)d", &["abd", "ccd"]),
            ("[0-9]+(?:/x1|/y2)?", &[]),
            ("(?:/x1|.)", &[]),
            ("(?:/items)+$", &["/items"]),
            (".*", &[]),
            ("/", &[]),
        ] {
            let found: Vec<_> =
                regex(expression).required_literals().iter().map(ToString::to_string).collect();
            let all = found.iter().all(|found| literals.iter().any(|literal| literal.contains(&**found)));
            assert!(all && found.is_empty() == literals.is_empty(), "{expression}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn a_split_expression_matches_like_the_whole(
            parts in prop::collection::vec(select(&[
                "^", "/", "a", "B", ".*", "[ab]", "a+", "(a|b/)", "$", r"\b", "(?i)", "é", ".", "a?", "(?:^a)?", "[^/]*",
            ][..]), 0..7),
            path in "/[aAbBé/]{0,6}",
            ignore_case: bool,
        ) {
            let style = PathStyle { ignore_case, ..PathStyle::default() };
            let path = crate::path::normalise(&path, style);
            for anchor in ["", "^", "^/"] {
                let expression = format!("{anchor}{}", parts.concat());
                let mut whole = RegexBuilder::new(&expression);
                let Ok(whole) = whole.case_insensitive(ignore_case).dot_matches_new_line(true).build() else { continue };
                let prefixed = PrefixedRegex::new(&expression, style).unwrap();
                prop_assert_eq!(prefixed.matches(&path), whole.is_match(&path), "{} on {}", expression, path);
                let required = prefixed.required_literals();
                let may_match = required.is_empty() || required.iter().any(|text| path.contains(&**text));
                prop_assert!(!prefixed.matches(&path) || may_match, "{} on {}", expression, path);
            }
        }
    }
}
