//! Administrative commands on the server (`SCRIPT FLUSH`, `FLUSHALL`, `CLIENT KILL`) while nodes are under load.

use super::node_group::SMALL_LIMIT;
use super::report::{DegradedAnswers, StoreData, TrialReport};
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use ratekeeper_testkit::wait_for;
use std::time::Duration;

#[test]
fn scripts_are_flushed_repeatedly() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    let server = format!("{{server=\"{}\"}}", redis.address());
    let loads = |trial: &Trial| -> f64 {
        let name = format!("ratekeeper_store_script_loads_total{server}");
        trial.group.nodes.iter().map(|node| node.metric(&name).unwrap()).sum()
    };
    let before = loads(&trial);
    trial.inject(|| ());
    for _ in 0..10 {
        redis.command(&["SCRIPT", "FLUSH"]).expect_ok();
        trial.run_for(Duration::from_millis(200));
    }
    trial.restore(|| ());
    trial.await_exact();
    let loaded = loads(&trial) - before;
    assert!((10.0..=20.0).contains(&loaded), "one or both nodes load it once per flush: {loaded}");
    let report = trial.end();
    report.assert_all(DegradedAnswers::None);
    assert_no_server_events(&report);
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, |_| true);
}

#[test]
fn all_keys_are_flushed() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    assert_eq!(trial.group.exhaust_small_limit("early").allowed, SMALL_LIMIT);
    trial.inject(|| redis.command(&["FLUSHALL"]).expect_ok());
    // The denial cache remembers for a second that the client was exhausted.
    let mut allowed = 0;
    wait_for(Duration::from_secs(2), "the limit starts again", || {
        allowed += trial.group.exhaust_small_limit("early").allowed;
        (allowed > 0).then_some(())
    });
    allowed += trial.group.exhaust_small_limit("early").allowed;
    assert_eq!(allowed, SMALL_LIMIT, "the limit starts again once");
    trial.restore(|| ());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::None);
    assert_no_server_events(&report);
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}

#[test]
fn all_connections_are_killed() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    trial.inject(|| redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_ok());
    trial.restore(|| ());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    let last = report.answer_log.answers().iter().rev().find(|answer| answer.is_degraded);
    let took = last.map_or(Duration::ZERO, |last| {
        report.elapsed_without_stalls(report.timeline.failed_at..last.answered)
    });
    assert!(took < Duration::from_millis(500), "nodes reconnect at once, not after {took:?}");
    assert_no_server_events(&report);
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, |_| true);
}

#[track_caller]
fn assert_no_server_events(report: &TrialReport) {
    for log in &report.logs {
        assert!(log.server_events().is_empty(), "the server stayed up:\n{}", log.lines().join("\n"));
    }
}
