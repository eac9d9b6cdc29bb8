//! Nodes that start and stop while the store is down.

use super::node_group::{NodeGroup, SMALL_LIMIT, TestRule};
use super::report::DegradedAnswers;
use super::trial::Trial;
use ratekeeper_testkit::load::{LoadPlan, LoadRun};
use ratekeeper_testkit::servers::RedisServer;
use ratekeeper_testkit::time_without_stalls;
use std::time::Duration;

#[test]
fn nodes_start_before_their_store() {
    let mut redis = RedisServer::start();
    redis.kill();
    let group = NodeGroup::start_with(2, |_, setup| setup.arguments(&["--store", &redis.url()]));
    for node in &group.nodes {
        assert!(node.banner().contains("unreachable"), "{}", node.banner());
    }
    let mut trial = Trial::without_store(group);
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(
        result.allowed,
        2 * SMALL_LIMIT,
        "each node assumes that it is the only one and admits the full limit"
    );
    trial.run_for(Duration::from_secs(2));
    trial.restore(|| redis.restart());
    trial.await_exact();
    trial.group.await_discovery();
    let report = trial.end();
    report.assert_deadlines_met();
    report.assert_failure_modes();
    report.assert_degraded_answers(|_| DegradedAnswers::All);
    report.assert_recovery();
    report.assert_logged_once();
    report.assert_no_extra_connections(&redis);
}

#[test]
fn a_node_shuts_down_cleanly_while_its_store_is_down() {
    let mut redis = RedisServer::start();
    let mut group = NodeGroup::start(1, &redis.url());
    let running = start_load(&group);
    redis.kill();
    await_degraded(&running);
    assert_stops_within(&mut group, Duration::from_millis(500));
}

#[test]
fn a_node_shuts_down_cleanly_while_its_store_hangs() {
    let redis = RedisServer::start();
    let mut group = NodeGroup::start(1, &redis.url());
    let running = start_load(&group);
    redis.pause();
    // Stop right away: the node has not noticed the hang yet, and its sign-off gets no reply.
    assert_stops_within(&mut group, Duration::from_millis(1500));
    drop(running);
}

fn start_load(group: &NodeGroup) -> LoadRun {
    let load = LoadPlan::new(group.targets())
        .endpoints(&TestRule::ALL.map(TestRule::path))
        .connections(16)
        .rate(100);
    let running = load.start();
    running.wait_for_answers(50);
    running
}

fn await_degraded(running: &LoadRun) {
    ratekeeper_testkit::wait_for(
        ratekeeper_testkit::TEST_TIMEOUT,
        "the node answers without its store",
        || running.latest().iter().any(|answer| answer.is_degraded).then_some(()),
    );
}

#[track_caller]
pub(crate) fn assert_stops_within(group: &mut NodeGroup, limit: Duration) {
    let (status, elapsed) = time_without_stalls(|| group.nodes[0].stop());
    assert!(status.success(), "{status}");
    assert!(elapsed <= limit, "the stop took {elapsed:?}");
}
