//! Checks through Ratekeeper's server, over HTTP and RESP.
//!
//! Three processes share two cores, so each placement shows something else. With Ratekeeper alone on a core and Redis
//! beside the generator, the figure is Ratekeeper's throughput. With Redis beside Ratekeeper and the generator alone,
//! the generator sends on time, so latency is measured there.

use super::QUOTA;
use super::host::Host;
use super::latency;
use super::measurement::{self, Outcome, OwnTime, Stopwatch};
use crate::run::Run;
use crate::server::load::{Idle, Load, Plan, Tally};
use crate::server::process::{GENERATOR, Process, SERVERS};
use crate::server::program::{self, Program};
use crate::server::rounds::LoadSchedule;
use crate::server::subject::CONNECTIONS;
use crate::server::subject::http;
use crate::server::subject::resp::{self, DEPTH};
use crate::table::Table;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;

/// Three times what limitador's server reached with Redis on this machine: 21 000 to 31 000 requests per second.
const BAR_HTTP: f64 = 63_000.0;

/// The quota in the syntax of redis-cell's clients.
const THROTTLE: &str = "999999 1000 3600";

/// The protocol of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Resp,
}

/// Which processes share a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Redis beside the generator.
    RatekeeperAlone,
    /// Redis beside Ratekeeper.
    GeneratorAlone,
}

/// A Redis, a Ratekeeper server, and its load plan.
pub(crate) struct Deployment {
    pub(crate) name: String,
    pub(crate) host: Host,
    pub(crate) ratekeeper: Process,
    pub(crate) address: SocketAddr,
    pub(crate) plan: Plan,
}

pub(crate) fn measure(
    run: &mut Run,
    redis: &Program,
    ratekeeper: &Program,
    schedule: LoadSchedule,
) -> Result<()> {
    let start = |protocol, placement| Deployment::start(redis, ratekeeper, protocol, placement);
    let deployments = [
        start(Protocol::Http, Placement::RatekeeperAlone)?,
        start(Protocol::Http, Placement::GeneratorAlone)?,
        start(Protocol::Resp, Placement::RatekeeperAlone)?,
        start(Protocol::Resp, Placement::GeneratorAlone)?,
    ];
    let mut tally = Tally::default();
    let mut measurements: [Vec<_>; 4] = Default::default();
    for round in 0..schedule.rounds {
        for (deployment, measurements) in deployments.iter().zip(&mut measurements) {
            measurements.push(
                deployment.measure(schedule, round, &mut tally).with_context(|| deployment.name.clone())?,
            );
        }
    }
    let outcomes: Vec<_> = deployments
        .iter()
        .zip(&measurements)
        .map(|(deployment, measurements)| {
            Outcome::of(deployment.name.clone(), OwnTime::Generator, measurements)
        })
        .collect();
    run.say(format_args!(
        "\nprotocols: one Ratekeeper with one worker, one Redis and one generator on two cores; over HTTP {CONNECTIONS} connections, one\n       \
         request in flight on each; over RESP as many, pipelines of {DEPTH} commands; a Redis that does not answer would\n       \
         make Ratekeeper deny and end the run"
    ));
    run.say(measurement::table(&outcomes));
    let http = &outcomes[0];
    let result = run.check_bar(http.per_sec.median() >= BAR_HTTP).to_owned();
    let mut table =
        Table::new(1, ["ratekeeper", "measured", "by Ratekeeper's CPU", "by Redis' CPU", "bar", ""]);
    let figures = [http.per_sec.median(), http.per_ratekeeper_core(), http.per_redis_core()];
    let mut cells = vec!["requests/s over HTTP".to_owned()];
    cells.extend(figures.map(|figure| format!("{figure:.0}")));
    cells.extend([format!(">= {BAR_HTTP}"), result]);
    table.row(cells);
    run.say("");
    run.say(table);
    let most = outcomes[1].per_sec.median();
    latency::measure(run, &deployments[1], most, schedule, &mut tally)?;
    let Tally { answers, unexpected, example } = tally;
    ensure!(
        unexpected == 0,
        "{unexpected} of {answers} responses were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

impl Deployment {
    fn start(
        redis: &Program,
        ratekeeper: &Program,
        protocol: Protocol,
        placement: Placement,
    ) -> Result<Deployment> {
        let (cores, words, idle) = match placement {
            Placement::RatekeeperAlone => (GENERATOR, "Redis beside the generator", Idle::Sleep),
            Placement::GeneratorAlone => (SERVERS, "Redis beside Ratekeeper", Idle::Spin),
        };
        let host = Host::start(redis, cores)?;
        let file = program::scratch()?.join("redis.yaml");
        fs::write(&file, format!("consistency: exact\nrules:\n  - id: per-key\n    limit: {QUOTA}\n"))
            .with_context(|| format!("can't write {}", file.display()))?;
        let (own, other, name, mut plan) = match protocol {
            Protocol::Http => ("--http", "--resp", "HTTP", http::checks()),
            Protocol::Resp => ("--resp", "--http", "RESP", resp::pipelines(THROTTLE)),
        };
        plan.idle = idle;
        let mut arguments: Vec<OsString> =
            ["serve", own, "127.0.0.1:0", other, "off", "--grpc", "off", "--admin", "off", "--workers", "1"]
                .map(Into::into)
                .to_vec();
        arguments.extend(["--on-store-failure", "closed", "--store-timeout", "1s"].map(Into::into));
        arguments.extend(["--store", &host.url(), "--rules"].map(Into::into));
        arguments.push(file.into());
        let (process, address) = Process::start(ratekeeper, &arguments, SERVERS)?;
        // The server is not stopped while others are measured: after a pause, its store connection would have timed
        // out. An idle server costs almost nothing.
        Ok(Deployment { name: format!("{name}, {words}"), host, ratekeeper: process, address, plan })
    }

    fn measure(
        &self,
        schedule: LoadSchedule,
        seed: u64,
        tally: &mut Tally,
    ) -> Result<measurement::Measurement> {
        let mut load = Load::connect(self.address, &self.plan, seed)?;
        load.run_for(schedule.warm_up)?;
        let stopwatch = Stopwatch::start(&self.host, Some(&self.ratekeeper))?;
        let result = load.run_for(schedule.time)?;
        let measurement = stopwatch.stop(result.answers * self.plan.checks() as u64)?;
        tally.add(load.finish()?);
        Ok(measurement)
    }
}
