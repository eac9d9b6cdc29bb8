//! A group of nodes that share a store, and their rules.

use ratekeeper_testkit::load::{AnswerLog, LoadPlan, Target, TimedAnswer};
use ratekeeper_testkit::servers::{NodeSetup, ServerNode};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The default store timeout.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

/// The limit that [`NodeGroup::exhaust_small_limit`] uses up.
pub(crate) const SMALL_LIMIT: usize = 20;

/// The limit of the rules that sometimes deny popular clients: units per second, and the burst.
pub(crate) const TIGHT_LIMIT: u32 = 5;

/// The limit of [`TestRule::Counted`].
const COUNTED_LIMIT: u64 = 1_000_000;

const RULES: &str = "\
rules:
  - {id: open, match: {path: /open}, limit: 5/s, on_store_failure: open}
  - {id: closed, match: {path: /closed}, limit: 1000/s, on_store_failure: closed}
  - {id: local, match: {path: /local}, limit: 5/s, on_store_failure: local}
  - id: counted
    match: {path: /counted}
    limit: 1000000/day
    algorithm: fixed_window
    starts: first_hit
    on_store_failure: open
  - {id: here, match: {path: /here}, limit: 1000/s, consistency: local}
  - {id: leased, match: {path: /leased}, limit: 100000/h, consistency: leased, on_store_failure: closed}
  - {id: few, match: {path: /few}, limit: 20/h}
default: {limit: 5/s}
consistency: exact
";

/// The rule that a request is sent to; each has its own path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestRule {
    /// Fails open, and denies popular clients while the store is up.
    Open,
    /// Fails closed, and denies no client while the store is up.
    Closed,
    /// Falls back to the node's share of the limit.
    Local,
    /// Fails open, with a limit so high that it only counts the units charged.
    Counted,
    /// Never uses the store (`consistency: local`).
    LocalOnly,
    /// Spends leased units, and fails closed when they are used up.
    Leased,
    /// The fallback limit, which also falls back to the node's share.
    Default,
}

impl TestRule {
    /// All rules, in the order of [`TimedAnswer::endpoint`].
    pub(crate) const ALL: [TestRule; 7] = [
        TestRule::Open,
        TestRule::Closed,
        TestRule::Local,
        TestRule::Counted,
        TestRule::LocalOnly,
        TestRule::Leased,
        TestRule::Default,
    ];

    /// The rule that an answer belongs to.
    pub(crate) fn of(answer: &TimedAnswer) -> TestRule {
        TestRule::ALL[answer.endpoint]
    }

    /// Whether requests may be answered as not degraded while the store is down.
    pub(crate) fn may_skip_store(self) -> bool {
        matches!(self, TestRule::LocalOnly | TestRule::Leased)
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            TestRule::Open => "/open",
            TestRule::Closed => "/closed",
            TestRule::Local => "/local",
            TestRule::Counted => "/counted",
            TestRule::LocalOnly => "/here",
            TestRule::Leased => "/leased",
            TestRule::Default => "/default",
        }
    }
}

/// A group of nodes that share a store.
pub(crate) struct NodeGroup {
    pub(crate) nodes: Vec<ServerNode>,
    _rules: TempDir,
}

impl NodeGroup {
    /// Starts `count` nodes and waits until they have found the store and each other.
    pub(crate) fn start(count: usize, store: &str) -> NodeGroup {
        let group = NodeGroup::start_with(count, |_, setup| setup.arguments(&["--store", store]));
        group.await_discovery();
        group
    }

    /// Starts `count` nodes, each configured by `set_up`, without waiting for a store.
    pub(crate) fn start_with(count: usize, set_up: impl Fn(usize, NodeSetup) -> NodeSetup) -> NodeGroup {
        // The denial log is off, so that the log contains only lines about the store.
        NodeGroup::start_with_denial_log(count, |number, setup| {
            set_up(number, setup.arguments(&["--denial-log", "0"]))
        })
    }

    /// Like [`NodeGroup::start_with`], with the denial log on.
    pub(crate) fn start_with_denial_log(
        count: usize,
        set_up: impl Fn(usize, NodeSetup) -> NodeSetup,
    ) -> NodeGroup {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules.yaml");
        fs::write(&rules, RULES).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_ratekeeper"));
        let start = |number| {
            let setup = ServerNode::setup(program).arguments(&["--rules", rules.to_str().unwrap()]);
            set_up(number, setup).start()
        };
        NodeGroup { nodes: (0..count).map(start).collect(), _rules: folder }
    }

    /// Waits until every node knows how many nodes are live.
    pub(crate) fn await_discovery(&self) {
        for node in &self.nodes {
            wait_for(TEST_TIMEOUT, "nodes find each other", || {
                let count = node.metric("ratekeeper_live_nodes")?;
                (count.to_string() == self.nodes.len().to_string()).then_some(())
            });
        }
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.nodes.iter().map(|node| Target::Http(node.http())).collect()
    }

    /// The units that the store has charged to a client under [`TestRule::Counted`].
    #[track_caller]
    pub(crate) fn used(&self, key: u64) -> u64 {
        let path = TestRule::Counted.path();
        let body = format!(r#"{{"client_key":"key{key}","endpoint":"{path}"}}"#);
        let answer = self.nodes[0].post("/v1/peek", &body);
        assert!(!answer.contains("degraded"), "{answer}");
        let remaining = answer.split_once(r#""remaining":"#).and_then(|(_, rest)| rest.split_once(','));
        let remaining: u64 = remaining.and_then(|(number, _)| number.parse().ok()).expect(&answer);
        COUNTED_LIMIT - remaining
    }

    /// Sends one client's requests to all nodes at once, twice [`SMALL_LIMIT`] to each. The limit refills over an
    /// hour, so all nodes together may admit [`SMALL_LIMIT`].
    #[track_caller]
    pub(crate) fn exhaust_small_limit(&self, client: &str) -> SmallLimitResult {
        let results = self.exhaust_small_limit_per_node(client);
        let sum = |count: fn(&SmallLimitResult) -> usize| results.iter().map(count).sum();
        SmallLimitResult {
            requests: sum(|result| result.requests),
            allowed: sum(|result| result.allowed),
            degraded: sum(|result| result.degraded),
        }
    }

    /// Like [`NodeGroup::exhaust_small_limit`], with one result per node.
    #[track_caller]
    pub(crate) fn exhaust_small_limit_per_node(&self, client: &str) -> Vec<SmallLimitResult> {
        let body = format!(r#"{{"client_key":"{client}","endpoint":"/few"}}"#);
        let ask =
            |target| LoadPlan::new([target]).post("/check", &body).connections(2).run(2 * SMALL_LIMIT as u64);
        let tallies: Vec<AnswerLog> = thread::scope(|scope| {
            let asking: Vec<_> =
                self.targets().into_iter().map(|node| scope.spawn(move || ask(node))).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert!(tallies.iter().all(|tally| tally.failed() == 0), "nodes answer every request");
        let result = |tally: &AnswerLog| SmallLimitResult {
            requests: tally.answers().len(),
            allowed: tally.allowed(),
            degraded: tally.degraded(),
        };
        tallies.iter().map(result).collect()
    }
}

/// The answers to a client that requested more than the small limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallLimitResult {
    pub(crate) requests: usize,
    pub(crate) allowed: usize,
    /// The number of answers decided without the store.
    pub(crate) degraded: usize,
}
