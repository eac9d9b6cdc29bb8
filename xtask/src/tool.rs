//! The programs that tasks run: cargo, and the cargo subcommands the project needs.
//!
//! A subcommand found on the machine is used as it is. One that is missing is built from source into
//! `target/tools/NAME-VERSION`: nothing outside the project changes, and a raised version is a new folder.

use std::{
    env,
    ffi::OsString,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::debian::on_path;

/// The cargo that is running this task, told to be quiet about its progress under CI.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    subdued(Command::new(program))
}

/// Runs `command` to its end, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = Path::new(command.get_program()).file_stem().unwrap_or_default().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}

/// A short name for what texts say, so that a folder that was made from others is not taken for one made from these.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Whether the task runs where no person is watching.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// A cargo subcommand, published as the crate `cargo-NAME`.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Checks licences, bans and sources of the dependencies.
pub(crate) const DENY: Tool = Tool { name: "deny", version: "0.20.2" };
/// Runs each test in its own process.
pub(crate) const NEXTEST: Tool = Tool { name: "nextest", version: "0.9.143" };
/// Breaks code on purpose, to find what no test notices.
pub(crate) const MUTANTS: Tool = Tool { name: "mutants", version: "27.1.0" };

impl Tool {
    /// The subcommand, ready for its arguments and installed first if need be.
    pub(crate) fn command(&self) -> Result<Command> {
        let program = match on_path(&self.file_name()) {
            Some(found) => found,
            None => self.installed()?,
        };
        let mut command = subdued(Command::new(program));
        // Cargo, too, names the subcommand again as its first argument.
        command.arg(self.name);
        Ok(command)
    }

    fn installed(&self) -> Result<PathBuf> {
        let root = Path::new("target/tools").join(format!("cargo-{}-{}", self.name, self.version));
        // Absolute, because a relative program would be looked up in the folder the command is given.
        let program = env::current_dir()?.join(&root).join("bin").join(self.file_name());
        if !program.is_file() {
            self.install(&root)?;
        }
        Ok(program)
    }

    /// Builds the tool without optimisation: it runs for seconds, so a quicker program never earns back a longer build.
    fn install(&self, root: &Path) -> Result<()> {
        let package = format!("cargo-{}@{}", self.name, self.version);
        println!("installing {package}");
        run(cargo().args(["install", "--quiet", "--locked", "--debug", "--root"]).arg(root).arg(package))
    }

    fn file_name(&self) -> String {
        format!("cargo-{}{}", self.name, env::consts::EXE_SUFFIX)
    }
}

fn subdued(mut command: Command) -> Command {
    if is_ci() {
        command
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .env("NO_COLOR", "1");
    }
    command
}
