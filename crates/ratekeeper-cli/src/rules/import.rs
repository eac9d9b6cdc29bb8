//! `ratekeeper rules import`: rules of other limiters as a file of ours.
//!
//! The rules go to stdout or into a file, what is to be said of them to stderr, so that a pipe carries rules only.

use super::{OutputFormat, UNKNOWN, contents, count, name_of, say};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ratekeeper::rules::{Diagnostic, ImportOutcome, ImportSource, Severity, import, report, report_json};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a file of rules from those of another limiter
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// Whose rules they are
    #[arg(long, value_enum)]
    from: ImportFrom,
    /// The files; - for what comes on stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to write the rules, instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write there even if there is a file already
    #[arg(long, requires = "output")]
    force: bool,
    /// How to say what was left out
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

/// A limiter whose rules can be read.
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
            let name = name_of(path);
            match contents(path).with_context(|| format!("cannot read {name}")) {
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
        self.tell(&borrowed, &imported.complaints)?;
        let mut code = match imported.outcome {
            ImportOutcome::Whole => ExitCode::SUCCESS,
            ImportOutcome::Parts => ExitCode::FAILURE,
            ImportOutcome::Unread => UNKNOWN.into(),
        };
        for error in unreadable {
            code = crate::fail(&error, UNKNOWN);
        }
        Ok(code)
    }

    fn write(&self, text: &str) -> Result<()> {
        let Some(path) = &self.output else { return say(text) };
        let shown = || format!("cannot write {}", path.display());
        let mut file = match self.open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is there already: name another file, or add --force to replace it", path.display())
            }
            opened => opened.with_context(shown)?,
        };
        file.write_all(text.as_bytes()).with_context(shown)
    }

    fn open(&self, path: &Path) -> io::Result<std::fs::File> {
        match self.force {
            true => OpenOptions::new().write(true).create(true).truncate(true).open(path),
            false => OpenOptions::new().write(true).create_new(true).open(path),
        }
    }

    fn tell(&self, files: &[(&str, &str)], complaints: &[Vec<Diagnostic>]) -> Result<()> {
        let told = files.iter().zip(complaints);
        let said = match self.format {
            OutputFormat::Json => {
                let lists = told.map(|((name, text), complaints)| report_json(name, text, complaints));
                let all = lists.flat_map(|list| list.as_array().cloned().unwrap_or_default());
                format!("{:#}\n", all.collect::<serde_json::Value>())
            }
            OutputFormat::Text => {
                told.map(|((name, text), complaints)| in_words(name, text, complaints)).collect()
            }
        };
        io::stderr().write_all(said.as_bytes()).context("cannot write to stderr")
    }
}

/// What is said of a file, and at the end how much of it was left out.
fn in_words(name: &str, text: &str, complaints: &[Diagnostic]) -> String {
    let mut said = report(name, text, complaints);
    let errors = complaints.iter().filter(|complaint| complaint.severity == Severity::Error).count();
    if errors > 0 {
        let are = if errors == 1 { "is" } else { "are" };
        said.push_str(&format!("{name}: {} {are} not in the rules as there\n", count(errors, "thing")));
    }
    said
}
