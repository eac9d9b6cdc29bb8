//! One run: where it took place, what it said, and whether every bar was met.
//!
//! Whatever is said goes to the terminal at once and into the record at the end, so that the two never differ. A run
//! that was short or partial leaves no record: nobody can quote it by mistake.

use anyhow::{Context, Result, bail};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

/// Whether the figures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Long enough to be quoted.
    Full,
    /// As long, but only a part of the scenario: for tuning.
    Partial,
    /// Just long enough to see that it works.
    Quick,
}

impl Pace {
    /// One of two sizes.
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
    /// Says where and how it takes place.
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
            run.say("record    none: a quick or partial run is not for quoting");
        }
        Ok(run)
    }

    /// Says one or more lines.
    pub(crate) fn say(&mut self, lines: impl Display) {
        let lines = lines.to_string();
        let lines = lines.trim_end();
        println!("{lines}");
        self.text.push_str(lines);
        self.text.push('\n');
    }

    /// Notes whether a bar was met, and words it.
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

    /// Keeps the record. A bar that was missed fails a run whose figures count.
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

/// The folder of this package: cargo names it to whatever it runs.
pub(crate) fn bench_folder() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("bench"), PathBuf::from)
}

fn arguments() -> String {
    env::args().skip(1).collect::<Vec<_>>().join(" ")
}

/// The commit, marked if the work tree differs from it. Records of earlier runs are no difference.
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

/// Processor, cores, kernel, and whether large allocations get large pages by themselves: that moves both speed and
/// resident memory.
fn machine() -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo").context("the machine does not tell its processor")?;
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
