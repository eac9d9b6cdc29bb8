//! Nodes that hold leases while they are killed, paused and stopped.

use super::bounds::KeyAnswers;
use super::limit_case::{BoundKind, LimitCase};
use super::load::{Workload, unix_now};
use ratekeeper_testkit::load::{LoadPlan, LoadRun, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use ratekeeper_testkit::{random_f64, random_index};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

const DURATION: Duration = Duration::from_secs(30);
const NODES: usize = 4;
const CLIENTS_EACH: usize = 16;

#[test]
fn killed_and_paused_nodes_with_leases_never_exceed_the_limit_of_one_hot_key() {
    check_leases(Workload::OneKey, 1);
}

#[test]
fn killed_and_paused_nodes_with_leases_never_exceed_the_limits_of_many_keys() {
    check_leases(Workload::ManyKeys, 2);
}

/// The algorithms that support leases, with limits that are not always exhausted.
fn leasable_cases(workload: Workload) -> Vec<LimitCase> {
    let factor = if workload == Workload::OneKey { 40 } else { 10 };
    LimitCase::all(factor).into_iter().filter(|case| case.kind != BoundKind::SlidingLog).collect()
}

fn check_leases(workload: Workload, seed: u64) {
    let (redis, folder, cases) =
        (RedisServer::start(), tempfile::tempdir().unwrap(), leasable_cases(workload));
    let rules = folder.path().join("rules.yaml");
    let lines: String = cases.iter().map(LimitCase::rule_line).collect();
    // Fails closed, so every admitted unit was admitted or leased by the store.
    fs::write(&rules, format!("consistency: leased\non_store_failure: closed\nrules:\n{lines}")).unwrap();
    let mut nodes: Vec<_> = (0..NODES).map(|_| start(&redis, &rules)).collect();
    let targets: Vec<_> = nodes.iter().map(|node| Target::Http(node.http())).collect();
    let paths: Vec<_> = cases.iter().map(|case| format!("/{}", case.name)).collect();
    let load = LoadPlan::new(targets).endpoints(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let load = match workload {
        Workload::OneKey => load.keys(1),
        Workload::ManyKeys => load.zipf_keys(300),
    };
    let running = load.connections(CLIENTS_EACH).start();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    let granted = disrupt_nodes(&mut nodes, &running, seed);
    let tally = running.stop();
    println!("seed {seed}: {} answers, at least {granted} of them from leases", tally.answers().len());
    assert!(granted > 1_000.0, "only {granted} draws were granted from leases");
    for (index, case) in cases.iter().enumerate() {
        let about = tally.for_endpoint(index);
        let keys: BTreeSet<u64> = about.answers().iter().map(|answer| answer.key).collect();
        for key in keys {
            KeyAnswers::of(&about.for_key(key), epoch).assert_never_exceeds(case);
        }
    }
}

fn start(redis: &RedisServer, rules: &Path) -> ServerNode {
    let rules = rules.to_str().unwrap();
    let arguments =
        ["--store", &redis.url(), "--rules", rules, "--store-timeout", "200ms", "--denial-log", "0"];
    ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper"))).arguments(&arguments).start()
}

/// Kills, stops or pauses one random node after another until the run ends. Returns how many draws those nodes had
/// granted from their leases.
fn disrupt_nodes(nodes: &mut [ServerNode], running: &LoadRun, seed: u64) -> f64 {
    let mut granted = 0.0;
    for number in (0..).step_by(4) {
        let wait = Duration::from_secs_f64(0.2 + 1.5 * random_f64(seed, number));
        running.wait_until((running.now() + wait).min(DURATION));
        if running.now() >= DURATION {
            break;
        }
        let node = &mut nodes[random_index(seed, number + 1, NODES)];
        granted += lease_grants(node);
        match random_index(seed, number + 2, 3) {
            0 => {
                node.kill();
                node.restart();
            }
            1 => {
                node.stop();
                node.restart();
            }
            _ => {
                node.pause();
                running.wait_until(
                    running.now() + Duration::from_secs_f64(0.05 + 3.0 * random_f64(seed, number + 3)),
                );
                node.resume();
            }
        }
    }
    granted
}

fn lease_grants(node: &ServerNode) -> f64 {
    node.metric("ratekeeper_lease_granted_total").unwrap_or(0.0)
}
