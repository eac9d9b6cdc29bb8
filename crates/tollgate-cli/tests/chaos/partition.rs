//! Nodes that can't reach the store, though their clients reach them.

use super::account::{Extent, Kept};
use super::fleet::{Ask, FEW, Fleet, TIGHT};
use super::trial::Trial;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tollgate_testkit::load::{Load, Target, Verdict};
use tollgate_testkit::servers::{Brand, Network, Node, RedisServer};
use tollgate_testkit::{PATIENCE, within};

#[test]
fn one_of_two_nodes_is_cut_off_and_goes_by_its_share() {
    let mut network = match Network::new() {
        Ok(network) => network,
        // Where nobody may lay networks there is nothing to try, but it is told what is missing.
        Err(why) => {
            return assert!(why.contains("root's rights") || why.contains("need the program"), "{why}");
        }
    };
    let (near, far) = (network.island().unwrap(), network.island().unwrap());
    let redis = RedisServer::setup(Brand::Redis).on(&near).start();
    let fleet = Fleet::start_each(2, |number, setup| {
        let setup = setup.arguments(&["--store", &redis.url()]);
        if number == 1 { setup.on(&far) } else { setup }
    });
    fleet.await_each_other();
    let mut trial = Trial::with(fleet);
    assert_eq!(trial.fleet.ask_for_few("known").allowed(), FEW);
    trial.lose(|| far.part_from(&near).unwrap());
    trial.await_answers("a node answers without the store", trial.running.now(), |answer| {
        answer.target == 0 || answer.is_degraded || Ask::ALL[answer.endpoint] == Ask::Here
    });
    // What both know to be used up is used up. Of a client whom it has not met, the node that is cut off admits its half: it
    // can't know that the other admits all.
    assert_eq!(trial.fleet.ask_for_few("known").allowed(), 0);
    let few = trial.fleet.ask_for_few("unknown");
    assert_eq!((few.of(0).allowed(), few.of(1).allowed()), (FEW, FEW / 2));
    assert_eq!((few.of(0).degraded(), few.of(1).degraded()), (0, few.of(1).answers().len()));
    trial.go_on(Duration::from_secs(3));
    trial.restore(|| far.meet(&near).unwrap());
    trial.await_exact();
    let account = trial.end();
    account.hold_each_to(|answer| if answer.target == 0 { Extent::None } else { Extent::All });
    account.nobody_lingers(&redis);
    account.nobody_is_charged_twice(Kept::Everything);
    let length = (account.marks.exact - account.marks.away).as_secs_f64();
    let half = f64::from(TIGHT) / 2.0;
    for ask in [Ask::Local, Ask::Default] {
        let local = account.tally.only(|answer| answer.is_degraded && Ask::ALL[answer.endpoint] == ask);
        let most = (half * (1.0 + length)).ceil() + 1.0;
        for key in 0..50 {
            let admitted: f64 = local.for_key(key).allowed().to_string().parse().unwrap();
            assert!(admitted <= most, "{admitted} of {most} went to key {key}");
        }
    }
}

#[test]
fn three_nodes_without_a_store_admit_together_what_one_limit_does() {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(3, &redis.url());
    trial.lose(|| redis.pause());
    trial.await_degraded();
    let few = trial.fleet.ask_for_few("meanwhile");
    assert_eq!(few.degraded(), few.answers().len());
    assert!((FEW - 3..=FEW + 3).contains(&few.allowed()), "{} of {FEW}", few.allowed());
    trial.go_on(Duration::from_secs(4));
    trial.restore(|| redis.resume());
    trial.await_exact();
    let account = trial.end();
    account.hold_to(Extent::All);
    account.is_told_once();
    account.nobody_lingers(&redis);
    account.nobody_is_charged_twice(Kept::Everything);
}

/// The laws that count units. The limit takes a day to come back.
const LAWS: [&str; 5] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"];

#[test]
fn shares_of_every_law_are_one_limit_together() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let rule = |law: &&str| {
        format!(
            "  - {{id: {law}, match: {{path: /{law}}}, limit: {}, algorithm: {law}}}\n",
            if law.ends_with("bucket") { "20/day burst 20" } else { "20/day" }
        )
    };
    fs::write(&rules, format!("rules:\n{}", LAWS.iter().map(rule).collect::<String>())).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let (store, rules) = (redis.url(), rules.to_str().unwrap());
    let nodes = Node::start_many(3, program, &["--store", &store, "--rules", rules]);
    for node in &nodes {
        within(PATIENCE, "nodes find each other", || {
            (node.metric("tollgate_live_nodes")? > 2.5).then_some(())
        });
    }
    let ask = |client: &str, law: &str, requests: u64| {
        let body = format!(r#"{{"client_key":"{client}","endpoint":"/{law}"}}"#);
        let targets = nodes.iter().map(|node| Target::Http(node.http()));
        Load::on(targets).post("/check", &body).run(requests)
    };
    for law in LAWS {
        // Every node has met this one, who has used nine.
        assert_eq!(ask("known", law, 9).allowed(), 9, "{law}");
    }
    redis.pause();
    for law in LAWS {
        let unknown = ask("unknown", law, 120);
        assert_eq!(
            unknown.only(|answer| answer.verdict != Verdict::Failed && answer.is_degraded).answers().len(),
            120
        );
        assert!((FEW - 3..=FEW + 3).contains(&unknown.allowed()), "{law}: {} of 20", unknown.allowed());
        let known = ask("known", law, 120);
        assert!(known.allowed() <= FEW + 3, "{law}: {} of 20", known.allowed());
        println!(
            "{law}: {} to whom nobody knew, {} to whom all knew to have had nine",
            unknown.allowed(),
            known.allowed()
        );
    }
}
