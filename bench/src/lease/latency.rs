//! Latency of leased checks with a long round trip to Redis.

use super::node::{connect, runtime};
use super::{paced, relay};
use crate::histogram::Histogram;
use crate::interleaved::Samples;
use crate::keys;
use crate::redis::host::Host;
use crate::redis::tasks::limit;
use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS, pin};
use crate::server::program::Program;
use crate::table::Table;
use anyhow::{Context, Result};
use std::thread;
use std::time::Duration;

/// The maximum p99.
const BAR_P99_US: f64 = 1000.0;
/// The round-trip time.
const ROUND_TRIP: Duration = Duration::from_millis(5);
const PER_SEC: f64 = 20_000.0;
const KEYS: u64 = 1_000;
const QUOTA: &str = "1000/s";

pub(crate) fn measure(run: &mut Run, redis: &Program) -> Result<()> {
    let rounds = run.pace.pick(5, 2);
    let (warm_up, time) = run.pace.pick(
        (Duration::from_secs(10), Duration::from_secs(5)),
        (Duration::from_secs(1), Duration::from_secs(1)),
    );
    let host = Host::start(redis, GENERATOR)?;
    let server = host.address;
    let relay = thread::spawn(move || pin(GENERATOR).and_then(|()| relay::start(server, ROUND_TRIP / 2)));
    let relay = relay.join().ok().context("the relay thread panicked")??;
    let runtime = runtime()?;
    let nodes = connect(&runtime, &format!("redis://{relay}"), 1)?;
    let mut names = Vec::new();
    keys::in_chunks(0, KEYS, |keys| names.extend_from_slice(keys));
    let limit = limit(QUOTA)?;
    let checks = move || -> Result<_> {
        pin(SERVERS)?;
        let first = paced::run_load(&runtime, &nodes, &names, limit, PER_SEC, warm_up).answered()?;
        let mut samples = Vec::new();
        for _ in 0..rounds {
            let before = nodes[0].counts();
            let load = paced::run_load(&runtime, &nodes, &names, limit, PER_SEC, time).answered()?;
            let after = nodes[0].counts();
            samples.push((
                load,
                after.leases.misses - before.leases.misses,
                after.leases.renewals - before.leases.renewals,
            ));
        }
        Ok((first, samples))
    };
    let (first, samples) =
        thread::spawn(checks).join().ok().context("the thread of the checks panicked")??;

    run.say(format_args!(
        "\nlatency: a round trip to Redis takes {ROUND_TRIP:?}; {KEYS} keys in turn, {QUOTA} each; at a fixed rate from one thread;\n         \
         latency counts from when a check was due; {rounds} rounds of {time:?} after {warm_up:?}; medians, and the minimum and maximum p99"
    ));
    let mut table = Table::new(
        1,
        ["us", "checks/s", "p50", "p99", "min", "max", "p99.9", "max", "store calls", "renewals", "bar", ""],
    );
    let micros = |times: &Histogram, of_thousand| times.at_most(of_thousand) as f64 / 1e3;
    let figure = |of_thousand| {
        Samples::new(samples.iter().map(|(load, ..)| micros(&load.times, of_thousand)).collect())
    };
    let p99 = figure(990);
    let (min, max) = p99.spread();
    let times = [figure(500).median(), p99.median(), min, max, figure(999).median(), figure(1000).spread().1];
    let checks: u64 = samples.iter().map(|(load, ..)| load.checks()).sum();
    let store_calls: u64 = samples.iter().map(|(_, store_calls, _)| store_calls).sum();
    let renewals: u64 = samples.iter().map(|(.., renewals)| renewals).sum();
    let mut cells = vec!["leased, warm keys".to_owned(), format!("{PER_SEC:.0}")];
    cells.extend(times.map(|time| format!("{time:.1}")));
    cells.extend([format!("{store_calls} of {checks}"), renewals.to_string()]);
    cells.extend([format!("p99 < {BAR_P99_US}"), run.check_bar(p99.median() < BAR_P99_US).to_owned()]);
    table.row(cells);
    run.say(table);
    run.say(format_args!(
        "warm-up: p50 {:.1}, p99 {:.1} us; {} of {} waited",
        micros(&first.times, 500),
        micros(&first.times, 990),
        first.waited,
        first.checks(),
    ));
    Ok(())
}
