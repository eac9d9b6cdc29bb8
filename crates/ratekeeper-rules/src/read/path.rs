//! Parses patterns of paths and keys, and networks.
//!
//! A pattern that can never match is worse than none: the rule would exist, but apply to no request. Patterns that were
//! clearly meant differently (with a query, a whole URL, a trailing slash) are reported.

use super::RuleReader;
use super::fields::{FieldItem, FieldReader};
use crate::address::{Cidr, CidrError};
use crate::diagnostic::quoted;
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::path_pattern_error::PathPatternError;
use crate::pattern::{PathPattern, Pattern, is_name};
use crate::spec::{At, ListEntry};

impl<'n> RuleReader<'n> {
    /// Reads a text pattern.
    pub(super) fn pattern(&mut self, item: &FieldItem<'n>) -> Option<Pattern> {
        item.text(&mut self.diagnostics).map(Pattern::new)
    }

    /// Reads an address or a network.
    pub(super) fn network(&mut self, item: &FieldItem<'n>) -> Option<Cidr> {
        let text = item.text(&mut self.diagnostics)?;
        let network = text.trim().parse().map_err(|error| match error {
            CidrError::Address => format!("{} is not an address: {}", quoted(text), CidrError::Address),
            error => error.to_string(),
        });
        item.accept(network, &mut self.diagnostics)
    }

    /// Reads an entry of the allow or deny list. Text that parses as an address or a network is one; anything else is a
    /// key pattern.
    pub(super) fn list_entry(&mut self, item: &FieldItem<'n>) -> Option<At<ListEntry>> {
        let text = item.text(&mut self.diagnostics)?;
        let entry = match text.parse() {
            Ok(network) => ListEntry::Network(network),
            Err(CidrError::Address) => {
                if looks_like_address(text) {
                    let message = format!(
                        "{} is not a valid address, so it is treated as a client key: did you mean an address or a \
                         network, like 192.0.2.7 or 10.0.0.0/8?",
                        quoted(text)
                    );
                    self.diagnostics.warn(item.place(), message);
                }
                ListEntry::Key(Pattern::new(text))
            }
            Err(error) => return self.diagnostics.reject(item.place(), error.to_string()),
        };
        Some(item.at(entry))
    }

    /// Reads the path condition of a match.
    pub(super) fn path(&mut self, fields: &FieldReader<'n>) -> Option<PathPattern> {
        let (path, regex) = (fields.find("path"), fields.find("path_regex"));
        let path = path.and_then(|item| self.compile_path(&item, path_error, PathPattern::new));
        let regex = regex.and_then(|item| self.compile_path(&item, regex_error, PathPattern::regex));
        path.or(regex)
    }

    fn compile_path(
        &mut self,
        item: &FieldItem<'n>,
        find_error: fn(&str) -> Option<String>,
        read: PathParser,
    ) -> Option<PathPattern> {
        let text = item.text(&mut self.diagnostics)?;
        if let Some(message) = find_error(text) {
            return self.diagnostics.reject(item.place(), message);
        }
        self.warn_about_path(item, text);
        // Many rules share an expression, and compiling one takes longer than reading the rest of a rule.
        let known = (text, item.field.name);
        if let Some(pattern) = self.paths.get(&known) {
            return Some(pattern.clone());
        }
        if self.expressions.exceeds_limit() {
            // Already reported; compiling the remaining expressions could take very long.
            self.diagnostics.count_error();
            return None;
        }
        match read(text, self.style) {
            Ok(pattern) => {
                pattern.expression().into_iter().for_each(|expression| self.expressions.add(expression));
                if self.expressions.exceeds_limit() {
                    self.diagnostics.error(item.place(), ExpressionMemory::limit_error());
                }
                self.paths.insert(known, pattern.clone());
                Some(pattern)
            }
            Err(error) => {
                if error == PathPatternError::RegexTooLarge {
                    // A rejected expression took as long to compile as the largest accepted one.
                    self.expressions.add_oversized();
                }
                let mut message = error.to_string();
                if message.contains("look-around") {
                    message.push_str(": write a rule above this one for the paths to exclude");
                }
                self.diagnostics.reject(item.place(), message)
            }
        }
    }

    /// Warns about path syntax that is valid, but hardly ever intended.
    fn warn_about_path(&mut self, item: &FieldItem<'n>, text: &str) {
        if text.contains(';') && !self.style.keep_matrix_parameters {
            let message = "a ; and the rest of its segment are removed before paths are compared: leave it out, or \
                           write paths: {matrix_parameters: keep}";
            self.diagnostics.warn(item.place(), message);
        }
        let foreign = text.split('/').find(|segment| foreign_placeholder(segment).is_some());
        if let (Some(segment), "path") = (foreign, item.field.name) {
            let ours: Vec<_> = text
                .split('/')
                .map(|segment| foreign_placeholder(segment).unwrap_or_else(|| segment.to_owned()))
                .collect();
            let message = format!(
                "{} is matched literally, it is not a placeholder: did you mean {}?",
                quoted(segment),
                ours.join("/")
            );
            self.diagnostics.warn(item.place(), message);
        }
    }
}

/// Translates a placeholder of other frameworks: `:id`, `<id>`, `<int:id>` and `[id]` become `{id}`. Returns `None` if
/// the segment is not such a placeholder.
fn foreign_placeholder(segment: &str) -> Option<String> {
    let within = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    let name = if let Some(name) = segment.strip_prefix(':') {
        name.trim_end_matches(['?', '*', '+'])
    } else if let Some(name) = within('<', '>') {
        name.rsplit_once(':').map_or(name, |(_, name)| name)
    } else {
        within('[', ']')?
    };
    match name.strip_prefix("...") {
        Some(rest) if is_name(rest) => Some(format!("{{*{rest}}}")),
        None if is_name(name) => Some(format!("{{{name}}}")),
        _ => None,
    }
}

type PathParser = fn(&str, PathStyle) -> Result<PathPattern, PathPatternError>;

/// Why a path pattern is certainly not what was intended; `None` if it may be.
fn path_error(text: &str) -> Option<String> {
    if let Some(message) = url_error(text) {
        return Some(message);
    }
    let (path, query) = text.split_once('?')?;
    let name = query.split_once('=')?.0;
    let is_query =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte));
    is_query.then(|| format!("the query is not part of the path, and ? matches one character: write {path}"))
}

/// Why a regular expression is certainly not what was intended; `None` if it may be.
fn regex_error(text: &str) -> Option<String> {
    if let Some(message) = url_error(text) {
        return Some(message);
    }
    if let Some(at) = find_escaped(text, '?') {
        return Some(format!(
            "the query is not part of the path, so \\? never matches: end the expression at {}",
            quoted(&text[..at])
        ));
    }
    if let Some(shorter) = text.strip_suffix("/$").filter(|shorter| !matches!(*shorter, "^" | "^\\")) {
        let shorter = shorter.trim_end_matches('\\');
        return Some(format!(
            "paths are compared without a trailing slash, so this never matches: write {shorter}$"
        ));
    }
    let first = text.strip_prefix('^')?.chars().next()?;
    first
        .is_ascii_alphanumeric()
        .then(|| format!("paths begin with /, so this never matches: write ^/{}", &text[1..]))
}

fn url_error(text: &str) -> Option<String> {
    text.contains("://")
        .then(|| "this is a URL, not a path: write only the part after the host, like /v1/orders".to_owned())
}

/// The position of a backslash that escapes `letter`. Returns `None` if there is none. An escaped backslash doesn't
/// count.
fn find_escaped(text: &str, letter: char) -> Option<usize> {
    let mut letters = text.char_indices();
    while let Some((at, found)) = letters.next() {
        if found == '\\' && letters.next().is_some_and(|(_, escaped)| escaped == letter) {
            return Some(at);
        }
    }
    None
}

/// Whether text that does not parse as an address was clearly meant to be one.
fn looks_like_address(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    digits > 0
        && text.contains('.')
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"./*-".contains(&byte))
}
