//! Searches that take longer than a change should wait for: mutants and fuzzing.
//!
//! Both only look for tests to write. What they find becomes a named case, which `cargo xtask test` then runs.

use std::time::Duration;

use anyhow::Result;

use crate::tool::{MUTANTS, NEXTEST, run};

/// Lists the changes to the core that no test notices, and leaves the details in `target/mutants.out`.
pub(crate) fn mutants() -> Result<()> {
    let mut command = MUTANTS.command()?;
    // Several hundred mutants: two at a time, built quickly rather than well, and each against a few cases of every
    // property instead of all of them.
    command.env("PROPTEST_CASES", "64");
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    command.args(["--package", "ratekeeper-core", "--output", "target", "--jobs", "2", "--", "--lib"]);
    run(command.args(
        ["laws", "scenarios", "traps", "limits", "calendar", "decisions"]
            .iter()
            .flat_map(|name| ["--test", name]),
    ))
}

/// Runs the fuzz targets that match, each for `seconds`, instead of the second they get as a plain test.
pub(crate) fn fuzz(target: &str, seconds: u64) -> Result<()> {
    let search = Duration::from_secs(seconds).as_millis().to_string();
    let mut command = NEXTEST.command()?;
    command.env("BOLERO_RANDOM_TEST_TIME_MS", search).env("BOLERO_RANDOM_ITERATIONS", usize::MAX.to_string());
    command.args(["run", "--workspace", "--locked", "--profile", "fuzz", "--cargo-profile", "checked"]);
    run(command.args(["--no-capture", target]))
}
