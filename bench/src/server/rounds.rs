//! Measures several servers in interleaved rounds.
//!
//! Each round measures every server once, so that disturbances of the machine affect all of them alike; the others are
//! stopped meanwhile. A measurement begins with new connections, because a server may close idle ones. Besides
//! throughput, the CPU time per request is reported, which a noisy machine disturbs less.

use super::load::{Load, Plan, Tally};
use super::subject::Subject;
use crate::interleaved::Samples;
use anyhow::{Context, Result};
use std::time::Duration;

/// The length of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSchedule {
    pub(crate) rounds: u64,
    /// How long the load runs before it is measured.
    pub(crate) warm_up: Duration,
    /// How long it is measured.
    pub(crate) time: Duration,
}

/// The figures of a server over all rounds.
pub(crate) struct Figures {
    /// Requests per second.
    pub(crate) per_sec: Samples,
    /// The server's CPU time per request, in microseconds.
    pub(crate) cpu_us: Samples,
    /// The share of one core that the server used.
    pub(crate) busy: Samples,
    /// The share of its core that the generator had to spare.
    pub(crate) spare: Samples,
}

/// Measures the subjects in interleaved rounds, each with its own plan. Returns their figures in the same order.
pub(crate) fn run_rounds(
    entries: &[(&Subject, &Plan)],
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<Vec<Figures>> {
    let mut samples: Vec<Vec<Sample>> = entries.iter().map(|_| Vec::new()).collect();
    for round in 0..schedule.rounds {
        for ((subject, plan), samples) in entries.iter().zip(&mut samples) {
            let sample = Sample::measure(subject, plan, schedule, round, tally);
            samples.push(sample.with_context(|| format!("{} in round {}", subject.name, round + 1))?);
        }
    }
    Ok(samples.iter().map(|samples| Figures::of(samples)).collect())
}

impl Figures {
    fn of(samples: &[Sample]) -> Figures {
        let each = |figure: fn(&Sample) -> f64| Samples::new(samples.iter().map(figure).collect());
        Figures {
            per_sec: each(|sample| sample.answers / sample.elapsed),
            cpu_us: each(|sample| sample.cpu * 1e6 / sample.answers.max(1.0)),
            busy: each(|sample| sample.cpu / sample.elapsed),
            spare: each(|sample| sample.spare / sample.elapsed),
        }
    }
}

/// The result of one measurement, with times in seconds.
struct Sample {
    answers: f64,
    elapsed: f64,
    cpu: f64,
    spare: f64,
}

impl Sample {
    fn measure(
        subject: &Subject,
        plan: &Plan,
        schedule: LoadSchedule,
        seed: u64,
        tally: &mut Tally,
    ) -> Result<Sample> {
        subject.process.resume()?;
        let mut load = Load::connect(subject.address, plan, seed)?;
        load.run_for(schedule.warm_up)?;
        let before = subject.process.cpu_time()?;
        let result = load.run_for(schedule.time)?;
        let cpu = subject.process.cpu_time()? - before;
        tally.add(load.finish()?);
        subject.process.pause()?;
        Ok(Sample {
            answers: result.answers as f64,
            elapsed: result.elapsed.as_secs_f64(),
            cpu: cpu.as_secs_f64(),
            spare: result.spare.as_secs_f64(),
        })
    }
}
