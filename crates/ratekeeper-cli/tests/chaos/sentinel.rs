//! A master that is lost, and the one that Sentinels make in its place.
//!
//! The servers are set as somebody would set them who wants to wait for as short a time as is sane: a master that is silent
//! for a second and a half is taken for dead, and Sentinels ask after it once a second, as they do unless told otherwise. A
//! second is too short: they wait for up to that long before they connect to a master that they have just made, and one time
//! in twenty they took it for dead meanwhile and made another.

use super::account::{Account, Extent, Kept};
use super::trial::{Marks, Trial};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels};
use ratekeeper_testkit::{PATIENCE, within};
use std::time::Duration;

/// The longest that it may take from the loss of a master until every node is exact again.
const FAILOVER: Duration = Duration::from_secs(5);
/// How long it takes of that until nodes use a new master that all Sentinels know.
const FOLLOWED: Duration = Duration::from_secs(1);

fn start(brand: Brand) -> Sentinels {
    let mut sentinels = Sentinels::setup(brand).down_after_ms(1500).start();
    set_period(&mut sentinels, "ping-period", "1000");
    sentinels
}

/// Has Sentinels look after servers more often, so that a master that is one no longer is told so soon.
fn hurry(sentinels: &mut Sentinels) {
    for name in ["publish-period", "info-period"] {
        set_period(sentinels, name, "250");
    }
}

fn set_period(sentinels: &mut Sentinels, name: &str, period_ms: &str) {
    for index in 0..sentinels.addresses().len() {
        // One that is not there has its usual ones when it comes back.
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
    hurry(&mut sentinels);
    sentinels.server(killed).restart();
    assert_eq!(sentinels.servers()[killed].role(), "master");
    is_left_alone(&sentinels.servers()[killed], || trial.go_on(Duration::from_millis(20)));
    assert_eq!(calls(&sentinels.servers()[killed]), 0, "nobody has asked the master that was");

    let account = trial.end();
    account.hold_to(Extent::Some);
    is_followed_in_time(&account);
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
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
    hurry(&mut sentinels);
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
    is_followed_in_time(&account);
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
}

#[test]
fn a_master_that_is_relieved_in_order_is_left_at_once() {
    let mut sentinels = start(Brand::Redis);
    let mut trial = Trial::begin(2, &sentinels.url());
    let relieved = sentinels.master();
    let master = trial.lose(|| sentinels.fail_over());
    trial.restore(|| ());
    trial.await_exact();
    // It goes on as a master until the Sentinels get round to it; but nobody asks it any more.
    hurry(&mut sentinels);
    let old = &sentinels.servers()[relieved];
    within(PATIENCE, "a master that was relieved finds itself alone", || (visitors(old) == 0).then_some(()));
    let before = calls(old);
    is_left_alone(old, || trial.go_on(Duration::from_millis(20)));
    assert_eq!(calls(old), before, "nobody asks a master that was relieved");
    let account = trial.end();
    account.hold_to(Extent::Some);
    account.nobody_lingers(&sentinels.servers()[master]);
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
}

/// A new master was made and followed soon enough, and most of that was the Sentinels' time.
#[track_caller]
fn is_followed_in_time(account: &Account) {
    let Marks { away, back, exact } = account.marks;
    println!("exact again {:?} after the master was lost", exact - away);
    assert!(exact - away < FAILOVER, "it took {:?} from the master's loss", exact - away);
    assert!(exact - back < FOLLOWED, "it took {:?} after the Sentinels agreed", exact - back);
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
    let is_node = |line: &&str| line.split(' ').any(|word| word == "name=ratekeeper");
    list.text().lines().filter(is_node).count()
}

/// How often a server was asked to decide.
fn calls(server: &RedisServer) -> u64 {
    let stats = within(PATIENCE, "a server tells of its commands", || {
        server.try_command(&["INFO", "commandstats"]).ok()
    });
    let stats = stats.field("cmdstat_evalsha").unwrap_or_default();
    let value = stats.split(',').find_map(|field| field.strip_prefix("calls="));
    value.map_or(0, |value| value.parse().unwrap())
}
