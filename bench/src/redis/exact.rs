//! Checks that Redis decides through Ratekeeper's store in one process, compared with one script call per check.

use super::baseline::{DEPTHS, ScriptPerCheck};
use super::host::Host;
use super::measurement::{self, Outcome, OwnTime};
use super::tasks::Tasks;
use crate::run::Run;
use crate::server::program::Program;
use crate::server::rounds::LoadSchedule;
use crate::table::Table;
use anyhow::Result;

/// The required ratio of checks per second of Redis CPU time to one script call per check.
const BAR: f64 = 1.5;
/// The number of concurrent tasks.
const TASKS: [u64; 3] = [64, 256, 1024];
/// The published figure of redis-cell, a module in Rust, with pipelines of 64. Not measured here.
const REDIS_CELL: &str = "281000";

pub(crate) fn measure(run: &mut Run, host: &Host, benchmark: &Program, schedule: LoadSchedule) -> Result<()> {
    let tasks = Tasks::connect(host)?;
    let baseline = ScriptPerCheck::at_its_best(benchmark, host)?;
    let mut measurements: [Vec<_>; TASKS.len() + 1] = Default::default();
    for round in 0..schedule.rounds {
        measurements[TASKS.len()].push(baseline.measure(host, schedule)?);
        for (index, count) in TASKS.iter().enumerate() {
            measurements[index].push(tasks.measure(host, *count, schedule, round)?);
        }
    }
    let ours = |index: usize| {
        let name = format!("ratekeeper, in process, {} tasks", TASKS[index]);
        Outcome::of(name, OwnTime::Ratekeeper, &measurements[index])
    };
    let mut outcomes: Vec<_> = (0..TASKS.len()).map(ours).collect();
    let name = format!("EVALSHA per check, redis-benchmark -P {}", baseline.depth);
    outcomes.push(Outcome::of(name, OwnTime::Generator, &measurements[TASKS.len()]));
    run.say(format_args!(
        "\nexact: every check is decided by Redis; token buckets; redis-benchmark at the best of -P {DEPTHS:?}"
    ));
    run.say(measurement::table(&outcomes));
    run.say(format_args!(
        "for reference, not measured here: redis-cell's published {REDIS_CELL} per second with redis-benchmark -P 64"
    ));
    let best = outcomes[..TASKS.len()].iter().max_by(|one, other| {
        let per_sec = |outcome: &Outcome| outcome.per_sec.median();
        per_sec(one).total_cmp(&per_sec(other))
    });
    let (Some(ours), Some(baseline)) = (best, outcomes.last()) else { return Ok(()) };
    let ratio = ours.per_sec.median() / baseline.per_sec.median();
    let by_cpu = baseline.redis_us.median() / ours.redis_us.median();
    let mut table = Table::new(1, ["ratekeeper", "measured", "by Redis' CPU", "bar", ""]);
    let result = run.check_bar(ratio >= BAR && by_cpu >= BAR);
    let cells = ["x EVALSHA per check".to_owned(), format!("{ratio:.2}"), format!("{by_cpu:.2}")];
    table.row([&cells[..], &[format!(">= {BAR}"), result.to_owned()]].concat());
    run.say("");
    run.say(table);
    Ok(())
}
