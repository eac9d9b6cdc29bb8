//! Runs one benchmark scenario.
//!
//! The benches are a workspace of their own, because they depend on the limiters they are compared with.

use std::ffi::OsString;

use anyhow::Result;

use crate::tool::{cargo, run};

pub(crate) fn scenario(name: &str, rest: &[OsString]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--release", "--manifest-path", "bench/Cargo.toml", "--target-dir", "target/bench"]);
    run(command.args(["--", name]).args(rest))
}
