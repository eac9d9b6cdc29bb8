//! Expressions, cut into what every match begins with and what must follow.
//!
//! Thousands of rules differ in their first segments and end alike: `^/orders/[0-9]+$`, `^/users/[0-9]+$`. The beginning
//! is found by the index; only the tail has to be matched, and rules with the same tail share it. So it is compiled once,
//! and stays in the processor's cache however many rules there are.

use crate::expression::Expression;
use crate::path::PathStyle;
use crate::pattern::PathPatternError;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};
use std::sync::Arc;

/// The most texts of which a match has one.
const MAX_REQUIRED: usize = 16;

/// An expression, cut in two.
#[derive(Clone, Debug)]
pub struct PrefixedRegex {
    prefix: Box<str>,
    /// Texts of which every match has at least one; none if there are no such texts.
    required: Box<[Box<str>]>,
    /// How much of a path the tail does not see.
    skipped: usize,
    /// Nothing if anything may follow.
    tail: Option<Arc<Expression>>,
}

impl PrefixedRegex {
    pub(crate) fn new(expression: &str, style: PathStyle) -> Result<PrefixedRegex, PathPatternError> {
        let hir = parse(expression)?;
        let (prefix, rest) = split(&hir);
        // Letters beyond ASCII have cases that a fixed beginning does not know of.
        let prefix = match style.ignore_case {
            true if !prefix.is_ascii() => String::new(),
            true => prefix.to_ascii_lowercase(),
            false => prefix,
        };
        let (tail, skipped) = match rest.filter(|_| !prefix.is_empty()) {
            Some(rest) if is_anything(&rest) => (None, prefix.len()),
            Some(rest) => (Some(Expression::shared(&format!("^(?:{rest})"), style, true)?), prefix.len()),
            None => (Some(Expression::shared(expression, style, false)?), 0),
        };
        let required = required(&hir).map(|texts| fold(texts, style)).unwrap_or_default();
        Ok(PrefixedRegex { prefix: prefix.into(), required: required.into(), skipped, tail })
    }

    /// Texts of which every match has at least one; none if there are no such texts.
    pub(crate) fn required(&self) -> &[Box<str>] {
        &self.required
    }

    /// What must follow, which others share, so that it counts once.
    pub(crate) fn tail(&self) -> Option<&Arc<Expression>> {
        self.tail.as_ref()
    }

    /// What every match begins with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        path.starts_with(&*self.prefix)
            && self.tail.as_ref().is_none_or(|tail| tail.is_match(&path[self.skipped..]))
    }
}

fn parse(expression: &str) -> Result<Hir, PathPatternError> {
    // `.` includes a line break: paths have none, and the expression is quicker for it.
    let parsed = ParserBuilder::new().dot_matches_new_line(true).build().parse(expression);
    parsed.map_err(|error| {
        let said = error.to_string();
        // The lines before the last one draw the expression again.
        let last = said.lines().last().unwrap_or_default().trim();
        PathPatternError::Regex { said: last.trim_start_matches("error: ").to_owned() }
    })
}

/// What every match begins with, as far as is plain to see, and what must follow it; nothing if that can't be told
/// without what comes before.
fn split(hir: &Hir) -> (String, Option<Hir>) {
    let HirKind::Concat(parts) = hir.kind() else { return (String::new(), None) };
    let [start, parts @ ..] = parts.as_slice() else { return (String::new(), None) };
    if *start.kind() != HirKind::Look(Look::Start) {
        return (String::new(), None);
    }
    let mut prefix = Vec::new();
    let mut rest = parts;
    while let [part, behind @ ..] = rest {
        let HirKind::Literal(literal) = part.kind() else { break };
        prefix.extend_from_slice(&literal.0);
        rest = behind;
    }
    let Ok(prefix) = String::from_utf8(prefix) else { return (String::new(), None) };
    let looks_back =
        rest.iter().any(|part| part.properties().look_set().iter().any(|look| look != Look::End));
    let rest = (!looks_back).then(|| Hir::concat(rest.to_vec()));
    (prefix, rest)
}

/// Whether whatever follows matches.
fn is_anything(rest: &Hir) -> bool {
    ["", ".*", ".*$"].iter().any(|known| parse(known).is_ok_and(|known| known == *rest))
}

/// Texts of which every match has at least one: the longest that are plain to see.
fn required(hir: &Hir) -> Option<Vec<String>> {
    let texts = match hir.kind() {
        HirKind::Literal(literal) => vec![String::from_utf8(literal.0.to_vec()).ok()?],
        HirKind::Capture(capture) => required(&capture.sub)?,
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub)?,
        HirKind::Concat(parts) => parts.iter().filter_map(required).max_by_key(|texts| shortest(texts))?,
        HirKind::Alternation(parts) => {
            let texts: Option<Vec<_>> = parts.iter().map(required).collect();
            texts?.concat()
        }
        _ => return None,
    };
    (texts.len() <= MAX_REQUIRED).then_some(texts)
}

fn shortest(texts: &[String]) -> usize {
    texts.iter().map(String::len).min().unwrap_or(0)
}

/// Texts as paths have them. A single letter tells too little, and nearly every path has it.
fn fold(texts: Vec<String>, style: PathStyle) -> Vec<Box<str>> {
    let one = |text: String| -> Option<Box<str>> {
        let text = match style.ignore_case {
            // Where case is ignored, letters beyond ASCII match too: the sign of Kelvin for k, the long s for s.
            true => {
                let is_odd = |c: char| !c.is_ascii() || matches!(c, 'k' | 'K' | 's' | 'S');
                text.split(is_odd).max_by_key(|piece| piece.len()).unwrap_or_default().to_ascii_lowercase()
            }
            false => text,
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

    fn cut(expression: &str) -> PrefixedRegex {
        PrefixedRegex::new(expression, PathStyle::default())
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    #[test]
    fn what_every_match_begins_with_is_taken_off() {
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
            let cut = cut(expression);
            assert_eq!((&*cut.prefix, cut.skipped == 0), (prefix, is_whole), "{expression}");
        }
        assert!(
            cut("^/v1/.*").tail.is_none() && cut("^/v1/.*$").tail.is_none() && cut("^/v1/").tail.is_none()
        );
        let (one, other) = (cut("^/a/[0-9]+$").tail, cut("^/b/[0-9]+$").tail);
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()), "a tail is compiled once");
    }

    #[test]
    fn what_every_match_has_is_known() {
        for (expression, texts) in [
            ("orders/[0-9]+", &["orders/"][..]),
            ("[a-z]+/(?:users|teams)/[0-9]+", &["/users/", "/teams/"]),
            ("(?:ab|cc)d", &["abd", "ccd"]),
            ("[0-9]+(?:/x1|/y2)?", &[]),
            ("(?:/x1|.)", &[]),
            ("(?:/items)+$", &["/items"]),
            (".*", &[]),
            ("/", &[]),
        ] {
            let found: Vec<_> = cut(expression).required().iter().map(ToString::to_string).collect();
            let all = found.iter().all(|found| texts.iter().any(|text| text.contains(&**found)));
            assert!(all && found.is_empty() == texts.is_empty(), "{expression}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_expression_matches_what_the_whole_one_does(
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
                let cut = PrefixedRegex::new(&expression, style).unwrap();
                prop_assert_eq!(cut.matches(&path), whole.is_match(&path), "{} on {}", expression, path);
                let has_required = cut.required().iter().any(|text| path.contains(&**text));
                prop_assert!(!cut.matches(&path) || cut.required().is_empty() || has_required, "{} on {}", expression, path);
            }
        }
    }
}
