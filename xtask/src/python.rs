//! Python with the packages that a test needs.
//!
//! They are installed into a virtual environment below `target/tools`, named after the fingerprint of the package list,
//! so that nothing outside the project changes and a new version gets a new folder.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    debian,
    tool::{fingerprint, run},
};

/// Python with the packages of one list.
pub(crate) struct Python {
    programs: PathBuf,
}

impl Python {
    /// Python with the packages of a requirements file: `tests/python/requirements.txt`.
    pub(crate) fn with(requirements: &str) -> Result<Python> {
        let wanted =
            fs::read_to_string(requirements).with_context(|| format!("cannot read {requirements}"))?;
        let folder = env::current_dir()?.join(format!("target/tools/python-{}", fingerprint(&[&wanted])));
        let (python, ready) = (Python { programs: folder.join("bin") }, folder.join("ready"));
        if !ready.is_file() {
            println!("installing the Python packages of {requirements}");
            make_environment(&folder)?;
            let mut pip = python.command();
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]);
            run(&mut pip)?;
            fs::write(&ready, "")?;
        }
        Ok(python)
    }

    /// A command for the interpreter, ready for a script and its arguments.
    pub(crate) fn command(&self) -> Command {
        self.program("python3")
    }

    /// A command for a program that one of the packages installed.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }
}

/// Creates a virtual environment. Installs `python3-venv` first if that fails: Debian does not ship `venv` with Python,
/// and a bare machine has no Python.
fn make_environment(folder: &Path) -> Result<()> {
    let make = || run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder));
    make().or_else(|_| {
        debian::install(&["python3-venv"])?;
        make()
    })
}
