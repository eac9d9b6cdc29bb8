//! Programs that come with Debian: installed by apt where the machine lacks them.
//!
//! These are the only things that a task puts outside `target/`. Where there is no apt, or no right to use it, the
//! error names the package, which other systems have under much the same name.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::tool::run;

/// A program, and the package that has it in case it is missing.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf> {
    if let Some(found) = on_path(name) {
        return Ok(found);
    }
    install(&[package])?;
    on_path(name).with_context(|| format!("the package {package} has no program {name}"))
}

/// Installs packages. Those that are there already stay as they are.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    println!("installing {names}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
    };
    // A fresh machine has no list of what there is.
    apt(&["update", "-qq"])
        .and_then(|()| apt(&[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat()))
        .with_context(|| format!("cannot install {names}: install it by hand"))
}

/// Where a program is, if the machine has it.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
