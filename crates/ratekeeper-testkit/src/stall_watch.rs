//! Detects when the machine itself stalled.
//!
//! A thread on each CPU sleeps briefly and measures how late it wakes. It shares nothing with the code under test, so a
//! late wake-up is caused by the machine: another program, or another guest of the same host. A test that measures a
//! server's latency can subtract these stalls.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the threads sleep.
const SLEEP: Duration = Duration::from_millis(2);
/// A wake-up that is late by no more than this is not a stall.
const STALL_THRESHOLD: Duration = Duration::from_millis(8);

/// One stall of this length may explain the failure of any trial that measures time, and so may stalls that together
/// make up this fraction (one in 20) of it.
const SEVERE_STALL: (Duration, u32) = (Duration::from_millis(40), 20);
/// The most runs of one trial.
const MAX_TRIALS: usize = 3;

/// Runs a trial that measures time. A failure while the machine stalled proves nothing, so the trial is then run again,
/// at most three times in all. A failure without stalls fails the test.
pub fn retry_if_stalled(trial: impl Fn()) {
    for run in 1..=MAX_TRIALS {
        let begun = now();
        let lookouts = StallWatch::start(begun);
        let outcome = catch_unwind(AssertUnwindSafe(&trial));
        let stalls = lookouts.stop();
        let Err(failure) = outcome else { return };
        if run == MAX_TRIALS || !are_severe(&stalls, begun.elapsed()) {
            resume_unwind(failure);
        }
        // Not `eprintln!`, which the lints allow in programs only.
        let _ = writeln!(io::stderr(), "the machine stalled, running the trial again: {stalls:?}");
    }
}

fn are_severe(stalls: &[Range<Duration>], took: Duration) -> bool {
    let lengths = || stalls.iter().map(|stall| stall.end - stall.start);
    let (length, part) = SEVERE_STALL;
    lengths().any(|stall| stall >= length) || lengths().sum::<Duration>() * part >= took
}

/// The running watch threads.
#[derive(Debug)]
pub(crate) struct StallWatch {
    is_stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Range<Duration>>>>,
}

impl StallWatch {
    /// Starts the threads. Stalls are recorded as times since `begun`.
    pub(crate) fn start(begun: Instant) -> StallWatch {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (0..count).map(|processor| {
            let is_over = Arc::clone(&is_stopped);
            thread::spawn(move || {
                pin_to_cpu(processor);
                record_stalls(begun, &is_over)
            })
        });
        StallWatch { threads: threads.collect(), is_stopped }
    }

    /// Stops the threads, and returns the stalls in order, without overlaps.
    pub(crate) fn stop(self) -> Vec<Range<Duration>> {
        self.is_stopped.store(true, Ordering::Relaxed);
        let seen = self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
        merge(seen.collect())
    }
}

/// Pins this thread to one CPU with `taskset`. If that fails, the thread watches whichever CPU it runs on.
fn pin_to_cpu(processor: usize) {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
    let mut command = Command::new("taskset");
    command.args(["--pid", "--cpu-list", &processor.to_string()]).arg(thread.file_name().unwrap_or_default());
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn record_stalls(begun: Instant, is_over: &AtomicBool) -> Vec<Range<Duration>> {
    let mut stalls = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let due = now() + SLEEP;
        thread::park_timeout(SLEEP);
        let woke = now();
        if woke > due + STALL_THRESHOLD {
            stalls.push(due.duration_since(begun)..woke.duration_since(begun));
        }
    }
    stalls
}

fn merge(mut stalls: Vec<Range<Duration>>) -> Vec<Range<Duration>> {
    stalls.sort_by_key(|stall| stall.start);
    let mut merged: Vec<Range<Duration>> = Vec::new();
    for stall in stalls {
        match merged.last_mut() {
            Some(last) if stall.start <= last.end => last.end = last.end.max(stall.end),
            _ => merged.push(stall),
        }
    }
    merged
}

#[expect(clippy::disallowed_methods, reason = "measures how late real threads wake")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn millis(stalls: &[(u64, u64)]) -> Vec<Range<Duration>> {
        stalls.iter().map(|(from, to)| Duration::from_millis(*from)..Duration::from_millis(*to)).collect()
    }

    #[test]
    fn overlapping_stalls_are_merged() {
        let merged = merge(millis(&[(50, 60), (0, 10), (5, 20), (20, 30), (52, 55)]));
        assert_eq!(merged, millis(&[(0, 30), (50, 60)]));
    }

    #[test]
    fn one_long_stall_or_many_short_ones_are_severe() {
        let took = Duration::from_secs(1);
        assert!(are_severe(&millis(&[(10, 20), (100, 140)]), took));
        assert!(are_severe(&millis(&[(10, 30), (100, 130)]), took));
        assert!(!are_severe(&millis(&[(10, 30), (100, 129)]), took));
    }

    #[test]
    fn a_failing_trial_fails_after_at_most_max_trials() {
        let runs = Cell::new(0);
        let trial = || {
            runs.set(runs.get() + 1);
            panic!("the trial failed");
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| retry_if_stalled(trial)));
        assert!(outcome.is_err() && (1..=MAX_TRIALS).contains(&runs.get()));
    }
}
