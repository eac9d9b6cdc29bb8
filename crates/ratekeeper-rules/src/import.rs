//! Rules of other limiters, as rules of ours.
//!
//! What is translated holds the same requests to the same limits, counted apart by the same things. What can't be
//! translated is named with its place and the reason, never dropped in silence; a difference that changes nobody's
//! limit is a warning. What comes out is a rule file that people can read and go on with.

mod draft;
mod envoy;
mod fields;
mod limitador;

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::read::MOST_RULES;
use crate::spec::Position;
use ratekeeper_core::{Micros, Quota, Span};

/// Whose rules are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportSource {
    /// The configuration of envoyproxy/ratelimit: a domain and nested descriptors.
    Envoy,
    /// The limits of Kuadrant's Limitador.
    Limitador,
}

/// What came of importing files.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// A rule file with all that could be translated, unless no file could be read.
    pub text: Option<String>,
    /// For each file, what is to be said of it, from top to bottom: an error for what was left out or changed, a warning
    /// for what is different and changes nobody's limit.
    pub complaints: Vec<Vec<Diagnostic>>,
    /// How much of the files is in the text.
    pub outcome: ImportOutcome,
}

/// How much of what was to be imported could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportOutcome {
    /// All of it.
    Whole,
    /// Some of it: the errors say what else there is.
    Parts,
    /// A file could not be read at all. What the others say is there.
    Unread,
}

/// Translates the rules of another limiter, which may be in several files. Each comes with its name and its text.
///
/// ```
/// use ratekeeper_rules::{Outcome, Source, import};
///
/// let text = "
/// domain: edge
/// descriptors:
///   - key: remote_address
///     rate_limit: {unit: minute, requests_per_unit: 100}
/// ";
/// let import = import(Source::Envoy, &[("edge.yaml", text)]);
/// assert_eq!(import.outcome, Outcome::Whole);
/// assert!(import.text.is_some_and(|text| text.contains("limit: 100/min")));
/// ```
pub fn import(source: ImportSource, files: &[(&str, &str)]) -> Import {
    let mut reports = ImportReports::new(files.len());
    let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
    let (about, mut rules) = match source {
        ImportSource::Envoy => (envoy::ABOUT, envoy::translate(&texts, &mut reports)),
        ImportSource::Limitador => (limitador::ABOUT, limitador::translate(&texts, &mut reports)),
    };
    if rules.len() > MOST_RULES {
        rules.truncate(MOST_RULES);
        let said =
            format!("more than {MOST_RULES} rules are needed to say the same: those beyond are left out");
        reports.error(ImportPlace::default(), said);
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let has_read = reports.unread.contains(&false) || !rules.is_empty();
    let text = has_read.then(|| draft::write(&names, about, &rules));
    if let Some(text) = &text {
        reports.complain_of_result(text);
    }
    reports.finish(text)
}

/// A place in one of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ImportPlace {
    file: usize,
    place: Position,
}

/// What is to be said of each file.
#[derive(Debug)]
struct ImportReports {
    complaints: Vec<Diagnostics>,
    unread: Vec<bool>,
}

impl ImportReports {
    fn new(files: usize) -> ImportReports {
        ImportReports {
            complaints: (0..files).map(|_| Diagnostics::default()).collect(),
            unread: vec![false; files],
        }
    }

    /// Something is left out, or is not what it was.
    fn error(&mut self, spot: ImportPlace, said: impl Into<String>) {
        self.complaints[spot.file].error(spot.place, said);
    }

    /// Something is different, and nobody's limit is.
    fn warn(&mut self, spot: ImportPlace, said: impl Into<String>) {
        self.complaints[spot.file].warn(spot.place, said);
    }

    /// Nothing of a file can be used.
    fn unread(&mut self, spot: ImportPlace, said: impl Into<String>) {
        self.error(spot, said);
        self.unread[spot.file] = true;
    }

    fn errors(&self) -> usize {
        self.complaints.iter().map(Diagnostics::errors).sum()
    }

    /// What is translated is checked like any other file, so that whoever uses it is not the first to find out.
    fn complain_of_result(&mut self, text: &str) {
        let review = crate::read(text, Micros::EPOCH);
        for complaint in review.complaints.iter().filter(|found| found.severity == Severity::Error) {
            let Position { line, column } = complaint.place;
            let said = format!(
                "the imported rules are not in order: line {line}, column {column}: {}",
                complaint.said
            );
            self.error(ImportPlace::default(), said);
        }
    }

    fn finish(self, text: Option<String>) -> Import {
        let outcome = match (self.unread.contains(&true), self.errors()) {
            (true, _) => ImportOutcome::Unread,
            (false, 0) => ImportOutcome::Whole,
            (false, _) => ImportOutcome::Parts,
        };
        Import { text, complaints: self.complaints.into_iter().map(Diagnostics::finish).collect(), outcome }
    }
}

/// How much per how long. What refuses everything is as little as a rule can say.
fn quota(amount: u64, span: Span, spot: ImportPlace, reports: &mut ImportReports) -> Option<Quota> {
    let Ok(count) = u32::try_from(amount) else {
        reports.error(spot, format!("the limit is left out: a rule counts up to {}, not {amount}", u32::MAX));
        return None;
    };
    let quota = match count {
        0 => {
            let said = "a limit of 0 refuses everything, which a rule can't say: it became 1/year, the least there is. \
                        Have the proxy refuse these, or put the clients on the deny list";
            reports.error(spot, said);
            Quota::new(1, Span::YEAR)
        }
        count => Quota::new(count, span),
    };
    quota.map_err(|error| reports.error(spot, format!("the limit is left out: {error}"))).ok()
}
