//! A key that is empty, asked for again and again: it is refused without Redis until its next unit is due.

use super::host::Host;
use super::tasks::{Asker, Tasks, limit};
use super::turn::Watch;
use crate::race::Laps;
use crate::redis::host::LeasedRedis;
use crate::run::Run;
use crate::server::rounds::Effort;
use crate::table::Table;
use anyhow::{Result, ensure};
use std::time::Instant;

/// How many denials a second a core must manage.
const BAR: f64 = 1e6;
/// How many denials there are until other tasks of the thread have their turn.
const STRIDE: u64 = 1024;

pub(crate) fn measure(run: &mut Run, host: &Host, effort: Effort) -> Result<()> {
    let tasks = Tasks::connect(host)?;
    let mut asker = Asker::new(limit("1/d")?);
    let mut turns = Vec::new();
    let mut asked = 0.0;
    for _ in 0..effort.rounds {
        tasks.run(async |store| press(&mut asker, store, effort.warm_up.as_secs_f64()).await)?;
        let watch = Watch::start(host, None)?;
        let denials = tasks.run(async |store| press(&mut asker, store, effort.time.as_secs_f64()).await)?;
        let turn = watch.stop(denials)?;
        let most = effort.time.as_secs_f64() + 1.0;
        ensure!(turn.calls <= most, "Redis was asked {} times in {:?}", turn.calls, effort.time);
        asked += turn.calls;
        turns.push(turn);
    }
    let per_sec = Laps::new(turns.iter().map(|turn| turn.checks / turn.elapsed).collect());
    let nanos = Laps::new(turns.iter().map(|turn| turn.own * 1e9 / turn.checks).collect());
    let elapsed: f64 = turns.iter().map(|turn| turn.elapsed).sum();
    let verdict = run.judge(per_sec.median() >= BAR).to_owned();
    run.say(format_args!(
        "\ndenials: one key that Redis has refused, asked for by one thread; Redis was asked {asked} times in {elapsed:.0} s"
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
        verdict,
    ]);
    run.say(table);
    Ok(())
}

/// Asks without a pause for so many seconds; how many were denied, which all but the very first must be.
async fn press(asker: &mut Asker, store: &LeasedRedis, seconds: f64) -> Result<u64> {
    let begin = Instant::now();
    let mut denials = 0;
    while begin.elapsed().as_secs_f64() < seconds {
        for _ in 0..STRIDE {
            let is_allowed = asker.ask(store, 0).await;
            ensure!(is_allowed.is_some(), "Redis gave no answer");
            denials += u64::from(is_allowed == Some(false));
        }
        tokio::task::yield_now().await;
    }
    Ok(denials)
}
