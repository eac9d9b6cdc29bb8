//! Everything a change must keep true, in the order that finds a mistake soonest.
//!
//! The first step to fail ends the run. Whatever happened, a table of the steps and one line that counts them
//! are the last things printed.

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

/// One thing that must hold.
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

/// Runs the steps of these names, or all, and says how they went; the exit code is non-zero unless all of them passed.
pub(crate) fn run(names: &[String]) -> Result<ExitCode> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("there is no step {unknown:?}: the steps are {}", known.join(", "));
    }
    let is_wanted = |step: &&TestStep| names.is_empty() || names.iter().any(|name| name == step.name);
    let steps: Vec<&TestStep> = STEPS.iter().filter(is_wanted).collect();
    let mut passed = Vec::new();
    let mut failed = None;
    for step in &steps {
        println!("{}: started", step.name);
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

#[expect(clippy::disallowed_methods, reason = "how long a step took is for the reader, and decides nothing")]
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

/// Leaves out advisories, whose database would have to be fetched.
fn deny() -> Result<()> {
    finish(DENY.command()?.args(["--locked", "check", "licenses", "bans", "sources"]))
}

/// Forty times the cases a property gets by hand: what a commit relies on should not depend on one lucky seed.
fn tests() -> Result<()> {
    let mut command = nextest()?;
    command.args(["--workspace", "--locked"]).env("PROPTEST_CASES", "10000");
    finish(command.envs(servers::variables()?))
}

fn doc_tests() -> Result<()> {
    finish(cargo().args(["test", "--doc", "--workspace", "--locked"]))
}

/// Runs the store under schedules that shuttle chooses, on locks and atomics that `--cfg shuttle` swaps in.
fn shuttle() -> Result<()> {
    let suite = Path::new("crates/ratekeeper/tests/shuttle.rs");
    ensure!(suite.is_file(), "{} is missing: races would go unsearched", suite.display());
    let mut command = nextest()?;
    command.env("RUSTFLAGS", "--cfg shuttle");
    // In a folder of its own, because other flags would have the rest of the workspace built anew each time.
    command.args(["--locked", "--target-dir", "target/shuttle", "--cargo-profile", "checked"]);
    finish(command.args(["--package", "ratekeeper", "--test", "shuttle"]))
}

/// Runs every example of the library to its end, as a reader who has just pasted its command would.
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

/// Documents libraries only: the binary `ratekeeper` would write its pages over those of the library.
fn docs() -> Result<()> {
    let mut command = cargo();
    command.env("RUSTDOCFLAGS", "--deny warnings");
    finish(command.args(["doc", "--workspace", "--lib", "--no-deps", "--locked"]))
}

/// A test run, which also fails when it finds no test to run.
fn nextest() -> Result<Command> {
    let mut command = NEXTEST.command()?;
    command.args(["run", "--profile", if is_ci() { "ci" } else { "default" }]);
    Ok(command)
}
