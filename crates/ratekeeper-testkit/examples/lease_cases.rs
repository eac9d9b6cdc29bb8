//! Measures the accuracy of leases and their store calls, with any parameters and arrivals.
//!
//! ```text
//! cargo run --release -p ratekeeper-testkit --example lease_cases -- [--filter TEXT] [--every N] [--requests N]
//!     [--seeds N] [--arrivals poisson|bursts|daily|every-node] [--set PARAMETER=VALUE]... [--population]
//! ```
//!
//! One line for each case whose name contains the text, and a summary. `--every 7` takes each seventh case. The same
//! options print the same figures on every machine.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use ratekeeper::{Consistency, LeasePolicy};
use ratekeeper_testkit::simulation::{ArrivalPattern, KeyPopulation, SimCase, cases, combined_cases};

struct Options {
    filter: String,
    every: usize,
    requests: u64,
    seeds: u64,
    arrivals: ArrivalPattern,
    policy: LeasePolicy,
    has_population: bool,
}

fn main() {
    let options = options();
    let all = cases().into_iter().chain(combined_cases()).enumerate();
    let wanted = all.filter(|(index, _)| index % options.every == 0).map(|(_, case)| case);
    let (mut measured, mut accurate, mut busy, mut cheap, mut worst) = (0, 0, 0, 0, f64::MIN);
    for case in wanted.filter(|case| name(case).contains(&options.filter)) {
        let case = SimCase { arrivals: options.arrivals, policy: options.policy, ..case };
        let row = case.measure(options.requests, options.seeds, Consistency::Leased);
        let calls = case.is_busy().then_some(row.first_store_calls.worst);
        println!(
            "{:70} net {:8.4} % gross {:8.3} % calls {:8.3} % busiest {}",
            name(&case),
            100.0 * row.net.worst,
            100.0 * row.gross.worst,
            100.0 * row.store_calls.worst,
            calls.map_or("-".to_owned(), |calls| format!("{:.3} %", 100.0 * calls)),
        );
        measured += 1;
        accurate += u32::from(row.net.worst < 0.001);
        worst = row.net.worst.max(worst);
        busy += u32::from(calls.is_some());
        cheap += u32::from(calls.is_some_and(|calls| calls < 0.01));
    }
    println!(
        "net < 0.1 %: {accurate} of {measured}, worst {:.4} %; calls < 1 %: {cheap} of {busy} busy ones",
        100.0 * worst
    );
    if options.has_population {
        population(&options);
    }
}

/// Many keys with a Zipf distribution.
fn population(options: &Options) {
    for quota in ["1000/min", "100000/min"] {
        let population = KeyPopulation {
            quota,
            keys: 100_000,
            requests_per_second: 100_000.0,
            nodes: 4,
            warm_up_seconds: 60.0,
            measured_seconds: 20.0,
            policy: options.policy,
        };
        let row = population.measure(options.seeds);
        println!(
            "100000 keys of {quota}: net {:.3} % calls {:.3} %",
            100.0 * row.net.worst,
            100.0 * row.store_calls.worst
        );
    }
}

fn name(case: &SimCase) -> String {
    let limits: Vec<_> = case.limits().iter().map(ToString::to_string).collect();
    let SimCase { max_cost, nodes, first_node_share, demand, .. } = case;
    format!("{} cost{max_cost} n{nodes} f{first_node_share:.2} d{demand}", limits.join("+"))
}

fn options() -> Options {
    let mut options = Options {
        filter: String::new(),
        every: 1,
        requests: 6_000_000,
        seeds: 1,
        arrivals: ArrivalPattern::Poisson,
        policy: LeasePolicy::DEFAULT,
        has_population: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--population" {
            options.has_population = true;
            continue;
        }
        let value = args.next().unwrap_or_else(|| panic!("{name} needs a value"));
        let number = || value.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number, not {value}"));
        match name.as_str() {
            "--filter" => options.filter = value,
            "--every" => options.every = usize::try_from(number()).map_or(1, |every| every.max(1)),
            "--requests" => options.requests = number(),
            "--seeds" => options.seeds = number(),
            "--arrivals" => options.arrivals = arrivals(&value),
            "--set" => set(&mut options.policy, &value),
            _ => panic!("{name} is no option"),
        }
    }
    options
}

fn arrivals(name: &str) -> ArrivalPattern {
    match name {
        "poisson" => ArrivalPattern::Poisson,
        "bursts" => ArrivalPattern::Bursts,
        "daily" => ArrivalPattern::Daily,
        "every-node" => ArrivalPattern::EveryNode,
        _ => panic!("{name} are no arrivals"),
    }
}

fn set(policy: &mut LeasePolicy, text: &str) {
    let (name, value) = text.split_once('=').unwrap_or_else(|| panic!("PARAMETER=VALUE, not {text}"));
    let field = match name {
        "demand_draws" => &mut policy.demand_draws,
        "demand_seconds" => &mut policy.demand_seconds,
        "max_horizon_seconds" => &mut policy.max_horizon_seconds,
        "false_denial_share" => &mut policy.false_denial_share,
        "max_bucket_share" => &mut policy.max_bucket_share,
        "max_window_share" => &mut policy.max_window_share,
        "deviations" => &mut policy.deviations,
        "draws_per_backoff" => &mut policy.draws_per_backoff,
        "min_backoff_seconds" => &mut policy.min_backoff_seconds,
        "max_backoff_seconds" => &mut policy.max_backoff_seconds,
        "renew_share" => &mut policy.renew_share,
        _ => panic!("{name} is no parameter"),
    };
    *field = value.parse().unwrap_or_else(|_| panic!("{value} is no number"));
}
