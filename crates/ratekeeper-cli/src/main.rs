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

/// How the process ends when it could not do what was asked.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let matches = command().get_matches();
    let (name, matches) = matches.subcommand().expect("clap asks for a subcommand");
    let outcome = match name {
        "serve" => return serve::run(matches),
        "check" => return check::run(matches),
        "rules" => return rules::run(matches),
        "completions" => completions::run(matches),
        "man" => man::run(matches),
        name => unreachable!("{name} is no subcommand"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, FAILED),
    }
}

/// The whole command line. Parsing, help, completions and the manual all follow from it.
fn command() -> Command {
    Command::new("ratekeeper")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A rate limiter: ask it whether a client may go on")
        .after_help("Logs go to stderr; RUST_LOG says how much, like RUST_LOG=debug.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(check::command())
        .subcommand(rules::command())
        .subcommand(completions::command())
        .subcommand(man::command())
}

/// Says why it failed, and how the process ends.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    complain(format_args!("error: {error:#}"));
    code.into()
}

/// Writes a line to stderr. A failed write is ignored: there is no other place to report it, and `eprintln!` would panic.
fn complain(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes to stdout. Whoever stops reading, like `head`, has read enough.
fn print(bytes: &[u8]) -> Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_in_order() {
        super::command().debug_assert();
    }
}
