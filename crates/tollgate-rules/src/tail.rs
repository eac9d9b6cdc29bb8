//! Expressions, cut into what every match begins with and what must follow.
//!
//! Thousands of rules differ in their first segments and end alike: `^/orders/[0-9]+$`, `^/users/[0-9]+$`. The beginning
//! is found by the index; only the tail has to be matched, and rules with the same tail share it. So it is compiled once,
//! and stays in the processor's cache however many rules there are.

use crate::path::PathStyle;
use crate::pattern::PathPatternError;
use regex::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The most memory that one compiled expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;
/// How many tails a thread remembers while it reads rules.
const REMEMBERED: usize = 4_096;

/// An expression, cut in two.
#[derive(Clone, Debug)]
pub struct Cut {
    expression: Box<str>,
    prefix: Box<str>,
    /// How much of a path the tail does not see.
    skipped: usize,
    /// Nothing if anything may follow.
    tail: Option<Arc<Regex>>,
}

impl Cut {
    pub(crate) fn new(expression: &str, style: PathStyle) -> Result<Cut, PathPatternError> {
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
            Some(rest) => (Some(shared(&format!("^(?:{rest})"), style)?), prefix.len()),
            None => (Some(shared(expression, style)?), 0),
        };
        Ok(Cut { expression: expression.into(), prefix: prefix.into(), skipped, tail })
    }

    /// The whole expression.
    pub(crate) fn expression(&self) -> &str {
        &self.expression
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

/// Expressions by their text and whether case is ignored.
type Known = HashMap<(Box<str>, bool), Arc<Regex>>;

/// A compiled expression, which others that are written alike share.
fn shared(expression: &str, style: PathStyle) -> Result<Arc<Regex>, PathPatternError> {
    thread_local! {
        static KNOWN: RefCell<Known> = RefCell::default();
    }
    let name = (expression.into(), style.ignore_case);
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&name).cloned()) {
        return Ok(known);
    }
    let mut builder = RegexBuilder::new(expression);
    builder.size_limit(MAX_REGEX_BYTES).case_insensitive(style.ignore_case).dot_matches_new_line(true);
    let regex = builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PathPatternError::RegexTooBig,
        error => PathPatternError::Regex { said: error.to_string() },
    })?;
    let regex = Arc::new(regex);
    KNOWN.with_borrow_mut(|known| {
        if known.len() == REMEMBERED {
            known.clear();
        }
        known.insert(name, Arc::clone(&regex));
    });
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn cut(expression: &str) -> Cut {
        Cut::new(expression, PathStyle::default()).unwrap_or_else(|error| panic!("{expression}: {error}"))
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
                let cut = Cut::new(&expression, style).unwrap();
                prop_assert_eq!(cut.matches(&path), whole.is_match(&path), "{} on {}", expression, path);
            }
        }
    }
}
