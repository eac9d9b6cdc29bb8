//! The server accepts connections but does not answer.

use super::node_group::SMALL_LIMIT;
use super::report::{DegradedAnswers, StoreData, timed_out};
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

#[test]
fn a_server_hangs_for_ten_seconds() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    let before = trial.group.exhaust_small_limit("popular");
    assert_eq!((before.allowed, before.degraded), (SMALL_LIMIT, 0));
    trial.inject(|| redis.pause());
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(
        (result.allowed, result.degraded),
        (SMALL_LIMIT, result.requests),
        "the two shares add up to the limit"
    );
    let popular = trial.group.exhaust_small_limit("popular");
    assert_eq!(popular.allowed, 0, "nodes remember that the client was exhausted");
    trial.run_for(Duration::from_secs(10));
    trial.restore(|| redis.resume());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::All);
    report.assert_logged_once();
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, timed_out);
}
