//! The `ratekeeper` command.

mod check;
mod completions;
mod man;
mod rules;
mod serve;
mod settings;
mod signals;

use anyhow::{Context, Result};
use clap::Command;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit code of a command that failed.
const EXIT_FAILURE: u8 = 1;

fn main() -> ExitCode {
    let matches = command().get_matches();
    let (name, matches) = matches.subcommand().expect("clap requires a subcommand");
    let outcome = match name {
        "serve" => return serve::run(matches),
        "check" => return check::run(matches),
        "rules" => return rules::run(matches),
        "completions" => completions::run(matches),
        "man" => man::run(matches),
        name => unreachable!("unknown subcommand {name}"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, EXIT_FAILURE),
    }
}

/// The complete command line. Parsing, help, completions and the manual are derived from it.
fn command() -> Command {
    Command::new("ratekeeper")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A distributed rate limiter: decides whether a client's request is allowed")
        .after_help("Logs are written to stderr; RUST_LOG sets the level, like RUST_LOG=debug.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(check::command())
        .subcommand(rules::command())
        .subcommand(completions::command())
        .subcommand(man::command())
}

/// Prints an error to stderr and returns the exit code.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    print_to_stderr(format_args!("error: {error:#}"));
    code.into()
}

/// Writes a line to stderr. A failed write is ignored: it can't be reported anywhere else, and `eprintln!` would panic.
fn print_to_stderr(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes to stdout. A closed pipe is not an error: a reader like `head` has read enough.
fn print_to_stdout(bytes: &[u8]) -> Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_valid() {
        super::command().debug_assert();
    }
}
