//! Redis memory per key: its name, its state and its expiry.

use super::host::Host;
use super::tasks::{Tasks, limit};
use crate::run::Run;
use crate::table::Table;
use anyhow::{Result, ensure};

/// The maximum bytes per key.
const BAR: f64 = 160.0;
const TASKS: u64 = 1024;

pub(crate) fn measure(run: &mut Run, host: &Host) -> Result<()> {
    let keys = run.pace.pick(1_000_000, 50_000);
    let tasks = Tasks::connect(host)?;
    // Allocates what the store and its connections need before the first reading.
    tasks.take_each(1, 1, limit("100/h")?)?;
    let before = host.info("memory", "used_memory")?;
    tasks.take_each(keys, TASKS, limit("100/h")?)?;
    let grown = host.info("memory", "used_memory")? - before;
    let held: u64 = host.command(&["DBSIZE"])?.parse()?;
    ensure!(held >= keys, "Redis has only {held} of {keys} keys");
    let name = host.command(&["RANDOMKEY"])?;
    let expiring: u64 = host.command(&["EVAL", EXPIRING_KEYS, "0"])?.parse()?;
    ensure!(expiring + 2 >= held, "only {expiring} of {held} keys have an expiry");
    let bytes = grown as f64 / keys as f64;
    let result = run.check_bar(bytes <= BAR).to_owned();
    run.say(format_args!(
        "\nmemory: growth of Redis' used_memory for {keys} token buckets, each checked once; one is named {name}"
    ));
    let mut table = Table::new(1, ["", "keys", "with expiry", "bytes/key", "bar", ""]);
    table.row([
        "ratekeeper".to_owned(),
        held.to_string(),
        expiring.to_string(),
        format!("{bytes:.1}"),
        format!("<= {BAR}"),
        result,
    ]);
    run.say(table);
    Ok(())
}

/// How many keys have an expiry.
const EXPIRING_KEYS: &str = "return tonumber(string.match(redis.call('INFO', 'keyspace'), 'expires=(%d+)'))";
