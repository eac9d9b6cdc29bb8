//! Latency of requests that Redis decides, at half of the maximum throughput.

use super::protocols::Deployment;
use crate::histogram::Histogram;
use crate::interleaved::Samples;
use crate::run::Run;
use crate::server::load::{Load, Tally};
use crate::server::rounds::LoadSchedule;
use crate::table::Table;
use anyhow::Result;

/// The maximum p99.
const BAR_P99_US: f64 = 5000.0;

/// Measures at half of `most` requests per second.
pub(crate) fn measure(
    run: &mut Run,
    deployment: &Deployment,
    most: f64,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    let per_sec = most / 2.0;
    let mut rounds = Vec::new();
    for round in 0..schedule.rounds {
        let mut load = Load::connect(deployment.address, &deployment.plan, round)?;
        rounds.push(load.pace(per_sec, schedule.warm_up, schedule.time)?);
        tally.add(load.finish()?);
    }
    let samples = |of_thousand: u64| {
        Samples::new(rounds.iter().map(|times: &Histogram| times.at_most(of_thousand) as f64 / 1e3).collect())
    };
    let p99 = samples(990);
    let (min, max) = p99.spread();
    let figures =
        [samples(500).median(), p99.median(), min, max, samples(999).median(), samples(1000).spread().1];
    let mut cells = vec![deployment.name.clone(), format!("{per_sec:.0}")];
    cells.extend(figures.map(|time| format!("{time:.1}")));
    cells.extend([format!("p99 < {BAR_P99_US}"), run.check_bar(p99.median() < BAR_P99_US).to_owned()]);
    run.say("\nlatency: at half of that, at a fixed rate; latency counts from when a request was due, whether or not its connection was\n         free; medians of the rounds, and the minimum and maximum p99");
    let mut table =
        Table::new(1, ["us", "requests/s", "p50", "p99", "min", "max", "p99.9", "max", "bar", ""]);
    table.row(cells);
    run.say(table);
    Ok(())
}
