//! The gain of a second core.
//!
//! A machine with two cores can't show this by throughput, because the generator needs one of them. So it is computed
//! from the server's CPU time per check. Two workers that contend, for a lock or for cache lines, need more time per
//! check; if they don't, twice the cores do twice the work. One worker is measured in the same way, on the same two
//! cores beside the same generator, so that nothing else differs.

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

/// The required ratio of two cores to one.
const BAR: f64 = 1.7;
/// If two workers used less than this many cores together, they hardly ran at the same time.
const LEAST_BUSY: f64 = 1.2;

pub(crate) fn measure(
    run: &mut Run,
    programs: &Programs,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    run.say(
        "\ncores: one worker and two, each on both cores, shared with the generator, which sleeps when it has nothing to do.\n       \
         Compared by CPU time, because throughput would only show what the generator leaves over: the ratio of two cores\n       \
         to one is 2 x CPU us with one worker / CPU us with two. `busy` shows how many cores the workers used",
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

/// Compares two workers with one. Returns a row of the results.
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
