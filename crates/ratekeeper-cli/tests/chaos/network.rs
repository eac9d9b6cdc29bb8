//! Network faults between nodes and their server.

use super::node_group::SMALL_LIMIT;
use super::report::{DegradedAnswers, StoreData, TrialReport, timed_out};
use super::trial::Trial;
use ratekeeper_testkit::servers::{ChaosProxy, DroppedDirection, LinkFaults, RedisServer};
use std::time::Duration;

/// Runs two nodes whose connections to the server have these faults for some seconds. Every call is lost or too slow.
fn check_outage(faults: LinkFaults) -> TrialReport {
    let redis = RedisServer::start();
    let proxy = ChaosProxy::new(&redis.address());
    let mut trial = Trial::begin(2, &format!("redis://{}", proxy.address()));
    trial.inject(|| proxy.set_faults(faults));
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(
        (result.allowed, result.degraded),
        (SMALL_LIMIT, result.requests),
        "the two shares add up to the limit"
    );
    trial.run_for(Duration::from_secs(4));
    trial.restore(|| proxy.set_faults(LinkFaults::NONE));
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::All);
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, timed_out);
    report
}

#[test]
fn every_call_exceeds_the_deadline() {
    let report = check_outage(LinkFaults { latency: Duration::from_millis(200), ..LinkFaults::NONE });
    report.assert_logged_once();
}

#[test]
fn requests_are_dropped_silently() {
    check_outage(LinkFaults { dropped: DroppedDirection::Requests, ..LinkFaults::NONE }).assert_logged_once();
}

#[test]
fn replies_are_dropped_silently() {
    check_outage(LinkFaults { dropped: DroppedDirection::Replies, ..LinkFaults::NONE }).assert_logged_once();
}

#[test]
fn bandwidth_is_200_bytes_per_second() {
    check_outage(LinkFaults { bytes_per_second: Some(200), ..LinkFaults::NONE }).assert_logged_once();
}

#[test]
fn one_in_twenty_calls_resets_its_connection() {
    let redis = RedisServer::start();
    let proxy = ChaosProxy::new(&redis.address());
    let mut trial = Trial::begin(2, &format!("redis://{}", proxy.address()));
    let connections = proxy.total_connections();
    // Half of the resets happen before the server receives the call, half after.
    trial.inject(|| {
        proxy.set_faults(LinkFaults { reset_requests: 0.025, reset_replies: 0.025, ..LinkFaults::NONE });
    });
    trial.run_for(Duration::from_secs(5));
    let broken = proxy.total_connections() - connections;
    assert!(broken >= 10, "only {broken} connections were reset");
    trial.restore(|| proxy.set_faults(LinkFaults::NONE));
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    let during_faults = report.answer_log.during(report.timeline.failed_at..report.timeline.restored_at);
    let share = during_faults.degraded() * 100 / during_faults.answers().len();
    println!("{broken} connections were reset, and {share} % of answers were degraded");
    assert!((1..50).contains(&share), "{share} % of answers were degraded");
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, |_| true);
}
