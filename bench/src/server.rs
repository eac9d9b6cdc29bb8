//! Requests a second, batches, and latency of Tollgate's server, beside its peers and two floors.
//!
//! Every server is a process of its own on the first core, and the generator has the second. All of them are there from
//! the beginning to the end, but only the one whose turn it is runs.

pub(crate) mod floor;
mod latency;
mod load;
pub(crate) mod process;
mod program;
mod reply;
mod request;
mod rounds;
mod subject;

use crate::run::Run;
use crate::table::Table;
use anyhow::{Context, Result, bail, ensure};
use floor::Kind;
use load::{Plan, Tally};
use rounds::{Effort, Figures, take_turns};
use std::fs;
use std::time::Duration;
use subject::{BATCH, BATCH_CONNECTIONS, CONNECTIONS, Subject};

/// How much each key is allowed: more than any run takes.
const PLENTY: &str = "rules:\n  - id: per-key\n    limit: 1000000/s\n";

/// How many times as many requests as throttlecrab's server Tollgate must answer.
const BAR_THROTTLECRAB: f64 = 1.3;
/// What share of the floor's requests it must answer.
const BAR_FLOOR: f64 = 0.85;
/// How many checks a second it must decide when they come by the batch.
const BAR_BATCH: f64 = 1.7e6;

/// A server that had less of its core was held up by something else: the generator, if that had less than this to spare,
/// or whatever else ran on the machine.
const LEAST_BUSY: f64 = 0.95;
const LEAST_SPARE: f64 = 0.02;

/// The parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Requests,
    Batches,
    /// And requests before, which tell how much half of the most is.
    Latency,
}

/// Measures all parts, or only one.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let wants = |part| only.is_none_or(|only| only == part);
    let ms = Duration::from_millis;
    let effort = run.pace.pick(
        Effort { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        Effort { rounds: 2, warm_up: ms(50), time: ms(150) },
    );
    let subjects = Subjects::start()?;
    process::pin(process::CORES[1])?;
    run.say(format_args!(
        "method    servers on core {}, one at a time, the generator on core {}; {} rounds of {:?} after {:?} to warm up;\n          \
         {} keys, each as likely as any other, and nobody is refused; `CPU us` is the server's own time for a request,\n          \
         `busy` its share of the core, `spare` the share of its core that the generator had nothing to do for;\n          \
         the servers' TCP is {}",
        process::CORES[0],
        process::CORES[1],
        effort.rounds,
        effort.time,
        effort.warm_up,
        request::KEYS,
        tcp()?,
    ));
    let mut tally = Tally::default();
    if wants(Part::Requests) || wants(Part::Latency) {
        let figures = compare(run, &subjects, effort, &mut tally)?;
        if wants(Part::Latency) {
            latency::measure(run, &subjects, &figures, effort, &mut tally)?;
        }
    }
    if wants(Part::Batches) {
        count_batches(run, &subjects, effort, &mut tally)?;
    }
    let Tally { replies, unexpected, example } = tally;
    run.say(format_args!("\nreplies: {replies}, unexpected: {unexpected}"));
    ensure!(
        unexpected == 0,
        "{unexpected} replies were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

/// How the machine sends unless it is told otherwise. Some ways cost a timer for every reply.
fn tcp() -> Result<String> {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    Ok(name.context("the machine does not tell its kind of TCP")?.trim().to_owned())
}

/// All servers, each waiting for its turn.
struct Subjects([Subject; 5]);

impl Subjects {
    fn start() -> Result<Subjects> {
        // What takes a compiler or the network comes before any server is there.
        let (tollgate, throttlecrab, nginx) =
            (program::tollgate()?, program::throttlecrab()?, program::nginx()?);
        let subjects = [
            Subject::tollgate(&tollgate, "tollgate", PLENTY)?,
            Subject::throttlecrab(&throttlecrab)?,
            Subject::nginx(&nginx)?,
            Subject::floor(Kind::Hyper)?,
            Subject::floor(Kind::ByHand)?,
        ];
        for subject in &subjects {
            subject.prove()?;
            subject.process.pause()?;
        }
        Ok(Subjects(subjects))
    }
}

/// Requests a second, one check each.
fn compare(run: &mut Run, subjects: &Subjects, effort: Effort, tally: &mut Tally) -> Result<[Figures; 5]> {
    let entries = subjects.0.each_ref().map(|subject| (subject, &subject.plan));
    let figures = take_turns(&entries, effort, tally)?;
    let mut table = Table::new(1, ["", "requests/s", "min", "max", "CPU us", "min", "max", "busy", "spare"]);
    for (subject, figures) in subjects.0.iter().zip(&figures) {
        table.row(row(&subject.name, figures, 1));
    }
    run.say(format_args!(
        "\nrequests: one check each, {CONNECTIONS} connections, one request in flight on each"
    ));
    run.say(table);
    let figures = <[Figures; 5]>::try_from(figures).ok().context("every subject has its figures")?;
    warn(run, subjects, &figures);
    let [tollgate, throttlecrab, _, _, by_hand] = &figures;
    let mut table = Table::new(1, ["tollgate", "by requests", "by CPU", "bar", ""]);
    for (name, other, bar) in [
        ("x throttlecrab-server", throttlecrab, BAR_THROTTLECRAB),
        ("x floor: written by hand", by_hand, BAR_FLOOR),
    ] {
        let ratio = tollgate.per_sec.median() / other.per_sec.median();
        let by_cpu = other.cpu_us.median() / tollgate.cpu_us.median();
        let verdict = run.judge(ratio >= bar).to_owned();
        table.row([
            name.to_owned(),
            format!("{ratio:.2}"),
            format!("{by_cpu:.2}"),
            format!(">= {bar}"),
            verdict,
        ]);
    }
    run.say("");
    run.say(table);
    Ok(figures)
}

/// Says whose figures are not its own alone.
fn warn(run: &mut Run, subjects: &Subjects, figures: &[Figures]) {
    for (subject, figures) in subjects.0.iter().zip(figures) {
        let name = &subject.name;
        if figures.busy.median() < LEAST_BUSY && figures.spare.median() < LEAST_SPARE {
            run.say(format_args!("{name}: it may do more, but the generator had no time to spare"));
        } else if figures.busy.median() < LEAST_BUSY {
            run.say(format_args!("{name}: it did not have its core to itself, so only its CPU time counts"));
        }
    }
}

/// Checks a second, many in each request, beside the floor that reads and answers as many.
fn count_batches(run: &mut Run, subjects: &Subjects, effort: Effort, tally: &mut Tally) -> Result<()> {
    let plan = subject::batches();
    let [tollgate, .., by_hand] = &subjects.0;
    run.say(format_args!("\nbatches: {BATCH} checks each, {BATCH_CONNECTIONS} connections"));
    let mut entries = vec![(tollgate, &plan), (by_hand, &plan)];
    if !serves_batches(tollgate, &plan)? {
        run.say(format_args!("{}: not served", tollgate.name));
        entries.remove(0);
    }
    let figures = take_turns(&entries, effort, tally)?;
    let mut table =
        Table::new(1, ["", "checks/s", "min", "max", "CPU us", "min", "max", "busy", "spare", "bar", ""]);
    for ((subject, _), figures) in entries.iter().zip(&figures) {
        let mut cells = row(&subject.name, figures, BATCH).to_vec();
        if subject.name == tollgate.name {
            let is_met = figures.per_sec.median() * BATCH as f64 >= BAR_BATCH;
            cells.extend([format!(">= {BAR_BATCH}"), run.judge(is_met).to_owned()]);
        }
        table.row(cells);
    }
    run.say(table);
    Ok(())
}

/// Whether this version takes many checks in one request.
fn serves_batches(subject: &Subject, plan: &Plan) -> Result<bool> {
    subject.process.resume()?;
    let (status, body) = reply::exchange(subject.address, &plan.request)?;
    subject.process.pause()?;
    match status {
        200 => Ok(true),
        404 => Ok(false),
        _ => bail!("{} answers a batch with {status} {body}", subject.name),
    }
}

fn row(name: &str, figures: &Figures, checks: usize) -> [String; 9] {
    let checks = checks as f64;
    let per_sec = |number: f64| format!("{:.0}", number * checks);
    let cpu_us = |time: f64| format!("{:.2}", time / checks);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let ((least, most), (shortest, longest)) = (figures.per_sec.spread(), figures.cpu_us.spread());
    [
        name.to_owned(),
        per_sec(figures.per_sec.median()),
        per_sec(least),
        per_sec(most),
        cpu_us(figures.cpu_us.median()),
        cpu_us(shortest),
        cpu_us(longest),
        percent(figures.busy.median()),
        percent(figures.spare.median()),
    ]
}
