//! Cargo, and the cargo subcommands that tasks run.
//!
//! An installed subcommand is used as it is. A missing one is built from source into `target/tools/NAME-VERSION`, so
//! that nothing outside the project changes and a new version gets a new folder.

use std::{
    env,
    ffi::OsString,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The cargo that runs this task, without progress output under CI.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    quiet_in_ci(Command::new(program))
}

/// Runs `command` to its end, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = Path::new(command.get_program()).file_stem().unwrap_or_default().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} exited with {status}");
    Ok(())
}

/// The path of a program on the `PATH`, or `None`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A hash of texts, so that a folder made from other texts is not reused.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Whether the task runs under CI.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// A cargo subcommand, published as the crate `cargo-NAME`.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Checks licences, bans and sources of dependencies.
pub(crate) const DENY: Tool = Tool { name: "deny", version: "0.20.2" };
/// Runs each test in its own process.
pub(crate) const NEXTEST: Tool = Tool { name: "nextest", version: "0.9.143" };
/// Mutates code, to find changes that no test notices.
pub(crate) const MUTANTS: Tool = Tool { name: "mutants", version: "27.1.0" };

impl Tool {
    /// A command for the subcommand, ready for arguments. Installs it if it is missing.
    pub(crate) fn command(&self) -> Result<Command> {
        let program = match on_path(&self.file_name()) {
            Some(found) => found,
            None => self.ensure_installed()?,
        };
        let mut command = quiet_in_ci(Command::new(program));
        // Like cargo, which passes the subcommand's name as the first argument.
        command.arg(self.name);
        Ok(command)
    }

    fn ensure_installed(&self) -> Result<PathBuf> {
        let root = Path::new("target/tools").join(format!("cargo-{}-{}", self.name, self.version));
        // Absolute, because a relative program is resolved in the command's working directory.
        let program = env::current_dir()?.join(&root).join("bin").join(self.file_name());
        if !program.is_file() {
            self.install(&root)?;
        }
        Ok(program)
    }

    /// Builds the tool without optimisation: it runs for seconds, so a faster tool does not make up for a longer build.
    fn install(&self, root: &Path) -> Result<()> {
        let package = format!("cargo-{}@{}", self.name, self.version);
        println!("installing {package}");
        run(cargo().args(["install", "--quiet", "--locked", "--debug", "--root"]).arg(root).arg(package))
    }

    fn file_name(&self) -> String {
        format!("cargo-{}{}", self.name, env::consts::EXE_SUFFIX)
    }
}

fn quiet_in_ci(mut command: Command) -> Command {
    if is_ci() {
        command
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .env("NO_COLOR", "1");
    }
    command
}
