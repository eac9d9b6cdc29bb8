//! Where the programs are that a test needs.

use crate::patience::fail;
use std::env;
use std::path::PathBuf;

/// The file that a variable names, or a program of this name on the `PATH`.
#[track_caller]
pub(crate) fn find(variable: &str, name: &str) -> PathBuf {
    let told = env::var_os(variable).map(PathBuf::from);
    if let Some(path) = told.clone().or_else(|| on_path(name)).filter(|path| path.is_file()) {
        return path;
    }
    let found = match told {
        Some(path) => format!("{variable} says {}, and there is no such file", path.display()),
        None => format!("{variable} is not set, and there is no {name} on the PATH"),
    };
    fail(&missing(name, &found))
}

/// The file that a variable names, or a library of this name where Debian puts those that are not for everybody.
#[track_caller]
pub(crate) fn library(variable: &str, name: &str) -> PathBuf {
    let told = env::var_os(variable).map(PathBuf::from);
    let usual = PathBuf::from(format!("/usr/lib/{}-linux-gnu/faketime/{name}", env::consts::ARCH));
    let path = told.unwrap_or(usual);
    if !path.is_file() {
        fail(&missing(name, &format!("there is no {}, which {variable} may change", path.display())));
    }
    path
}

fn missing(name: &str, found: &str) -> String {
    format!(
        "this test needs {name}: {found}. `cargo xtask test tests` installs it and runs the tests with it; \
         `cargo xtask servers` installs it and prints the variables for runs of your own"
    )
}

/// Where a program is, if the machine has it.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
