//! A change of rules that has reached one node and not yet the other: both draw from the same keys, each under its own quota.

use super::bounds::Bounds;
use super::fleet::unix_now;
use super::law::{Kind, Law};
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::load::{AnswerKind, LoadPlan, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use std::fs;
use std::path::Path;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(8);
const CLIENTS_EACH: usize = 8;

#[test]
fn nodes_with_different_quotas_admit_together_no_more_than_both_quotas() {
    despite_stalls(|| hold("exact", &quotas()));
}

#[test]
fn nodes_that_lease_different_quotas_admit_together_no_more_than_both_quotas() {
    let quotas = quotas().map(|laws| laws.into_iter().filter(|law| law.kind != Kind::SlidingLog).collect());
    despite_stalls(|| hold("leased", &quotas));
}

/// The limits of each node: those of the second have three times the amount, of which a smaller part comes at once, and longer
/// windows.
fn quotas() -> [Vec<Law>; 2] {
    let of_second = |law: Law| match law.kind {
        Kind::Bucket => Law { amount: 3 * law.amount, burst: law.burst / 8, ..law },
        Kind::FixedWindow | Kind::SlidingCounter | Kind::SlidingLog => {
            Law { amount: 3 * law.amount, period_seconds: law.period_seconds + 1, ..law }
        }
    };
    [Law::each(2).to_vec(), Law::each(2).map(of_second).to_vec()]
}

/// Fails if one of the nodes admits more than its own quota does alone.
fn hold(consistency: &str, quotas: &[Vec<Law>; 2]) {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let start = |(node, laws): (usize, &Vec<Law>)| {
        let rules = folder.path().join(format!("rules-{node}.yaml"));
        let lines: String = laws.iter().map(Law::rule).collect();
        fs::write(&rules, format!("consistency: {consistency}\non_store_failure: closed\nrules:\n{lines}"))
            .unwrap();
        let (url, rules) = (redis.url(), rules.to_str().unwrap().to_owned());
        let arguments = ["--store", &url, "--rules", &rules, "--store-timeout", "1s", "--denial-log", "0"];
        ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper"))).arguments(&arguments).start()
    };
    let nodes: Vec<ServerNode> = quotas.iter().enumerate().map(start).collect();
    let paths: Vec<_> = quotas[0].iter().map(|law| format!("/{}", law.name)).collect();
    let running = LoadPlan::on(nodes.iter().map(|node| Target::Http(node.http())))
        .endpoints(&paths.iter().map(String::as_str).collect::<Vec<_>>())
        .keys(1)
        .connections(CLIENTS_EACH)
        .begin();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    running.go_on_until(TIME);
    let tally = running.end();
    for index in 0..paths.len() {
        let about = tally.about(index);
        for (node, laws) in quotas.iter().enumerate() {
            let own = about.only(|answer| answer.target == node);
            let bounds = Bounds::of(&own, epoch);
            println!("{consistency}, node {node}, {:?}: {bounds}", laws[index]);
            assert!(bounds.is_wanted(), "{:?} was not wanted by enough", laws[index]);
            bounds.never_exceed(&laws[index]);
        }
        let allowed = about.only(|answer| answer.verdict == AnswerKind::Allowed).answers().len();
        let least = quotas.iter().map(|laws| laws[index].amount).min().unwrap();
        assert!(allowed >= least as usize, "{}: both admitted {allowed}", paths[index]);
    }
}
