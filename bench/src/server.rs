//! What Ratekeeper's server does a second and how long it takes, at each of its doors, beside its peers and floors.
//!
//! Every server is a process of its own on the first core, and the generator has the second. The servers of a part are
//! all there from its beginning to its end, but only the one whose turn it is runs.

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
    /// Over HTTP, one check each.
    Requests,
    /// Over HTTP, many checks each.
    Batches,
    /// Over HTTP, and requests before, which tell how much half of the most is.
    Latency,
    /// Over RESP: one command at a time, pipelines, and latency.
    Resp,
    /// Over gRPC: Envoy's calls, and checks on streams.
    Grpc,
    /// Over HTTP and RESP, with two workers beside one.
    Cores,
}

/// Measures all parts, or only one.
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
    run.say(format_args!("\nanswers: {answers}, unexpected: {unexpected}"));
    ensure!(
        unexpected == 0,
        "{unexpected} answers were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

fn say_method(run: &mut Run, schedule: LoadSchedule) -> Result<()> {
    let LoadSchedule { rounds, warm_up, time } = schedule;
    run.say(format_args!(
        "method    servers on core {}, one at a time, the generator on core {}; {rounds} rounds of {time:?} after {warm_up:?} to\n          \
         warm up; {} keys, each as likely as any other, and nobody is refused; `CPU us` is the server's own time for a\n          \
         check, `1/CPU` what a second of it is enough for, `busy` how much of its core it used, `spare` how much of its\n          \
         core the generator had nothing to do for; the servers' TCP is {}",
        process::SERVERS[0],
        process::GENERATOR[0],
        template::KEYS,
        tcp()?,
    ));
    Ok(())
}

/// How the machine sends unless it is told otherwise. Some ways cost a timer for every reply.
pub(crate) fn tcp() -> Result<String> {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    Ok(name.context("the machine does not tell its kind of TCP")?.trim().to_owned())
}
