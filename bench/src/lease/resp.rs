//! A server with leased rules over RESP, compared with a server with the memory store.
//!
//! Neither process is stopped while the other is measured: after a pause, a server would find its store connection
//! timed out. Idle servers cost almost nothing.

use crate::redis::host::Host;
use crate::redis::measurement::{self, Measurement, Outcome, OwnTime, Stopwatch};
use crate::run::Run;
use crate::server::load::{Idle, Load, Plan, Tally};
use crate::server::process::{GENERATOR, pin};
use crate::server::program::Program;
use crate::server::rounds::LoadSchedule;
use crate::server::subject::resp::{self as server, DEPTH};
use crate::server::subject::{CONNECTIONS, ServerConfig, Subject};
use crate::server::tcp;
use crate::server::template::KEYS;
use crate::table::Table;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// The required share of the memory store's throughput.
const BAR: f64 = 0.8;
/// The limits that commands carry are leased like those of rules.
const RULES: &str = "consistency: leased\nrules:\n  - id: per-key\n    limit: 1000000/s\n";

pub(crate) fn measure(run: &mut Run, redis: &Program, ratekeeper: &Program) -> Result<()> {
    let ms = Duration::from_millis;
    let schedule = run.pace.pick(
        LoadSchedule { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        LoadSchedule { rounds: 2, warm_up: ms(100), time: ms(300) },
    );
    let first = run.pace.pick(ms(15_000), ms(2000));
    pin(GENERATOR)?;
    let host = Host::start(redis, GENERATOR)?;
    let url = host.url();
    let config = ServerConfig { rules: RULES, store: Some(&url), ..ServerConfig::DEFAULT };
    let mut servers =
        [server::ratekeeper(ratekeeper, ServerConfig::DEFAULT)?, server::ratekeeper(ratekeeper, config)?];
    for server in &mut servers {
        // The generator shares its core with Redis.
        (server.subject.plan.idle, server.pipelines.idle) = (Idle::Sleep, Idle::Sleep);
        server.subject.verify()?;
        server.subject.process.resume()?;
    }
    run.say(format_args!(
        "\nRESP: one worker, and the generator and Redis on the other core; {CONNECTIONS} connections; {KEYS} keys, uniform,\n      \
         none denied; {} rounds of {:?} after {:?}, {first:?} before the first; TCP congestion control {}",
        schedule.rounds,
        schedule.time,
        schedule.warm_up,
        tcp()?,
    ));
    let mut tally = Tally::default();
    let mut bars = Table::new(1, ["leased", "measured", "by CPU", "bar", ""]);
    let plans = [
        ("one command at a time", servers.each_ref().map(|server| &server.subject.plan)),
        (&*format!("pipelines of {DEPTH}"), servers.each_ref().map(|server| &server.pipelines)),
    ];
    let leased = &servers[1];
    measure_once(
        &host,
        &leased.subject,
        &leased.pipelines,
        LoadSchedule { warm_up: first, ..schedule },
        0,
        &mut tally,
    )?;
    for (name, plans) in plans {
        let mut measurements: [Vec<Measurement>; 2] = Default::default();
        for round in 0..schedule.rounds {
            for ((server, plan), measurements) in servers.iter().zip(plans).zip(&mut measurements) {
                measurements.push(measure_once(&host, &server.subject, plan, schedule, round, &mut tally)?);
            }
        }
        let [memory, leased] = [("memory", &measurements[0]), ("leased", &measurements[1])]
            .map(|(name, measurements)| Outcome::of(name.to_owned(), OwnTime::Generator, measurements));
        let ratio = leased.per_sec.median() / memory.per_sec.median();
        let by_cpu = leased.per_ratekeeper_core() / memory.per_ratekeeper_core();
        let result = run.check_bar(ratio >= BAR).to_owned();
        let figures = [format!("{ratio:.2}"), format!("{by_cpu:.2}"), format!(">= {BAR}"), result];
        bars.row([&[format!("x memory, {name}")][..], &figures].concat());
        run.say(format_args!("\n{name}"));
        run.say(measurement::table(&[memory, leased]));
    }
    run.say("");
    run.say(bars);
    let Tally { answers, unexpected, example } = tally;
    ensure!(
        unexpected == 0,
        "{unexpected} of {answers} responses were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

fn measure_once(
    host: &Host,
    subject: &Subject,
    plan: &Plan,
    schedule: LoadSchedule,
    seed: u64,
    tally: &mut Tally,
) -> Result<Measurement> {
    let mut load = Load::connect(subject.address, plan, seed).with_context(|| subject.name.clone())?;
    load.run_for(schedule.warm_up)?;
    let stopwatch = Stopwatch::start(host, Some(&subject.process))?;
    let result = load.run_for(schedule.time)?;
    let measurement = stopwatch.stop(result.answers * plan.checks() as u64)?;
    tally.add(load.finish()?);
    Ok(measurement)
}
