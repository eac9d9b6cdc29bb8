//! What a store on Redis decides a second, what that costs Redis and Ratekeeper, and how long it takes.
//!
//! One Redis serves all subjects, which have their turns one after the other. With two cores for Redis, Ratekeeper and the
//! generator of load together, what comes out a second depends on who sits beside whom; so every process's own time for
//! a check is told too. Redis is what all nodes share: its time for a check is what a fleet runs out of first.

mod denials;
mod doors;
mod exact;
pub(crate) mod host;
mod latency;
mod memory;
mod plain;
pub(crate) mod tasks;
pub(crate) mod turn;

use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS, pin};
use crate::server::rounds::Effort;
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
    Doors,
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
    let effort = run.pace.pick(
        Effort { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        Effort { rounds: 2, warm_up: ms(300), time: ms(1500) },
    );
    let redis = program::redis()?;
    let benchmark = program::redis_benchmark(&redis)?;
    let wants = |part| only.is_none_or(|only| only == part);
    // It may take a compiler, so it comes before anything is measured.
    let ratekeeper = if wants(Part::Doors) { Some(program::ratekeeper()?) } else { None };
    pin(GENERATOR)?;
    run.say(format_args!(
        "method    Redis {} alone on core {} unless it is said otherwise; whoever asks it on core {}; {} rounds of {:?}\n          \
         after {:?} to warm up, subjects in turn; {} keys, each as likely as any other, {QUOTA} each, and nobody is\n          \
         refused; `us` is a process's own time for a check, user and system, medians; the servers' TCP is {}",
        redis.version,
        SERVERS[0],
        GENERATOR[0],
        effort.rounds,
        effort.time,
        effort.warm_up,
        crate::server::template::KEYS,
        tcp()?,
    ));
    if wants(Part::Exact) {
        exact::measure(run, &Host::start(&redis, SERVERS)?, &benchmark, effort)?;
    }
    if let Some(ratekeeper) = ratekeeper {
        doors::measure(run, &redis, &ratekeeper, effort)?;
    }
    if wants(Part::Memory) {
        memory::measure(run, &Host::start(&redis, SERVERS)?)?;
    }
    if wants(Part::Denials) {
        denials::measure(run, &Host::start(&redis, SERVERS)?, effort)?;
    }
    Ok(())
}
