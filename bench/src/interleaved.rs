//! Measures several subjects in interleaved rounds, with the same keys on the same cores.
//!
//! Each round runs every subject once, so that disturbances of the machine affect all of them alike. Each thread writes
//! a chunk of keys, then times itself checking them. With two threads, a barrier starts each chunk at the same time;
//! otherwise one thread would write keys while the other checks, and they would contend only half of the time. The
//! result of a thread is its own time per check, and the result of a measurement is the mean over its threads. The
//! total throughput is the number of threads divided by it.

use crate::keys::{Chunk, Mix, Rng};
use crate::subject::Subject;
use anyhow::{Context, Result, ensure};
use core_affinity::CoreId;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::thread;
use std::time::{Duration, Instant};

/// The length of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) rounds: usize,
    /// Chunks before timing starts: the previous subject has left its own data in the cache.
    pub(crate) warm: usize,
    /// Timed chunks per thread.
    pub(crate) timed: usize,
}

/// The required decision of every check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Allowed,
    Denied,
}

/// One figure per round, such as nanoseconds per check, in ascending order.
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Takes at least one sample, in any order.
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

    /// The minimum and the maximum.
    pub(crate) fn spread(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }
}

/// Runs the subjects in interleaved rounds. Returns their samples in the same order.
pub(crate) fn run_interleaved(
    subjects: &[Box<dyn Subject>],
    mix: Mix,
    threads: usize,
    expected: Expected,
    schedule: Schedule,
) -> Result<Vec<Samples>> {
    let cores = core_affinity::get_core_ids().context("the number of cores is unknown")?;
    ensure!(cores.len() >= threads, "{threads} threads need {threads} cores, and there are {}", cores.len());
    let mut samples: Vec<Vec<f64>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..schedule.rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            let measurement = Measurement {
                subject: &**subject,
                mix,
                expected,
                schedule,
                seed: round as u64,
                barrier: Barrier::new(threads),
            };
            samples.push(measurement.run(&cores[..threads])?);
        }
    }
    Ok(samples.into_iter().map(Samples::new).collect())
}

/// The run of one subject in one round.
struct Measurement<'a> {
    subject: &'a dyn Subject,
    mix: Mix,
    expected: Expected,
    schedule: Schedule,
    seed: u64,
    barrier: Barrier,
}

impl Measurement<'_> {
    /// Returns nanoseconds per check.
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

    /// Returns the time one thread spent in checks.
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

/// Makes threads wait for each other. They spin, because waking a sleeping thread takes as long as a chunk.
struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    fn new(threads: usize) -> Barrier {
        Barrier { threads, arrived: AtomicUsize::new(0) }
    }

    /// Waits until every thread has called this for the `index`-th time.
    fn wait(&self, index: usize) {
        self.arrived.fetch_add(1, AcqRel);
        while self.arrived.load(Acquire) < (index + 1) * self.threads {
            spin_loop();
        }
    }
}
