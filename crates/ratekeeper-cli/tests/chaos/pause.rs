//! The server is there and says nothing.

use super::account::{Extent, Kept, waited_in_vain};
use super::fleet::FEW;
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::RedisServer;
use std::time::Duration;

#[test]
fn a_server_that_stands_still_for_ten_seconds() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        let before = trial.fleet.ask_for_few("popular");
        assert_eq!((before.allowed, before.degraded), (FEW, 0));
        trial.lose(|| redis.pause());
        trial.await_degraded();
        let few = trial.fleet.ask_for_few("meanwhile");
        assert_eq!((few.allowed, few.degraded), (FEW, few.asked), "two halves are a whole");
        let popular = trial.fleet.ask_for_few("popular");
        assert_eq!(popular.allowed, 0, "nodes remember that it had nothing left");
        trial.go_on(Duration::from_secs(10));
        trial.restore(|| redis.resume());
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::All);
        account.is_told_once();
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Everything, waited_in_vain);
    });
}
