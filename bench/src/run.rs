//! One run: its machine and commit, its output, and whether every bar was met.
//!
//! All output goes to the terminal at once and into the record at the end, so the two never differ. A quick or partial
//! run saves no record, so that it can't be quoted by mistake.

use anyhow::{Context, Result, bail};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

/// How long a run lasts, and so whether its figures may be quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Long enough to be quoted.
    Full,
    /// As long as a full run, but only a part of the scenario: for tuning.
    Partial,
    /// Just long enough to see that it works.
    Quick,
}

impl Pace {
    /// Selects one of two sizes.
    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Pace::Full | Pace::Partial => full,
            Pace::Quick => quick,
        }
    }
}

/// A run in progress.
pub(crate) struct Run {
    pub(crate) pace: Pace,
    text: String,
    record: Option<PathBuf>,
    met: usize,
    below: usize,
}

impl Run {
    /// Prints the command, the commit and the machine.
    pub(crate) fn begin(name: &str, pace: Pace) -> Result<Run> {
        let commit = commit()?;
        let date = output("date", &["-u", "+%F"])?;
        let file = bench_folder().join("runs").join(format!("{date}-{name}-{commit}.txt"));
        let record = (pace == Pace::Full).then_some(file);
        let mut run = Run { pace, text: String::new(), record, met: 0, below: 0 };
        run.say(format_args!("command   cargo xtask bench {}", arguments()));
        run.say(format_args!("date      {date}"));
        run.say(format_args!("commit    {commit}"));
        run.say(format_args!("rustc     {}", output("rustc", &["--version"])?));
        run.say(format_args!("machine   {}", machine()?));
        if run.record.is_none() {
            run.say("record    none: quick and partial runs are not quoted");
        }
        Ok(run)
    }

    /// Prints one or more lines.
    pub(crate) fn say(&mut self, lines: impl Display) {
        let lines = lines.to_string();
        let lines = lines.trim_end();
        println!("{lines}");
        self.text.push_str(lines);
        self.text.push('\n');
    }

    /// Counts a bar as met or missed. Returns the word for the table.
    pub(crate) fn check_bar(&mut self, met: bool) -> &'static str {
        match met {
            true => {
                self.met += 1;
                "ok"
            }
            false => {
                self.below += 1;
                "below"
            }
        }
    }

    /// Saves the record. A missed bar fails a run whose figures count.
    pub(crate) fn end(mut self) -> Result<ExitCode> {
        let (met, below) = (self.met, self.below);
        self.say(format_args!("\nbars: {met} met, {below} below"));
        if let Some(record) = &self.record {
            fs::create_dir_all(bench_folder().join("runs"))?;
            fs::write(record, &self.text).with_context(|| format!("can't write {}", record.display()))?;
        }
        let failed = below > 0 && self.pace != Pace::Quick;
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The folder of this package: cargo sets it for every program that it runs.
pub(crate) fn bench_folder() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("bench"), PathBuf::from)
}

fn arguments() -> String {
    env::args().skip(1).collect::<Vec<_>>().join(" ")
}

/// The commit, marked if the work tree differs from it. Records of earlier runs are not a difference.
fn commit() -> Result<String> {
    let folder = bench_folder();
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(&folder).output();
    let head = git(&["rev-parse", "--short", "HEAD"]).context("can't start git")?;
    let changes = git(&["status", "--porcelain", "--", ":/", ":(top,exclude)bench/runs"])?;
    let head = match head.status.success() {
        true => String::from_utf8(head.stdout)?.trim().to_owned(),
        false => "uncommitted".to_owned(),
    };
    Ok(if changes.stdout.is_empty() { head } else { head + "-dirty" })
}

/// Processor, cores, kernel, and whether transparent huge pages are on: they affect both speed and resident memory.
fn machine() -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo").context("can't read /proc/cpuinfo")?;
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let pages =
        pages.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("unknown", |(mode, _)| mode);
    Ok(format!("{model}, {cores} cores, Linux {}, huge pages {pages}", kernel.trim()))
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("can't start {program}"))?;
    if !output.status.success() {
        bail!("{program} ended with {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
