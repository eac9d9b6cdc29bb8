//! Nodes that share a store, and the rules they go by.

use ratekeeper_testkit::load::{AnswerLog, LoadPlan, Target, TimedAnswer};
use ratekeeper_testkit::servers::{NodeSetup, ServerNode};
use ratekeeper_testkit::{PATIENCE, within};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How long a store has to answer: what holds unless somebody says otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

/// The units of the limit of [`Fleet::ask_for_few`].
pub(crate) const FEW: usize = 20;

/// The limit of rules that refuse some clients some of the time: a second's units, and as many at once.
pub(crate) const TIGHT: u32 = 5;

/// The limit of [`Amount::Counted`].
const PLENTY: u64 = 1_000_000;

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

/// What clients ask about: one path for each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Fails open, and refuses popular clients while it does not.
    Open,
    /// Fails closed, and refuses nobody while it does not.
    Closed,
    /// Goes by the node's share.
    Local,
    /// Fails open, and counts what it was charged.
    Counted,
    /// Never asks the store.
    Here,
    /// Goes by what was lent, and where that is used up fails closed.
    Leased,
    /// The default, which goes by the node's share, too.
    Default,
}

impl Ask {
    /// All of them, in the order in which answers number them.
    pub(crate) const ALL: [Ask; 7] =
        [Ask::Open, Ask::Closed, Ask::Local, Ask::Counted, Ask::Here, Ask::Leased, Ask::Default];

    /// What an answer is about.
    pub(crate) fn of(answer: &TimedAnswer) -> Ask {
        Ask::ALL[answer.endpoint]
    }

    /// Whether it may well be answered as if nothing had happened while the store is away.
    pub(crate) fn may_do_without(self) -> bool {
        matches!(self, Ask::Here | Ask::Leased)
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Ask::Open => "/open",
            Ask::Closed => "/closed",
            Ask::Local => "/local",
            Ask::Counted => "/counted",
            Ask::Here => "/here",
            Ask::Leased => "/leased",
            Ask::Default => "/default",
        }
    }
}

/// Nodes that share a store.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<ServerNode>,
    _rules: TempDir,
}

impl Fleet {
    /// So many nodes, which have found the store and each other.
    pub(crate) fn start(count: usize, store: &str) -> Fleet {
        let fleet = Fleet::start_each(count, |_, setup| setup.arguments(&["--store", store]));
        fleet.await_each_other();
        fleet
    }

    /// So many nodes, each set up in its own way, whether they find a store or not.
    pub(crate) fn start_each(count: usize, set_up: impl Fn(usize, NodeSetup) -> NodeSetup) -> Fleet {
        // Who is refused is not logged, so that the log holds nothing but what becomes of the store.
        Fleet::start_logging(count, |number, setup| set_up(number, setup.arguments(&["--denial-log", "0"])))
    }

    /// The same, with denials in the log.
    pub(crate) fn start_logging(count: usize, set_up: impl Fn(usize, NodeSetup) -> NodeSetup) -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules.yaml");
        fs::write(&rules, RULES).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_ratekeeper"));
        let start = |number| {
            let setup = ServerNode::setup(program).arguments(&["--rules", rules.to_str().unwrap()]);
            set_up(number, setup).start()
        };
        Fleet { nodes: (0..count).map(start).collect(), _rules: folder }
    }

    /// Waits until every node knows how many there are.
    pub(crate) fn await_each_other(&self) {
        for node in &self.nodes {
            within(PATIENCE, "nodes find each other", || {
                let count = node.metric("ratekeeper_live_nodes")?;
                (count.to_string() == self.nodes.len().to_string()).then_some(())
            });
        }
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.nodes.iter().map(|node| Target::Http(node.http())).collect()
    }

    /// How much the store says that a client has used at [`Amount::Counted`].
    #[track_caller]
    pub(crate) fn used(&self, key: u64) -> u64 {
        let path = Ask::Counted.path();
        let body = format!(r#"{{"client_key":"key{key}","endpoint":"{path}"}}"#);
        let answer = self.nodes[0].post("/v1/peek", &body);
        assert!(!answer.contains("degraded"), "{answer}");
        let remaining = answer.split_once(r#""remaining":"#).and_then(|(_, rest)| rest.split_once(','));
        let remaining: u64 = remaining.and_then(|(number, _)| number.parse().ok()).expect(&answer);
        PLENTY - remaining
    }

    /// Has a client ask all nodes at once, each of them for twice what they may admit together: [`FEW`], which take an hour
    /// to come back.
    #[track_caller]
    pub(crate) fn ask_for_few(&self, client: &str) -> Few {
        let told = self.ask_each_for_few(client);
        let sum = |count: fn(&Few) -> usize| told.iter().map(count).sum();
        Few {
            asked: sum(|few| few.asked),
            allowed: sum(|few| few.allowed),
            degraded: sum(|few| few.degraded),
        }
    }

    /// The same, and gives what each node said.
    #[track_caller]
    pub(crate) fn ask_each_for_few(&self, client: &str) -> Vec<Few> {
        let body = format!(r#"{{"client_key":"{client}","endpoint":"/few"}}"#);
        let ask = |target| LoadPlan::on([target]).post("/check", &body).connections(2).run(2 * FEW as u64);
        let tallies: Vec<AnswerLog> = thread::scope(|scope| {
            let asking: Vec<_> =
                self.targets().into_iter().map(|node| scope.spawn(move || ask(node))).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert!(tallies.iter().all(|tally| tally.failed() == 0), "nodes answer everybody");
        let few = |tally: &AnswerLog| Few {
            asked: tally.answers().len(),
            allowed: tally.allowed(),
            degraded: tally.degraded(),
        };
        tallies.iter().map(few).collect()
    }
}

/// What became of somebody who wanted more than there was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Few {
    pub(crate) asked: usize,
    pub(crate) allowed: usize,
    /// How many of all answers were given without the store.
    pub(crate) degraded: usize,
}
