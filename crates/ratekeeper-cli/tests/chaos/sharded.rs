//! Servers side by side, of which one is lost.

use super::account::{Extent, Kept};
use super::fleet::Fleet;
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

/// More clients than ask.
const CLIENTS: u64 = 50;

#[test]
fn a_server_that_is_killed_takes_only_its_clients_along() {
    let mut servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let addresses = servers.each_ref().map(RedisServer::address).join(",");
    let fleet = Fleet::start(2, &format!("redis+sharded://{addresses}"));
    let places: Vec<usize> = (0..CLIENTS).map(|key| place(&fleet, &servers, key)).collect();
    for server in 0..servers.len() {
        assert!(places.contains(&server), "all servers have clients: {places:?}");
    }
    let lost = places[0];
    let mut trial = Trial::with(fleet);
    trial.lose(|| servers[lost].kill());
    trial.await_broken();
    trial.go_on(Duration::from_secs(2));
    trial.restore(|| servers[lost].restart());
    trial.await_whole();
    let account = trial.end();
    account.hold_each_to(|answer| {
        let place = places[usize::try_from(answer.key).unwrap()];
        if place == lost { Extent::All } else { Extent::None }
    });
    account.is_told_once();
    servers.iter().for_each(|server| account.nobody_lingers(server));
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
}

/// Which of the servers a client is on: where there is something of it, once it has asked.
fn place(fleet: &Fleet, servers: &[RedisServer], key: u64) -> usize {
    // Something that stays for an hour, and that nobody counts.
    fleet.nodes[0].post("/check", &format!(r#"{{"client_key":"key{key}","endpoint":"/few"}}"#));
    let pattern = format!("*{{key{key}}}*");
    let has_it = |server: &RedisServer| !server.command(&["KEYS", &pattern]).array().is_empty();
    let places: Vec<usize> = (0..servers.len()).filter(|index| has_it(&servers[*index])).collect();
    assert_eq!(places.len(), 1, "a client is on one server");
    places[0]
}
