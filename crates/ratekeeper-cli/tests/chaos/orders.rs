//! What whoever runs a server may tell it to do, with nodes in the middle of their work.

use super::account::{Account, Extent, Kept};
use super::fleet::FEW;
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::RedisServer;
use ratekeeper_testkit::within;
use std::time::Duration;

#[test]
fn scripts_are_flushed_again_and_again() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        let server = format!("{{server=\"{}\"}}", redis.address());
        let loads = |trial: &Trial| -> f64 {
            let name = format!("ratekeeper_store_script_loads_total{server}");
            trial.fleet.nodes.iter().map(|node| node.metric(&name).unwrap()).sum()
        };
        let before = loads(&trial);
        trial.lose(|| ());
        for _ in 0..10 {
            redis.command(&["SCRIPT", "FLUSH"]).done();
            trial.go_on(Duration::from_millis(200));
        }
        trial.restore(|| ());
        trial.await_exact();
        let loaded = loads(&trial) - before;
        assert!((10.0..=20.0).contains(&loaded), "a node or two load it each time, and each once: {loaded}");
        let account = trial.end();
        account.hold_to(Extent::None);
        no_news(&account);
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Everything, |_| true);
    });
}

#[test]
fn everything_is_flushed() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        assert_eq!(trial.fleet.ask_for_few("early").allowed, FEW);
        trial.lose(|| redis.command(&["FLUSHALL"]).done());
        // That it had nothing left is remembered for a second.
        let mut allowed = 0;
        within(Duration::from_secs(2), "a limit starts afresh", || {
            allowed += trial.fleet.ask_for_few("early").allowed;
            (allowed > 0).then_some(())
        });
        allowed += trial.fleet.ask_for_few("early").allowed;
        assert_eq!(allowed, FEW, "it starts afresh once");
        trial.restore(|| ());
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::None);
        no_news(&account);
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Nothing, |_| true);
    });
}

#[test]
fn all_connections_are_killed() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        trial.lose(|| redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).done());
        trial.restore(|| ());
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::Some);
        let last = account.tally.answers().iter().rev().find(|answer| answer.is_degraded);
        let took = last.map_or(Duration::ZERO, |last| last.answered - account.marks.away);
        assert!(took < Duration::from_millis(500), "connections are made anew at once, not after {took:?}");
        no_news(&account);
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Everything, |_| true);
    });
}

#[track_caller]
fn no_news(account: &Account) {
    for log in &account.logs {
        assert!(log.news().is_empty(), "the server was there all the time:\n{}", log.lines().join("\n"));
    }
}
