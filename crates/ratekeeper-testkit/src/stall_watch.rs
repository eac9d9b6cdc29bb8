//! When the machine itself stood still.
//!
//! A thread on each processor does nothing but sleep for a moment and look how late it woke. It shares nothing with
//! whoever is measured, so what holds it up is the machine: another program, or another guest of the same host. Who measures
//! how long a server took can tell by it what was none of the server's doing.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long they sleep.
const MOMENT: Duration = Duration::from_millis(2);
/// What is no later than this is no stall.
const LATE: Duration = Duration::from_millis(8);

/// A stall as long as this may have been the end of any trial that measures time, and so may many that last together as
/// long as this part of it.
const GRAVE: (Duration, u32) = (Duration::from_millis(40), 20);
/// How often a trial is held at most.
const MOST_TRIALS: usize = 3;

/// Holds a trial in which time is measured. If it fails and the machine is known to have stood still meanwhile, it says
/// nothing: it is held again, a few times at most. Where the machine ran, a failure is a failure.
pub fn despite_stalls(trial: impl Fn()) {
    for held in 1..=MOST_TRIALS {
        let begun = now();
        let lookouts = StallWatch::post(begun);
        let outcome = catch_unwind(AssertUnwindSafe(&trial));
        let stalls = lookouts.end();
        let Err(failure) = outcome else { return };
        if held == MOST_TRIALS || !are_grave(&stalls, begun.elapsed()) {
            resume_unwind(failure);
        }
        // Through the writer and not `eprintln!`, which only programs may use.
        let _ = writeln!(io::stderr(), "the machine stood still, so the trial is held again: {stalls:?}");
    }
}

fn are_grave(stalls: &[Range<Duration>], took: Duration) -> bool {
    let lengths = || stalls.iter().map(|stall| stall.end - stall.start);
    let (length, part) = GRAVE;
    lengths().any(|stall| stall >= length) || lengths().sum::<Duration>() * part >= took
}

/// Threads that watch.
#[derive(Debug)]
pub(crate) struct StallWatch {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Range<Duration>>>>,
}

impl StallWatch {
    /// Begins to watch, by a clock that began then.
    pub(crate) fn post(begun: Instant) -> StallWatch {
        let is_over = Arc::new(AtomicBool::new(false));
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (0..count).map(|processor| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                stay_on(processor);
                watch(begun, &is_over)
            })
        });
        StallWatch { threads: threads.collect(), is_over }
    }

    /// The stalls that there were, in order, none of which touches another.
    pub(crate) fn end(self) -> Vec<Range<Duration>> {
        self.is_over.store(true, Ordering::Relaxed);
        let seen = self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
        merge(seen.collect())
    }
}

/// Has this thread run on one processor only. Where that is not to be had, the threads watch wherever they are.
fn stay_on(processor: usize) {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
    let mut command = Command::new("taskset");
    command.args(["--pid", "--cpu-list", &processor.to_string()]).arg(thread.file_name().unwrap_or_default());
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn watch(begun: Instant, is_over: &AtomicBool) -> Vec<Range<Duration>> {
    let mut stalls = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let due = now() + MOMENT;
        thread::park_timeout(MOMENT);
        let woke = now();
        if woke > due + LATE {
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

#[expect(clippy::disallowed_methods, reason = "how late real threads wake is what is measured")]
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
    fn what_several_saw_counts_once() {
        let merged = merge(millis(&[(50, 60), (0, 10), (5, 20), (20, 30), (52, 55)]));
        assert_eq!(merged, millis(&[(0, 30), (50, 60)]));
    }

    #[test]
    fn one_long_stall_is_grave_and_so_are_many_short_ones() {
        let took = Duration::from_secs(1);
        assert!(are_grave(&millis(&[(10, 20), (100, 140)]), took));
        assert!(are_grave(&millis(&[(10, 30), (100, 130)]), took));
        assert!(!are_grave(&millis(&[(10, 30), (100, 129)]), took));
    }

    #[test]
    fn where_the_machine_ran_a_failure_is_a_failure() {
        let held = Cell::new(0);
        let trial = || {
            held.set(held.get() + 1);
            panic!("it has failed");
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| despite_stalls(trial)));
        assert!(outcome.is_err() && (1..=MOST_TRIALS).contains(&held.get()));
    }
}
