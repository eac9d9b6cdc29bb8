//! The server is gone at once, and comes back with nothing.

use super::account::{Extent, Kept};
use super::fleet::FEW;
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

#[test]
fn a_server_that_is_killed_and_started_again() {
    despite_stalls(|| {
        let mut redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        trial.lose(|| redis.kill());
        trial.await_degraded();
        let few = trial.fleet.ask_for_few("meanwhile");
        assert_eq!((few.allowed, few.degraded), (FEW, few.asked), "two halves are a whole");
        trial.go_on(Duration::from_secs(2));
        trial.restore(|| redis.restart());
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::All);
        account.is_told_once();
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Nothing, |_| true);
    });
}
