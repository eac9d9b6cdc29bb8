//! What a second core is worth to Ratekeeper.
//!
//! On a machine of two cores it can't be seen by answers a second: the generator needs one of them. It is told by the
//! server's own time for a check instead. Two workers that get in each other's way, by waiting for a lock or by taking
//! memory out of each other's cache, need longer for each check; if they don't, twice the cores do twice the work. One
//! worker is measured in the same way, on the same two cores beside the same generator, so that nothing else differs.

use super::load::{Idle, Plan, Tally};
use super::process::{self, GENERATOR, SHARED};
use super::program::Programs;
use super::report;
use super::rounds::{LoadSchedule, run_rounds};
use super::subject::resp::{self, DEPTH};
use super::subject::{CONNECTIONS, ServerConfig, Subject, http};
use crate::run::Run;
use crate::table::Table;
use anyhow::Result;

/// How many times as much as one core two must do.
const BAR: f64 = 1.7;
/// Two workers that had less than this of a core together hardly ran at the same time.
const LEAST_BUSY: f64 = 1.2;

pub(crate) fn measure(
    run: &mut Run,
    programs: &Programs,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    run.say(
        "\ncores: one worker and two, both on both cores, which they share with the generator: it sleeps when it has nothing\n       \
         to do. Judged by CPU time, as answers a second would only show what the generator leaves over: two cores do\n       \
         2 x CPU us with one worker / CPU us with two times as much as one. How much the workers ran at the same time\n       \
         is seen in `busy`, of one core",
    );
    process::pin(SHARED)?;
    let mut table = Table::new(1, ["ratekeeper", "two cores x one", "bar", ""]);

    let mut servers = both(|config| http::ratekeeper(&programs.ratekeeper, config))?;
    for (server, workers) in servers.iter_mut().zip(WORKERS) {
        prepare(&mut server.name, &mut server.plan, workers);
        server.verify()?;
    }
    run.say(format_args!("\nrequests over HTTP: {CONNECTIONS} connections, one in flight on each"));
    let entries = servers.each_ref().map(|server| (server, &server.plan));
    table.row(compare(run, "requests", &entries, schedule, tally)?);
    drop(servers);

    let mut servers = both(|config| resp::ratekeeper(&programs.ratekeeper, config))?;
    for (server, workers) in servers.iter_mut().zip(WORKERS) {
        prepare(&mut server.subject.name, &mut server.pipelines, workers);
        server.subject.verify()?;
    }
    run.say(format_args!("\ncommands over RESP: {CONNECTIONS} connections, pipelines of {DEPTH}"));
    let entries = servers.each_ref().map(|server| (&server.subject, &server.pipelines));
    table.row(compare(run, "commands", &entries, schedule, tally)?);
    drop(servers);

    run.say("");
    run.say(table);
    process::pin(GENERATOR)
}

const WORKERS: [usize; 2] = [1, 2];

/// Starts a server with each number of workers.
fn both<T>(start: impl Fn(ServerConfig<'static>) -> Result<T>) -> Result<[T; 2]> {
    let [one, two] =
        WORKERS.map(|workers| start(ServerConfig { workers, cores: SHARED, ..ServerConfig::DEFAULT }));
    Ok([one?, two?])
}

fn prepare(name: &mut String, plan: &mut Plan, workers: usize) {
    *name += if workers == 1 { ", 1 worker" } else { ", 2 workers" };
    plan.idle = Idle::Sleep;
}

/// What two workers do beside one: a row of the verdicts.
fn compare(
    run: &mut Run,
    units: &str,
    entries: &[(&Subject, &Plan); 2],
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<[String; 4]> {
    let figures = run_rounds(entries, schedule, tally)?;
    let outcomes = report::outcomes(entries, &figures);
    report::show(run, units, &outcomes);
    if figures[1].busy.median() < LEAST_BUSY {
        run.say("two workers hardly ran at the same time, so what they cost each other hardly shows");
    }
    let ratio = 2.0 * outcomes[0].cpu_us() / outcomes[1].cpu_us();
    let result = run.check_bar(ratio >= BAR).to_owned();
    Ok([format!("{units}, by CPU"), format!("{ratio:.2}"), format!(">= {BAR}"), result])
}
