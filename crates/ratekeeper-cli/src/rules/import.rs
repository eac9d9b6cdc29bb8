//! `ratekeeper rules import`: converts the rules of other rate limiters to a Ratekeeper rule file.
//!
//! The rules are written to stdout or to a file, and diagnostics to stderr, so that a pipe carries only rules.

use super::{EXIT_ERROR, OutputFormat, count_of, display_name, print_text, read_text};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ratekeeper::rules::{Diagnostic, Severity, report, report_json};
use ratekeeper_import::{ImportOutcome, ImportSource, import};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Convert the rules of another rate limiter
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The rate limiter that the files are for
    #[arg(long, value_enum)]
    from: ImportFrom,
    /// The files; - for stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the rules to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long, requires = "output")]
    force: bool,
    /// The format of the diagnostics
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

/// A rate limiter whose rules can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImportFrom {
    /// envoyproxy/ratelimit: a domain and its descriptors in each file
    Envoy,
    /// Limitador: a list of limits
    Limitador,
}

impl ImportArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut files = Vec::new();
        let mut unreadable = Vec::new();
        for path in &self.files {
            let name = display_name(path);
            match read_text(path).with_context(|| format!("cannot read {name}")) {
                Ok(text) => files.push((name, text)),
                Err(error) => unreadable.push(error),
            }
        }
        let source = match self.from {
            ImportFrom::Envoy => ImportSource::Envoy,
            ImportFrom::Limitador => ImportSource::Limitador,
        };
        let borrowed: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let imported = import(source, &borrowed);
        if let Some(text) = &imported.text {
            self.write(text)?;
        }
        self.print_diagnostics(&borrowed, &imported.diagnostics)?;
        let mut code = match imported.outcome {
            ImportOutcome::Complete => ExitCode::SUCCESS,
            ImportOutcome::Partial => ExitCode::FAILURE,
            ImportOutcome::Unreadable => EXIT_ERROR.into(),
        };
        for error in unreadable {
            code = crate::fail(&error, EXIT_ERROR);
        }
        Ok(code)
    }

    fn write(&self, text: &str) -> Result<()> {
        let Some(path) = &self.output else { return print_text(text) };
        let context = || format!("cannot write {}", path.display());
        let mut file = match self.open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!(
                    "{} already exists: choose another file, or pass --force to overwrite it",
                    path.display()
                )
            }
            opened => opened.with_context(context)?,
        };
        file.write_all(text.as_bytes()).with_context(context)
    }

    fn open(&self, path: &Path) -> io::Result<std::fs::File> {
        if self.force {
            OpenOptions::new().write(true).create(true).truncate(true).open(path)
        } else {
            OpenOptions::new().write(true).create_new(true).open(path)
        }
    }

    fn print_diagnostics(&self, files: &[(&str, &str)], diagnostics: &[Vec<Diagnostic>]) -> Result<()> {
        let reports = files.iter().zip(diagnostics);
        let output = match self.format {
            OutputFormat::Json => {
                let lists = reports.map(|((name, text), diagnostics)| report_json(name, text, diagnostics));
                let all = lists.flat_map(|list| list.as_array().cloned().unwrap_or_default());
                format!("{:#}\n", all.collect::<serde_json::Value>())
            }
            OutputFormat::Text => {
                reports.map(|((name, text), diagnostics)| text_report(name, text, diagnostics)).collect()
            }
        };
        io::stderr().write_all(output.as_bytes()).context("cannot write to stderr")
    }
}

/// The diagnostics of a file as text, followed by the number of items that were not imported exactly.
fn text_report(name: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    let mut output = report(name, text, diagnostics);
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
    if errors > 0 {
        let verb = if errors == 1 { "was" } else { "were" };
        output.push_str(&format!("{name}: {} {verb} not imported exactly\n", count_of(errors, "item")));
    }
    output
}
