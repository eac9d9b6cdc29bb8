//! The project's chores, run as `cargo xtask TASK`.
//!
//! Whatever a contributor or CI does beyond plain `cargo` is written down here, in Rust, once. Every task runs
//! from the root of the workspace, builds below `target/`, and installs there the tools the machine lacks; what only Debian
//! packages is installed by apt.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore reports to the terminal it runs in")]

mod api;
mod bench;
mod clients;
mod debian;
mod grpc;
mod node;
mod proto;
mod proxies;
mod python;
mod search;
mod server;
mod servers;
mod test;
mod tidy;
mod tool;

use std::{env, ffi::OsString, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

/// The project's chores.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Check everything a change must keep true, stopping at the first thing that is not.
    Test {
        /// Only these steps, by the names that the table at the end has.
        steps: Vec<String>,
    },
    /// Run one scenario of bench/; what follows its name is handed to it.
    Bench {
        /// The scenario, as bench/ names it.
        name: String,
        /// Its own arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Generate the Rust code of the gRPC messages from proto/.
    Proto,
    /// Install the servers that tests start, and print the variables by which a test finds them.
    Servers,
    /// Break ratekeeper-core in many small ways and list those that no test notices.
    Mutants,
    /// Feed random input to the fuzz targets whose name contains TARGET.
    Fuzz {
        /// All or part of the name of a test that draws its input from bolero.
        target: String,
        /// How long to search each target.
        #[arg(default_value_t = 60)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    perform(Task::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn perform(task: Task) -> Result<ExitCode> {
    enter_workspace()?;
    match task {
        Task::Test { steps } => return test::run(&steps),
        Task::Bench { name, rest } => bench::scenario(&name, &rest)?,
        Task::Proto => proto::write()?,
        Task::Servers => servers::print()?,
        Task::Mutants => search::mutants()?,
        Task::Fuzz { target, seconds } => search::fuzz(&target, seconds)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the workspace root the working directory, so that every path in a task can be relative to it.
fn enter_workspace() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives inside the workspace");
    env::set_current_dir(root).with_context(|| format!("cannot enter {}", root.display()))
}
