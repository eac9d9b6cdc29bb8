//! Runs one benchmark scenario.
//!
//! The benchmarks are a separate workspace, because they depend on the limiters that they are compared with.

use std::ffi::OsString;

use anyhow::Result;

use crate::tool::{cargo, run};

pub(crate) fn scenario(name: &str, rest: &[OsString]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--release", "--manifest-path", "bench/Cargo.toml", "--target-dir", "target/bench"]);
    run(command.args(["--", name]).args(rest))
}
