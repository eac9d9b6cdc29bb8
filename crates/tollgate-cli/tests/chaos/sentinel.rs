//! A master that is lost, and the one that Sentinels make in its place.
//!
//! The servers are set as somebody would set them who wants to wait for as short a time as is sane: a master that is silent
//! for a second is taken for dead, and Sentinels ask after it once a second, as they do unless told otherwise.

use super::account::{Extent, Kept};
use super::trial::Trial;
use std::time::Duration;
use tollgate_testkit::servers::{Brand, RedisServer, Sentinels};
use tollgate_testkit::{PATIENCE, within};

/// The longest that it may take from the loss of a master until every node is exact again.
const FAILOVER: Duration = Duration::from_secs(5);

fn start(brand: Brand) -> Sentinels {
    let mut sentinels = Sentinels::setup(brand).down_after_ms(1000).start();
    set_period(&mut sentinels, "ping-period", "1000");
    sentinels
}

fn set_period(sentinels: &mut Sentinels, name: &str, period_ms: &str) {
    for index in 0..sentinels.addresses().len() {
        sentinels.sentinel(index).glance(&["SENTINEL", "DEBUG", name, period_ms]);
    }
}

#[test]
fn a_master_that_is_killed_is_replaced_in_under_five_seconds() {
    let mut sentinels = start(Brand::Redis);
    let mut trial = Trial::begin(2, &sentinels.url());
    let killed = trial.lose(|| sentinels.kill_master());
    trial.await_degraded();
    let master = trial.restore(|| sentinels.await_other_master(killed));
    trial.await_exact();

    // It comes back as the master that it was, until the Sentinels have told it otherwise.
    set_period(&mut sentinels, "publish-period", "250");
    sentinels.server(killed).restart();
    assert_eq!(sentinels.servers()[killed].role(), "master");
    is_left_alone(&sentinels.servers()[killed], || trial.go_on(Duration::from_millis(20)));
    assert_eq!(calls(&sentinels.servers()[killed]), 0, "nobody has asked the master that was");

    let account = trial.end();
    account.hold_to(Extent::Some);
    let took = account.marks.exact - account.marks.away;
    println!("exact again {took:?} after the master was killed");
    assert!(took < FAILOVER, "it took {took:?}");
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing);
}

#[test]
fn a_master_that_sleeps_through_its_fall_is_left_alone_when_it_wakes() {
    let mut sentinels = start(Brand::Valkey);
    let mut trial = Trial::begin(2, &sentinels.url());
    let sleeper = sentinels.master();
    // The Sentinel beside it goes with it, as if their machine had.
    trial.lose(|| {
        sentinels.sentinel(0).kill();
        sentinels.server(sleeper).pause();
    });
    trial.await_degraded();
    let master = trial.restore(|| sentinels.await_other_master(sleeper));
    trial.await_exact();
    set_period(&mut sentinels, "publish-period", "250");
    sentinels.sentinel(0).restart();
    sentinels.server(sleeper).resume();

    // It finds what was sent to it before anybody knew, which is a master's to answer; and that nobody is there any more.
    let woken = &sentinels.servers()[sleeper];
    within(PATIENCE, "a master that has woken finds itself alone", || (visitors(woken) == 0).then_some(()));
    let before = calls(woken);
    is_left_alone(woken, || trial.go_on(Duration::from_millis(20)));
    assert_eq!(calls(woken), before, "nobody asks a master that was deposed");

    let account = trial.end();
    account.hold_to(Extent::Some);
    let took = account.marks.exact - account.marks.away;
    println!("exact again {took:?} after the master fell asleep");
    assert!(took < FAILOVER, "it took {took:?}");
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing);
}

#[test]
fn a_master_that_is_relieved_in_order_is_left_in_under_five_seconds() {
    let sentinels = start(Brand::Redis);
    let mut trial = Trial::begin(2, &sentinels.url());
    let relieved = sentinels.master();
    let master = trial.lose(|| sentinels.fail_over());
    trial.restore(|| {
        within(PATIENCE, "a master becomes a replica", || is_replica(&sentinels.servers()[relieved]))
    });
    // Whatever comes to it from now on it refuses.
    let before = successes(&sentinels.servers()[relieved]);
    trial.await_exact();
    let account = trial.end();
    assert_eq!(successes(&sentinels.servers()[relieved]), before);
    account.hold_to(Extent::Some);
    let took = account.marks.exact - account.marks.away;
    println!("exact again {took:?} after the failover began");
    assert!(took < FAILOVER, "it took {took:?}");
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing);
}

/// Watches a server that still takes itself for the master, until it is told otherwise: no node may come to it.
#[track_caller]
fn is_left_alone(deposed: &RedisServer, pause: impl Fn()) {
    within(PATIENCE, "a master that was is made a replica", || {
        pause();
        assert_eq!(visitors(deposed), 0, "a node has come to a master that was");
        is_replica(deposed)
    });
    assert_eq!(visitors(deposed), 0, "a node has come to a replica");
}

fn is_replica(server: &RedisServer) -> Option<()> {
    (server.role() == "slave").then_some(())
}

/// How many connections of nodes a server has.
fn visitors(server: &RedisServer) -> usize {
    let list =
        within(PATIENCE, "a server tells of its clients", || server.try_command(&["CLIENT", "LIST"]).ok());
    let is_node = |line: &&str| line.split(' ').any(|word| word == "name=tollgate");
    list.text().lines().filter(is_node).count()
}

/// How often a server was asked to decide.
fn calls(server: &RedisServer) -> u64 {
    stat(server, "calls")
}

/// How often a server has decided.
fn successes(server: &RedisServer) -> u64 {
    stat(server, "calls") - stat(server, "failed_calls")
}

fn stat(server: &RedisServer, name: &str) -> u64 {
    let stats = within(PATIENCE, "a server tells of its commands", || {
        server.try_command(&["INFO", "commandstats"]).ok()
    });
    let stats = stats.field("cmdstat_evalsha").unwrap_or_default();
    let value = stats.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.map_or(0, |value| value.parse().unwrap())
}
