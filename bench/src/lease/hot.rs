//! One hot key, a million checks per second: the calls that Redis receives.

use super::node::{connect, runtime};
use super::paced::{self, PacedLoad};
use crate::redis::host::Host;
use crate::redis::tasks::limit;
use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS, pin};
use crate::server::program::Program;
use crate::table::Table;
use anyhow::{Context, Result};
use std::thread;
use std::time::Duration;

/// The maximum of Redis calls per second and node.
const BAR: f64 = 100.0;
const PER_SEC: f64 = 1e6;
const NODES: [u32; 2] = [1, 4];
/// Far above the demand, and half of it.
const QUOTAS: [(&str, &str); 2] = [("far above demand", "100000000/s"), ("half of demand", "500000/s")];
/// The commands that clients send, without those that scripts call.
const COMMANDS: [&str; 3] = ["evalsha", "eval", "info"];

pub(crate) fn measure(run: &mut Run, redis: &Program) -> Result<()> {
    let (warm_up, time) = run.pace.pick(
        (Duration::from_secs(6), Duration::from_secs(10)),
        (Duration::from_secs(1), Duration::from_secs(2)),
    );
    run.say(format_args!(
        "\nhot: one key, {PER_SEC:.0} checks per second by one thread, nodes in turn, for {time:?} after {warm_up:?}; `calls` are all\n     \
         that Redis received, including heartbeats"
    ));
    let mut table = Table::new(
        2,
        [
            "limit",
            "",
            "nodes",
            "checks/s",
            "granted",
            "failed",
            "from lease",
            "calls/s",
            "per node",
            "p99 us",
            "bar",
            "",
        ],
    );
    for (name, quota) in QUOTAS {
        for nodes in NODES {
            let sample = Sample::take(redis, nodes, quota, warm_up, time)?;
            let Sample { load, calls } = &sample;
            let seconds = load.elapsed.as_secs_f64();
            let (checks, per_node) = (load.checks() as f64, calls / seconds / f64::from(nodes));
            table.row([
                name.to_owned(),
                quota.to_owned(),
                nodes.to_string(),
                format!("{:.0}", checks / seconds),
                format!("{:.1} %", 100.0 * load.granted as f64 / checks),
                format!("{:.1} %", 100.0 * load.failed as f64 / checks),
                format!("{:.3} %", 100.0 - 100.0 * (load.waited + load.failed) as f64 / checks),
                format!("{:.0}", calls / seconds),
                format!("{per_node:.0}"),
                format!("{:.1}", load.times.at_most(990) as f64 / 1e3),
                format!("< {BAR}"),
                run.check_bar(per_node < BAR && load.failed == 0).to_owned(),
            ]);
        }
    }
    run.say(table);
    Ok(())
}

struct Sample {
    load: PacedLoad,
    calls: f64,
}

impl Sample {
    fn take(redis: &Program, nodes: u32, quota: &str, warm_up: Duration, time: Duration) -> Result<Sample> {
        let host = Host::start(redis, GENERATOR)?;
        let runtime = runtime()?;
        let stores = connect(&runtime, &host.url(), nodes)?;
        let (limit, keys) = (limit(quota)?, ["hot".to_owned()]);
        let measure = || -> Result<Sample> {
            pin(SERVERS)?;
            // Before the key is leased, every check goes to Redis, and a million per second would overload it.
            for part in [100.0, 10.0, 1.0] {
                paced::run_load(&runtime, &stores, &keys, limit, PER_SEC / part, warm_up / 3);
            }
            let before = host.calls_of(&COMMANDS)?;
            let load = paced::run_load(&runtime, &stores, &keys, limit, PER_SEC, time);
            // Not counting the last call, which reads this very counter.
            Ok(Sample { load, calls: (host.calls_of(&COMMANDS)? - before - 1) as f64 })
        };
        thread::scope(|scope| scope.spawn(measure).join())
            .ok()
            .context("the thread of the checks panicked")?
    }
}
