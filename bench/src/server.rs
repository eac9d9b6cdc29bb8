//! Throughput and latency of Ratekeeper's server over each protocol, compared with other servers and with lower bounds.
//!
//! Every server is a process pinned to the first core, and the load generator has the second. All servers of a part run
//! from its beginning to its end, but all except the one under measurement are stopped.

pub(crate) mod client;
mod cores;
pub(crate) mod floor;
mod grpc;
mod http;
mod latency;
pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod program;
mod proto;
mod report;
mod resp;
pub(crate) mod rounds;
pub(crate) mod subject;
pub(crate) mod template;

use crate::run::Run;
use anyhow::{Context, Result, ensure};
use load::Tally;
use program::Programs;
use rounds::LoadSchedule;
use std::fs;
use std::time::Duration;

/// The parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Over HTTP, one check per request.
    Requests,
    /// Over HTTP, many checks per request.
    Batches,
    /// Over HTTP; runs `requests` first, whose throughput sets the load.
    Latency,
    /// Over RESP: single commands, pipelines, and latency.
    Resp,
    /// Over gRPC: Envoy's calls, and checks on streams.
    Grpc,
    /// Over HTTP and RESP, with two workers compared with one.
    Cores,
}

/// Measures one part, or all of them.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let ms = Duration::from_millis;
    let schedule = run.pace.pick(
        LoadSchedule { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        LoadSchedule { rounds: 2, warm_up: ms(50), time: ms(150) },
    );
    let programs = Programs::find()?;
    process::pin(process::GENERATOR)?;
    say_method(run, schedule)?;
    let mut tally = Tally::default();
    let wants = |part| only.is_none_or(|only| only == part);
    if wants(Part::Requests) || wants(Part::Latency) || wants(Part::Batches) {
        let servers = http::Servers::start(&programs)?;
        if wants(Part::Requests) || wants(Part::Latency) {
            let figures = servers.compare(run, schedule, &mut tally)?;
            if wants(Part::Latency) {
                servers.time(run, &figures, schedule, &mut tally)?;
            }
        }
        if wants(Part::Batches) {
            servers.count_batches(run, schedule, &mut tally)?;
        }
    }
    if wants(Part::Resp) {
        resp::measure(run, &programs, schedule, &mut tally)?;
    }
    if wants(Part::Grpc) {
        grpc::measure(run, &programs, schedule, &mut tally)?;
    }
    if wants(Part::Cores) {
        cores::measure(run, &programs, schedule, &mut tally)?;
    }
    let Tally { answers, unexpected, example } = tally;
    run.say(format_args!("\nresponses: {answers}, unexpected: {unexpected}"));
    ensure!(
        unexpected == 0,
        "{unexpected} responses were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

fn say_method(run: &mut Run, schedule: LoadSchedule) -> Result<()> {
    let LoadSchedule { rounds, warm_up, time } = schedule;
    run.say(format_args!(
        "method    servers on core {}, one at a time, the generator on core {}; {rounds} rounds of {time:?} after {warm_up:?} to\n          \
         warm up; {} keys, uniform, none denied; `CPU us` is the server's CPU time per\n          \
         check, `1/CPU` checks per second of CPU time, `busy` the share of its core it used, `spare` the share of its\n          \
         core the generator had to spare; TCP congestion control {}",
        process::SERVERS[0],
        process::GENERATOR[0],
        template::KEYS,
        tcp()?,
    ));
    Ok(())
}

/// The machine's default TCP congestion control. Some need a timer for every reply.
pub(crate) fn tcp() -> Result<String> {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    Ok(name.context("can't read the TCP congestion control")?.trim().to_owned())
}
