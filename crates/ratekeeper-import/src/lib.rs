//! Translates the rules of other rate limiters to Ratekeeper's rule files.
//!
//! Translated rules apply the same limits to the same requests, with the same counting keys. Anything that can't be
//! translated is reported with its position and the reason, never dropped silently; a difference that changes no
//! limit is a warning. The result is a rule file that people can read and edit.

mod draft;
mod envoy;
mod fields;
mod limitador;

use ratekeeper_core::{Algorithm, Align, Limit, Micros, Quota, Span};
use ratekeeper_rules::bounds::MAX_RULES;
use ratekeeper_rules::spec::Position;
use ratekeeper_rules::{Diagnostic, Diagnostics, Severity};

/// The limiter whose rules are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportSource {
    /// The configuration of envoyproxy/ratelimit: a domain and nested descriptors.
    Envoy,
    /// The limits of Kuadrant's Limitador.
    Limitador,
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// A rule file with everything that could be translated; `None` if no file could be read.
    pub text: Option<String>,
    /// The diagnostics of each file, from top to bottom: an error for anything left out or changed, a warning for a
    /// difference that changes no limit.
    pub diagnostics: Vec<Vec<Diagnostic>>,
    /// How much of the files was translated.
    pub outcome: ImportOutcome,
}

/// How much of the imported files was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportOutcome {
    /// Everything.
    Complete,
    /// A part: the errors say what is missing.
    Partial,
    /// At least one file could not be read; the others are translated.
    Unreadable,
}

/// Translates the rules of another limiter from one or more files, given as pairs of name and text.
///
/// ```
/// use ratekeeper_import::{ImportOutcome, ImportSource, import};
///
/// let text = "
/// domain: edge
/// descriptors:
///   - key: remote_address
///     rate_limit: {unit: minute, requests_per_unit: 100}
/// ";
/// let import = import(ImportSource::Envoy, &[("edge.yaml", text)]);
/// assert_eq!(import.outcome, ImportOutcome::Complete);
/// assert!(import.text.is_some_and(|text| text.contains("limit: 100/min")));
/// ```
pub fn import(source: ImportSource, files: &[(&str, &str)]) -> Import {
    let mut reports = ImportReports::new(files.len());
    let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
    let (header, mut rules) = match source {
        ImportSource::Envoy => (envoy::HEADER, envoy::translate(&texts, &mut reports)),
        ImportSource::Limitador => (limitador::HEADER, limitador::translate(&texts, &mut reports)),
    };
    if rules.len() > MAX_RULES {
        rules.truncate(MAX_RULES);
        let message = format!("more than {MAX_RULES} rules are needed: the rest are left out");
        reports.error(ImportPlace::default(), message);
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let has_read = reports.unreadable.contains(&false) || !rules.is_empty();
    let text = has_read.then(|| draft::write(&names, header, &rules));
    if let Some(text) = &text {
        reports.validate_result(text);
    }
    reports.finish(text)
}

/// A position in one of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ImportPlace {
    file: usize,
    position: Position,
}

/// The diagnostics of each file, and which files could not be read.
#[derive(Debug)]
struct ImportReports {
    diagnostics: Vec<Diagnostics>,
    unreadable: Vec<bool>,
}

impl ImportReports {
    fn new(files: usize) -> ImportReports {
        ImportReports {
            diagnostics: (0..files).map(|_| Diagnostics::default()).collect(),
            unreadable: vec![false; files],
        }
    }

    /// Reports something that is left out or changed.
    fn error(&mut self, place: ImportPlace, message: impl Into<String>) {
        self.diagnostics[place.file].error(place.position, message);
    }

    /// Like [`error`](ImportReports::error), for something that then counts as absent.
    fn reject<T>(&mut self, place: ImportPlace, message: impl Into<String>) -> Option<T> {
        self.error(place, message);
        None
    }

    /// Reports a difference that changes no limit.
    fn warn(&mut self, place: ImportPlace, message: impl Into<String>) {
        self.diagnostics[place.file].warn(place.position, message);
    }

    /// Reports that a file can't be used at all.
    fn reject_file(&mut self, place: ImportPlace, message: impl Into<String>) {
        self.error(place, message);
        self.unreadable[place.file] = true;
    }

    fn error_count(&self) -> usize {
        self.diagnostics.iter().map(Diagnostics::errors).sum()
    }

    /// Validates the translated rules like any other rule file, so that errors show up at import and not at first use.
    fn validate_result(&mut self, text: &str) {
        let parsed = ratekeeper_rules::read(text, Micros::EPOCH);
        for diagnostic in parsed.diagnostics.iter().filter(|found| found.severity == Severity::Error) {
            let Position { line, column } = diagnostic.place;
            let message = format!(
                "the imported rules are invalid: line {line}, column {column}: {}",
                diagnostic.message
            );
            self.error(ImportPlace::default(), message);
        }
    }

    fn finish(self, text: Option<String>) -> Import {
        let outcome = match (self.unreadable.contains(&true), self.error_count()) {
            (true, _) => ImportOutcome::Unreadable,
            (false, 0) => ImportOutcome::Complete,
            (false, _) => ImportOutcome::Partial,
        };
        Import { text, diagnostics: self.diagnostics.into_iter().map(Diagnostics::finish).collect(), outcome }
    }
}

/// The quota of a fixed window. An amount of 0 becomes the lowest quota, since a rule can't deny everything.
fn quota(
    amount: u64,
    span: Span,
    align: Align,
    place: ImportPlace,
    reports: &mut ImportReports,
) -> Option<Quota> {
    let Ok(count) = u32::try_from(amount) else {
        let message = format!("the limit is left out: a rule allows at most {}, not {amount}", u32::MAX);
        return reports.reject(place, message);
    };
    let quota = if count == 0 {
        let message = "a limit of 0 denies every request, which a rule can't express: it became 1/year, the lowest \
                       limit. Have the proxy reject these requests, or put the clients on the deny list";
        reports.error(place, message);
        Quota::new(1, Span::YEAR)
    } else {
        Quota::new(count, span)
    };
    let quota = quota.map_err(|error| error.to_string()).and_then(|quota| {
        let limit = Limit::new(Algorithm::FixedWindow(align), quota);
        limit.map(|_| quota).map_err(|error| error.to_string())
    });
    quota.map_err(|error| reports.error(place, format!("the limit is left out: {error}"))).ok()
}
