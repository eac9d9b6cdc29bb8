//! Subjects side by side: the same keys, the same cores, turn by turn.
//!
//! A round lets every subject run once, so that whatever the machine does meanwhile falls on all of them alike. Each
//! thread writes a chunk of keys, then times itself checking them. Two threads start each chunk together, at a barrier:
//! running freely, one would write keys while the other checks, and they would meet only half of the time. A thread's
//! figure is its own time for its own checks, and a lap's is the mean of its threads; the checks a second of all
//! threads together are their number divided by it.

use crate::keys::{Chunk, Mix, Rng};
use crate::subject::Subject;
use anyhow::{Context, Result, ensure};
use core_affinity::CoreId;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::thread;
use std::time::{Duration, Instant};

/// How long a race takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) rounds: usize,
    /// Chunks before the watch starts: the subject that ran before has left the cache full of its own.
    pub(crate) warm: usize,
    /// Chunks on the watch, for each thread.
    pub(crate) timed: usize,
}

/// What every check must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Allowed,
    Denied,
}

/// A figure for each round, such as nanoseconds for a check, from the least to the most.
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// At least one lap, in any order.
    pub(crate) fn new(mut samples: Vec<f64>) -> Samples {
        samples.sort_by(f64::total_cmp);
        Samples(samples)
    }

    pub(crate) fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match self.0.len() % 2 {
            0 => f64::midpoint(self.0[middle - 1], self.0[middle]),
            _ => self.0[middle],
        }
    }

    /// The least and the most.
    pub(crate) fn spread(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }
}

/// Lets the subjects run turn by turn; their samples in the same order.
pub(crate) fn run_interleaved(
    subjects: &[Box<dyn Subject>],
    mix: Mix,
    threads: usize,
    expected: Expected,
    schedule: Schedule,
) -> Result<Vec<Samples>> {
    let cores = core_affinity::get_core_ids().context("the machine does not tell its cores")?;
    ensure!(cores.len() >= threads, "{threads} threads need as many cores, and there are {}", cores.len());
    let mut samples: Vec<Vec<f64>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..schedule.rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            let lap = Lap {
                subject: &**subject,
                mix,
                expected,
                schedule,
                seed: round as u64,
                barrier: Barrier::new(threads),
            };
            samples.push(lap.run(&cores[..threads])?);
        }
    }
    Ok(samples.into_iter().map(Samples::new).collect())
}

/// One subject's turn.
struct Lap<'a> {
    subject: &'a dyn Subject,
    mix: Mix,
    expected: Expected,
    schedule: Schedule,
    seed: u64,
    barrier: Barrier,
}

impl Lap<'_> {
    /// Nanoseconds for a check.
    fn run(&self, cores: &[CoreId]) -> Result<f64> {
        let times = thread::scope(|scope| {
            let runners: Vec<_> = cores.iter().map(|core| scope.spawn(|| self.run_on(*core))).collect();
            runners
                .into_iter()
                .map(|runner| runner.join().expect("a runner does not panic"))
                .collect::<Result<Vec<_>>>()
        })?;
        let checks = (cores.len() * self.schedule.timed * Chunk::KEYS) as f64;
        Ok(times.iter().sum::<Duration>().as_nanos() as f64 / checks)
    }

    /// The time one thread spent checking.
    fn run_on(&self, core: CoreId) -> Result<Duration> {
        ensure!(core_affinity::set_for_current(core), "a thread can't be pinned to core {}", core.id);
        let mut chunk = Chunk::new();
        let mut rng = Rng::new(self.seed << 8 | core.id as u64);
        let mut time = Duration::ZERO;
        let mut wrong = 0;
        for index in 0..self.schedule.warm + self.schedule.timed {
            let keys = chunk.fill(std::iter::repeat_with(|| self.mix.pick(&mut rng)));
            self.barrier.wait(index);
            let start = Instant::now();
            let allowed = black_box(self.subject.check_all(black_box(keys), self.barrier.threads));
            let elapsed = start.elapsed();
            if index >= self.schedule.warm {
                time += elapsed;
            }
            wrong += match self.expected {
                Expected::Allowed => keys.len() - allowed,
                Expected::Denied => allowed,
            };
        }
        let name = self.subject.name(self.barrier.threads);
        ensure!(wrong == 0, "{name}: {wrong} checks were not {:?}", self.expected);
        Ok(time)
    }
}

/// Where threads wait for each other. They spin: waking a sleeping thread takes as long as a chunk.
struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    fn new(threads: usize) -> Barrier {
        Barrier { threads, arrived: AtomicUsize::new(0) }
    }

    /// Waits until every thread has come for the `index`-th time.
    fn wait(&self, index: usize) {
        self.arrived.fetch_add(1, AcqRel);
        while self.arrived.load(Acquire) < (index + 1) * self.threads {
            spin_loop();
        }
    }
}
