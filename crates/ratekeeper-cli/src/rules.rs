//! `ratekeeper rules`: checks, explains, compares and imports rule files.
//!
//! Exit codes: 0 success, 1 a file has errors (or two files differ, or not everything was imported), 2 the command
//! failed.

mod explain;
mod import;

use anyhow::{Context, Result, anyhow};
use clap::{ArgMatches, Command, FromArgMatches as _, Subcommand, ValueEnum};
use ratekeeper::rules::spec::FileSpec;
use ratekeeper::rules::{ParsedFile, diff, read, report_json, schema};
use ratekeeper::{Clock, SystemClock};
use ratekeeper_server::file;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The maximum size of a file in bytes.
const MAX_BYTES: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  ratekeeper rules check limits.yaml
      report all errors in a file, with their lines and what to write instead

  ratekeeper rules explain limits.yaml --key sk_prod_42 --endpoint /v1/orders
      show which rules apply to this request, and why the others do not

  ratekeeper rules diff before.yaml after.yaml
      describe the changes between two files

  ratekeeper rules import --from envoy ratelimit/*.yaml --output limits.yaml
      convert a configuration of envoyproxy/ratelimit; reports what can't be converted

  ratekeeper rules schema > ratekeeper.schema.json
      for editors: put this line at the top of your file
          # yaml-language-server: $schema=ratekeeper.schema.json

Exit codes: 0 success, 1 a file has errors, two files differ, or not everything was imported, 2 the command
failed.";

/// The exit code if the command itself failed.
const EXIT_ERROR: u8 = 2;

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let command = Command::new("rules").about("Check, explain, compare and import rule files");
    let command = command.subcommand_required(true).arg_required_else_help(true);
    RulesCommand::augment_subcommands(command)
        .after_long_help(EXAMPLES)
        .after_help("See --help for examples.")
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let task = RulesCommand::from_arg_matches(matches).map_err(anyhow::Error::from);
    task.and_then(RulesCommand::run).unwrap_or_else(|error| crate::fail(&error, EXIT_ERROR))
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// Report all errors in rule files, and what to write instead
    Check {
        /// The files; - for stdin
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The output format
        #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
        format: OutputFormat,
    },
    /// Show which rules apply to a request, and why the others do not
    Explain(explain::ExplainArgs),
    /// Convert the rules of another rate limiter
    Import(import::ImportArgs),
    /// Print the JSON Schema of rule files, for editors
    Schema,
    /// Describe the changes from one rule file to another
    Diff {
        /// The old file
        before: PathBuf,
        /// The new file
        after: PathBuf,
        /// The output format
        #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
        format: OutputFormat,
    },
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

impl RulesCommand {
    fn run(self) -> Result<ExitCode> {
        match self {
            RulesCommand::Check { files, format } => check(&files, format),
            RulesCommand::Explain(explain) => explain.run(),
            RulesCommand::Import(import) => import.run(),
            RulesCommand::Schema => {
                print_text(&format!("{:#}\n", schema()))?;
                Ok(ExitCode::SUCCESS)
            }
            RulesCommand::Diff { before, after, format } => compare(&before, &after, format),
        }
    }
}

/// A rule file and the result of parsing it.
struct CheckedFile {
    name: String,
    text: String,
    parsed: ParsedFile,
}

impl CheckedFile {
    fn read(path: &Path) -> Result<CheckedFile> {
        let name = display_name(path);
        let text = read_text(path).with_context(|| format!("cannot read {name}"))?;
        let parsed = read(&text, SystemClock::new().now());
        Ok(CheckedFile { name, text, parsed })
    }

    fn report(&self) -> String {
        self.parsed.report(&self.name, &self.text)
    }

    /// The parsed rules. If the file has errors, prints them to stderr and returns `None`.
    fn spec(self) -> Result<Option<FileSpec>> {
        if self.parsed.spec.is_none() {
            io::stderr().write_all(self.report().as_bytes())?;
        }
        Ok(self.parsed.spec)
    }
}

/// The name of a file in messages.
fn display_name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}

fn read_text(path: &Path) -> Result<String> {
    let read = if path == Path::new("-") {
        file::read_from(io::stdin(), MAX_BYTES)
    } else {
        file::read(path, MAX_BYTES)
    };
    let bytes = read.map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => anyhow!("it is larger than 16 MiB, the maximum for a rule file"),
        _ => error.into(),
    })?;
    String::from_utf8(bytes).context("it is not valid UTF-8: save it as UTF-8")
}

fn check(files: &[PathBuf], format: OutputFormat) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut unreadable = Vec::new();
    let (mut text, mut diagnostics_json) = (String::new(), Vec::new());
    for path in files {
        let file = match CheckedFile::read(path) {
            Ok(file) => file,
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        if file.parsed.spec.is_none() {
            code = ExitCode::FAILURE;
        }
        match format {
            OutputFormat::Text => {
                text.push_str(&file.report());
                let _ = match &file.parsed.spec {
                    Some(spec) => writeln!(text, "{}: ok: {}", file.name, summary(spec)),
                    None => writeln!(text, "{}: {}", file.name, count_of(file.parsed.errors(), "error")),
                };
            }
            OutputFormat::Json => {
                let diagnostics = report_json(&file.name, &file.text, &file.parsed.diagnostics);
                diagnostics_json.extend(diagnostics.as_array().cloned().unwrap_or_default());
            }
        }
    }
    match format {
        OutputFormat::Text => print_text(&text)?,
        OutputFormat::Json => print_text(&format!("{:#}\n", serde_json::Value::Array(diagnostics_json)))?,
    }
    for error in unreadable {
        code = crate::fail(&error, EXIT_ERROR);
    }
    Ok(code)
}

fn summary(spec: &FileSpec) -> String {
    let parts = [
        (spec.rules.len(), "rule"),
        (usize::from(spec.default.is_some()), "default"),
        (spec.tiers.len(), "tier"),
        (spec.clients.len(), "client"),
        (spec.allow.len(), "allowed"),
        (spec.deny.len(), "denied"),
    ];
    let shown = parts.iter().filter(|(number, _)| *number > 0).map(|(number, noun)| match *noun {
        "default" => "a default".to_owned(),
        "allowed" | "denied" => format!("{number} {noun}"),
        noun => count_of(*number, noun),
    });
    let mut shown: Vec<_> = shown.collect();
    if let (number @ 1.., bytes) = spec.regex_usage() {
        shown.push(format!("{} of {} KiB", count_of(number, "expression"), bytes.div_ceil(1024)));
    }
    if shown.is_empty() { "no rules: all requests are allowed".to_owned() } else { shown.join(", ") }
}

fn count_of(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn compare(before: &Path, after: &Path, format: OutputFormat) -> Result<ExitCode> {
    let (before, after) = (CheckedFile::read(before)?.spec()?, CheckedFile::read(after)?.spec()?);
    let (Some(before), Some(after)) = (before, after) else { return Ok(EXIT_ERROR.into()) };
    let changes = diff(&before, &after);
    match format {
        OutputFormat::Json => print_text(&format!("{:#}\n", serde_json::json!(changes)))?,
        OutputFormat::Text if changes.is_empty() => print_text("no changes\n")?,
        OutputFormat::Text => {
            print_text(&changes.iter().map(|change| format!("{change}\n")).collect::<String>())?;
        }
    }
    Ok(if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_text(text: &str) -> Result<()> {
    crate::print_to_stdout(text.as_bytes())
}
