//! A master is lost and Sentinels promote a replica.
//!
//! The servers use the shortest sensible failover time: a master that is silent for 1.5 s counts as down, and
//! Sentinels ping it once a second, which is their default. One second would be too short: Sentinels take up to that
//! long to connect to a master they have just promoted, and one time in twenty they considered it down meanwhile and
//! promoted another.

use super::report::{DegradedAnswers, StoreData, TrialReport};
use super::trial::{Timeline, Trial};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::time::Duration;

/// The longest time from the loss of a master until every node is exact again.
const FAILOVER: Duration = Duration::from_secs(5);
/// The part of [`FAILOVER`] that nodes may take to use a new master that all Sentinels know.
const FOLLOW_TIME: Duration = Duration::from_secs(1);

fn start(brand: Brand) -> Sentinels {
    let mut sentinels = Sentinels::setup(brand).down_after_ms(1500).start();
    set_period(&mut sentinels, "ping-period", "1000");
    sentinels
}

/// Makes Sentinels poll servers more often, so that they demote a former master soon.
fn shorten_periods(sentinels: &mut Sentinels) {
    for name in ["publish-period", "info-period"] {
        set_period(sentinels, name, "250");
    }
}

fn set_period(sentinels: &mut Sentinels, name: &str, period_ms: &str) {
    for index in 0..sentinels.addresses().len() {
        // A Sentinel that is down has its default periods when it restarts.
        sentinels.sentinel(index).probe(&["SENTINEL", "DEBUG", name, period_ms]);
    }
}

#[test]
fn a_killed_master_is_replaced_within_five_seconds() {
    let mut sentinels = start(Brand::Redis);
    let mut trial = Trial::begin(2, &sentinels.url());
    let killed = trial.inject(|| sentinels.kill_master());
    trial.await_degraded();
    let master = trial.restore(|| sentinels.wait_for_other_master(killed));
    trial.await_exact();

    // The killed server restarts as a master, until the Sentinels demote it.
    shorten_periods(&mut sentinels);
    sentinels.server(killed).restart();
    assert_eq!(sentinels.servers()[killed].role(), "master");
    assert_unused_until_demoted(&sentinels.servers()[killed], || trial.run_for(Duration::from_millis(20)));
    assert_eq!(script_calls(&sentinels.servers()[killed]), 0, "nodes do not call the former master");

    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    assert_failover_in_time(&report);
    report.assert_no_extra_connections(&sentinels.servers()[master]);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

#[test]
fn a_master_that_hangs_during_failover_is_not_used_when_it_resumes() {
    let mut sentinels = start(Brand::Valkey);
    let mut trial = Trial::begin(2, &sentinels.url());
    let paused = sentinels.master();
    // One Sentinel goes down too, as if it ran on the same machine.
    trial.inject(|| {
        sentinels.sentinel(0).kill();
        sentinels.server(paused).pause();
    });
    trial.await_degraded();
    let master = trial.restore(|| sentinels.wait_for_other_master(paused));
    trial.await_exact();
    shorten_periods(&mut sentinels);
    sentinels.sentinel(0).restart();
    sentinels.server(paused).resume();

    // It first answers the calls that were sent before the failover, and then has no node connections left.
    let resumed = &sentinels.servers()[paused];
    wait_for(TEST_TIMEOUT, "nodes have left the resumed master", || {
        (node_connections(resumed) == 0).then_some(())
    });
    let before = script_calls(resumed);
    assert_unused_until_demoted(resumed, || trial.run_for(Duration::from_millis(20)));
    assert_eq!(script_calls(resumed), before, "nodes do not call a demoted master");

    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    assert_failover_in_time(&report);
    report.assert_no_extra_connections(&sentinels.servers()[master]);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

#[test]
fn nodes_leave_a_master_at_once_after_a_manual_failover() {
    let mut sentinels = start(Brand::Redis);
    let mut trial = Trial::begin(2, &sentinels.url());
    let replaced = sentinels.master();
    let master = trial.inject(|| sentinels.fail_over());
    trial.restore(|| ());
    trial.await_exact();
    // The old server stays a master until the Sentinels demote it, but nodes no longer call it.
    shorten_periods(&mut sentinels);
    let old = &sentinels.servers()[replaced];
    wait_for(TEST_TIMEOUT, "nodes have left the replaced master", || {
        (node_connections(old) == 0).then_some(())
    });
    let before = script_calls(old);
    assert_unused_until_demoted(old, || trial.run_for(Duration::from_millis(20)));
    assert_eq!(script_calls(old), before, "nodes do not call a replaced master");
    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    report.assert_no_extra_connections(&sentinels.servers()[master]);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

/// Nodes are exact within [`FAILOVER`], and within [`FOLLOW_TIME`] of the Sentinels' agreement.
#[track_caller]
fn assert_failover_in_time(report: &TrialReport) {
    let Timeline { failed_at, restored_at, exact_at } = report.timeline;
    println!("exact again {:?} after the master was lost", exact_at - failed_at);
    assert!(
        exact_at - failed_at < FAILOVER,
        "it took {:?} from the loss of the master",
        exact_at - failed_at
    );
    assert!(
        exact_at - restored_at < FOLLOW_TIME,
        "it took {:?} after the Sentinels agreed",
        exact_at - restored_at
    );
}

/// Watches a server that still considers itself the master until it is demoted: no node may connect to it.
#[track_caller]
fn assert_unused_until_demoted(former: &RedisServer, wait: impl Fn()) {
    wait_for(TEST_TIMEOUT, "the former master is demoted", || {
        wait();
        assert_eq!(node_connections(former), 0, "a node connected to a former master");
        is_replica(former)
    });
    assert_eq!(node_connections(former), 0, "a node connected to a replica");
}

fn is_replica(server: &RedisServer) -> Option<()> {
    (server.role() == "slave").then_some(())
}

/// The number of node connections a server has.
fn node_connections(server: &RedisServer) -> usize {
    let list = wait_for(TEST_TIMEOUT, "the server lists its clients", || {
        server.try_command(&["CLIENT", "LIST"]).ok()
    });
    let is_node = |line: &&str| line.split(' ').any(|word| word == "name=ratekeeper");
    list.text().lines().filter(is_node).count()
}

/// The number of script calls a server has executed.
fn script_calls(server: &RedisServer) -> u64 {
    let stats = wait_for(TEST_TIMEOUT, "the server reports its command statistics", || {
        server.try_command(&["INFO", "commandstats"]).ok()
    });
    let stats = stats.field("cmdstat_evalsha").unwrap_or_default();
    let value = stats.split(',').find_map(|field| field.strip_prefix("calls="));
    value.map_or(0, |value| value.parse().unwrap())
}
