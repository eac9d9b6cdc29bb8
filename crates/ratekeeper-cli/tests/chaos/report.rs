//! The assertions that every outage test makes.
//!
//! - No request waits longer than the store deadline plus a small grace.
//! - Answers decided without the store follow each rule's `on_store_failure` and are marked as degraded.
//! - Nodes reconnect on their own within [`RECOVERY`] of the store's return, and are exact again.
//! - No connections, threads or memory leak, and each state change is logged once.
//!
//! A stalled machine delays every request, which is not a node's fault. Threads that are independent of the nodes
//! measure stalls as a control ([`AnswerLog::stalled_during`]), and every bound on a time is extended by the time that
//! the machine was stalled in it. To a node, a stall of about the store deadline looks like a short outage, so answers
//! may be degraded until it has recovered from that.

use super::node_group::{DEADLINE, NodeGroup, SMALL_LIMIT, TIGHT_LIMIT, TestRule};
use super::node_log::{NodeLog, ServerEvent};
use super::trial::Timeline;
use ratekeeper_testkit::load::{AnswerKind, AnswerLog, TimedAnswer};
use ratekeeper_testkit::servers::{Footprint, RedisServer};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The longest time from the store's return until every node uses it. A connection attempt in progress may have to
/// time out first, which takes up to 1.5 s, and the next one starts within 2 s.
pub(crate) const RECOVERY: Duration = Duration::from_secs(4);

/// The time allowed for a node and the network on top of the wait for the store.
const GRACE: Duration = Duration::from_millis(25);
/// How long after an outage begins a node may still answer from its denial cache, whose denials are exact.
const DENIAL_CACHE_GRACE: Duration = Duration::from_millis(300);
/// The shortest stall that may make a call to the store exceed the deadline.
const LONG_STALL: Duration = Duration::from_millis(25);
/// The most memory by which a node may grow during an outage, for buffers and caches.
const MEMORY_GROWTH_KIB: usize = 8 * 1024;
/// The number of connections a node keeps to each server.
const CONNECTIONS_PER_NODE: usize = 2;

/// Which answers are expected to be degraded, that is decided without the store, during an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DegradedAnswers {
    All,
    /// Any number, possibly zero.
    Some,
    None,
}

/// Whether the store kept its data through an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreData {
    Kept,
    Lost,
}

/// The results of a trial.
pub(crate) struct TrialReport {
    pub(crate) group: NodeGroup,
    pub(crate) answer_log: AnswerLog,
    pub(crate) timeline: Timeline,
    pub(crate) logs: Vec<NodeLog>,
    /// Each node's resource use before and after.
    pub(crate) footprints: Vec<(Footprint, Footprint)>,
}

impl TrialReport {
    /// Makes all assertions listed in the module docs, with the same expected degradation for every answer.
    #[track_caller]
    pub(crate) fn assert_all(&self, extent: DegradedAnswers) {
        self.assert_all_by(|_| extent);
    }

    /// Like [`TrialReport::assert_all`], with the expected degradation chosen per answer.
    #[track_caller]
    pub(crate) fn assert_all_by(&self, extent: impl Fn(&TimedAnswer) -> DegradedAnswers) {
        println!("{}", self.summary());
        self.assert_deadlines_met();
        self.assert_failure_modes();
        self.assert_local_shares();
        self.assert_degraded_answers(extent);
        self.assert_recovery();
        self.assert_no_leaks();
        self.logs.iter().for_each(NodeLog::assert_only_changes);
    }

    /// Summarises the trial in one line.
    fn summary(&self) -> String {
        let slowest = TestRule::ALL.map(|ask| {
            let slowest = self.answers_for(ask).latency(1.0);
            format!("{} {:.1}", ask.path(), slowest.as_secs_f64() * 1e3)
        });
        let (count, degraded) = (self.answer_log.answers().len(), self.answer_log.degraded());
        format!(
            "{count} answers, {degraded} degraded; exact again after {:?}; slowest, in ms: {}; the machine stalled \
             {} times, {:?} in total; {:?}",
            self.recovery_time(),
            slowest.join(", "),
            self.answer_log.stalls().len(),
            self.answer_log.stalled_during(Duration::ZERO..self.answer_log.elapsed()),
            self.footprints,
        )
    }

    /// The time from the end of the outage until all answers were exact again.
    pub(crate) fn recovery_time(&self) -> Duration {
        self.elapsed_without_stalls(self.timeline.restored_at..self.timeline.exact_at)
    }

    /// The length of a time, without the time that the machine was stalled in it.
    pub(crate) fn elapsed_without_stalls(&self, time: Range<Duration>) -> Duration {
        time.end.saturating_sub(time.start).saturating_sub(self.answer_log.stalled_during(time))
    }

    /// Whether a stall may have made a node take its store for unreachable when it answered.
    fn follows_long_stall(&self, answer: &TimedAnswer) -> bool {
        let from = answer.sent.saturating_sub(RECOVERY);
        self.long_stalls().any(|stall| stall.start < answer.answered && stall.end > from)
    }

    fn long_stalls(&self) -> impl Iterator<Item = &Range<Duration>> {
        self.answer_log.stalls().iter().filter(|stall| stall.end - stall.start >= LONG_STALL)
    }

    fn answers_for(&self, ask: TestRule) -> AnswerLog {
        self.answer_log.filter(|answer| TestRule::of(answer) == ask)
    }

    /// Every request is answered within the store deadline plus [`GRACE`], or within [`GRACE`] alone if its rule does
    /// not use the store.
    #[track_caller]
    pub(crate) fn assert_deadlines_met(&self) {
        assert_eq!(self.answer_log.failed(), 0, "nodes answer every request during an outage");
        for ask in TestRule::ALL {
            let latency_limit = if ask == TestRule::LocalOnly { GRACE } else { DEADLINE + GRACE };
            let slow = self.answers_for(ask).slower_than(latency_limit);
            let shown = &slow[..slow.len().min(10)];
            assert!(
                slow.is_empty(),
                "{} answers took longer than {latency_limit:?} for {ask:?}, for example {shown:#?}",
                slow.len()
            );
        }
    }

    /// Degraded answers follow each rule's `on_store_failure`.
    #[track_caller]
    pub(crate) fn assert_failure_modes(&self) {
        for answer in self.answer_log.answers().iter().filter(|answer| answer.is_degraded) {
            match TestRule::of(answer) {
                TestRule::Open | TestRule::Counted => {
                    assert_eq!(answer.kind, AnswerKind::Allowed, "{answer:?}");
                }
                TestRule::Closed | TestRule::Leased => {
                    assert_eq!(answer.kind, AnswerKind::Denied, "{answer:?}");
                }
                TestRule::LocalOnly => panic!("this rule does not use the store: {answer:?}"),
                TestRule::Local | TestRule::Default => {}
            }
        }
        // These rules deny only because of the store failure, never because of their limit.
        for ask in [TestRule::Closed, TestRule::Leased] {
            let exact = self.answers_for(ask).filter(|answer| !answer.is_degraded);
            assert_eq!(exact.denied(), 0, "the limit of {ask:?} is never reached");
        }
    }

    /// While nodes decide by their local shares, together they admit at most the limit plus one unit per node.
    #[track_caller]
    pub(crate) fn assert_local_shares(&self) {
        let Timeline { failed_at, exact_at, .. } = self.timeline;
        for ask in [TestRule::Local, TestRule::Default] {
            let mut admitted: BTreeMap<u64, usize> = BTreeMap::new();
            for answer in self.answers_for(ask).answers().iter().filter(|answer| answer.is_degraded) {
                *admitted.entry(answer.key).or_default() += usize::from(answer.kind == AnswerKind::Allowed);
            }
            let units = f64::from(TIGHT_LIMIT) * (1.0 + (exact_at - failed_at).as_secs_f64());
            let most = units.ceil() + f64::from(u32::try_from(self.group.nodes.len()).unwrap());
            for (key, count) in admitted {
                let count: f64 = count.to_string().parse().unwrap();
                assert!(count <= most, "key {key} got {count} units of at most {most} at {ask:?}");
            }
        }
    }

    /// Answers are degraded during the outage to the expected extent, and never before it.
    #[track_caller]
    pub(crate) fn assert_degraded_answers(&self, extent: impl Fn(&TimedAnswer) -> DegradedAnswers) {
        let Timeline { failed_at, restored_at, .. } = self.timeline;
        for answer in self.answer_log.answers() {
            let is_exact = !answer.is_degraded || self.follows_long_stall(answer);
            if answer.answered < failed_at {
                assert!(is_exact, "the outage began at {failed_at:?}: {answer:?}");
            }
            if TestRule::of(answer) == TestRule::LocalOnly {
                continue;
            }
            match extent(answer) {
                DegradedAnswers::All if TestRule::of(answer).may_skip_store() => {}
                DegradedAnswers::Some => {}
                DegradedAnswers::None => assert!(is_exact, "the store was reachable: {answer:?}"),
                DegradedAnswers::All => {
                    let is_outside =
                        answer.sent < failed_at + DENIAL_CACHE_GRACE || answer.answered > restored_at;
                    assert!(
                        is_outside || answer.is_degraded,
                        "the store was unreachable until {restored_at:?}: {answer:?}"
                    );
                }
            }
        }
    }

    /// Nodes use the store again within [`RECOVERY`] and stay exact to the unit.
    #[track_caller]
    pub(crate) fn assert_recovery(&self) {
        assert!(self.recovery_time() <= RECOVERY, "recovery took {:?}", self.recovery_time());
        let exact_at = self.timeline.exact_at;
        let is_late = |answer: &&TimedAnswer| {
            answer.sent > exact_at && answer.is_degraded && !self.follows_long_stall(answer)
        };
        let late = self.answer_log.answers().iter().find(is_late);
        assert_eq!(late, None, "all answers are exact from {exact_at:?} on");
        let result = self.group.exhaust_small_limit("after");
        assert_eq!((result.allowed, result.degraded), (SMALL_LIMIT, 0), "nodes share one limit exactly");
    }

    /// Descriptors, threads and memory opened during the outage are released.
    #[track_caller]
    pub(crate) fn assert_no_leaks(&self) {
        for (before, after) in &self.footprints {
            assert!(after.descriptors <= before.descriptors, "grew from {before:?} to {after:?}");
            assert!(after.threads <= before.threads, "grew from {before:?} to {after:?}");
            assert!(
                after.memory_kib <= before.memory_kib + MEMORY_GROWTH_KIB,
                "grew from {before:?} to {after:?}"
            );
        }
    }

    /// Every node logged once that the server went down and once that it reconnected. A long stall may have caused
    /// another outage, whose changes are logged too.
    #[track_caller]
    pub(crate) fn assert_logged_once(&self) {
        for log in &self.logs {
            if self.long_stalls().next().is_some() {
                log.assert_only_changes();
                continue;
            }
            let events: Vec<_> = log.server_events().into_values().collect();
            assert_eq!(events, [[ServerEvent::Down, ServerEvent::Connected]], "{}", log.lines().join("\n"));
        }
    }

    /// The server has exactly the connections that nodes keep open.
    #[track_caller]
    pub(crate) fn assert_no_extra_connections(&self, server: &RedisServer) {
        let expected = CONNECTIONS_PER_NODE * self.group.nodes.len();
        wait_for(TEST_TIMEOUT, "the server has only the connections that nodes keep", || {
            let list = server.command(&["CLIENT", "LIST"]).text();
            let count = list.lines().filter(|line| line.split(' ').any(|word| word == "name=ratekeeper"));
            (count.count() == expected).then_some(())
        });
    }

    /// No request was charged twice: a client's usage in the store is at most the units it was granted, plus its
    /// degraded requests for which `may_count` is true. If the store kept its data, usage is also at least the units
    /// granted.
    #[track_caller]
    pub(crate) fn assert_no_double_charge(&self, kept: StoreData, may_count: impl Fn(&TimedAnswer) -> bool) {
        let counted = self.answers_for(TestRule::Counted);
        let mut clients: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for answer in counted.answers() {
            let (granted, uncertain) = clients.entry(answer.key).or_default();
            *granted += u64::from(!answer.is_degraded);
            *uncertain += u64::from(answer.is_degraded && may_count(answer));
        }
        for (key, (granted, uncertain)) in clients {
            let used = self.group.used(key);
            let message = format!("key {key}: granted {granted}, uncertain {uncertain}, charged {used}");
            assert!(used <= granted + uncertain, "{message}");
            assert!(used >= granted || kept == StoreData::Lost, "{message}");
        }
    }
}

/// Whether a request waited for the store until about its deadline. The store may have charged such a request: see
/// [`TrialReport::assert_no_double_charge`].
pub(crate) fn timed_out(answer: &TimedAnswer) -> bool {
    answer.answered - answer.sent >= DEADLINE * 4 / 5
}
