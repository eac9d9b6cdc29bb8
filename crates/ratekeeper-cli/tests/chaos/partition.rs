//! Nodes that can't reach the store, though their clients reach them.

use super::account::{Extent, Kept, waited_in_vain};
use super::fleet::{Ask, FEW, Fleet, TIGHT};
use super::trial::Trial;
use ratekeeper_testkit::load::{LoadPlan, Target};
use ratekeeper_testkit::servers::{Brand, Network, RedisServer, ServerNode};
use ratekeeper_testkit::{PATIENCE, within};
use std::fs;
use std::path::Path;
use std::time::Duration;

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
    // A server learns only by this that a connection which was given up meanwhile is gone.
    let redis = RedisServer::setup(Brand::Redis).set("tcp-keepalive", "2").on(&near).start();
    let fleet = Fleet::start_each(2, |number, setup| {
        let setup = setup.arguments(&["--store", &redis.url()]);
        if number == 1 { setup.on(&far) } else { setup }
    });
    fleet.await_each_other();
    let mut trial = Trial::with(fleet);
    assert_eq!(trial.fleet.ask_for_few("known").allowed, FEW);
    trial.lose(|| far.part_from(&near).unwrap());
    trial.await_answers("a node answers without the store", trial.running.now(), |answer| {
        answer.target == 0 || answer.is_degraded || Ask::of(answer).may_do_without()
    });
    // What both know to be used up is used up. Of a client whom it has not met, the node that is cut off admits its half: it
    // can't know that the other admits all.
    assert_eq!(trial.fleet.ask_for_few("known").allowed, 0);
    let [joined, apart] = trial.fleet.ask_each_for_few("unknown")[..] else { panic!("there are two nodes") };
    assert_eq!((joined.allowed, joined.degraded), (FEW, 0));
    assert_eq!((apart.allowed, apart.degraded), (FEW / 2, apart.asked));
    trial.go_on(Duration::from_secs(3));
    trial.restore(|| far.meet(&near).unwrap());
    trial.await_exact();
    let account = trial.end();
    account.hold_each_to(|answer| if answer.target == 0 { Extent::None } else { Extent::All });
    account.nobody_lingers(&redis);
    account.nobody_is_charged_twice(Kept::Everything, waited_in_vain);
    let length = (account.marks.exact - account.marks.away).as_secs_f64();
    let half = f64::from(TIGHT) / 2.0;
    for ask in [Ask::Local, Ask::Default] {
        let local = account.tally.only(|answer| answer.is_degraded && Ask::of(answer) == ask);
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
    assert_eq!(few.degraded, few.asked);
    assert!((FEW - 3..=FEW + 3).contains(&few.allowed), "{} of {FEW}", few.allowed);
    trial.go_on(Duration::from_secs(4));
    trial.restore(|| redis.resume());
    trial.await_exact();
    let account = trial.end();
    account.hold_to(Extent::All);
    account.is_told_once();
    account.nobody_lingers(&redis);
    account.nobody_is_charged_twice(Kept::Everything, waited_in_vain);
}

/// The laws that count units, with limits of as many, which take a day to come back.
const LAWS: [(&str, &str); 5] = [
    ("token_bucket", "20/day"),
    ("leaky_bucket", "20/day burst 20"),
    ("fixed_window", "20/day"),
    ("sliding_window_counter", "20/day"),
    ("sliding_window_log", "20/day"),
];

#[test]
fn shares_of_every_law_are_one_limit_together() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let rule = |(law, limit): &(&str, &str)| {
        format!("  - {{id: {law}, match: {{path: /{law}}}, limit: {limit}, algorithm: {law}}}\n")
    };
    fs::write(&rules, format!("rules:\n{}", LAWS.iter().map(rule).collect::<String>())).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_ratekeeper"));
    let (store, rules) = (redis.url(), rules.to_str().unwrap());
    let nodes = ServerNode::start_many(3, program, &["--store", &store, "--rules", rules]);
    for node in &nodes {
        within(PATIENCE, "nodes find each other", || {
            (node.metric("ratekeeper_live_nodes")?.to_string() == "3").then_some(())
        });
    }
    let body = |client: &str, law: &str| format!(r#"{{"client_key":"{client}","endpoint":"/{law}"}}"#);
    for (law, _) in LAWS {
        // Every node in turn hears of this one, who uses nine units.
        for node in nodes.iter().cycle().take(9) {
            let told = node.post("/check", &body("known", law));
            assert!(told.contains(r#""allowed":true"#), "{law}: {told}");
        }
    }
    redis.pause();
    for (law, _) in LAWS {
        let ask = |client: &str| {
            let targets = nodes.iter().map(|node| Target::Http(node.http()));
            // Of every node more than a limit.
            let tally = LoadPlan::on(targets).post("/check", &body(client, law)).rate(600).run(100);
            assert_eq!((tally.degraded(), tally.failed()), (100, 0), "{law}");
            tally.allowed()
        };
        let (unknown, known) = (ask("unknown"), ask("known"));
        println!("{law}: {unknown} to one whom nobody knew, and {known} to one who had had nine");
        assert!((FEW - 3..=FEW + 3).contains(&unknown), "{law} admitted {unknown} of {FEW}");
        // What a log holds is not known to nodes, who begin it anew.
        let before = if law == "sliding_window_log" { 0 } else { 9 };
        assert!(before + known <= FEW + 3, "{law} admitted {known} of {FEW}, and {before} before");
    }
}
