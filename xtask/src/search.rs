//! Searches that take too long for every change: mutation testing and fuzzing.
//!
//! Both only find missing tests. A finding becomes a named test case, which `cargo xtask test` then runs.

use std::time::Duration;

use anyhow::Result;

use crate::tool::{MUTANTS, NEXTEST, run};

/// Lists the mutants of the core that no test notices, and writes details to `target/mutants.out`.
pub(crate) fn mutants() -> Result<()> {
    let mut command = MUTANTS.command()?;
    // Several hundred mutants: two at a time, built without optimisation, and with few cases of every property test.
    command.env("PROPTEST_CASES", "64");
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    command.args(["--package", "ratekeeper-core", "--output", "target", "--jobs", "2", "--", "--lib"]);
    run(command.args(
        ["algorithms", "scenarios", "pitfalls", "limits", "calendar", "decisions"]
            .iter()
            .flat_map(|name| ["--test", name]),
    ))
}

/// Runs the matching fuzz targets for `seconds` each, instead of the one second of a plain test run.
pub(crate) fn fuzz(target: &str, seconds: u64) -> Result<()> {
    let search = Duration::from_secs(seconds).as_millis().to_string();
    let mut command = NEXTEST.command()?;
    command.env("BOLERO_RANDOM_TEST_TIME_MS", search).env("BOLERO_RANDOM_ITERATIONS", usize::MAX.to_string());
    command.args(["run", "--workspace", "--locked", "--profile", "fuzz", "--cargo-profile", "checked"]);
    run(command.args(["--no-capture", target]))
}
