//! Installs missing Debian packages with apt.
//!
//! These are the only files that a task installs outside `target/`. Without apt, or without the rights to use it, the
//! error names the package, which has a similar name on other systems.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::tool::{on_path, run};

/// The path of a program, whose package is installed if it is missing.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf> {
    if let Some(found) = on_path(name) {
        return Ok(found);
    }
    install(&[package])?;
    on_path(name).with_context(|| format!("the package {package} has no program {name}"))
}

/// Installs packages; installed ones are not upgraded.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    println!("installing {names}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
    };
    // A fresh machine has no package lists.
    apt(&["update", "-qq"])
        .and_then(|()| apt(&[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat()))
        .with_context(|| format!("cannot install {names}: install it by hand"))
}
