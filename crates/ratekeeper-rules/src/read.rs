//! The rule file parser.
//!
//! A rule file is YAML (and therefore may be JSON). All problems are reported at once, each with its position and what
//! to write instead; only a file that isn't valid YAML yields a single error. A file with an error has no spec, so no
//! part of it takes effect. Warnings don't prevent a file from taking effect.

mod descriptor;
mod fields;
mod file;
mod limits;
mod path;
mod rule;
mod value;

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::pattern::PathPattern;
use crate::spec::{FileSpec, Position};
use crate::tier_names::TierNames;
use crate::validate;
use crate::{diagnostic, yaml};
use fields::FieldItem;
use ratekeeper_core::Micros;
use std::collections::HashMap;

/// The result of parsing a rule file: the spec, and the diagnostics.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedFile {
    /// The parsed file; `None` if there is an error.
    pub spec: Option<FileSpec>,
    /// Errors and warnings, sorted by position.
    pub diagnostics: Vec<Diagnostic>,
}

impl ParsedFile {
    /// The number of errors among the diagnostics.
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// Formats the diagnostics like a compiler does: see [`report`](diagnostic::report).
    pub fn report(&self, file: &str, text: &str) -> String {
        diagnostic::report(file, text, &self.diagnostics)
    }
}

/// Parses a rule file. `now` determines what has expired, which affects only warnings.
///
/// ```
/// use ratekeeper_core::Micros;
///
/// let text = "
/// rules:
///   - id: orders
///     match: {path: '/orders/{id}', method: POST}
///     limit: 100/min burst 20
/// ";
/// let parsed = ratekeeper_rules::read(text, Micros::EPOCH);
/// assert_eq!(parsed.spec.expect("the file is valid").rules.len(), 1);
///
/// let text = "rules: [{id: orders, limt: 100/min}]";
/// let parsed = ratekeeper_rules::read(text, Micros::EPOCH);
/// assert!(parsed.spec.is_none());
/// let report = parsed.report("rules.yaml", text);
/// assert!(report.starts_with("rules.yaml:1:22: error: unknown field \"limt\": did you mean limit?"));
/// ```
pub fn read(text: &str, now: Micros) -> ParsedFile {
    let mut diagnostics = Diagnostics::default();
    let root = yaml::parse(text, &mut diagnostics);
    let is_yaml = root.is_some() || diagnostics.errors() == 0;
    let spec = match &root {
        Some(root) => {
            let mut reader = RuleReader::new(now, diagnostics);
            let draft = reader.file(root);
            diagnostics = reader.diagnostics;
            draft.map(|draft| {
                validate::cross_check(&draft.spec, &draft.incomplete, &mut diagnostics);
                draft.spec
            })
        }
        None => None,
    };
    if root.is_none() && is_yaml {
        diagnostics.error(Position { line: 1, column: 1 }, file::no_rules_error());
    }
    let spec = spec.filter(|_| diagnostics.errors() == 0);
    ParsedFile { spec, diagnostics: diagnostics.finish() }
}

/// A parsed file that may still contain errors.
struct FileDraft {
    spec: FileSpec,
    /// For each rule, whether part of it could not be parsed. Which requests such a rule matches is unknown.
    incomplete: Vec<bool>,
}

/// The state of the parser while it reads one file.
struct RuleReader<'n> {
    diagnostics: Diagnostics,
    now: Micros,
    style: PathStyle,
    /// The names of the file's tiers. `None` if it defines none; then every name is accepted.
    tiers: Option<TierNames<'n>>,
    /// The path patterns compiled so far, by text and field name.
    paths: HashMap<(&'n str, &'static str), PathPattern>,
    expressions: ExpressionMemory,
}

impl<'n> RuleReader<'n> {
    fn new(now: Micros, diagnostics: Diagnostics) -> RuleReader<'n> {
        RuleReader {
            diagnostics,
            now,
            style: PathStyle::default(),
            tiers: None,
            paths: HashMap::new(),
            expressions: ExpressionMemory::default(),
        }
    }

    fn text_of(&mut self, item: Option<FieldItem<'n>>) -> Option<String> {
        item?.text(&mut self.diagnostics).map(str::to_owned)
    }

    /// Reads a tier name, which must be defined if the file defines any tiers.
    fn tier(&mut self, item: &FieldItem<'n>) -> Option<String> {
        let name = item.text(&mut self.diagnostics)?;
        if let Some(message) = self.tiers.as_ref().and_then(|tiers| tiers.error_for(name)) {
            self.diagnostics.error(item.place(), message);
            return None;
        }
        Some(name.to_owned())
    }

    fn warn_if_expired(&mut self, valid_until: Option<Micros>, place: Position, what: &str) {
        if valid_until.is_some_and(|until| until <= self.now) {
            self.diagnostics
                .warn(place, format!("{what} has expired (its valid_until is in the past): leave it out"));
        }
    }
}
