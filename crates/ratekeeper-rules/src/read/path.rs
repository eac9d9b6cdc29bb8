//! Patterns of paths, keys and networks, and what people write there by mistake.
//!
//! A pattern that can never match is worse than none: the rule would be there and bind nobody. What is plainly meant
//! otherwise (a query, a whole address, a slash at the end) is told.

use super::RuleReader;
use super::fields::{FieldItem, FieldReader};
use crate::address::{Cidr, CidrError};
use crate::diagnostic::quoted;
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::pattern::{PathPattern, PathPatternError, Pattern, is_name};
use crate::spec::{At, ListEntry};

impl<'n> RuleReader<'n> {
    /// A pattern of text.
    pub(super) fn pattern(&mut self, item: &FieldItem<'n>) -> Option<Pattern> {
        item.text(&mut self.complaints).map(Pattern::new)
    }

    /// An address or a network.
    pub(super) fn network(&mut self, item: &FieldItem<'n>) -> Option<Cidr> {
        let text = item.text(&mut self.complaints)?;
        let said = match text.trim().parse() {
            Ok(network) => return Some(network),
            Err(CidrError::Address) => format!("{} is no address: {}", quoted(text), CidrError::Address),
            Err(error) => error.to_string(),
        };
        self.complaints.error(item.place(), said);
        None
    }

    /// Whom an entry of a list means: what reads as an address or a network is one, all else is a pattern of keys.
    pub(super) fn whom(&mut self, item: &FieldItem<'n>) -> Option<At<ListEntry>> {
        let text = item.text(&mut self.complaints)?;
        let whom = match text.parse() {
            Ok(network) => ListEntry::Net(network),
            Err(CidrError::Address) => {
                if looks_like_address(text) {
                    let said = format!(
                        "{} is taken for a client's key, since it is no address: write an address or a \
                         network, like \
                         192.0.2.7 or 10.0.0.0/8",
                        quoted(text)
                    );
                    self.complaints.warn(item.place(), said);
                }
                ListEntry::Key(Pattern::new(text))
            }
            Err(error) => {
                self.complaints.error(item.place(), error.to_string());
                return None;
            }
        };
        Some(item.at(whom))
    }

    /// The path that a match asks for.
    pub(super) fn path(&mut self, fields: &FieldReader<'n>) -> Option<PathPattern> {
        let (path, regex) = (fields.find("path"), fields.find("path_regex"));
        let path = path.and_then(|item| self.path_of(&item, path_mistake, PathPattern::new));
        let regex = regex.and_then(|item| self.path_of(&item, regex_mistake, PathPattern::regex));
        path.or(regex)
    }

    fn path_of(
        &mut self,
        item: &FieldItem<'n>,
        mistake: fn(&str) -> Option<String>,
        read: ReadPath,
    ) -> Option<PathPattern> {
        let text = item.text(&mut self.complaints)?;
        if let Some(said) = mistake(text) {
            self.complaints.error(item.place(), said);
            return None;
        }
        self.warn_of_path(item, text);
        // Many rules have the same expression, and compiling one takes longer than reading all else in a rule.
        let known = (text, item.field.name);
        if let Some(pattern) = self.paths.get(&known) {
            return Some(pattern.clone());
        }
        if self.expressions.are_too_large() {
            // That has been said, and compiling the others could take for ever.
            self.complaints.broken();
            return None;
        }
        match read(text, self.style) {
            Ok(pattern) => {
                self.expressions.add(&pattern);
                if self.expressions.are_too_large() {
                    self.complaints.error(item.place(), ExpressionMemory::too_large());
                }
                self.paths.insert(known, pattern.clone());
                Some(pattern)
            }
            Err(error) => {
                if error == PathPatternError::RegexTooBig {
                    // Finding that out takes as long as compiling the largest that may be.
                    self.expressions.add_refused();
                }
                let mut said = error.to_string();
                if said.contains("look-around") {
                    said.push_str(": write a rule above this one for what it should leave out");
                }
                self.complaints.error(item.place(), said);
                None
            }
        }
    }
}

impl<'n> RuleReader<'n> {
    /// Warns of what is allowed in a path and hardly ever meant.
    fn warn_of_path(&mut self, item: &FieldItem<'n>, text: &str) {
        if text.contains(';') && !self.style.keep_matrix_parameters {
            let said = "a ; and what follows it in a segment are cut off before paths are compared: leave it out, \
                        or write paths: {matrix_parameters: keep}";
            self.complaints.warn(item.place(), said);
        }
        let foreign = text.split('/').find(|segment| foreign_parameter(segment).is_some());
        if let (Some(segment), "path") = (foreign, item.field.name) {
            let ours: Vec<_> = text
                .split('/')
                .map(|segment| foreign_parameter(segment).unwrap_or_else(|| segment.to_owned()))
                .collect();
            let said = format!(
                "{} stands for itself here, not for any segment: write {}",
                quoted(segment),
                ours.join("/")
            );
            self.complaints.warn(item.place(), said);
        }
    }
}

/// What a segment is here that stands for any segment elsewhere: `{id}` for `:id`, `<id>`, `<int:id>` and `[id]`.
fn foreign_parameter(segment: &str) -> Option<String> {
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

type ReadPath = fn(&str, PathStyle) -> Result<PathPattern, PathPatternError>;

/// Why a path can't have been meant so.
fn path_mistake(text: &str) -> Option<String> {
    if let Some(said) = address_mistake(text) {
        return Some(said);
    }
    let (path, query) = text.split_once('?')?;
    let name = query.split_once('=')?.0;
    let is_query =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte));
    is_query.then(|| format!("the query is no part of a path, and ? stands for one character: write {path}"))
}

/// Why an expression can't have been meant so.
fn regex_mistake(text: &str) -> Option<String> {
    if let Some(said) = address_mistake(text) {
        return Some(said);
    }
    if let Some(at) = find_escaped(text, '?') {
        return Some(format!(
            "the query is no part of a path, so \\? never matches: end the expression at {}",
            quoted(&text[..at])
        ));
    }
    if let Some(shorter) = text.strip_suffix("/$").filter(|shorter| !matches!(*shorter, "^" | "^\\")) {
        let shorter = shorter.trim_end_matches('\\');
        return Some(format!(
            "paths are compared without a slash at the end, so this never matches: write {shorter}$"
        ));
    }
    let first = text.strip_prefix('^')?.chars().next()?;
    first
        .is_ascii_alphanumeric()
        .then(|| format!("paths begin with /, so this never matches: write ^/{}", &text[1..]))
}

fn address_mistake(text: &str) -> Option<String> {
    text.contains("://")
        .then(|| "a path is what follows the host: write it alone, like /v1/orders".to_owned())
}

/// Where a letter stands behind a backslash that is not itself escaped.
fn find_escaped(text: &str, letter: char) -> Option<usize> {
    let mut letters = text.char_indices();
    while let Some((at, found)) = letters.next() {
        if found == '\\' && letters.next().is_some_and(|(_, escaped)| escaped == letter) {
            return Some(at);
        }
    }
    None
}

/// Whether text that is no address was surely meant for one.
fn looks_like_address(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    digits > 0
        && text.contains('.')
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"./*-".contains(&byte))
}
