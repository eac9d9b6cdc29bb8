//! One key that all want, a million times a second: what Redis has to do for it.

use super::node::{connect, runtime};
use super::paced::{self, Paced};
use crate::redis::host::Host;
use crate::redis::tasks::limit;
use crate::run::Run;
use crate::server::process::{GENERATOR, SERVERS, pin};
use crate::server::program::Program;
use crate::table::Table;
use anyhow::{Context, Result};
use std::thread;
use std::time::Duration;

/// How many calls a second Redis may get from each node.
const BAR: f64 = 100.0;
const PER_SEC: f64 = 1e6;
const NODES: [u32; 2] = [1, 4];
/// Far above what is asked for, and half of it.
const QUOTAS: [(&str, &str); 2] = [("far above", "100000000/s"), ("half of it", "500000/s")];
/// What clients of Redis send, apart from what scripts do inside of it.
const COMMANDS: [&str; 3] = ["evalsha", "eval", "info"];

pub(crate) fn measure(run: &mut Run, redis: &Program) -> Result<()> {
    let (warm_up, time) = run.pace.pick(
        (Duration::from_secs(6), Duration::from_secs(10)),
        (Duration::from_secs(1), Duration::from_secs(2)),
    );
    run.say(format_args!(
        "\nhot: one key, {PER_SEC:.0} checks a second by one thread, nodes in turn, for {time:?} after {warm_up:?}; `calls` are all\n     \
         that Redis got, the nodes' signs of life among them"
    ));
    let mut table = Table::new(
        2,
        [
            "limit",
            "",
            "nodes",
            "checks/s",
            "granted",
            "no answer",
            "from hand",
            "calls/s",
            "a node",
            "p99 us",
            "bar",
            "",
        ],
    );
    for (name, quota) in QUOTAS {
        for nodes in NODES {
            let turn = Turn::take(redis, nodes, quota, warm_up, time)?;
            let Turn { lap, calls } = &turn;
            let seconds = lap.elapsed.as_secs_f64();
            let (checks, per_node) = (lap.checks() as f64, calls / seconds / f64::from(nodes));
            table.row([
                name.to_owned(),
                quota.to_owned(),
                nodes.to_string(),
                format!("{:.0}", checks / seconds),
                format!("{:.1} %", 100.0 * lap.granted as f64 / checks),
                format!("{:.1} %", 100.0 * lap.failed as f64 / checks),
                format!("{:.3} %", 100.0 - 100.0 * (lap.waited + lap.failed) as f64 / checks),
                format!("{:.0}", calls / seconds),
                format!("{per_node:.0}"),
                format!("{:.1}", lap.times.at_most(990) as f64 / 1e3),
                format!("< {BAR}"),
                run.check_bar(per_node < BAR && lap.failed == 0).to_owned(),
            ]);
        }
    }
    run.say(table);
    Ok(())
}

struct Turn {
    lap: Paced,
    calls: f64,
}

impl Turn {
    fn take(redis: &Program, nodes: u32, quota: &str, warm_up: Duration, time: Duration) -> Result<Turn> {
        let host = Host::start(redis, GENERATOR)?;
        let runtime = runtime()?;
        let stores = connect(&runtime, &host.url(), nodes)?;
        let (limit, keys) = (limit(quota)?, ["hot".to_owned()]);
        let turn = || -> Result<Turn> {
            pin(SERVERS)?;
            // While nothing is known of the key, all checks go to Redis, and a million would be too much for it.
            for part in [100.0, 10.0, 1.0] {
                paced::press(&runtime, &stores, &keys, limit, PER_SEC / part, warm_up / 3);
            }
            let before = host.calls_of(&COMMANDS)?;
            let lap = paced::press(&runtime, &stores, &keys, limit, PER_SEC, time);
            // The last question was this process's own.
            Ok(Turn { lap, calls: (host.calls_of(&COMMANDS)? - before - 1) as f64 })
        };
        thread::scope(|scope| scope.spawn(turn).join()).ok().context("the checks came to no end")?
    }
}
