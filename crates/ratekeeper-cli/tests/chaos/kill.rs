//! The server is killed and restarts without its data.

use super::node_group::SMALL_LIMIT;
use super::report::{DegradedAnswers, StoreData};
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

#[test]
fn a_server_is_killed_and_restarted() {
    let mut redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    trial.inject(|| redis.kill());
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(
        (result.allowed, result.degraded),
        (SMALL_LIMIT, result.requests),
        "the two shares add up to the limit"
    );
    trial.run_for(Duration::from_secs(2));
    trial.restore(|| redis.restart());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::All);
    report.assert_logged_once();
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Lost, |_| true);
}
