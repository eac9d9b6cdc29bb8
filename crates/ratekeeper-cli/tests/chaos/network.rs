//! The network between nodes and their server.

use super::account::{Account, Extent, Kept, waited_in_vain};
use super::fleet::FEW;
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::{ChaosProxy, DroppedDirection, LinkFaults, RedisServer};
use std::time::Duration;

/// Two nodes with a server behind a network of this kind for some seconds. All that passes is lost or too late.
fn check_bad(weather: LinkFaults) -> Account {
    let redis = RedisServer::start();
    let proxy = ChaosProxy::to(&redis.address());
    let mut trial = Trial::begin(2, &format!("redis://{}", proxy.address()));
    trial.lose(|| proxy.set_weather(weather));
    trial.await_degraded();
    let few = trial.fleet.ask_for_few("meanwhile");
    assert_eq!((few.allowed, few.degraded), (FEW, few.asked), "two halves are a whole");
    trial.go_on(Duration::from_secs(4));
    trial.restore(|| proxy.set_weather(LinkFaults::FINE));
    trial.await_exact();
    let account = trial.end();
    account.hold_to(Extent::All);
    account.nobody_lingers(&redis);
    account.nobody_is_charged_twice(Kept::Everything, waited_in_vain);
    account
}

#[test]
fn every_call_takes_far_too_long() {
    despite_stalls(|| {
        let account = check_bad(LinkFaults { latency: Duration::from_millis(200), ..LinkFaults::FINE });
        account.is_told_once();
    });
}

#[test]
fn requests_are_lost_without_a_word() {
    despite_stalls(|| {
        check_bad(LinkFaults { swallows: DroppedDirection::Requests, ..LinkFaults::FINE }).is_told_once();
    });
}

#[test]
fn answers_are_lost_without_a_word() {
    despite_stalls(|| {
        check_bad(LinkFaults { swallows: DroppedDirection::Replies, ..LinkFaults::FINE }).is_told_once();
    });
}

#[test]
fn everything_trickles() {
    despite_stalls(|| {
        check_bad(LinkFaults { bytes_per_second: Some(200), ..LinkFaults::FINE }).is_told_once();
    });
}

#[test]
fn one_in_twenty_calls_resets_its_connection() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let proxy = ChaosProxy::to(&redis.address());
        let mut trial = Trial::begin(2, &format!("redis://{}", proxy.address()));
        let connections = proxy.connections_ever();
        // Half of them before the server has heard of the call, half of them after.
        trial.lose(|| {
            proxy.set_weather(LinkFaults { reset_requests: 0.025, reset_replies: 0.025, ..LinkFaults::FINE });
        });
        trial.go_on(Duration::from_secs(5));
        let broken = proxy.connections_ever() - connections;
        assert!(broken >= 10, "only {broken} connections were reset");
        trial.restore(|| proxy.set_weather(LinkFaults::FINE));
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::Some);
        let bad = account.tally.during(account.marks.away..account.marks.back);
        let share = bad.degraded() * 100 / bad.answers().len();
        println!("{broken} connections were reset, and {share} % answered without the store");
        assert!((1..50).contains(&share), "{share} % were answered without the store");
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Everything, |_| true);
    });
}
