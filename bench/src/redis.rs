//! What a store on Redis decides a second, what that costs Redis and Ratekeeper, and how long it takes.
//!
//! One Redis serves all subjects, which have their turns one after the other. With two cores for Redis, Ratekeeper and the
//! generator of load together, what comes out a second depends on who sits beside whom; so every process's own time for
//! a check is told too. Redis is what all nodes share: its time for a check is what a fleet runs out of first.

mod baseline;
mod denials;
mod exact;
pub(crate) mod host;
mod latency;
pub(crate) mod measurement;
mod memory;
mod protocols;
pub(crate) mod tasks;

use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS, pin};
use crate::server::rounds::LoadSchedule;
use crate::server::{program, tcp};
use anyhow::Result;
use host::Host;
use std::time::Duration;

/// The parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// In process, beside a script for each check.
    Exact,
    /// Over HTTP and RESP, and latency.
    Protocols,
    /// What a key takes in Redis.
    Memory,
    /// A key that is empty, asked for again and again.
    Denials,
}

/// How much each key has: more than any run takes, and so slow to come back that no state drains while it lasts. So every
/// check finds its key, does the sum and writes.
pub(crate) const QUOTA: &str = "1000/h burst 1000000";

/// Measures all parts, or only one.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let ms = Duration::from_millis;
    let schedule = run.pace.pick(
        LoadSchedule { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        LoadSchedule { rounds: 2, warm_up: ms(300), time: ms(1500) },
    );
    let redis = program::redis()?;
    let benchmark = program::redis_benchmark(&redis)?;
    let wants = |part| only.is_none_or(|only| only == part);
    // It may take a compiler, so it comes before anything is measured.
    let ratekeeper = if wants(Part::Protocols) { Some(program::ratekeeper()?) } else { None };
    pin(GENERATOR)?;
    run.say(format_args!(
        "method    Redis {} alone on core {} unless it is said otherwise; whoever asks it on core {}; {} rounds of {:?}\n          \
         after {:?} to warm up, subjects in turn; {} keys, each as likely as any other, {QUOTA} each, and nobody is\n          \
         refused; `us` is a process's own time for a check, user and system, medians; the servers' TCP is {}",
        redis.version,
        SERVERS[0],
        GENERATOR[0],
        schedule.rounds,
        schedule.time,
        schedule.warm_up,
        crate::server::template::KEYS,
        tcp()?,
    ));
    if wants(Part::Exact) {
        exact::measure(run, &Host::start(&redis, SERVERS)?, &benchmark, schedule)?;
    }
    if let Some(ratekeeper) = ratekeeper {
        protocols::measure(run, &redis, &ratekeeper, schedule)?;
    }
    if wants(Part::Memory) {
        memory::measure(run, &Host::start(&redis, SERVERS)?)?;
    }
    if wants(Part::Denials) {
        denials::measure(run, &Host::start(&redis, SERVERS)?, schedule)?;
    }
    Ok(())
}
