//! Nodes that take units ahead, and die, hang and stop meanwhile.

use super::bounds::Bounds;
use super::fleet::{Crowd, unix_now};
use super::law::{Kind, Law};
use ratekeeper_testkit::load::{LoadPlan, Running, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use ratekeeper_testkit::{chance, pick};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(30);
const NODES: usize = 4;
const CLIENTS_EACH: usize = 16;

#[test]
fn nodes_that_die_and_hang_with_leases_never_admit_more_than_a_limit_that_everybody_wants() {
    hold(Crowd::OneKey, 1);
}

#[test]
fn nodes_that_die_and_hang_with_leases_never_admit_more_than_the_limits_of_many() {
    hold(Crowd::ManyKeys, 2);
}

/// The laws that can be leased, with limits of which some is left now and then.
fn laws(crowd: Crowd) -> Vec<Law> {
    let times = if crowd == Crowd::OneKey { 40 } else { 10 };
    Law::each(times).into_iter().filter(|law| law.kind != Kind::SlidingLog).collect()
}

fn hold(crowd: Crowd, seed: u64) {
    let (redis, folder, laws) = (RedisServer::start(), tempfile::tempdir().unwrap(), laws(crowd));
    let rules = folder.path().join("rules.yaml");
    let lines: String = laws.iter().map(Law::rule).collect();
    // Whatever is admitted, the store has admitted or lent.
    fs::write(&rules, format!("consistency: leased\non_store_failure: closed\nrules:\n{lines}")).unwrap();
    let mut nodes: Vec<_> = (0..NODES).map(|_| start(&redis, &rules)).collect();
    let targets: Vec<_> = nodes.iter().map(|node| Target::Http(node.http())).collect();
    let paths: Vec<_> = laws.iter().map(|law| format!("/{}", law.name)).collect();
    let load = LoadPlan::on(targets).endpoints(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let load = match crowd {
        Crowd::OneKey => load.keys(1),
        Crowd::ManyKeys => load.zipf_keys(300),
    };
    let running = load.connections(CLIENTS_EACH).begin();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    let granted = trouble(&mut nodes, &running, seed);
    let tally = running.end();
    println!("seed {seed}: {} answers, of which {granted} or more from hand", tally.answers().len());
    assert!(granted > 1_000.0, "{granted} were granted from what was lent");
    for (index, law) in laws.iter().enumerate() {
        let about = tally.about(index);
        let keys: BTreeSet<u64> = about.answers().iter().map(|answer| answer.key).collect();
        for key in keys {
            Bounds::of(&about.for_key(key), epoch).never_exceed(law);
        }
    }
}

fn start(redis: &RedisServer, rules: &Path) -> ServerNode {
    let rules = rules.to_str().unwrap();
    let arguments =
        ["--store", &redis.url(), "--rules", rules, "--store-timeout", "200ms", "--denial-log", "0"];
    ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper"))).arguments(&arguments).start()
}

/// Has one node after the other die, hang or stop, until the time is over. Says how many draws those that were asked had
/// granted from what they were lent.
fn trouble(nodes: &mut [ServerNode], running: &Running, seed: u64) -> f64 {
    let mut granted = 0.0;
    for number in (0..).step_by(4) {
        let wait = Duration::from_secs_f64(0.2 + 1.5 * chance(seed, number));
        running.go_on_until((running.now() + wait).min(TIME));
        if running.now() >= TIME {
            break;
        }
        let node = &mut nodes[pick(seed, number + 1, NODES)];
        granted += from_hand(node);
        match pick(seed, number + 2, 3) {
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
                running.go_on_until(
                    running.now() + Duration::from_secs_f64(0.05 + 3.0 * chance(seed, number + 3)),
                );
                node.resume();
            }
        }
    }
    granted
}

fn from_hand(node: &ServerNode) -> f64 {
    node.metric("ratekeeper_lease_granted_total").unwrap_or(0.0)
}
