//! Checks that are decided from leased units, compared with the memory store, and the calls that Redis still receives.
//!
//! A leased check of a warm key makes no store call. So it must be about as fast as one of the memory store, however
//! far away Redis is, and the load on Redis must hardly depend on the number of checks.

mod hot;
mod inproc;
mod latency;
mod node;
mod paced;
mod relay;
mod resp;
mod tables;

use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS};
use crate::server::program;
use anyhow::Result;

/// The parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// In process, compared with the memory store.
    Inproc,
    /// Over RESP, compared with a server with the memory store.
    Resp,
    /// In process, with a long round trip to Redis.
    Latency,
    /// One hot key, and the calls that Redis receives for it.
    Hot,
    /// Simulated: the shares of false denials and of store calls.
    Tables,
}

/// Measures one part, or all of them.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let wants = |part| only.is_none_or(|only| only == part);
    if wants(Part::Tables) {
        tables::measure(run)?;
    }
    if only == Some(Part::Tables) {
        return Ok(());
    }
    let redis = program::redis()?;
    // Building may take long, so it is done before anything is measured.
    let ratekeeper = if wants(Part::Resp) { Some(program::ratekeeper()?) } else { None };
    run.say(format_args!(
        "method    Redis {}; the checks run on core {}, or on both, and Redis and its client I/O on core {};\n          \
         `store calls` are checks that needed Redis, `renewals` lease requests ahead of need, without a check",
        redis.version, SERVERS[0], GENERATOR[0],
    ));
    if wants(Part::Inproc) {
        inproc::measure(run, &redis)?;
    }
    if wants(Part::Latency) {
        latency::measure(run, &redis)?;
    }
    if wants(Part::Hot) {
        hot::measure(run, &redis)?;
    }
    if let Some(ratekeeper) = ratekeeper {
        resp::measure(run, &redis, &ratekeeper)?;
    }
    Ok(())
}
