//! Four nodes that share one store, under load.

use super::limit_case::LimitCase;
use ratekeeper_testkit::load::{AnswerLog, LoadPlan, LoadRun, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock offset of each node in seconds, if clocks differ: three seconds from one node to the next.
const CLOCK_OFFSETS: [f64; 4] = [-3.0, 0.0, 3.0, 6.0];
/// The node whose clock is also stepped repeatedly.
const JUMPING_NODE: usize = 1;
/// Clients per node: 64 in total.
const CLIENTS_EACH: usize = 16;
const DURATION: Duration = Duration::from_secs(10);

/// How the nodes' clocks are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeClocks {
    /// All show the machine's time.
    Accurate,
    /// Each has its own offset, and one is stepped repeatedly.
    Skewed,
}

/// Which keys clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    OneKey,
    ManyKeys,
}

impl Workload {
    /// The limits under test, in the order of the answers' `endpoint`.
    pub(crate) fn limit_cases(self) -> [LimitCase; 5] {
        match self {
            Workload::OneKey => LimitCase::all(10),
            Workload::ManyKeys => LimitCase::all(1),
        }
    }
}

/// The answers to a load run.
pub(crate) struct LoadResult {
    pub(crate) answer_log: AnswerLog,
    /// The Unix time at which the run began, by the machine's clock, which the store uses too.
    pub(crate) started_at: Duration,
}

/// Runs the load on four nodes for [`DURATION`].
pub(crate) fn run_load(workload: Workload, clocks: NodeClocks) -> LoadResult {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    fs::write(
        &rules,
        format!(
            "consistency: exact\nrules:\n{}",
            workload.limit_cases().map(|case| case.rule_line()).concat()
        ),
    )
    .unwrap();
    let nodes: Vec<_> = CLOCK_OFFSETS.iter().map(|ahead| start(&redis, &rules, clocks, *ahead)).collect();
    // Half of the nodes are called over HTTP, half over RESP.
    let target = |(index, node): (usize, &ServerNode)| match index % 2 {
        0 => Target::Http(node.http()),
        _ => Target::Resp(node.resp()),
    };
    let paths = workload.limit_cases().map(|case| format!("/{}", case.name));
    let load =
        LoadPlan::new(nodes.iter().enumerate().map(target)).endpoints(&paths.each_ref().map(String::as_str));
    let load = match workload {
        Workload::OneKey => load.keys(1),
        Workload::ManyKeys => load.zipf_keys(300),
    };
    let running = load.connections(CLIENTS_EACH).start();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    match clocks {
        NodeClocks::Accurate => running.wait_until(DURATION),
        NodeClocks::Skewed => step_clock(&nodes[JUMPING_NODE], &running),
    }
    let tally = running.stop();
    assert_eq!((tally.failed(), tally.degraded()), (0, 0), "the store decides every request");
    for (index, (node, ahead)) in nodes.iter().zip(CLOCK_OFFSETS).enumerate() {
        match clocks {
            NodeClocks::Accurate => assert_reports_clock_drift(node, &redis, 0.0),
            NodeClocks::Skewed if index == JUMPING_NODE => {}
            NodeClocks::Skewed => assert_reports_clock_drift(node, &redis, ahead),
        }
    }
    println!("{} answers in {:?}", tally.answers().len(), tally.elapsed());
    LoadResult { answer_log: tally, started_at: epoch }
}

fn start(redis: &RedisServer, rules: &Path, clocks: NodeClocks, ahead: f64) -> ServerNode {
    let setup = ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper")));
    // A long timeout, so that an overloaded machine does not look like a store outage.
    let arguments = [
        "--store",
        &redis.url(),
        "--rules",
        rules.to_str().unwrap(),
        "--store-timeout",
        "1s",
        "--denial-log",
        "0",
    ];
    let setup = setup.arguments(&arguments);
    match clocks {
        NodeClocks::Accurate => setup.start(),
        NodeClocks::Skewed => setup.clock(ahead).start(),
    }
}

/// Steps a node's clock forward and back, by more and by less than any period, until the run ends. A forward step
/// lasts: the node follows a clock that is set back only slowly.
fn step_clock(node: &ServerNode, running: &LoadRun) {
    for ahead in [5.0, -5.0, 3600.0, -3600.0, 0.5, -0.5].into_iter().cycle() {
        running.wait_until((running.now() + Duration::from_millis(500)).min(DURATION));
        if running.now() >= DURATION {
            break;
        }
        node.set_clock(ahead);
    }
    node.set_clock(0.0);
}

fn assert_reports_clock_drift(node: &ServerNode, redis: &RedisServer, ahead: f64) {
    let name = format!("ratekeeper_store_clock_drift_seconds{{server=\"{}\"}}", redis.address());
    wait_for(TEST_TIMEOUT, &format!("the node reports that its clock is {ahead} s ahead"), || {
        let drift = node.metric(&name)?;
        ((drift + ahead).abs() < 0.1).then_some(())
    });
}

#[expect(clippy::disallowed_methods, reason = "the test depends on the window boundaries of the real clock")]
pub(crate) fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
