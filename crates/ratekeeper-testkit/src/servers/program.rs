//! Finds the programs that a test needs.

use crate::wait::fail;
use std::env;
use std::path::PathBuf;

/// The program named by an environment variable, or found on the `PATH`. Fails the test if it is missing.
#[track_caller]
pub(crate) fn find_program(variable: &str, name: &str) -> PathBuf {
    let set = env::var_os(variable).map(PathBuf::from);
    if let Some(path) = set.clone().or_else(|| on_path(name)).filter(|path| path.is_file()) {
        return path;
    }
    let problem = match set {
        Some(path) => format!("{variable} is {}, which is not a file", path.display()),
        None => format!("{variable} is not set, and {name} is not on the PATH"),
    };
    fail(&missing_message(name, &problem))
}

/// The library named by an environment variable, or in Debian's folder for libfaketime. Fails the test if it is
/// missing.
#[track_caller]
pub(crate) fn find_library(variable: &str, name: &str) -> PathBuf {
    let set = env::var_os(variable).map(PathBuf::from);
    let default = PathBuf::from(format!("/usr/lib/{}-linux-gnu/faketime/{name}", env::consts::ARCH));
    let path = set.unwrap_or(default);
    if !path.is_file() {
        fail(&missing_message(
            name,
            &format!("{} is not a file, and {variable} names no other", path.display()),
        ));
    }
    path
}

fn missing_message(name: &str, problem: &str) -> String {
    format!(
        "this test needs {name}: {problem}. `cargo xtask test tests` installs it and runs the tests; \
         `cargo xtask servers` installs it and prints the variables to set for your own test runs"
    )
}

/// The path of a program on the `PATH`, or `None`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
