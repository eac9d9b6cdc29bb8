//! Work done in a process of its own, so that its memory is nobody else's.
//!
//! The child is this same program under a hidden name. It prints figures, one `name number` a line, which the parent
//! reads back.

use crate::footprint::Whose;
use crate::{flood, footprint, sweep};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::{env, fs};

/// What a child is asked to do.
#[derive(clap::Args)]
pub(crate) struct Task {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    Footprint { whose: Whose, keys: u64, cap: u64 },
    Flood { cap: u64, newcomers: u64 },
    Sweep { keys: u64, passes: u64 },
}

/// The child's part.
pub(crate) fn work(task: &Task) -> Result<()> {
    let figures = match task.work {
        Work::Footprint { whose, keys, cap } => footprint::take(whose, keys, cap),
        Work::Flood { cap, newcomers } => flood::take(cap, newcomers),
        Work::Sweep { keys, passes } => sweep::take(keys, passes),
    }?;
    for (name, number) in figures.0 {
        println!("{name} {number}");
    }
    Ok(())
}

/// The parent's part: lets a child work and reads its figures.
pub(crate) fn ask(work: &str, arguments: &[String]) -> Result<Figures> {
    let mut command = Command::new(env::current_exe().context("this program can't be found again")?);
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

    /// A figure that the child was to give.
    pub(crate) fn read(&self, name: &str) -> Result<u64> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, number)| *number).with_context(|| format!("the child gave no figure for {name}"))
    }
}

/// A line of this process's status in bytes: `VmRSS` is what it has in memory now, `VmHWM` the most it ever had.
pub(crate) fn resident(line: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let text = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'));
    let kilobytes = text.and_then(|text| text.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes.with_context(|| format!("the system does not tell {line}"))?.parse()?;
    Ok(kilobytes * 1024)
}
