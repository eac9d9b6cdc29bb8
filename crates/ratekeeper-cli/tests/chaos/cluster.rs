//! A Cluster that loses masters, and whose slots move.
//!
//! Three masters with a replica each take one another for gone after a second and a half of silence
//! (`cluster-node-timeout`), and go on without those that are (`cluster-require-full-coverage no`).

use super::account::{Account, Extent, Kept};
use super::fleet::{Ask, TIGHT};
use super::trial::Trial;
use ratekeeper_testkit::load::TimedAnswer;
use ratekeeper_testkit::servers::{Brand, TestCluster};
use ratekeeper_testkit::{PATIENCE, within};
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest that it may take from the loss of a master until every node is exact again: as long as the others take to miss
/// it, and to elect another.
const FAILOVER: Duration = Duration::from_secs(6);
/// How long it takes of that until a change that all of a cluster know of is known here.
const FOLLOWED: Duration = Duration::from_secs(1);
/// More clients than ask.
const CLIENTS: u64 = 50;

#[test]
fn a_master_that_is_killed_takes_only_its_slots_along_until_its_replica_takes_over() {
    let mut cluster = TestCluster::start();
    let mut trial = Trial::begin(2, &cluster.url());
    let (owners, slot) = (owners(&cluster), cluster.slot("key0"));
    let killed = trial.lose(|| cluster.kill_owner(slot));
    trial.await_broken();
    let replica = trial.restore(|| cluster.await_other_owner(slot, killed));
    trial.await_whole();
    let account = trial.end();
    account.hold_each_to(|answer| if owner(&owners, answer) == killed { Extent::Some } else { Extent::None });
    let took = account.marks.exact - account.marks.away;
    println!("exact again {took:?} after a master was killed");
    assert!(took < FAILOVER, "it took {took:?}");
    let took = account.marks.exact - account.marks.back;
    assert!(took < FOLLOWED, "it took {took:?} after the other nodes agreed");
    account.nobody_lingers(&cluster.nodes()[replica]);
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
}

#[test]
fn a_master_lost_with_its_replica_takes_only_its_slots_along() {
    let mut cluster = TestCluster::start();
    let mut trial = Trial::begin(2, &cluster.url());
    let owners = owners(&cluster);
    let lost = cluster.owner(cluster.slot("key0"));
    // Behind the three masters are their replicas.
    trial.lose(|| {
        cluster.node(lost + 3).kill();
        cluster.node(lost).kill();
    });
    trial.await_broken();
    // For longer than it would take a replica, if there were one.
    trial.go_on(FAILOVER);
    let until = trial.running.now();
    trial.restore(|| {
        cluster.node(lost).restart();
        cluster.node(lost + 3).restart();
        within(PATIENCE, "a master that has come back may serve its slots", || {
            let state = cluster.nodes()[lost].command(&["CLUSTER", "INFO"]).field("cluster_state");
            (state.as_deref() == Some("ok")).then_some(())
        });
    });
    trial.await_whole();
    let account = trial.end();
    account.hold_each_to(|answer| match owner(&owners, answer) == lost {
        true if answer.answered < until => Extent::All,
        true => Extent::Some,
        false => Extent::None,
    });
    account.nobody_lingers(&cluster.nodes()[lost]);
    account.nobody_is_charged_twice(Kept::Nothing, |_| true);
}

#[test]
fn slots_that_move_to_a_new_master_and_back_are_noticed_by_nobody() {
    let mut cluster = TestCluster::setup(Brand::Valkey).without_replicas().start();
    let mut trial = Trial::begin(2, &cluster.url());
    let owners = owners(&cluster);
    let slots: BTreeSet<u16> = (0..CLIENTS).map(|key| cluster.slot(format!("key{key}"))).collect();
    let added = trial.lose(|| cluster.add_node());

    // For a while every slot is on its way: what a client has used already is where it was, and what is new elsewhere.
    let moves: Vec<(u16, usize)> =
        slots.iter().map(|slot| (*slot, cluster.begin_move(*slot, added))).collect();
    trial.go_on(Duration::from_secs(1));
    for (slot, from) in &moves {
        cluster.move_keys(*slot, *from, added);
        cluster.end_move(*slot, *from, added);
        trial.go_on(Duration::from_millis(10));
    }
    within(PATIENCE, "nodes use a master that was added", || {
        trial.go_on(Duration::from_millis(20));
        let is_used = |index: usize| !cluster.nodes()[index].command(&["CLIENT", "LIST"]).text().is_empty();
        is_used(added).then_some(())
    });
    let known = format!(r#"ratekeeper_store_up{{server="{}"}}"#, cluster.nodes()[added].address());
    for node in &trial.fleet.nodes {
        within(PATIENCE, "nodes know of a master that was added", || node.metric(&known));
    }
    trial.go_on(Duration::from_secs(1));
    let used = cluster.nodes()[added].command(&["DBSIZE"]).integer();
    assert!(used > 0, "a master that was added is used");

    // And back again, until it has nothing and nobody knows of it any more.
    trial.restore(|| {
        for (slot, from) in &moves {
            cluster.move_slots(*slot..*slot + 1, *from);
        }
    });
    for node in &trial.fleet.nodes {
        within(PATIENCE, "nodes forget a master that has nothing left", || {
            node.metric(&known).is_none().then_some(())
        });
    }
    trial.await_whole();
    let account = trial.end();
    assert!(owners.iter().all(|owner| *owner < 3));
    account.hold_to(Extent::None);
    account.nobody_is_charged_twice(Kept::Everything, |_| false);
    nobody_gets_more(&account);
}

/// For every client the node of its slot.
fn owners(cluster: &TestCluster) -> Vec<usize> {
    (0..CLIENTS).map(|key| cluster.owner(cluster.slot(format!("key{key}")))).collect()
}

fn owner(owners: &[usize], answer: &TimedAnswer) -> usize {
    owners[usize::try_from(answer.key).unwrap()]
}

/// No client was granted more than its limit in any stretch of time.
#[track_caller]
fn nobody_gets_more(account: &Account) {
    let second = Duration::from_secs(1);
    for (endpoint, ask) in Ask::ALL.iter().enumerate() {
        if !matches!(ask, Ask::Open | Ask::Local | Ask::Default) {
            continue;
        }
        for key in 0..CLIENTS {
            let granted = account.tally.about(endpoint).for_key(key);
            for seconds in 1..=5 {
                let most = usize::try_from(TIGHT * (1 + seconds)).unwrap();
                let got = granted.most_allowed_within(second * seconds);
                assert!(got <= most, "key {key} got {got} of {most} units in {seconds} s at {ask:?}");
            }
        }
    }
}
