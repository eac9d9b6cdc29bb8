//! The `tollgate` command.

#![expect(clippy::print_stderr, reason = "a command tells the terminal why it failed")]

mod serve;
mod signals;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// A rate limiter: ask it whether a client may go on.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = "Logs go to stderr; RUST_LOG says how much, like RUST_LOG=debug."
)]
enum Command {
    Serve(serve::Serve),
}

fn main() -> ExitCode {
    let command = Command::parse();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    log_to_stderr()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    match command {
        Command::Serve(serve) => runtime.block_on(serve.run()),
    }
}

fn log_to_stderr() -> Result<()> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env();
    let filter = filter.map_err(|error| anyhow!("cannot read RUST_LOG: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
    Ok(())
}
