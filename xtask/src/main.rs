//! The project's development tasks, run as `cargo xtask TASK`.
//!
//! Everything that a contributor or CI does beyond plain `cargo` is here, in Rust, once. Every task runs in the
//! workspace root, builds below `target/`, and installs missing tools there; Debian packages are installed by apt.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task reports to the terminal")]

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

/// Development tasks of the project.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Run all checks, stopping at the first that fails.
    Test {
        /// Run only these steps, named as in the table that a run prints at its end.
        steps: Vec<String>,
    },
    /// Run one benchmark scenario of bench/.
    Bench {
        /// The scenario's name.
        name: String,
        /// Arguments for the scenario.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Generate the Rust code of the gRPC messages from proto/.
    Proto,
    /// Install the servers that tests start, and print the environment variables that tests find them by.
    Servers,
    /// Mutate ratekeeper-core, and list the mutants that no test notices.
    Mutants,
    /// Feed random input to the fuzz targets whose names contain TARGET.
    Fuzz {
        /// All or part of the name of a bolero test.
        target: String,
        /// How many seconds to fuzz each target.
        #[arg(default_value_t = 60)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    run_task(Task::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_task(task: Task) -> Result<ExitCode> {
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
