//! Reading a rule file.
//!
//! A file is YAML, of which JSON is a part. All that is wrong with it is told at once, each with its place and what to
//! write instead: only if it can't be read as YAML at all is there a single complaint. A file with an error has no
//! spec, so that nothing of it takes effect; a warning keeps nothing back.

mod base;
mod descriptor;
mod fields;
mod limits;
mod path;
mod rule;
mod value;

use crate::diagnostic::{Diagnostic, Diagnostics, Severity, near, quoted};
use crate::expression::ExpressionMemory;
use crate::path::PathStyle;
use crate::pattern::PathPattern;
use crate::spec::{FileSpec, Position};
use crate::validate;
use crate::{diagnostic, yaml};
pub(crate) use base::{MOST_RULES, SUBSTANCE};
pub(crate) use descriptor::MOST_ENTRIES;
use fields::FieldItem;
pub(crate) use fields::MOST_TEXT;
use ratekeeper_core::Micros;
pub(crate) use rule::MOST_DIMENSIONS;
use std::collections::{HashMap, HashSet};

/// What came of reading a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedFile {
    /// What the file says, unless there is an error.
    pub spec: Option<FileSpec>,
    /// What is wrong with it, from top to bottom.
    pub complaints: Vec<Diagnostic>,
}

impl ParsedFile {
    /// How many of the complaints are errors.
    pub fn errors(&self) -> usize {
        self.complaints.iter().filter(|complaint| complaint.severity == Severity::Error).count()
    }

    /// The complaints as compilers write them: see [`report`](diagnostic::report).
    pub fn report(&self, file: &str, text: &str) -> String {
        diagnostic::report(file, text, &self.complaints)
    }
}

/// Reads a rule file. `now` tells what has expired, and only warnings depend on it.
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
/// let review = ratekeeper_rules::read(text, Micros::EPOCH);
/// assert_eq!(review.spec.expect("the file is in order").rules.len(), 1);
///
/// let text = "rules: [{id: orders, limt: 100/min}]";
/// let review = ratekeeper_rules::read(text, Micros::EPOCH);
/// assert!(review.spec.is_none());
/// let report = review.report("rules.yaml", text);
/// assert!(report.starts_with("rules.yaml:1:22: error: unknown field \"limt\": did you mean limit?"));
/// ```
pub fn read(text: &str, now: Micros) -> ParsedFile {
    let mut complaints = Diagnostics::default();
    let root = yaml::parse(text, &mut complaints);
    let is_yaml = root.is_some() || complaints.errors() == 0;
    let spec = match &root {
        Some(root) => {
            let mut reader = RuleReader::new(now, complaints);
            let draft = reader.file(root);
            complaints = reader.complaints;
            draft.map(|draft| {
                validate::cross(&draft.spec, &draft.unsound, &mut complaints);
                draft.spec
            })
        }
        None => None,
    };
    if root.is_none() && is_yaml {
        complaints.error(Position { line: 1, column: 1 }, base::says_nothing());
    }
    let spec = spec.filter(|_| complaints.errors() == 0);
    ParsedFile { spec, complaints: complaints.finish() }
}

/// A file as far as it could be read.
struct FileDraft {
    spec: FileSpec,
    /// Which rules, by index, are not all that was written: what binds whom can't be told of them.
    unsound: Vec<bool>,
}

/// What is known while a file is read.
struct RuleReader<'n> {
    complaints: Diagnostics,
    now: Micros,
    style: PathStyle,
    /// The names of the tiers, if the file has any; else every name is one.
    tiers: Option<TierNames<'n>>,
    /// The patterns of paths so far, by their text and the field that it was written for.
    paths: HashMap<(&'n str, &'static str), PathPattern>,
    expressions: ExpressionMemory,
}

impl<'n> RuleReader<'n> {
    fn new(now: Micros, complaints: Diagnostics) -> RuleReader<'n> {
        RuleReader {
            complaints,
            now,
            style: PathStyle::default(),
            tiers: None,
            paths: HashMap::new(),
            expressions: ExpressionMemory::default(),
        }
    }

    fn text_of(&mut self, item: Option<FieldItem<'n>>) -> Option<String> {
        item?.text(&mut self.complaints).map(str::to_owned)
    }

    /// A tier's name, which must be among those of the file if it has any.
    fn tier(&mut self, item: &FieldItem<'n>) -> Option<String> {
        let name = item.text(&mut self.complaints)?;
        if let Some(said) = self.tiers.as_ref().and_then(|tiers| tiers.complaint(name)) {
            self.complaints.error(item.place(), said);
            return None;
        }
        Some(name.to_owned())
    }

    fn complain_of_past(&mut self, valid_until: Option<Micros>, place: Position, what: &str) {
        if valid_until.is_some_and(|until| until <= self.now) {
            self.complaints
                .warn(place, format!("{what} no longer holds, since its valid_until is past: leave it out"));
        }
    }
}

/// The names of the tiers of a file.
#[derive(Debug)]
pub(crate) struct TierNames<'n> {
    /// In the order of the file.
    names: Vec<&'n str>,
    known: HashSet<&'n str>,
}

impl<'n> TierNames<'n> {
    pub(crate) fn new(names: Vec<&'n str>) -> TierNames<'n> {
        TierNames { known: names.iter().copied().collect(), names }
    }

    /// What to say of a name, if it is not among them.
    pub(crate) fn complaint(&self, name: &str) -> Option<String> {
        /// As many names as one wants to read in a message.
        const SHOWN: usize = 10;
        /// As many names as are worth looking through for what was meant.
        const SEARCHED: usize = 1_000;
        if self.known.contains(name) {
            return None;
        }
        let shown = quoted(name);
        if let Some(near) = near(name, self.names.iter().copied().take(SEARCHED)) {
            return Some(format!("there is no tier {shown}: did you mean {near}?"));
        }
        let listed = self.names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = if self.names.len() > SHOWN { ", …" } else { "" };
        Some(format!("there is no tier {shown}: add it to tiers, or write one of {listed}{more}"))
    }
}
