//! Independent servers with client-side sharding, one of which is lost.

use super::node_group::NodeGroup;
use super::report::{DegradedAnswers, StoreData};
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

/// At least as many clients as the load uses.
const CLIENTS: u64 = 50;

#[test]
fn a_killed_server_degrades_only_its_clients() {
    let mut servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let addresses = servers.each_ref().map(RedisServer::address).join(",");
    let group = NodeGroup::start(2, &format!("redis+sharded://{addresses}"));
    let homes: Vec<usize> = (0..CLIENTS).map(|key| server_of(&group, &servers, key)).collect();
    for server in 0..servers.len() {
        assert!(homes.contains(&server), "every server has clients: {homes:?}");
    }
    let lost = homes[0];
    let mut trial = Trial::with_nodes(group);
    trial.inject(|| servers[lost].kill());
    trial.await_partial_outage();
    trial.run_for(Duration::from_secs(2));
    trial.restore(|| servers[lost].restart());
    trial.await_full_recovery();
    let report = trial.end();
    report.assert_all_by(|answer| {
        let home = homes[usize::try_from(answer.key).unwrap()];
        if home == lost { DegradedAnswers::All } else { DegradedAnswers::None }
    });
    report.assert_logged_once();
    servers.iter().for_each(|server| report.assert_no_extra_connections(server));
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

/// The index of the server that holds a client's keys, found by sending a check and looking for them.
fn server_of(group: &NodeGroup, servers: &[RedisServer], key: u64) -> usize {
    // A limit whose key lives for an hour and that the trial does not count.
    group.nodes[0].post("/check", &format!(r#"{{"client_key":"key{key}","endpoint":"/few"}}"#));
    let pattern = format!("*{{key{key}}}*");
    let has_key = |server: &RedisServer| !server.command(&["KEYS", &pattern]).array().is_empty();
    let found: Vec<usize> = (0..servers.len()).filter(|index| has_key(&servers[*index])).collect();
    assert_eq!(found.len(), 1, "a client's keys are on one server");
    found[0]
}
