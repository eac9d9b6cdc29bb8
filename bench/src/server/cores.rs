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
use super::rounds::{Effort, take_turns};
use super::subject::resp::{self, DEPTH};
use super::subject::{CONNECTIONS, Site, Subject, http};
use crate::run::Run;
use crate::table::Table;
use anyhow::Result;

/// How many times as much as one core two must do.
const BAR: f64 = 1.7;
/// Two workers that had less than this of a core together hardly ran at the same time.
const LEAST_BUSY: f64 = 1.2;

pub(crate) fn measure(run: &mut Run, programs: &Programs, effort: Effort, tally: &mut Tally) -> Result<()> {
    run.say(
        "\ncores: one worker and two, both on both cores, which they share with the generator: it sleeps when it has nothing\n       \
         to do. Judged by CPU time, as answers a second would only show what the generator leaves over: two cores do\n       \
         2 x CPU us with one worker / CPU us with two times as much as one. How much the workers ran at the same time\n       \
         is seen in `busy`, of one core",
    );
    process::pin(SHARED)?;
    let mut table = Table::new(1, ["ratekeeper", "two cores x one", "bar", ""]);

    let mut servers = both(|site| http::ratekeeper(&programs.ratekeeper, site))?;
    for (server, workers) in servers.iter_mut().zip(WORKERS) {
        prepare(&mut server.name, &mut server.plan, workers);
        server.prove()?;
    }
    run.say(format_args!("\nrequests over HTTP: {CONNECTIONS} connections, one in flight on each"));
    let entries = servers.each_ref().map(|server| (server, &server.plan));
    table.row(compare(run, "requests", &entries, effort, tally)?);
    drop(servers);

    let mut servers = both(|site| resp::ratekeeper(&programs.ratekeeper, site))?;
    for (server, workers) in servers.iter_mut().zip(WORKERS) {
        prepare(&mut server.subject.name, &mut server.pipelines, workers);
        server.subject.prove()?;
    }
    run.say(format_args!("\ncommands over RESP: {CONNECTIONS} connections, pipelines of {DEPTH}"));
    let entries = servers.each_ref().map(|server| (&server.subject, &server.pipelines));
    table.row(compare(run, "commands", &entries, effort, tally)?);
    drop(servers);

    run.say("");
    run.say(table);
    process::pin(GENERATOR)
}

const WORKERS: [usize; 2] = [1, 2];

/// Starts a server with each number of workers.
fn both<T>(start: impl Fn(Site<'static>) -> Result<T>) -> Result<[T; 2]> {
    let [one, two] = WORKERS.map(|workers| start(Site { workers, cores: SHARED, ..Site::PLAIN }));
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
    effort: Effort,
    tally: &mut Tally,
) -> Result<[String; 4]> {
    let figures = take_turns(entries, effort, tally)?;
    let outcomes = report::outcomes(entries, &figures);
    report::show(run, units, &outcomes);
    if figures[1].busy.median() < LEAST_BUSY {
        run.say("two workers hardly ran at the same time, so what they cost each other hardly shows");
    }
    let ratio = 2.0 * outcomes[0].cpu_us() / outcomes[1].cpu_us();
    let verdict = run.judge(ratio >= BAR).to_owned();
    Ok([format!("{units}, by CPU"), format!("{ratio:.2}"), format!(">= {BAR}"), verdict])
}
