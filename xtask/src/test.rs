//! All checks of a change, ordered so that errors are found soon.
//!
//! The first failing step ends the run. In any case a table of the steps and a line with the counts are printed last.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    api, clients, grpc, proto, proxies, servers, tidy,
    tool::{DENY, NEXTEST, cargo, is_ci, run as finish},
};

/// One check.
struct TestStep {
    name: &'static str,
    check: fn() -> Result<()>,
}

const STEPS: [TestStep; 15] = [
    TestStep { name: "tidy", check: tidy::check },
    TestStep { name: "fmt", check: fmt },
    TestStep { name: "proto", check: proto::check },
    TestStep { name: "clippy", check: clippy },
    TestStep { name: "deny", check: deny },
    TestStep { name: "tests", check: tests },
    TestStep { name: "doc tests", check: doc_tests },
    TestStep { name: "api", check: api::check },
    TestStep { name: "clients", check: clients::check },
    TestStep { name: "grpc", check: grpc::clients },
    TestStep { name: "envoy", check: grpc::envoy },
    TestStep { name: "proxies", check: proxies::check },
    TestStep { name: "shuttle", check: shuttle },
    TestStep { name: "examples", check: examples },
    TestStep { name: "docs", check: docs },
];

/// Runs the steps with these names, or all of them, and prints a summary. The exit code is non-zero unless all passed.
pub(crate) fn run(names: &[String]) -> Result<ExitCode> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("unknown step {unknown:?}: the steps are {}", known.join(", "));
    }
    let is_wanted = |step: &&TestStep| names.is_empty() || names.iter().any(|name| name == step.name);
    let steps: Vec<&TestStep> = STEPS.iter().filter(is_wanted).collect();
    let mut passed = Vec::new();
    let mut failed = None;
    for (number, step) in (1..).zip(&steps) {
        println!("{}: started, step {number} of {}", step.name, steps.len());
        let (outcome, elapsed) = timed(step.check);
        match outcome {
            Ok(()) => passed.push(elapsed),
            Err(error) => {
                println!("{}: {error:#}", step.name);
                failed = Some(elapsed);
                break;
            }
        }
        println!("{}: passed in {:.1} s", step.name, elapsed.as_secs_f64());
    }
    summarise(&steps, &passed, failed);
    Ok(if failed.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[expect(clippy::disallowed_methods, reason = "durations are only printed")]
fn timed(check: fn() -> Result<()>) -> (Result<()>, Duration) {
    let start = Instant::now();
    (check(), start.elapsed())
}

fn summarise(steps: &[&TestStep], passed: &[Duration], failed: Option<Duration>) {
    let ran = passed.iter().map(|took| ("passed", took)).chain(failed.iter().map(|took| ("FAILED", took)));
    let ran = ran.map(|(outcome, took)| format!("{outcome:8}{:7.1} s", took.as_secs_f64()));
    let unrun = std::iter::repeat("not run".to_owned());
    println!();
    for (step, outcome) in steps.iter().zip(ran.chain(unrun)) {
        println!("{:12}{outcome}", step.name);
    }
    let failures = usize::from(failed.is_some());
    let skipped = steps.len() - passed.len() - failures;
    println!("steps: {} passed, {failures} failed, {skipped} skipped", passed.len());
}

fn fmt() -> Result<()> {
    finish(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    finish(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"]))
}

/// Skips advisories, whose database would have to be downloaded.
fn deny() -> Result<()> {
    finish(DENY.command()?.args(["--locked", "check", "licenses", "bans", "sources"]))
}

/// Runs forty times the default number of property test cases, so that a commit does not rely on one lucky seed.
fn tests() -> Result<()> {
    let mut command = nextest()?;
    command.args(["--workspace", "--locked"]).env("PROPTEST_CASES", "10000");
    finish(command.envs(servers::variables()?))
}

fn doc_tests() -> Result<()> {
    finish(cargo().args(["test", "--doc", "--workspace", "--locked"]))
}

/// Runs the store's concurrency tests under shuttle, on locks and atomics that `--cfg shuttle` swaps in.
fn shuttle() -> Result<()> {
    let suite = Path::new("crates/ratekeeper/tests/shuttle.rs");
    ensure!(suite.is_file(), "{} is missing, so races would not be tested", suite.display());
    let mut command = nextest()?;
    command.env("RUSTFLAGS", "--cfg shuttle");
    // In its own target folder, because the different flags would otherwise rebuild the workspace each time.
    command.args(["--locked", "--target-dir", "target/shuttle", "--cargo-profile", "checked"]);
    finish(command.args(["--package", "ratekeeper", "--test", "shuttle"]))
}

/// Runs every example of the library to its end.
fn examples() -> Result<()> {
    let names = example_names(Path::new("crates/ratekeeper/examples"))?;
    ensure!(!names.is_empty(), "the library has no examples");
    for name in names {
        println!("example {name}");
        let mut command = cargo();
        command.args(["run", "--quiet", "--locked", "--package", "ratekeeper", "--example", &name]);
        finish(command.stdin(Stdio::null())).with_context(|| format!("example {name}"))?;
    }
    Ok(())
}

fn example_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Documents libraries only: the pages of the binary `ratekeeper` would overwrite those of the library.
fn docs() -> Result<()> {
    let mut command = cargo();
    command.env("RUSTDOCFLAGS", "--deny warnings");
    finish(command.args(["doc", "--workspace", "--lib", "--no-deps", "--locked"]))
}

/// A nextest command, which also fails if it finds no test.
fn nextest() -> Result<Command> {
    let mut command = NEXTEST.command()?;
    command.args(["run", "--profile", if is_ci() { "ci" } else { "default" }]);
    Ok(command)
}
