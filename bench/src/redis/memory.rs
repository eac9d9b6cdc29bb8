//! What a key takes in Redis, with its name, its state and the time after which it lapses.

use super::host::Host;
use super::tasks::{Tasks, limit};
use crate::run::Run;
use crate::table::Table;
use anyhow::{Result, ensure};

/// The most bytes that a key may take.
const BAR: f64 = 160.0;
const TASKS: u64 = 1024;

pub(crate) fn measure(run: &mut Run, host: &Host) -> Result<()> {
    let keys = run.pace.pick(1_000_000, 50_000);
    let tasks = Tasks::connect(host)?;
    // What the store and its connections take is there before.
    tasks.take_each(1, 1, limit("100/h")?)?;
    let before = host.info("memory", "used_memory")?;
    tasks.take_each(keys, TASKS, limit("100/h")?)?;
    let grown = host.info("memory", "used_memory")? - before;
    let held: u64 = host.command(&["DBSIZE"])?.parse()?;
    ensure!(held >= keys, "Redis has only {held} of {keys} keys");
    let name = host.command(&["RANDOMKEY"])?;
    let lapses: u64 = host.command(&["EVAL", LAPSES, "0"])?.parse()?;
    ensure!(lapses + 2 >= held, "only {lapses} of {held} keys lapse by themselves");
    let bytes = grown as f64 / keys as f64;
    let result = run.check_bar(bytes <= BAR).to_owned();
    run.say(format_args!(
        "\nmemory: growth of Redis' used_memory for {keys} token buckets, each checked once; one is named {name}"
    ));
    let mut table = Table::new(1, ["", "keys", "that lapse", "bytes/key", "bar", ""]);
    table.row([
        "ratekeeper".to_owned(),
        held.to_string(),
        lapses.to_string(),
        format!("{bytes:.1}"),
        format!("<= {BAR}"),
        result,
    ]);
    run.say(table);
    Ok(())
}

/// How many keys have a time after which they lapse.
const LAPSES: &str = "return tonumber(string.match(redis.call('INFO', 'keyspace'), 'expires=(%d+)'))";
