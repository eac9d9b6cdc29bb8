//! Detects when the machine itself stalled.
//!
//! A thread on each CPU sleeps briefly and measures how late it wakes. It shares nothing with the code under test, so a
//! late wake-up is caused by the machine: another program, or another guest of the same host. A test that measures a
//! server's latency subtracts the stalls: they are the control of the measurement.

use std::fs;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the threads sleep.
const SLEEP: Duration = Duration::from_millis(2);
/// A wake-up that is late by no more than this is not a stall.
const STALL_THRESHOLD: Duration = Duration::from_millis(8);

/// Runs `work`, and returns its result and the time it took, without the time that the machine stalled meanwhile.
pub fn time_without_stalls<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = now();
    let stall_watch = StallWatch::start(begun);
    let result = work();
    let elapsed = begun.elapsed();
    let stalls = stall_watch.stop();
    (result, elapsed - overlap(&stalls, Duration::ZERO..elapsed))
}

/// How much of a time the stalls take up. They are in order and do not overlap each other.
pub(crate) fn overlap(stalls: &[Range<Duration>], time: Range<Duration>) -> Duration {
    let first = stalls.partition_point(|stall| stall.end <= time.start);
    let during = stalls[first..].iter().take_while(|stall| stall.start < time.end);
    during.map(|stall| stall.end.min(time.end) - stall.start.max(time.start)).sum()
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

    fn millis(stalls: &[(u64, u64)]) -> Vec<Range<Duration>> {
        stalls.iter().map(|(from, to)| Duration::from_millis(*from)..Duration::from_millis(*to)).collect()
    }

    #[test]
    fn overlapping_stalls_are_merged() {
        let merged = merge(millis(&[(50, 60), (0, 10), (5, 20), (20, 30), (52, 55)]));
        assert_eq!(merged, millis(&[(0, 30), (50, 60)]));
    }

    #[test]
    fn only_the_part_of_a_stall_within_the_time_counts() {
        let stalls = millis(&[(10, 20), (30, 40), (50, 60)]);
        let within = |from, to| overlap(&stalls, Duration::from_millis(from)..Duration::from_millis(to));
        assert_eq!(within(0, 100), Duration::from_millis(30));
        assert_eq!(within(15, 55), Duration::from_millis(20));
        assert_eq!(within(20, 30), Duration::ZERO);
    }
}
