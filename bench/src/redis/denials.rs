//! Repeated checks of an exhausted key: they are denied without Redis until the next unit is due.

use super::host::{Host, LeasedRedis};
use super::measurement::Stopwatch;
use super::tasks::{Checker, Tasks, limit};
use crate::interleaved::Samples;
use crate::run::Run;
use crate::server::rounds::LoadSchedule;
use crate::table::Table;
use anyhow::{Result, ensure};
use std::time::Instant;

/// Required denials per second and core.
const BAR: f64 = 1e6;
/// Denials between two yields to other tasks of the thread.
const STRIDE: u64 = 1024;

pub(crate) fn measure(run: &mut Run, host: &Host, schedule: LoadSchedule) -> Result<()> {
    let tasks = Tasks::connect(host)?;
    let mut checker = Checker::new(limit("1/d")?);
    let mut measurements = Vec::new();
    let mut calls = 0.0;
    for _ in 0..schedule.rounds {
        tasks.run(async |store| check_for(&mut checker, store, schedule.warm_up.as_secs_f64()).await)?;
        let stopwatch = Stopwatch::start(host, None)?;
        let denials =
            tasks.run(async |store| check_for(&mut checker, store, schedule.time.as_secs_f64()).await)?;
        let measurement = stopwatch.stop(denials)?;
        let most = schedule.time.as_secs_f64() + 1.0;
        ensure!(
            measurement.calls <= most,
            "Redis received {} calls in {:?}",
            measurement.calls,
            schedule.time
        );
        calls += measurement.calls;
        measurements.push(measurement);
    }
    let per_sec = Samples::new(
        measurements.iter().map(|measurement| measurement.checks / measurement.elapsed).collect(),
    );
    let nanos = Samples::new(
        measurements.iter().map(|measurement| measurement.own * 1e9 / measurement.checks).collect(),
    );
    let elapsed: f64 = measurements.iter().map(|measurement| measurement.elapsed).sum();
    let result = run.check_bar(per_sec.median() >= BAR).to_owned();
    run.say(format_args!(
        "\ndenials: one exhausted key, checked by one thread; Redis received {calls} calls in {elapsed:.0} s"
    ));
    let mut table = Table::new(1, ["", "denials/s", "min", "max", "CPU ns", "bar", ""]);
    let (least, most) = per_sec.spread();
    table.row([
        "ratekeeper, in process".to_owned(),
        format!("{:.0}", per_sec.median()),
        format!("{least:.0}"),
        format!("{most:.0}"),
        format!("{:.0}", nanos.median()),
        format!(">= {BAR}"),
        result,
    ]);
    run.say(table);
    Ok(())
}

/// Checks without a pause for this many seconds. Returns the number of denials; all but the very first must be.
async fn check_for(checker: &mut Checker, store: &LeasedRedis, seconds: f64) -> Result<u64> {
    let begin = Instant::now();
    let mut denials = 0;
    while begin.elapsed().as_secs_f64() < seconds {
        for _ in 0..STRIDE {
            let is_allowed = checker.check(store, 0).await;
            ensure!(is_allowed.is_some(), "Redis did not reply");
            denials += u64::from(is_allowed == Some(false));
        }
        tokio::task::yield_now().await;
    }
    Ok(denials)
}
