//! Throughput, CPU time and latency when Redis decides every check.
//!
//! One Redis serves all subjects, one after the other. Redis, Ratekeeper and the load generator share two cores, so the
//! throughput depends on which processes share a core. Therefore the CPU time per check of each process is reported
//! too. Redis is what all nodes share: its CPU time is the first bottleneck of a deployment.

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
    /// In process, compared with one script call per check.
    Exact,
    /// Over HTTP and RESP, with latency.
    Protocols,
    /// Redis memory per key.
    Memory,
    /// Repeated checks of an exhausted key.
    Denials,
}

/// The quota of each key: more units than any run takes, which refill too slowly for a state to drain meanwhile. So
/// every check finds its key, computes and writes.
pub(crate) const QUOTA: &str = "1000/h burst 1000000";

/// Measures one part, or all of them.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let ms = Duration::from_millis;
    let schedule = run.pace.pick(
        LoadSchedule { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        LoadSchedule { rounds: 2, warm_up: ms(300), time: ms(1500) },
    );
    let redis = program::redis()?;
    let benchmark = program::redis_benchmark(&redis)?;
    let wants = |part| only.is_none_or(|only| only == part);
    // Building may take long, so it is done before anything is measured.
    let ratekeeper = if wants(Part::Protocols) { Some(program::ratekeeper()?) } else { None };
    pin(GENERATOR)?;
    run.say(format_args!(
        "method    Redis {} alone on core {} unless noted otherwise; its clients on core {}; {} rounds of {:?}\n          \
         after {:?} to warm up, interleaved; {} keys, uniform, {QUOTA} each, none\n          \
         denied; `us` is the CPU time of a process per check, user and system, medians; TCP congestion control {}",
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
