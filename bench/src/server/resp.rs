//! RESP: single commands, pipelines and latency, compared with throttlecrab's server, Redis and a lower bound.
//!
//! Redis limits nothing here: it reads a value, the least that a limiter in another process can do on a well-known
//! server.

use super::latency::{self, Servers};
use super::load::Tally;
use super::program::Programs;
use super::report::{self, Bars};
use super::rounds::{LoadSchedule, run_rounds};
use super::subject::resp::{self as server, DEPTH, RespSubject};
use super::subject::{CONNECTIONS, ServerConfig};
use crate::run::Run;
use anyhow::Result;

/// The required ratio to the throughput of throttlecrab's server, with single commands.
const BAR_THROTTLECRAB: f64 = 1.0;
/// The required ratio to the throughput of Redis `GET`, with pipelines.
const BAR_REDIS: f64 = 0.6;
/// The required commands per second, with pipelines.
const BAR_PIPELINES: f64 = 1.7e6;

pub(crate) fn measure(
    run: &mut Run,
    programs: &Programs,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    let servers = [
        server::ratekeeper(&programs.ratekeeper, ServerConfig::DEFAULT)?,
        server::throttlecrab(&programs.throttlecrab)?,
        server::redis(&programs.redis)?,
        server::floor()?,
    ];
    for RespSubject { subject, .. } in &servers {
        subject.verify()?;
    }
    let [singles, pipelines] = [
        servers.each_ref().map(|server| (&server.subject, &server.subject.plan)),
        servers.each_ref().map(|server| (&server.subject, &server.pipelines)),
    ];

    run.say(format_args!("\nRESP: {CONNECTIONS} connections, one command in flight on each"));
    let single_figures = run_rounds(&singles, schedule, tally)?;
    let single = report::outcomes(&singles, &single_figures);
    report::show(run, "commands", &single);
    report::warn(run, &single);

    run.say(format_args!(
        "\nRESP: {CONNECTIONS} connections, pipelines of {DEPTH} commands, the next when all replies are in"
    ));
    let piped_figures = run_rounds(&pipelines, schedule, tally)?;
    let piped = report::outcomes(&pipelines, &piped_figures);
    report::show(run, "commands", &piped);
    report::warn(run, &piped);

    let mut bars = Bars::new();
    bars.ratio(run, "throttlecrab-server, one at a time", single[0], single[1], BAR_THROTTLECRAB);
    bars.ratio(run, "redis-server GET, by the pipeline", piped[0], piped[2], BAR_REDIS);
    bars.rate(run, "commands/s by the pipeline", piped[0], BAR_PIPELINES);
    bars.show(run);

    let [ratekeeper, throttlecrab, redis, floor] = &servers.each_ref().map(|server| &server.subject);
    let most = |index: usize| single_figures[index].per_sec.median();
    let subjects = Servers {
        ratekeeper: (ratekeeper, most(0)),
        floor,
        others: vec![(throttlecrab, most(1)), (redis, most(2))],
    };
    latency::measure(run, "commands", &subjects, schedule, tally)
}
