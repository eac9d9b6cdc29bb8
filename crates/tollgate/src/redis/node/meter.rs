//! What is counted of a server's calls.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tollgate_core::Failure;

/// The upper bounds of a latency histogram's buckets, in microseconds. What takes longer has a bucket of its own.
pub const LATENCY_BOUNDS_MICROS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

const BUCKETS: usize = LATENCY_BOUNDS_MICROS.len() + 1;

/// What is counted of a server's calls.
#[derive(Debug, Default)]
pub(in crate::redis) struct Meter {
    pub(super) calls: AtomicU64,
    pub(super) commands: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) script_loads: AtomicU64,
    pub(super) redirects: AtomicU64,
    timeouts: AtomicU64,
    unreachable: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
    sum_micros: AtomicU64,
}

/// What was counted of a server's calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches that were sent.
    pub calls: u64,
    /// Commands in them.
    pub commands: u64,
    /// Commands without an answer in time.
    pub timeouts: u64,
    /// Commands that found no connection, or whose connection broke.
    pub unreachable: u64,
    /// Commands that were not sent because too much was in flight.
    pub busy: u64,
    /// Commands that were answered with an error.
    pub refused: u64,
    /// Connections that were made, the first ones among them.
    pub connects: u64,
    /// How often the script was loaded.
    pub script_loads: u64,
    /// Commands that the server sent on to another.
    pub redirects: u64,
    /// How long answered batches took.
    pub latency: Latency,
}

/// How long calls took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many took no longer than each of [`LATENCY_BOUNDS_MICROS`] and longer than the one before; then, how many
    /// took longer than the last.
    pub buckets: [u64; BUCKETS],
    /// How long all took together, in microseconds.
    pub sum_micros: u64,
}

impl Latency {
    /// How many calls there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Meter {
    pub(super) fn note_latency(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_micros.fetch_add(micros, Relaxed);
    }

    pub(super) fn note_failures(&self, failure: Failure, commands: usize) {
        let counter = match failure {
            Failure::Timeout => &self.timeouts,
            Failure::Busy => &self.busy,
            Failure::Refused => &self.refused,
            _ => &self.unreachable,
        };
        counter.fetch_add(commands as u64, Relaxed);
    }

    pub(super) fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            calls: read(&self.calls),
            commands: read(&self.commands),
            timeouts: read(&self.timeouts),
            unreachable: read(&self.unreachable),
            busy: read(&self.busy),
            refused: read(&self.refused),
            connects: read(&self.connects),
            script_loads: read(&self.script_loads),
            redirects: read(&self.redirects),
            latency: Latency {
                buckets: std::array::from_fn(|bucket| read(&self.buckets[bucket])),
                sum_micros: read(&self.sum_micros),
            },
        }
    }
}
