//! A rule change that has reached only one of two nodes: both draw from the same keys, each under its own quota.

use super::bounds::KeyAnswers;
use super::limit_case::{BoundKind, LimitCase};
use super::load::unix_now;
use ratekeeper_testkit::load::{AnswerKind, LoadPlan, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use std::fs;
use std::path::Path;
use std::time::Duration;

const DURATION: Duration = Duration::from_secs(8);
const CLIENTS_EACH: usize = 8;

#[test]
fn nodes_with_different_quotas_each_stay_within_their_own() {
    check_quotas("exact", &cases_per_node());
}

#[test]
fn leasing_nodes_with_different_quotas_each_stay_within_their_own() {
    let quotas = cases_per_node()
        .map(|cases| cases.into_iter().filter(|case| case.kind != BoundKind::SlidingLog).collect());
    check_quotas("leased", &quotas);
}

/// The limits of each node. The second node's limits have three times the amount, with a smaller burst or a longer
/// window.
fn cases_per_node() -> [Vec<LimitCase>; 2] {
    let of_second = |case: LimitCase| match case.kind {
        BoundKind::Bucket => LimitCase { amount: 3 * case.amount, burst: case.burst / 8, ..case },
        BoundKind::FixedWindow | BoundKind::SlidingCounter | BoundKind::SlidingLog => {
            LimitCase { amount: 3 * case.amount, period_seconds: case.period_seconds + 1, ..case }
        }
    };
    [LimitCase::all(2).to_vec(), LimitCase::all(2).map(of_second).to_vec()]
}

/// Fails if either node admits more than its own quota allows.
fn check_quotas(consistency: &str, quotas: &[Vec<LimitCase>; 2]) {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let start = |(node, cases): (usize, &Vec<LimitCase>)| {
        let rules = folder.path().join(format!("rules-{node}.yaml"));
        let lines: String = cases.iter().map(LimitCase::rule_line).collect();
        fs::write(&rules, format!("consistency: {consistency}\non_store_failure: closed\nrules:\n{lines}"))
            .unwrap();
        let (url, rules) = (redis.url(), rules.to_str().unwrap().to_owned());
        let arguments = ["--store", &url, "--rules", &rules, "--store-timeout", "1s", "--denial-log", "0"];
        ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper"))).arguments(&arguments).start()
    };
    let nodes: Vec<ServerNode> = quotas.iter().enumerate().map(start).collect();
    let paths: Vec<_> = quotas[0].iter().map(|case| format!("/{}", case.name)).collect();
    let running = LoadPlan::new(nodes.iter().map(|node| Target::Http(node.http())))
        .endpoints(&paths.iter().map(String::as_str).collect::<Vec<_>>())
        .keys(1)
        .connections(CLIENTS_EACH)
        .start();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    running.wait_until(DURATION);
    let tally = running.stop();
    for index in 0..paths.len() {
        let about = tally.for_endpoint(index);
        for (node, cases) in quotas.iter().enumerate() {
            let own = about.filter(|answer| answer.target == node);
            let answers = KeyAnswers::of(&own, epoch);
            println!("{consistency}, node {node}, {:?}: {answers}", cases[index]);
            assert!(answers.has_denials(), "{:?} had no denials", cases[index]);
            answers.assert_never_exceeds(&cases[index]);
        }
        let allowed = about.filter(|answer| answer.kind == AnswerKind::Allowed).answers().len();
        let least = quotas.iter().map(|cases| cases[index].amount).min().unwrap();
        assert!(allowed >= least as usize, "{}: both nodes admitted {allowed}", paths[index]);
    }
}
