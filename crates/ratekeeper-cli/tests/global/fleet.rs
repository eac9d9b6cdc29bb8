//! Four nodes on one store, and a crowd before them.

use super::law::Law;
use ratekeeper_testkit::load::{AnswerLog, LoadPlan, Running, Target};
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use ratekeeper_testkit::{PATIENCE, within};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far each node's clock is ahead of the machine's, where clocks differ: each by three seconds from the next.
const AHEAD: [f64; 4] = [-3.0, 0.0, 3.0, 6.0];
/// Whose clock is set again and again, too.
const JUMPING: usize = 1;
/// Sixteen for each of four nodes: sixty-four in all.
const CLIENTS_EACH: usize = 16;
const TIME: Duration = Duration::from_secs(10);

/// What nodes think that the time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// What it is.
    True,
    /// Each something else, and one of them now this, now that.
    Apart,
}

/// Whom a crowd asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    OneKey,
    ManyKeys,
}

impl Crowd {
    /// The laws that it asks about, in the order in which answers number them.
    pub(crate) fn laws(self) -> [Law; 5] {
        match self {
            Crowd::OneKey => Law::each(10),
            Crowd::ManyKeys => Law::each(1),
        }
    }
}

/// What was said to a crowd.
pub(crate) struct Told {
    pub(crate) tally: AnswerLog,
    /// When it began, since 1970 by the machine's clock, which is the store's.
    pub(crate) epoch: Duration,
}

/// Has a crowd ask four nodes for as long as it takes.
pub(crate) fn run(crowd: Crowd, clocks: Clocks) -> Told {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, format!("consistency: exact\nrules:\n{}", crowd.laws().map(|law| law.rule()).concat()))
        .unwrap();
    let nodes: Vec<_> = AHEAD.iter().map(|ahead| start(&redis, &rules, clocks, *ahead)).collect();
    // Half of them over one port, half over the other.
    let target = |(index, node): (usize, &ServerNode)| match index % 2 {
        0 => Target::Http(node.http()),
        _ => Target::Resp(node.resp()),
    };
    let paths = crowd.laws().map(|law| format!("/{}", law.name));
    let load =
        LoadPlan::on(nodes.iter().enumerate().map(target)).endpoints(&paths.each_ref().map(String::as_str));
    let load = match crowd {
        Crowd::OneKey => load.keys(1),
        Crowd::ManyKeys => load.zipf_keys(300),
    };
    let running = load.connections(CLIENTS_EACH).begin();
    let epoch = unix_now().checked_sub(running.now()).unwrap();
    match clocks {
        Clocks::True => running.go_on_until(TIME),
        Clocks::Apart => jump(&nodes[JUMPING], &running),
    }
    let tally = running.end();
    assert_eq!((tally.failed(), tally.degraded()), (0, 0), "the store answers everybody");
    for (index, (node, ahead)) in nodes.iter().zip(AHEAD).enumerate() {
        match clocks {
            Clocks::True => knows_how_far_it_is_off(node, &redis, 0.0),
            Clocks::Apart if index == JUMPING => {}
            Clocks::Apart => knows_how_far_it_is_off(node, &redis, ahead),
        }
    }
    println!("{} answers in {:?}", tally.answers().len(), tally.took());
    Told { tally, epoch }
}

fn start(redis: &RedisServer, rules: &Path, clocks: Clocks, ahead: f64) -> ServerNode {
    let setup = ServerNode::setup(Path::new(env!("CARGO_BIN_EXE_ratekeeper")));
    // So patient that a machine with too much to do is not taken for a store that is away.
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
        Clocks::True => setup.start(),
        Clocks::Apart => setup.clock(ahead).start(),
    }
}

/// Sets a node's clock forth and back, by more and less than any period, until the time is over. What is forth for it stays so: it
/// follows a clock that is set back only slowly.
fn jump(node: &ServerNode, running: &Running) {
    for ahead in [5.0, -5.0, 3600.0, -3600.0, 0.5, -0.5].into_iter().cycle() {
        running.go_on_until((running.now() + Duration::from_millis(500)).min(TIME));
        if running.now() >= TIME {
            break;
        }
        node.set_clock(ahead);
    }
    node.set_clock(0.0);
}

fn knows_how_far_it_is_off(node: &ServerNode, redis: &RedisServer, ahead: f64) {
    let name = format!("ratekeeper_store_clock_drift_seconds{{server=\"{}\"}}", redis.address());
    within(PATIENCE, &format!("a node knows that its clock is {ahead} s ahead"), || {
        let drift = node.metric(&name)?;
        ((drift + ahead).abs() < 0.1).then_some(())
    });
}

#[expect(clippy::disallowed_methods, reason = "where the windows of real clocks lie is what is tested")]
pub(crate) fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
