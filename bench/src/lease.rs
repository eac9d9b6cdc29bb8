//! What checks cost that are answered from units that were lent, beside the memory store, and what they spare Redis.
//!
//! A leased check on a warm key asks nobody, so it has to be about as fast as one of the memory store, whatever the way to
//! Redis is like, and Redis must hardly notice how many there are.

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
    /// In process, beside the memory store.
    Inproc,
    /// Over RESP, beside a server with the memory store.
    Resp,
    /// In process, with Redis far away.
    Latency,
    /// One key that all want, and what Redis has to do for it.
    Hot,
    /// Simulated: how many are refused who need not be, and how often the store is asked.
    Tables,
}

/// Measures all parts, or only one.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let wants = |part| only.is_none_or(|only| only == part);
    if wants(Part::Tables) {
        tables::measure(run)?;
    }
    if only == Some(Part::Tables) {
        return Ok(());
    }
    let redis = program::redis()?;
    // It may take a compiler, so it comes before anything is measured.
    let ratekeeper = if wants(Part::Resp) { Some(program::ratekeeper()?) } else { None };
    run.say(format_args!(
        "method    Redis {}; whoever checks is on core {}, or on both, and Redis and what carries to and from it on core {};\n          \
         `asked` are checks for which Redis was asked, `refills` units that were asked for ahead, without a check",
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
