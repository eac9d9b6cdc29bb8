//! The server has no memory left and takes no writes.

use super::account::{Extent, Kept};
use super::fleet::{Ask, FEW, Fleet};
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::load::LoadPlan;
use ratekeeper_testkit::servers::{Brand, RedisServer};
use std::thread;
use std::time::Duration;

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
                    || answer.verdict == ratekeeper_testkit::load::AnswerKind::Denied
            },
        );
        // For longer than it is remembered without the store who has nothing left.
        trial.go_on(Duration::from_millis(1500));
        for node in &trial.fleet.nodes {
            let early = r#"{"client_key":"early","endpoint":"/few"}"#;
            for path in ["/v1/peek", "/v1/check"] {
                let said = node.post(path, early);
                assert!(!said.contains("degraded"), "{path}: {said}");
                assert!(said.contains(r#""allowed":false"#), "{path}: {said}");
            }
            let late = r#"{"client_key":"late","endpoint":"/few"}"#;
            let said = node.post("/v1/peek", late);
            assert!(!said.contains("degraded"), "{said}");
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

/// How many peeks are made beside those who write.
const PEEKS: u64 = 300;

/// Checks travel together, and those that can't be written take no other along.
#[test]
fn who_need_not_be_written_is_answered_by_a_full_store_beside_eight_who_must_be() {
    despite_stalls(|| {
        for brand in Brand::ALL {
            let redis = RedisServer::setup(brand).set("maxmemory-policy", "noeviction").start();
            let fleet = Fleet::start(1, &redis.url());
            assert_eq!(fleet.ask_for_few("early").allowed, FEW);
            redis.command(&["CONFIG", "SET", "maxmemory", "1"]).done();
            let target = || fleet.targets().remove(0);
            let writers = LoadPlan::on([target()])
                .endpoints(&["/open"])
                .zipf_keys(1000)
                .connections(8)
                .rate(2000)
                .begin();
            writers.await_more(100);
            let ask = |path: &'static str, client: &str| {
                let body = format!(r#"{{"client_key":"{client}","endpoint":"/few"}}"#);
                LoadPlan::on([target()]).post(path, &body).connections(2).run(PEEKS)
            };
            let (peeks, denied) = thread::scope(|scope| {
                let peeks = scope.spawn(|| ask("/v1/peek", "late"));
                (ask("/v1/check", "early"), peeks.join().unwrap())
            });
            for tally in [&peeks, &denied] {
                assert_eq!((tally.failed(), tally.degraded()), (0, 0), "{brand:?}");
            }
            let written = writers.end();
            let by_the_store = written.answers().iter().filter(|answer| !answer.is_degraded);
            println!(
                "{brand:?}: {} writers, {} of them by the store",
                written.answers().len(),
                by_the_store.count()
            );
            assert!(written.degraded() > 0, "nothing could be written");
        }
    });
}
