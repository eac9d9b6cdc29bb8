//! `ratekeeper rules`: what is in a file of rules, and what is wrong with it.
//!
//! Exit codes: 0 all is well, 1 a file has mistakes (or two differ, or not all was imported), 2 it could not be found
//! out.

mod explain;
mod import;

use anyhow::{Context, Result, ensure};
use clap::{ArgMatches, Command, FromArgMatches as _, Subcommand, ValueEnum};
use ratekeeper::rules::spec::FileSpec;
use ratekeeper::rules::{ParsedFile, diff, read, report_json, schema};
use ratekeeper::{Clock, SystemClock};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most bytes of a file.
const MAX_BYTES: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  ratekeeper rules check limits.yaml
      say all that is wrong with a file, with lines and what to write instead

  ratekeeper rules explain limits.yaml --key sk_prod_42 --endpoint /v1/orders
      which rules bind this request, why, and why the others do not

  ratekeeper rules diff before.yaml after.yaml
      what changes, in words

  ratekeeper rules import --from envoy ratelimit/*.yaml --output limits.yaml
      rules from the configuration of envoyproxy/ratelimit; what can't be translated is told

  ratekeeper rules schema > ratekeeper.schema.json
      for editors: put this line on top of your file
          # yaml-language-server: $schema=ratekeeper.schema.json

Exit codes: 0 all is well, 1 a file has mistakes, two files differ, or not all could be imported, 2 it could not be
found out.";

/// How the process ends when it could not be found out.
const UNKNOWN: u8 = 2;

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let command = Command::new("rules").about("Check, explain, compare and import files of rules");
    let command = command.subcommand_required(true).arg_required_else_help(true);
    RulesCommand::augment_subcommands(command)
        .after_long_help(EXAMPLES)
        .after_help("See --help for examples.")
}

/// Does it, and says how the process ends.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let task = RulesCommand::from_arg_matches(matches).map_err(anyhow::Error::from);
    task.and_then(RulesCommand::run).unwrap_or_else(|error| crate::fail(&error, UNKNOWN))
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// Say all that is wrong with files, and what to write instead
    Check {
        /// The files; - for what comes on stdin
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// How to say it
        #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
        format: OutputFormat,
    },
    /// Say which rules bind a request, why, and why the others do not
    Explain(explain::ExplainArgs),
    /// Make a file of rules from those of another limiter
    Import(import::ImportArgs),
    /// Print the JSON Schema of rule files, for editors
    Schema,
    /// Say in words what changes from one file to another
    Diff {
        /// The file as it was
        before: PathBuf,
        /// The file as it will be
        after: PathBuf,
        /// How to say it
        #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
        format: OutputFormat,
    },
}

/// How something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

impl RulesCommand {
    fn run(self) -> Result<ExitCode> {
        match self {
            RulesCommand::Check { files, format } => check(&files, format),
            RulesCommand::Explain(explain) => explain.run(),
            RulesCommand::Import(import) => import.run(),
            RulesCommand::Schema => {
                say(&format!("{:#}\n", schema()))?;
                Ok(ExitCode::SUCCESS)
            }
            RulesCommand::Diff { before, after, format } => compare(&before, &after, format),
        }
    }
}

/// A file and what came of reading it.
struct CheckedFile {
    name: String,
    text: String,
    review: ParsedFile,
}

impl CheckedFile {
    fn of(path: &Path) -> Result<CheckedFile> {
        let name = name_of(path);
        let text = contents(path).with_context(|| format!("cannot read {name}"))?;
        let review = read(&text, SystemClock::new().now());
        Ok(CheckedFile { name, text, review })
    }

    fn report(&self) -> String {
        self.review.report(&self.name, &self.text)
    }

    /// What the file says; if it has mistakes, they are told on stderr.
    fn spec(self) -> Result<Option<FileSpec>> {
        if self.review.spec.is_none() {
            io::stderr().write_all(self.report().as_bytes())?;
        }
        Ok(self.review.spec)
    }
}

/// What a file goes by in messages.
fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}

fn contents(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    match path == Path::new("-") {
        true => io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes)?,
        false => fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?,
    };
    ensure!(bytes.len() as u64 <= MAX_BYTES, "it has more than 16 MiB: that is not a file that people write");
    String::from_utf8(bytes).context("it is not text in UTF-8: save it as UTF-8")
}

fn check(files: &[PathBuf], format: OutputFormat) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut unreadable = Vec::new();
    let (mut text, mut list) = (String::new(), Vec::new());
    for path in files {
        let file = match CheckedFile::of(path) {
            Ok(file) => file,
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        if file.review.spec.is_none() {
            code = ExitCode::FAILURE;
        }
        match format {
            OutputFormat::Text => {
                text.push_str(&file.report());
                let _ = match &file.review.spec {
                    Some(spec) => writeln!(text, "{}: in order: {}", file.name, summary(spec)),
                    None => writeln!(text, "{}: {}", file.name, count(file.review.errors(), "mistake")),
                };
            }
            OutputFormat::Json => {
                let complaints = report_json(&file.name, &file.text, &file.review.complaints);
                list.extend(complaints.as_array().cloned().unwrap_or_default());
            }
        }
    }
    match format {
        OutputFormat::Text => say(&text)?,
        OutputFormat::Json => say(&format!("{:#}\n", serde_json::Value::Array(list)))?,
    }
    for error in unreadable {
        code = crate::fail(&error, UNKNOWN);
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
        noun => count(*number, noun),
    });
    let mut shown: Vec<_> = shown.collect();
    if let (number @ 1.., bytes) = spec.expressions() {
        shown.push(format!("{} of {} KiB", count(number, "expression"), bytes.div_ceil(1024)));
    }
    if shown.is_empty() { "no rules: everything is allowed".to_owned() } else { shown.join(", ") }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn compare(before: &Path, after: &Path, format: OutputFormat) -> Result<ExitCode> {
    let (before, after) = (CheckedFile::of(before)?.spec()?, CheckedFile::of(after)?.spec()?);
    let (Some(before), Some(after)) = (before, after) else { return Ok(UNKNOWN.into()) };
    let changes = diff(&before, &after);
    match format {
        OutputFormat::Json => say(&format!("{:#}\n", serde_json::json!(changes)))?,
        OutputFormat::Text if changes.is_empty() => say("nothing changes\n")?,
        OutputFormat::Text => say(&(changes.join("\n") + "\n"))?,
    }
    Ok(if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(text: &str) -> Result<()> {
    crate::print(text.as_bytes())
}
