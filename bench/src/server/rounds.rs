//! Servers side by side, turn by turn.
//!
//! A round lets every server have its turn, so that whatever the machine does meanwhile falls on all of them alike; the
//! others are stopped. A turn begins with new connections, because a server may close those that were idle. What is
//! told beside answers a second is the server's own time for one, which a noisy machine disturbs less.

use super::load::{Load, Plan, Tally};
use super::subject::Subject;
use crate::interleaved::Samples;
use anyhow::{Context, Result};
use std::time::Duration;

/// How long a race takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSchedule {
    pub(crate) rounds: u64,
    /// How long the load lasts before the watch starts.
    pub(crate) warm_up: Duration,
    /// How long it lasts on the watch.
    pub(crate) time: Duration,
}

/// What came of a server's turns.
pub(crate) struct Figures {
    /// Questions answered in a second.
    pub(crate) per_sec: Samples,
    /// The server's time for a question, in microseconds.
    pub(crate) cpu_us: Samples,
    /// How much the server had, of one core.
    pub(crate) busy: Samples,
    /// Which share of its core the generator could have done without.
    pub(crate) spare: Samples,
}

/// Lets the subjects have their turns, each with its own plan; their figures in the same order.
pub(crate) fn run_rounds(
    entries: &[(&Subject, &Plan)],
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<Vec<Figures>> {
    let mut turns: Vec<Vec<Turn>> = entries.iter().map(|_| Vec::new()).collect();
    for round in 0..schedule.rounds {
        for ((subject, plan), turns) in entries.iter().zip(&mut turns) {
            let turn = Turn::take(subject, plan, schedule, round, tally);
            turns.push(turn.with_context(|| format!("{} in round {}", subject.name, round + 1))?);
        }
    }
    Ok(turns.iter().map(|turns| Figures::of(turns)).collect())
}

impl Figures {
    fn of(turns: &[Turn]) -> Figures {
        let samples = |figure: fn(&Turn) -> f64| Samples::new(turns.iter().map(figure).collect());
        Figures {
            per_sec: samples(|turn| turn.answers / turn.elapsed),
            cpu_us: samples(|turn| turn.cpu * 1e6 / turn.answers.max(1.0)),
            busy: samples(|turn| turn.cpu / turn.elapsed),
            spare: samples(|turn| turn.spare / turn.elapsed),
        }
    }
}

/// One turn, its times in seconds.
struct Turn {
    answers: f64,
    elapsed: f64,
    cpu: f64,
    spare: f64,
}

impl Turn {
    fn take(
        subject: &Subject,
        plan: &Plan,
        schedule: LoadSchedule,
        seed: u64,
        tally: &mut Tally,
    ) -> Result<Turn> {
        subject.process.resume()?;
        let mut load = Load::connect(subject.address, plan, seed)?;
        load.run_for(schedule.warm_up)?;
        let before = subject.process.cpu_time()?;
        let lap = load.run_for(schedule.time)?;
        let cpu = subject.process.cpu_time()? - before;
        tally.add(load.finish()?);
        subject.process.pause()?;
        Ok(Turn {
            answers: lap.answers as f64,
            elapsed: lap.elapsed.as_secs_f64(),
            cpu: cpu.as_secs_f64(),
            spare: lap.spare.as_secs_f64(),
        })
    }
}
