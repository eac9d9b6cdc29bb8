//! Runs work in a separate process, so that its memory can be measured alone.
//!
//! The child is this same program with a hidden command. It prints one `name number` per line, which the parent parses.

use crate::footprint::Library;
use crate::{flood, footprint, sweep};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::{env, fs};

/// The work that a child process does.
#[derive(clap::Args)]
pub(crate) struct Task {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    Footprint { library: Library, keys: u64, cap: u64 },
    Flood { cap: u64, newcomers: u64 },
    Sweep { keys: u64, passes: u64 },
}

/// Runs in the child: does the work and prints the figures.
pub(crate) fn work(task: &Task) -> Result<()> {
    let figures = match task.work {
        Work::Footprint { library, keys, cap } => footprint::take(library, keys, cap),
        Work::Flood { cap, newcomers } => flood::take(cap, newcomers),
        Work::Sweep { keys, passes } => sweep::take(keys, passes),
    }?;
    for (name, number) in figures.0 {
        println!("{name} {number}");
    }
    Ok(())
}

/// Runs in the parent: starts a child and parses its figures.
pub(crate) fn run(work: &str, arguments: &[String]) -> Result<Figures> {
    let mut command = Command::new(env::current_exe().context("can't find this program's executable")?);
    let output =
        command.args(["child", work]).args(arguments).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{work} {} ended with {}", arguments.join(" "), output.status);
    let text = String::from_utf8(output.stdout)?;
    let figure = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    Ok(Figures(text.lines().filter_map(figure).collect()))
}

/// Named numbers: bytes, nanoseconds, counts.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(String, u64)>);

impl Figures {
    pub(crate) fn note(&mut self, name: impl Into<String>, number: u64) {
        self.0.push((name.into(), number));
    }

    /// Returns a figure. Fails if the child did not print it.
    pub(crate) fn read(&self, name: &str) -> Result<u64> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, number)| *number).with_context(|| format!("the child printed no figure for {name}"))
    }
}

/// A field of `/proc/self/status` in bytes: `VmRSS` is the resident memory now, `VmHWM` its peak.
pub(crate) fn resident(line: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let text = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'));
    let kilobytes = text.and_then(|text| text.trim().strip_suffix(" kB"));
    let kilobytes: u64 =
        kilobytes.with_context(|| format!("/proc/self/status has no field {line}"))?.parse()?;
    Ok(kilobytes * 1024)
}
