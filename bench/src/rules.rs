//! The cost of rules: reading and compiling many of them, and finding the matching ones.

use crate::run::Run;
use crate::table::Table;
use anyhow::{Result, ensure};
use quanta::Instant;
use ratekeeper::Micros;
use ratekeeper::rules::{CheckRequest, DrawPlan, Resolution, RuleSet, Verb, read};
use std::fmt::Write;
use std::hint::black_box;

/// A small and a large rule set.
const SIZES: [usize; 2] = [10, 10_000];
/// How many different requests of each kind are resolved in turn.
const REQUESTS: usize = 1_000;

/// The kind of rule that matches a request.
const KINDS: [&str; 5] = ["exact", "template", "glob", "regex", "none"];

/// Reads, compiles and resolves.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    let mut sets = Vec::new();
    let mut compiling = Table::new(1, ["rules", "read ms", "compile ms", "bar 1000 ms in total"]);
    for size in SIZES {
        let text = file(size);
        let mut millis = Vec::new();
        let mut set = None;
        for _ in 0..run.pace.pick(5, 1) {
            let begun = Instant::now();
            let review = read(&text, Micros::EPOCH);
            let read = begun.elapsed();
            ensure!(review.diagnostics.is_empty(), "{:?}", review.diagnostics.first());
            let Some(spec) = review.spec else { continue };
            let begun = Instant::now();
            set = Some(RuleSet::compile(&spec)?);
            millis.push((read.as_secs_f64() * 1e3, begun.elapsed().as_secs_f64() * 1e3));
        }
        millis.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (read, compile) = millis[millis.len() / 2];
        let result = run.check_bar(read + compile < 1_000.0);
        compiling.row([size.to_string(), format!("{read:.1}"), format!("{compile:.1}"), result.to_owned()]);
        sets.extend(set);
    }
    run.say(format_args!(
        "\nmedian of 5, a quarter each of exact paths, templates, globs and expressions\n{compiling}"
    ));

    let rounds = run.pace.pick(9, 1);
    let mut found = vec![vec![Vec::new(); SIZES.len()]; KINDS.len()];
    for _ in 0..rounds {
        for (kind, found) in found.iter_mut().enumerate() {
            for ((size, set), found) in SIZES.iter().zip(&sets).zip(found) {
                found.push(resolve(set, *size, kind, run.pace.pick(200, 2))?);
            }
        }
    }
    let mut table = Table::new(
        1,
        ["found by", "10 rules ns", "10000 rules ns", "ratio", "bar 2", "bar 1000 ns", "spread"],
    );
    for (kind, found) in KINDS.iter().zip(&mut found) {
        let medians: Vec<_> = found.iter_mut().map(|nanos| median(nanos)).collect();
        let ratio = medians[1] / medians[0];
        let speed = match *kind {
            "exact" | "template" => run.check_bar(medians[1] < 1_000.0),
            _ => "",
        };
        let spread = format!("{:.0}–{:.0}", found[1][0], found[1][found[1].len() - 1]);
        table.row([
            (*kind).to_owned(),
            format!("{:.0}", medians[0]),
            format!("{:.0}", medians[1]),
            format!("{ratio:.2}"),
            run.check_bar(ratio <= 2.0).to_owned(),
            speed.to_owned(),
            spread,
        ]);
    }
    run.say(format_args!(
        "\nfrom a request to its draws, over {REQUESTS} different requests in turn; median of {rounds} rounds, sizes in turn\n{table}"
    ));
    Ok(())
}

fn median(nanos: &mut [f64]) -> f64 {
    nanos.sort_by(f64::total_cmp);
    nanos[nanos.len() / 2]
}

/// A rule file with `rules` rules of four kinds, each for its own service, and a default.
fn file(rules: usize) -> String {
    let mut text = "default: {limit: 1000/s}\nrules:\n".to_owned();
    for rule in 0..rules {
        let condition = match rule % 4 {
            0 => format!("path: /svc{rule}/items"),
            1 => format!("path: '/svc{rule}/users/{{id}}'"),
            2 => format!("path: /svc{rule}/files/*.json"),
            _ => format!("path_regex: '^/svc{rule}/orders/[0-9]+$'"),
        };
        writeln!(text, "  - {{id: r{rule}, limit: 100/s, match: {{{condition}}}}}")
            .expect("writing to a string does not fail");
    }
    text
}

/// Nanoseconds to resolve a request that a rule of this kind matches.
fn resolve(set: &RuleSet, size: usize, kind: usize, rounds: usize) -> Result<f64> {
    let paths: Vec<_> = (0..REQUESTS).map(|index| path(size, kind, index)).collect();
    let mut plan = DrawPlan::new();
    for path in &paths {
        plan.clear();
        plan.add(
            set,
            Verb::Check,
            &CheckRequest { endpoint: path, ..CheckRequest::new("user:1234567") },
            || Micros::EPOCH,
        );
        let (_, bound) = plan.draws_of(plan.resolutions()[0]);
        let id = set.rules()[bound[0].rule as usize].id();
        ensure!((id == "default") == (kind == 4), "{path} matches {id}");
    }
    let begun = Instant::now();
    for _ in 0..rounds {
        for path in &paths {
            plan.clear();
            let request = CheckRequest { endpoint: path, ..CheckRequest::new("user:1234567") };
            plan.add(black_box(set), Verb::Check, &request, || Micros::EPOCH);
            ensure!(matches!(plan.resolutions(), [Resolution::Limited { .. }]), "a rule matches");
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / (rounds * REQUESTS) as f64)
}

/// The path of a request that a rule of this kind matches. Each index selects another rule.
fn path(size: usize, kind: usize, index: usize) -> String {
    let rules = size / 4;
    // The stride has no common factor with the number of rules, so all are visited, never two neighbours in a row.
    let rule = (index * 7_919 % rules) * 4 + kind;
    match kind {
        0 => format!("/svc{rule}/items"),
        1 => format!("/svc{rule}/users/{index}"),
        2 => format!("/svc{rule}/files/{index}.json"),
        3 => format!("/svc{rule}/orders/{index}"),
        _ => format!("/other{index}/x"),
    }
}
