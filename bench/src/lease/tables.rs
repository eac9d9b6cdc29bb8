//! Shares of false denials and of store calls, by algorithm, limit, number of nodes, distribution of requests and
//! demand.
//!
//! All of it is simulated: the nodes as they are shipped and a store model process the same requests as the limit
//! itself, in virtual time, with a millisecond per store round trip. The same seeds give the same figures on every
//! machine.

use crate::run::{Pace, Run};
use crate::table::Table;
use anyhow::Result;
use ratekeeper::{Consistency, LeasePolicy};
use ratekeeper_testkit::simulation::{CaseRow, KeyPopulation, SimCase, cases, combined_cases};
use std::num::NonZero;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

/// The bars: net false denials, and the shares of checks that need the store, for a busy key and for many keys.
const MAX_DENIALS: f64 = 0.001;
const MAX_CALLS: f64 = 0.01;
const MAX_CALLS_OF_MANY_KEYS: f64 = 0.1;

/// Requests per case and seed, at most.
const REQUESTS: u64 = 6_000_000;
const SEEDS: u64 = 3;
/// Quick runs skip larger limits.
const QUICK_LIMIT: u32 = 10_000;

/// A case, and its result with leases and without.
type Line = (SimCase, CaseRow, CaseRow);

/// Measures single keys with one limit, with several limits and with costs, then many keys.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    let (requests, seeds) = run.pace.pick((REQUESTS, SEEDS), (2_000, 1));
    run.say(format_args!(
        "\ntables    simulated, up to {requests} requests per figure, with {seeds} seeds: the median, and the worst\n          \
         `net`    what the limit itself admits, less what the nodes admit, of all requests: false denials\n          \
         `gross`  requests that are denied by the nodes and admitted by the limit itself, of all requests\n          \
         `exact`  the same with a store call per request, which reach the store in another order than they were made\n          \
         `calls`  store calls of the busiest node, including renewals, per request, at 1000 requests per second"
    ));
    let cases = cases().into_iter().filter(|case| is_wanted(case, run.pace));
    let lines = measure_all(&cases.collect::<Vec<_>>(), requests, seeds);
    say(run, &lines);
    check_cases(run, "net false denials", MAX_DENIALS, &lines, |(_, row, _)| Some(row.net.worst));
    check_cases(
        run,
        "gross false denials below the limit, beyond exact ones",
        MAX_DENIALS,
        &lines,
        |(case, row, exact)| (case.demand < 1.0).then_some(row.gross.worst - exact.gross.worst),
    );
    check_cases(
        run,
        "store calls of a node with 1000 requests per second",
        MAX_CALLS,
        &lines,
        |(case, row, _)| case.is_busy().then_some(row.first_store_calls.worst),
    );
    let cases = combined_cases().into_iter().filter(|case| is_wanted(case, run.pace));
    let lines = measure_all(&cases.collect::<Vec<_>>(), requests, seeds);
    say(run, &lines);
    check_cases(
        run,
        "net false denials with several limits and costs",
        MAX_DENIALS,
        &lines,
        |(_, row, _)| Some(row.net.worst),
    );
    many_keys(run, seeds);
    Ok(())
}

/// Prints the cases, grouped by limits and costs.
fn say(run: &mut Run, lines: &[Line]) {
    let is_alike =
        |one: &Line, other: &Line| one.0.limits() == other.0.limits() && one.0.max_cost == other.0.max_cost;
    for alike in lines.chunk_by(is_alike) {
        run.say(format_args!("\n{}", name(&alike[0].0)));
        run.say(table(alike));
    }
}

/// The limits of a case, and the cost of its requests unless that is one unit.
fn name(case: &SimCase) -> String {
    let limits: Vec<_> = case.limits().iter().map(ToString::to_string).collect();
    let limits = limits.join(" and ");
    if case.max_cost == 1 { limits } else { format!("{limits}, costs from 1 to {}", case.max_cost) }
}

/// Measures cases on all cores: nothing here is timed.
fn measure_all(cases: &[SimCase], requests: u64, seeds: u64) -> Vec<Line> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let some = || {
        let mut lines = Vec::new();
        loop {
            let place = next.fetch_add(1, Relaxed);
            let Some(case) = cases.get(place) else { return lines };
            let leased = case.measure(requests, seeds, Consistency::Leased);
            lines.push((place, (*case, leased, case.measure(requests, seeds, Consistency::Exact))));
            eprint!("\r{} of {} cases", done.fetch_add(1, Relaxed) + 1, cases.len());
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut lines: Vec<(usize, Line)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a case does not panic")).collect()
    });
    eprintln!();
    lines.sort_by_key(|(place, _)| *place);
    lines.into_iter().map(|(_, line)| line).collect()
}

fn is_wanted(case: &SimCase, pace: Pace) -> bool {
    pace != Pace::Quick || case.nodes == 4 && case.limit.capacity() <= QUICK_LIMIT
}

fn table(lines: &[Line]) -> Table {
    let heading =
        ["nodes", "first node", "demand", "net", "worst", "gross", "worst", "exact", "calls", "worst"];
    let mut table = Table::new(0, heading);
    for (case, row, exact) in lines {
        let calls = |share: f64| if case.is_busy() { percent(share) } else { "-".to_owned() };
        table.row([
            case.nodes.to_string(),
            format!("{:.0} %", 100.0 * case.first_node_share),
            format!("{}x", case.demand),
            percent(row.net.median),
            percent(row.net.worst),
            percent(row.gross.median),
            percent(row.gross.worst),
            percent(exact.gross.median),
            calls(row.first_store_calls.median),
            calls(row.first_store_calls.worst),
        ]);
    }
    table
}

/// Compares all cases that have this figure with a bar, and prints those that miss it.
fn check_cases(run: &mut Run, what: &str, bar: f64, lines: &[Line], figure: fn(&Line) -> Option<f64>) {
    let figures = lines.iter().filter_map(|line| Some((&line.0, figure(line)?)));
    let (met, missed): (Vec<_>, Vec<_>) = figures.partition(|(_, figure)| *figure < bar);
    let result = run.check_bar(missed.is_empty());
    let all = met.len() + missed.len();
    run.say(format_args!("\n{what}: {} of {all} cases (bar: all < {}) {result}", met.len(), percent(bar)));
    for (case, figure) in missed {
        let (first, figure) = (100.0 * case.first_node_share, percent(figure));
        run.say(format_args!(
            "  {}, {} nodes, first node {first:.0} %, {}x: {figure}",
            name(case),
            case.nodes,
            case.demand
        ));
    }
}

/// Many keys, most of which are rarely drawn.
fn many_keys(run: &mut Run, seeds: u64) {
    let (keys, per_second, warm) = run.pace.pick((100_000, 100_000.0, 60.0), (1_000, 1_000.0, 10.0));
    run.say(format_args!(
        "\n{keys} keys, drawn {per_second:.0} times per second by 4 nodes, Zipf with exponent 1.1, after {warm} s"
    ));
    let mut table = Table::new(1, ["limit of each", "net", "worst", "gross", "worst", "calls", "worst"]);
    let mut most: f64 = 0.0;
    for quota in ["1000/min", "100000/min"] {
        let keys_case = KeyPopulation {
            quota,
            keys,
            requests_per_second: per_second,
            nodes: 4,
            warm_up_seconds: warm,
            measured_seconds: 20.0,
            policy: LeasePolicy::DEFAULT,
        };
        let row = keys_case.measure(seeds);
        most = most.max(row.store_calls.worst);
        let figures = [row.net, row.gross, row.store_calls];
        let cells = figures.iter().flat_map(|figure| [percent(figure.median), percent(figure.worst)]);
        table.row([quota.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    run.say(table);
    let result = run.check_bar(most < MAX_CALLS_OF_MANY_KEYS);
    run.say(format_args!(
        "store calls for many keys: {} of the requests (bar: < {}) {result}",
        percent(most),
        percent(MAX_CALLS_OF_MANY_KEYS)
    ));
}

fn percent(share: f64) -> String {
    format!("{:.3} %", 100.0 * share)
}
