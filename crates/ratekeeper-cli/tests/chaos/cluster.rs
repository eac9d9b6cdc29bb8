//! A Redis Cluster that loses masters and migrates slots.
//!
//! Three masters with one replica each consider a peer failed after 1.5 s of silence (`cluster-node-timeout`), and keep
//! serving the remaining slots (`cluster-require-full-coverage no`).

use super::node_group::{TIGHT_LIMIT, TestRule};
use super::report::{DegradedAnswers, StoreData, TrialReport};
use super::trial::Trial;
use ratekeeper_testkit::load::TimedAnswer;
use ratekeeper_testkit::servers::{Brand, TestCluster};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest time from the loss of a master until every node is exact again: the cluster has to detect the failure
/// and elect a replica.
const FAILOVER: Duration = Duration::from_secs(6);
/// The part of [`FAILOVER`] that nodes may take to follow a change that the whole cluster already knows.
const FOLLOW_TIME: Duration = Duration::from_secs(1);
/// At least as many clients as the load uses.
const CLIENTS: u64 = 50;

#[test]
fn a_killed_master_degrades_only_its_slots_until_its_replica_takes_over() {
    let mut cluster = TestCluster::start();
    let mut trial = Trial::begin(2, &cluster.url());
    let (owners, slot) = (owners(&cluster), cluster.slot("key0"));
    let killed = trial.inject(|| cluster.kill_owner(slot));
    trial.await_partial_outage();
    let replica = trial.restore(|| cluster.wait_for_other_owner(slot, killed));
    trial.await_full_recovery();
    let report = trial.end();
    report.assert_all_by(|answer| {
        if owner(&owners, answer) == killed { DegradedAnswers::Some } else { DegradedAnswers::None }
    });
    let took = report.elapsed_without_stalls(report.timeline.failed_at..report.timeline.exact_at);
    println!("exact again {took:?} after a master was killed");
    assert!(took < FAILOVER, "it took {took:?}");
    let took = report.recovery_time();
    assert!(took < FOLLOW_TIME, "it took {took:?} after the cluster agreed");
    report.assert_no_extra_connections(&cluster.nodes()[replica]);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

#[test]
fn losing_a_master_and_its_replica_degrades_only_their_slots() {
    let mut cluster = TestCluster::start();
    let mut trial = Trial::begin(2, &cluster.url());
    let owners = owners(&cluster);
    let lost = cluster.owner(cluster.slot("key0"));
    // The replica of master N is node N + 3.
    trial.inject(|| {
        cluster.node(lost + 3).kill();
        cluster.node(lost).kill();
    });
    trial.await_partial_outage();
    // Longer than a failover would take if a replica were left.
    trial.run_for(FAILOVER);
    let until = trial.running.now();
    trial.restore(|| {
        cluster.node(lost).restart();
        cluster.node(lost + 3).restart();
        wait_for(TEST_TIMEOUT, "the restarted master serves its slots", || {
            let state = cluster.nodes()[lost].command(&["CLUSTER", "INFO"]).field("cluster_state");
            (state.as_deref() == Some("ok")).then_some(())
        });
    });
    trial.await_full_recovery();
    let report = trial.end();
    report.assert_all_by(|answer| {
        if owner(&owners, answer) != lost {
            DegradedAnswers::None
        } else if answer.answered < until {
            DegradedAnswers::All
        } else {
            DegradedAnswers::Some
        }
    });
    report.assert_no_extra_connections(&cluster.nodes()[lost]);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

#[test]
fn migrating_slots_to_a_new_master_and_back_degrades_nothing() {
    let mut cluster = TestCluster::setup(Brand::Valkey).without_replicas().start();
    let mut trial = Trial::begin(2, &cluster.url());
    let owners = owners(&cluster);
    let slots: BTreeSet<u16> = (0..CLIENTS).map(|key| cluster.slot(format!("key{key}"))).collect();
    let added = trial.inject(|| cluster.add_node());

    // For a while every slot is migrating: existing keys are still on the source, and new keys are on the target.
    let moves: Vec<(u16, usize)> =
        slots.iter().map(|slot| (*slot, cluster.begin_move(*slot, added))).collect();
    trial.run_for(Duration::from_secs(1));
    for (slot, from) in &moves {
        cluster.move_keys(*slot, *from, added);
        cluster.end_move(*slot, *from, added);
        trial.run_for(Duration::from_millis(10));
    }
    wait_for(TEST_TIMEOUT, "nodes connect to the added master", || {
        trial.run_for(Duration::from_millis(20));
        let is_used = |index: usize| !cluster.nodes()[index].command(&["CLIENT", "LIST"]).text().is_empty();
        is_used(added).then_some(())
    });
    let known = format!(r#"ratekeeper_store_up{{server="{}"}}"#, cluster.nodes()[added].address());
    for node in &trial.group.nodes {
        wait_for(TEST_TIMEOUT, "nodes report the added master", || node.metric(&known));
    }
    trial.run_for(Duration::from_secs(1));
    let used = cluster.nodes()[added].command(&["DBSIZE"]).integer();
    assert!(used > 0, "the added master holds keys");

    // Move all slots back, until the added master owns none and nodes drop it.
    trial.restore(|| {
        for (slot, from) in &moves {
            cluster.move_slots(*slot..*slot + 1, *from);
        }
    });
    for node in &trial.group.nodes {
        wait_for(TEST_TIMEOUT, "nodes drop a master without slots", || {
            node.metric(&known).is_none().then_some(())
        });
    }
    trial.await_full_recovery();
    let report = trial.end();
    assert!(owners.iter().all(|owner| *owner < 3));
    report.assert_all(DegradedAnswers::None);
    report.assert_no_double_charge(StoreData::Kept, |_| false);
    assert_limits_hold(&report);
}

/// The cluster node that owns each client's slot.
fn owners(cluster: &TestCluster) -> Vec<usize> {
    (0..CLIENTS).map(|key| cluster.owner(cluster.slot(format!("key{key}")))).collect()
}

fn owner(owners: &[usize], answer: &TimedAnswer) -> usize {
    owners[usize::try_from(answer.key).unwrap()]
}

/// No client was granted more than its limit in any interval of 1 to 5 s.
#[track_caller]
fn assert_limits_hold(report: &TrialReport) {
    let second = Duration::from_secs(1);
    for (endpoint, ask) in TestRule::ALL.iter().enumerate() {
        if !matches!(ask, TestRule::Open | TestRule::Local | TestRule::Default) {
            continue;
        }
        for key in 0..CLIENTS {
            let granted = report.answer_log.for_endpoint(endpoint).for_key(key);
            for seconds in 1..=5 {
                let most = usize::try_from(TIGHT_LIMIT * (1 + seconds)).unwrap();
                let got = granted.max_allowed_within(second * seconds);
                assert!(got <= most, "key {key} got {got} units of at most {most} in {seconds} s at {ask:?}");
            }
        }
    }
}
