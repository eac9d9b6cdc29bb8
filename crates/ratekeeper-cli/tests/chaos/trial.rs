//! A trial: nodes under constant load while their store fails and recovers.

use super::node_group::{NodeGroup, TestRule};
use super::node_log::NodeLog;
use super::report::TrialReport;
use ratekeeper_testkit::load::{LoadPlan, LoadRun, TimedAnswer};
use ratekeeper_testkit::servers::Footprint;
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::time::Duration;

/// Requests per second over all nodes: few enough that no request has to wait for a processor.
const RATE: u32 = 300;
/// Connections to each node, each with one request every 160 ms, which is longer than any answer may take.
const CONNECTIONS: usize = 24;
/// The number of clients. The most popular one requests twice its limit.
const CLIENTS: u32 = 50;
/// How long the load runs without faults before an outage and after it.
const STEADY_TIME: Duration = Duration::from_secs(1);
/// How long a node keeps reporting itself as degraded after its last degraded answer.
const DEGRADED_HOLD: Duration = Duration::from_secs(1);

/// A group of nodes under load, with an outage.
pub(crate) struct Trial {
    pub(crate) group: NodeGroup,
    pub(crate) running: LoadRun,
    timeline: Timeline,
    log_offsets: Vec<usize>,
    footprints: Vec<Footprint>,
}

/// The times of an outage, by the clock of the answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeline {
    /// When the outage began.
    pub(crate) failed_at: Duration,
    /// When the outage ended.
    pub(crate) restored_at: Duration,
    /// When every node decided everything with the store again.
    pub(crate) exact_at: Duration,
}

impl Trial {
    /// Starts `nodes` nodes with this store, under load until they are warm.
    pub(crate) fn begin(nodes: usize, store: &str) -> Trial {
        Trial::with_nodes(NodeGroup::start(nodes, store))
    }

    /// Puts these nodes under load until they are warm.
    pub(crate) fn with_nodes(group: NodeGroup) -> Trial {
        let mut trial = Trial::without_store(group);
        // Lines logged during start-up are not part of the trial.
        trial.log_offsets = trial.group.nodes.iter().map(NodeLog::line_count).collect();
        trial.await_answers("nodes use the store", Duration::ZERO, |answer| !answer.is_degraded);
        trial.run_for(STEADY_TIME);
        trial.footprints =
            trial.group.nodes.iter().map(ratekeeper_testkit::servers::ServerNode::footprint).collect();
        trial
    }

    /// Puts nodes under load that have no store yet.
    pub(crate) fn without_store(group: NodeGroup) -> Trial {
        let load =
            LoadPlan::new(group.targets()).endpoints(&TestRule::ALL.map(TestRule::path)).zipf_keys(CLIENTS);
        let running = load.connections(CONNECTIONS).rate(RATE).start();
        let log_offsets = vec![0; group.nodes.len()];
        Trial { group, running, timeline: Timeline::default(), log_offsets, footprints: Vec::new() }
    }

    /// Records the beginning of the outage, then causes it.
    pub(crate) fn inject<T>(&mut self, fault: impl FnOnce() -> T) -> T {
        self.timeline.failed_at = self.running.now();
        fault()
    }

    /// Ends the outage, then records its end. From then on nodes have [`super::report::RECOVERY`] to use the store
    /// again.
    pub(crate) fn restore<T>(&mut self, restore: impl FnOnce() -> T) -> T {
        let restored = restore();
        self.timeline.restored_at = self.running.now();
        restored
    }

    /// Lets the load run for some time.
    pub(crate) fn run_for(&self, time: Duration) {
        self.running.wait_until(self.running.now() + time);
    }

    /// Waits until every node answers without the store wherever a rule would use it.
    #[track_caller]
    pub(crate) fn await_degraded(&self) {
        self.await_answers("nodes answer without the store", self.timeline.failed_at, |answer| {
            answer.is_degraded || TestRule::of(answer).may_skip_store()
        });
    }

    /// Waits until every node decides everything with the store again.
    #[track_caller]
    pub(crate) fn await_exact(&mut self) {
        let is_exact = |answer: &TimedAnswer| !answer.is_degraded;
        self.await_answers("nodes use the store again", self.timeline.restored_at, is_exact);
        self.timeline.exact_at = self.running.now();
    }

    /// Like [`Trial::await_exact`] for a partial outage: waits until no node reports itself as degraded.
    #[track_caller]
    pub(crate) fn await_full_recovery(&mut self) {
        self.await_degraded_metric("0");
        // A node clears the metric some time after its last degraded answer, so answers were exact that much earlier.
        self.timeline.exact_at =
            self.running.now().saturating_sub(DEGRADED_HOLD).max(self.timeline.restored_at);
    }

    /// Waits until every node reports that part of its store is down.
    #[track_caller]
    pub(crate) fn await_partial_outage(&self) {
        self.await_degraded_metric("1");
    }

    #[track_caller]
    fn await_degraded_metric(&self, is_degraded: &str) {
        for node in &self.group.nodes {
            wait_for(TEST_TIMEOUT, "nodes report the expected store state", || {
                let metric = node.metric("ratekeeper_store_degraded")?;
                (metric.to_string() == is_degraded).then_some(())
            });
        }
    }

    /// Waits until each node's latest answer for each rule was requested after `after` and satisfies `is_expected`.
    #[track_caller]
    pub(crate) fn await_answers(
        &self,
        what: &str,
        after: Duration,
        is_expected: impl Fn(&TimedAnswer) -> bool,
    ) {
        let count = self.group.nodes.len() * TestRule::ALL.len();
        wait_for(TEST_TIMEOUT, what, || {
            let latest = self.running.latest();
            let all_expected = latest.iter().all(|answer| answer.sent >= after && is_expected(answer));
            (latest.len() == count && all_expected).then_some(())
        });
    }

    /// Ends the trial after a further period without faults, and returns its report.
    pub(crate) fn end(self) -> TrialReport {
        self.run_for(STEADY_TIME);
        let Trial { group, running, timeline: marks, log_offsets: logged, footprints } = self;
        // Measured under the same load as before, so that the same connections are open.
        let after = group.nodes.iter().zip(&footprints);
        for (node, before) in after {
            wait_for(TEST_TIMEOUT, "descriptors and threads are released", || {
                let now = node.footprint();
                (now.descriptors <= before.descriptors && now.threads <= before.threads).then_some(())
            });
        }
        let footprints = group.nodes.iter().zip(footprints).map(|(node, before)| (before, node.footprint()));
        let footprints = footprints.collect();
        let logs =
            group.nodes.iter().zip(logged).map(|(node, length)| NodeLog::since(node, length)).collect();
        TrialReport { answer_log: running.stop(), group, timeline: marks, logs, footprints }
    }
}
