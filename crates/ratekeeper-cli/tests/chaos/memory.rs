//! The server is out of memory (`noeviction`) and rejects writes.

use super::node_group::{NodeGroup, SMALL_LIMIT, TestRule};
use super::report::{DegradedAnswers, StoreData};
use super::trial::Trial;
use ratekeeper_testkit::load::LoadPlan;
use ratekeeper_testkit::servers::{Brand, RedisServer};
use std::thread;
use std::time::Duration;

#[test]
fn memory_is_full_and_then_freed() {
    let redis = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
    let mut trial = Trial::begin(2, &redis.url());
    assert_eq!(trial.group.exhaust_small_limit("early").allowed, SMALL_LIMIT);
    trial.inject(|| redis.command(&["CONFIG", "SET", "maxmemory", "1"]).expect_ok());
    trial.await_answers(
        "checks that need a write are decided without the store",
        trial.running.now(),
        |answer| {
            // The store denies an exhausted client without a write.
            answer.is_degraded
                || TestRule::of(answer).may_skip_store()
                || answer.kind == ratekeeper_testkit::load::AnswerKind::Denied
        },
    );
    // Longer than the denial cache remembers exhausted clients.
    trial.run_for(Duration::from_millis(1500));
    for node in &trial.group.nodes {
        let early = r#"{"client_key":"early","endpoint":"/few"}"#;
        for path in ["/v1/peek", "/v1/check"] {
            let answer = node.post(path, early);
            assert!(!answer.contains("degraded"), "{path}: {answer}");
            assert!(answer.contains(r#""allowed":false"#), "{path}: {answer}");
        }
        let late = r#"{"client_key":"late","endpoint":"/few"}"#;
        let answer = node.post("/v1/peek", late);
        assert!(!answer.contains("degraded"), "{answer}");
        assert!(answer.contains(r#""remaining":20"#), "{answer}");
    }
    let late = trial.group.exhaust_small_limit("late");
    assert_eq!(late.allowed, SMALL_LIMIT, "the two shares add up to the limit");
    trial.restore(|| redis.command(&["CONFIG", "SET", "maxmemory", "0"]).expect_ok());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    let recovery = report.recovery_time();
    assert!(recovery < Duration::from_millis(500), "nodes retry without back-off: {recovery:?}");
    for log in &report.logs {
        assert!(log.server_events().is_empty(), "the server stayed connected: {:?}", log.server_events());
        let errors = log.lines().iter().filter(|line| line.contains("OOM"));
        assert_eq!(errors.count(), 1, "the error is logged once:\n{}", log.lines().join("\n"));
    }
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, |_| false);
}

/// The number of peeks, and of denied checks, sent while other clients write.
const PEEKS: u64 = 300;

/// Checks are batched, and a check whose write fails does not fail the others in its batch.
#[test]
fn a_full_store_answers_checks_without_writes_while_eight_clients_write() {
    for brand in Brand::ALL {
        let redis = RedisServer::setup(brand).set("maxmemory-policy", "noeviction").start();
        let group = NodeGroup::start(1, &redis.url());
        assert_eq!(group.exhaust_small_limit("early").allowed, SMALL_LIMIT);
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]).expect_ok();
        let target = || group.targets().remove(0);
        let writers =
            LoadPlan::new([target()]).endpoints(&["/open"]).zipf_keys(1000).connections(8).rate(2000).start();
        writers.wait_for_answers(100);
        let ask = |path: &'static str, client: &str| {
            let body = format!(r#"{{"client_key":"{client}","endpoint":"/few"}}"#);
            LoadPlan::new([target()]).post(path, &body).connections(2).run(PEEKS)
        };
        let (peeks, denied) = thread::scope(|scope| {
            let peeks = scope.spawn(|| ask("/v1/peek", "late"));
            (ask("/v1/check", "early"), peeks.join().unwrap())
        });
        for tally in [&peeks, &denied] {
            assert_eq!((tally.failed(), tally.degraded()), (0, 0), "{brand:?}");
        }
        let written = writers.stop();
        let exact = written.answers().iter().filter(|answer| !answer.is_degraded);
        println!(
            "{brand:?}: {} checks with a write, {} of them decided by the store",
            written.answers().len(),
            exact.count()
        );
        assert!(written.degraded() > 0, "writes fail");
    }
}
