//! Nodes that cannot reach the store while clients can reach the nodes.

use super::node_group::{NodeGroup, SMALL_LIMIT, TIGHT_LIMIT, TestRule};
use super::report::{DegradedAnswers, StoreData, timed_out};
use super::trial::Trial;
use ratekeeper_testkit::load::{LoadPlan, Target};
use ratekeeper_testkit::servers::{Brand, Network, RedisServer, ServerNode};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::fs;
use std::path::Path;
use std::time::Duration;

#[test]
fn one_of_two_nodes_is_partitioned_and_uses_its_share() {
    let mut network = match Network::new() {
        Ok(network) => network,
        // Without the rights to create network namespaces the test cannot run, but the error names what is missing.
        Err(error) => {
            return assert!(error.contains("root's rights") || error.contains("need the program"), "{error}");
        }
    };
    let (near, far) = (network.add_host().unwrap(), network.add_host().unwrap());
    // Keepalive is the server's only way to notice connections that the node dropped during the partition.
    let redis = RedisServer::setup(Brand::Redis).set("tcp-keepalive", "2").on_host(&near).start();
    let group = NodeGroup::start_with(2, |number, setup| {
        let setup = setup.arguments(&["--store", &redis.url()]);
        if number == 1 { setup.on_host(&far) } else { setup }
    });
    group.await_discovery();
    let mut trial = Trial::with_nodes(group);
    assert_eq!(trial.group.exhaust_small_limit("known").allowed, SMALL_LIMIT);
    trial.inject(|| far.isolate_from(&near).unwrap());
    trial.await_answers("the partitioned node answers without the store", trial.running.now(), |answer| {
        answer.target == 0 || answer.is_degraded || TestRule::of(answer).may_skip_store()
    });
    // A client that both nodes know to be exhausted stays denied. For an unknown client the partitioned node admits its
    // half: it cannot know that the other node admits the whole limit.
    assert_eq!(trial.group.exhaust_small_limit("known").allowed, 0);
    let [connected, partitioned] = trial.group.exhaust_small_limit_per_node("unknown")[..] else {
        panic!("expected two nodes")
    };
    assert_eq!((connected.allowed, connected.degraded), (SMALL_LIMIT, 0));
    assert_eq!((partitioned.allowed, partitioned.degraded), (SMALL_LIMIT / 2, partitioned.requests));
    trial.run_for(Duration::from_secs(3));
    trial.restore(|| far.end_isolation_from(&near).unwrap());
    trial.await_exact();
    let report = trial.end();
    report.assert_all_by(
        |answer| if answer.target == 0 { DegradedAnswers::None } else { DegradedAnswers::All },
    );
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, timed_out);
    let length = (report.timeline.exact_at - report.timeline.failed_at).as_secs_f64();
    let half = f64::from(TIGHT_LIMIT) / 2.0;
    for ask in [TestRule::Local, TestRule::Default] {
        let local = report.answer_log.filter(|answer| answer.is_degraded && TestRule::of(answer) == ask);
        let most = (half * (1.0 + length)).ceil() + 1.0;
        for key in 0..50 {
            let admitted: f64 = local.for_key(key).allowed().to_string().parse().unwrap();
            assert!(admitted <= most, "key {key} got {admitted} units of at most {most}");
        }
    }
}

#[test]
fn shares_of_three_nodes_without_a_store_add_up_to_the_limit() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(3, &redis.url());
    trial.inject(|| redis.pause());
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(result.degraded, result.requests);
    assert!(
        (SMALL_LIMIT - 3..=SMALL_LIMIT + 3).contains(&result.allowed),
        "{} of {SMALL_LIMIT}",
        result.allowed
    );
    trial.run_for(Duration::from_secs(4));
    trial.restore(|| redis.resume());
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::All);
    report.assert_logged_once();
    report.assert_no_extra_connections(&redis);
    report.assert_no_double_charge(StoreData::Kept, timed_out);
}

/// Every algorithm that counts units, each with a limit of [`SMALL_LIMIT`] that takes a day to refill.
const ALGORITHMS: [(&str, &str); 5] = [
    ("token_bucket", "20/day"),
    ("leaky_bucket", "20/day burst 20"),
    ("fixed_window", "20/day"),
    ("sliding_window_counter", "20/day"),
    ("sliding_window_log", "20/day"),
];

#[test]
fn shares_add_up_to_the_limit_for_every_algorithm() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let rule = |(algorithm, limit): &(&str, &str)| {
        format!(
            "  - {{id: {algorithm}, match: {{path: /{algorithm}}}, limit: {limit}, algorithm: {algorithm}}}\n"
        )
    };
    fs::write(&rules, format!("rules:\n{}", ALGORITHMS.iter().map(rule).collect::<String>())).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_ratekeeper"));
    let (store, rules) = (redis.url(), rules.to_str().unwrap());
    let nodes = ServerNode::start_many(3, program, &["--store", &store, "--rules", rules]);
    for node in &nodes {
        wait_for(TEST_TIMEOUT, "nodes find each other", || {
            (node.metric("ratekeeper_live_nodes")?.to_string() == "3").then_some(())
        });
    }
    let body = |client: &str, path: &str| format!(r#"{{"client_key":"{client}","endpoint":"/{path}"}}"#);
    for (algorithm, _) in ALGORITHMS {
        // A known client uses nine units, spread over all nodes.
        for node in nodes.iter().cycle().take(9) {
            let answer = node.post("/check", &body("known", algorithm));
            assert!(answer.contains(r#""allowed":true"#), "{algorithm}: {answer}");
        }
    }
    redis.pause();
    for (algorithm, _) in ALGORITHMS {
        let ask = |client: &str| {
            let targets = nodes.iter().map(|node| Target::Http(node.http()));
            // Each node gets more requests than the limit.
            let tally = LoadPlan::new(targets).post("/check", &body(client, algorithm)).rate(600).run(100);
            assert_eq!((tally.degraded(), tally.failed()), (100, 0), "{algorithm}");
            tally.allowed()
        };
        let (unknown, known) = (ask("unknown"), ask("known"));
        println!("{algorithm}: {unknown} units for an unknown client, {known} for one that had used nine");
        assert!(
            (SMALL_LIMIT - 3..=SMALL_LIMIT + 3).contains(&unknown),
            "{algorithm} admitted {unknown} of {SMALL_LIMIT}"
        );
        // Nodes do not cache the state of a sliding log, so they start an empty one.
        let before = if algorithm == "sliding_window_log" { 0 } else { 9 };
        assert!(
            before + known <= SMALL_LIMIT + 3,
            "{algorithm} admitted {known} of {SMALL_LIMIT}, after {before} before the outage"
        );
    }
}
