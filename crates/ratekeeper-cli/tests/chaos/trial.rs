//! Clients that never stop, and a store that does.

use super::account::Account;
use super::fleet::{Ask, Fleet};
use super::log::Log;
use ratekeeper_testkit::load::{LoadPlan, Running, TimedAnswer};
use ratekeeper_testkit::servers::Footprint;
use ratekeeper_testkit::{PATIENCE, within};
use std::time::Duration;

/// Requests in a second, over all nodes: few enough that nobody has to wait for a processor.
const RATE: u32 = 300;
/// Connections to each node, each with a request every 160 ms: longer than any answer may take.
const CONNECTIONS: usize = 24;
/// How many clients there are. The most popular one asks for twice what it may have.
const CLIENTS: u32 = 50;
/// How long all goes well before something happens, and after it is over.
const CALM: Duration = Duration::from_secs(1);
/// How long a node goes on saying that its store was missed.
const LINGERS: Duration = Duration::from_secs(1);

/// A fleet under load, to which something happens.
pub(crate) struct Trial {
    pub(crate) fleet: Fleet,
    pub(crate) running: Running,
    marks: Marks,
    logged: Vec<usize>,
    footprints: Vec<Footprint>,
}

/// When what happened, by the clock of the answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// Until then nothing was wrong.
    pub(crate) away: Duration,
    /// From then on nothing was wrong any more.
    pub(crate) back: Duration,
    /// From then on every node answered everything by the store.
    pub(crate) exact: Duration,
}

impl Trial {
    /// So many nodes with this store under load, for long enough to be warm.
    pub(crate) fn begin(nodes: usize, store: &str) -> Trial {
        Trial::with(Fleet::start(nodes, store))
    }

    /// These nodes under load, for long enough to be warm.
    pub(crate) fn with(fleet: Fleet) -> Trial {
        let mut trial = Trial::without_store(fleet);
        // What was said at the start is not part of it.
        trial.logged = trial.fleet.nodes.iter().map(Log::length).collect();
        trial.await_answers("nodes answer by the store", Duration::ZERO, |answer| !answer.is_degraded);
        trial.go_on(CALM);
        trial.footprints =
            trial.fleet.nodes.iter().map(ratekeeper_testkit::servers::ServerNode::footprint).collect();
        trial
    }

    /// Nodes that have no store yet, under load from now on.
    pub(crate) fn without_store(fleet: Fleet) -> Trial {
        let load = LoadPlan::on(fleet.targets()).endpoints(&Ask::ALL.map(Ask::path)).zipf_keys(CLIENTS);
        let running = load.connections(CONNECTIONS).rate(RATE).begin();
        let logged = vec![0; fleet.nodes.len()];
        Trial { fleet, running, marks: Marks::default(), logged, footprints: Vec::new() }
    }

    /// Something goes wrong.
    pub(crate) fn lose<T>(&mut self, lose: impl FnOnce() -> T) -> T {
        self.marks.away = self.running.now();
        lose()
    }

    /// It is put right. The store has as long to be used again as [`super::account::RECOVERY`] says, from the end of this.
    pub(crate) fn restore<T>(&mut self, restore: impl FnOnce() -> T) -> T {
        let restored = restore();
        self.marks.back = self.running.now();
        restored
    }

    /// Lets clients go on for a while.
    pub(crate) fn go_on(&self, time: Duration) {
        self.running.go_on_until(self.running.now() + time);
    }

    /// Waits until every node answers everything without the store that it would ask the store for.
    #[track_caller]
    pub(crate) fn await_degraded(&self) {
        self.await_answers("nodes answer without the store", self.marks.away, |answer| {
            answer.is_degraded || Ask::of(answer).may_do_without()
        });
    }

    /// Waits until every node answers everything by the store again.
    #[track_caller]
    pub(crate) fn await_exact(&mut self) {
        let exact = |answer: &TimedAnswer| !answer.is_degraded;
        self.await_answers("nodes answer by the store again", self.marks.back, exact);
        self.marks.exact = self.running.now();
    }

    /// The same where only some clients were without: waits until every node says that its store is whole again.
    #[track_caller]
    pub(crate) fn await_whole(&mut self) {
        self.await_words("0");
        // A node says so once nothing has gone without the store for a while, so all was exact that while ago.
        self.marks.exact = self.running.now().saturating_sub(LINGERS).max(self.marks.back);
    }

    /// Waits until every node says that a part of its store is away.
    #[track_caller]
    pub(crate) fn await_broken(&self) {
        self.await_words("1");
    }

    #[track_caller]
    fn await_words(&self, is_degraded: &str) {
        for node in &self.fleet.nodes {
            within(PATIENCE, "nodes say how their store is", || {
                let said = node.metric("ratekeeper_store_degraded")?;
                (said.to_string() == is_degraded).then_some(())
            });
        }
    }

    /// Waits until of each node the latest answer about each rule was asked for after a moment, and is as it should be.
    #[track_caller]
    pub(crate) fn await_answers(&self, what: &str, after: Duration, is_so: impl Fn(&TimedAnswer) -> bool) {
        let count = self.fleet.nodes.len() * Ask::ALL.len();
        within(PATIENCE, what, || {
            let latest = self.running.latest();
            let are_so = latest.iter().all(|answer| answer.asked >= after && is_so(answer));
            (latest.len() == count && are_so).then_some(())
        });
    }

    /// Ends it after some time in which all goes well, and gives the account.
    pub(crate) fn end(self) -> Account {
        self.go_on(CALM);
        let Trial { fleet, running, marks, logged, footprints } = self;
        // Under the same load as before, so that the same connections are open.
        let after = fleet.nodes.iter().zip(&footprints);
        for (node, before) in after {
            within(PATIENCE, "what was opened is closed again", || {
                let now = node.footprint();
                (now.descriptors <= before.descriptors && now.threads <= before.threads).then_some(())
            });
        }
        let footprints = fleet.nodes.iter().zip(footprints).map(|(node, before)| (before, node.footprint()));
        let footprints = footprints.collect();
        let logs = fleet.nodes.iter().zip(logged).map(|(node, length)| Log::since(node, length)).collect();
        Account { tally: running.end(), fleet, marks, logs, footprints }
    }
}
