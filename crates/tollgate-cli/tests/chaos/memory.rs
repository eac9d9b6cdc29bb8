//! The server has no memory left and takes no writes.

use super::account::{Extent, Kept};
use super::fleet::{Ask, FEW};
use super::trial::Trial;
use std::time::Duration;
use tollgate_testkit::servers::{Brand, Node, RedisServer};
use tollgate_testkit::{PATIENCE, despite_stalls, within};

#[test]
fn memory_is_full_and_then_freed() {
    despite_stalls(|| {
        let redis = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
        let mut trial = Trial::begin(2, &redis.url());
        assert_eq!(trial.fleet.ask_for_few("early").allowed, FEW);
        trial.lose(|| redis.command(&["CONFIG", "SET", "maxmemory", "1"]).done());
        trial.await_answers(
            "what must be written is decided without the store",
            trial.running.now(),
            |answer| {
                // Who has nothing left is refused by the store, without a write.
                answer.is_degraded
                    || Ask::of(answer).may_do_without()
                    || answer.verdict == tollgate_testkit::load::Verdict::Denied
            },
        );
        // For longer than it is remembered without the store who has nothing left.
        trial.go_on(Duration::from_millis(1500));
        for node in &trial.fleet.nodes {
            let early = r#"{"client_key":"early","endpoint":"/few"}"#;
            for path in ["/v1/peek", "/v1/check"] {
                let said = asked_of_the_store(node, path, early);
                assert!(said.contains(r#""allowed":false"#), "{path}: {said}");
            }
            let late = r#"{"client_key":"late","endpoint":"/few"}"#;
            let said = asked_of_the_store(node, "/v1/peek", late);
            assert!(said.contains(r#""remaining":20"#), "{said}");
        }
        let late = trial.fleet.ask_for_few("late");
        assert_eq!(late.allowed, FEW, "two halves are a whole");
        trial.restore(|| redis.command(&["CONFIG", "SET", "maxmemory", "0"]).done());
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::Some);
        let recovery = account.marks.exact - account.marks.back;
        assert!(recovery < Duration::from_millis(500), "nobody waits to try again: {recovery:?}");
        for log in &account.logs {
            assert!(log.news().is_empty(), "the server was there all the time: {:?}", log.news());
            let told = log.lines().iter().filter(|line| line.contains("OOM"));
            assert_eq!(told.count(), 1, "what is wrong is told, once:\n{}", log.lines().join("\n"));
        }
        account.nobody_lingers(&redis);
        account.nobody_is_charged_twice(Kept::Everything, |_| false);
    });
}

/// What the store says for which nothing has to be written. It says nothing if that travels with something that has to be.
#[track_caller]
fn asked_of_the_store(node: &Node, path: &str, body: &str) -> String {
    within(PATIENCE, "the store tells what it need not write", || {
        let said = node.post(path, body);
        (!said.contains("degraded")).then_some(said)
    })
}
