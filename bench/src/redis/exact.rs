//! Checks that Redis decides, by way of Ratekeeper's store in one process, beside a script for each.

use super::host::Host;
use super::plain::{DEPTHS, Plain};
use super::tasks::Tasks;
use super::turn::{self, Outcome, Own};
use crate::run::Run;
use crate::server::program::Program;
use crate::server::rounds::Effort;
use crate::table::Table;
use anyhow::Result;

/// How many times as many checks as a script for each a core of Redis must decide.
const BAR: f64 = 1.5;
/// How many tasks ask at once.
const TASKS: [u64; 3] = [64, 256, 1024];
/// What redis-cell, a module written in Rust, is said to do with pipelines of 64: a figure from elsewhere.
const REDIS_CELL: &str = "281000";

pub(crate) fn measure(run: &mut Run, host: &Host, benchmark: &Program, effort: Effort) -> Result<()> {
    let tasks = Tasks::connect(host)?;
    let plain = Plain::at_its_best(benchmark, host)?;
    let mut turns: [Vec<_>; TASKS.len() + 1] = Default::default();
    for round in 0..effort.rounds {
        turns[TASKS.len()].push(plain.press(host, effort)?);
        for (index, count) in TASKS.iter().enumerate() {
            turns[index].push(tasks.press(host, *count, effort, round)?);
        }
    }
    let ours = |index: usize| {
        let name = format!("ratekeeper, in process, {} tasks", TASKS[index]);
        Outcome::of(name, Own::Ratekeeper, &turns[index])
    };
    let mut outcomes: Vec<_> = (0..TASKS.len()).map(ours).collect();
    let name = format!("EVALSHA for each check, redis-benchmark -P {}", plain.depth);
    outcomes.push(Outcome::of(name, Own::Generator, &turns[TASKS.len()]));
    run.say(format_args!(
        "\nexact: every check is decided by Redis; a token bucket each; of -P {DEPTHS:?} redis-benchmark had the best"
    ));
    run.say(turn::table(&outcomes));
    run.say(format_args!(
        "for reference, not measured here: redis-cell's published {REDIS_CELL} a second with redis-benchmark -P 64"
    ));
    let best = outcomes[..TASKS.len()].iter().max_by(|one, other| {
        let per_sec = |outcome: &Outcome| outcome.per_sec.median();
        per_sec(one).total_cmp(&per_sec(other))
    });
    let (Some(ours), Some(plain)) = (best, outcomes.last()) else { return Ok(()) };
    let ratio = ours.per_sec.median() / plain.per_sec.median();
    let by_cpu = plain.redis_us.median() / ours.redis_us.median();
    let mut table = Table::new(1, ["ratekeeper", "measured", "by Redis' CPU", "bar", ""]);
    let verdict = run.judge(ratio >= BAR && by_cpu >= BAR);
    let cells = ["x EVALSHA for each check".to_owned(), format!("{ratio:.2}"), format!("{by_cpu:.2}")];
    table.row([&cells[..], &[format!(">= {BAR}"), verdict.to_owned()]].concat());
    run.say("");
    run.say(table);
    Ok(())
}
