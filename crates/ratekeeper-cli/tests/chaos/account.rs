//! What every outage is held to.
//!
//! Nobody waits longer than the store's deadline and a little more; answers without the store are as each rule's
//! `on_store_failure` says, and say so; when the store is back, nodes find it by themselves, within [`RECOVERY`], and are exact
//! again; nothing is left behind, and the log tells each change once.
//!
//! A machine that stands still makes everybody wait, which is no node's fault. So threads that have nothing to do with nodes
//! watch for that ([`Tally::slower_than`]), and only the time that they measured is taken off the waits of those requests
//! that fell into it. If there were more than a few of those, the trial says nothing and fails. One that failed while the machine stood
//! still for long is held again: see [`ratekeeper_testkit::despite_stalls`].

use super::fleet::{Ask, DEADLINE, FEW, Fleet, TIGHT};
use super::log::{Log, News};
use super::trial::Marks;
use ratekeeper_testkit::load::{AnswerKind, AnswerLog, SlowAnswers, TimedAnswer};
use ratekeeper_testkit::servers::{Footprint, RedisServer};
use ratekeeper_testkit::{PATIENCE, within};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long it takes at most from when a store is back until every node uses it: an attempt that was under way may have to
/// end first, which takes up to a second and a half, and the next comes within two.
pub(crate) const RECOVERY: Duration = Duration::from_secs(4);

/// What a node and the way to it may take on top of what it waits for the store.
const GRACE: Duration = Duration::from_millis(25);
/// How long after a store is gone it may still be told from memory that a client has nothing left, which is exact.
const NOTICE: Duration = Duration::from_millis(300);
/// How many of a thousand requests may have waited too long because the machine stood still.
const EXCUSED_PER_MILLE: usize = 20;
/// How much more memory a node may use after an outage than before: what buffers and caches have grown by.
const GROWTH_KIB: usize = 8 * 1024;
/// How many connections a node keeps to a server.
const LINKS: usize = 2;

/// Which answers are given without the store while something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All.
    All,
    /// Some, and perhaps none.
    Some,
    /// None.
    None,
}

/// What a store still knows after an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Everything,
    Nothing,
}

/// All that is known after a trial.
pub(crate) struct Account {
    pub(crate) fleet: Fleet,
    pub(crate) tally: AnswerLog,
    pub(crate) marks: Marks,
    pub(crate) logs: Vec<Log>,
    /// Of each node, before and after.
    pub(crate) footprints: Vec<(Footprint, Footprint)>,
}

impl Account {
    /// Holds the trial to all that is said above, if this was the extent of it.
    #[track_caller]
    pub(crate) fn hold_to(&self, extent: Extent) {
        self.hold_each_to(|_| extent);
    }

    /// The same, where answers differ in that.
    #[track_caller]
    pub(crate) fn hold_each_to(&self, extent: impl Fn(&TimedAnswer) -> Extent) {
        println!("{}", self.summary());
        self.nobody_waits();
        self.modes_hold();
        self.shares_hold();
        self.extent_is(extent);
        self.recovers_by_itself();
        self.nothing_leaks();
        self.logs.iter().for_each(Log::must_tell_only_news);
    }

    /// The trial in a line.
    fn summary(&self) -> String {
        let slowest = Ask::ALL.map(|ask| {
            let slowest = self.about(ask).latency(1.0);
            format!("{} {:.1}", ask.path(), slowest.as_secs_f64() * 1e3)
        });
        let (count, degraded) = (self.tally.answers().len(), self.tally.degraded());
        let SlowAnswers { guilty, excused } = self.tally.slower_than(DEADLINE + GRACE);
        format!(
            "{count} answers, {degraded} without the store; back to exact in {:?}; slowest, in ms: {}; too slow: {}, excused: \
             {}; the machine stood still {} times, {:?} in all; {:?}",
            self.marks.exact.saturating_sub(self.marks.back),
            slowest.join(", "),
            guilty.len(),
            excused.len(),
            self.tally.stalls().len(),
            self.stalled(),
            self.footprints,
        )
    }

    /// For how long the machine stood still.
    fn stalled(&self) -> Duration {
        self.tally.stalls().iter().map(|stall| stall.end - stall.start).sum()
    }

    fn about(&self, ask: Ask) -> AnswerLog {
        self.tally.only(|answer| Ask::of(answer) == ask)
    }

    /// Everybody is answered, and nobody waits for longer than the deadline and a little more; those whom the store does not
    /// concern, for no longer than the little.
    #[track_caller]
    pub(crate) fn nobody_waits(&self) {
        assert_eq!(self.tally.failed(), 0, "nodes answer whatever happens to their store");
        let mut forgiven = 0;
        for ask in Ask::ALL {
            let bar = if ask == Ask::Here { GRACE } else { DEADLINE + GRACE };
            let SlowAnswers { guilty, excused } = self.about(ask).slower_than(bar);
            forgiven += excused.len();
            let shown = &guilty[..guilty.len().min(10)];
            assert!(
                guilty.is_empty(),
                "{} waited longer than {bar:?} for {ask:?}, like {shown:#?}",
                guilty.len()
            );
        }
        let is_judged = forgiven * 1000 <= self.tally.answers().len() * EXCUSED_PER_MILLE;
        assert!(is_judged, "the machine stood still too often to judge by: {:?}", self.tally.stalls());
    }

    /// Answers without the store are as each rule says.
    #[track_caller]
    pub(crate) fn modes_hold(&self) {
        for answer in self.tally.answers().iter().filter(|answer| answer.is_degraded) {
            match Ask::of(answer) {
                Ask::Open | Ask::Counted => assert_eq!(answer.verdict, AnswerKind::Allowed, "{answer:?}"),
                Ask::Closed | Ask::Leased => assert_eq!(answer.verdict, AnswerKind::Denied, "{answer:?}"),
                Ask::Here => panic!("this rule has no need of the store: {answer:?}"),
                Ask::Local | Ask::Default => {}
            }
        }
        // What these rules do not refuse for the store's sake, they do not refuse.
        for ask in [Ask::Closed, Ask::Leased] {
            let by_the_store = self.about(ask).only(|answer| !answer.is_degraded);
            assert_eq!(by_the_store.denied(), 0, "{ask:?} has enough for anybody");
        }
    }

    /// All nodes together admit what the limit does, and one unit each, of those that they decide by their shares.
    #[track_caller]
    pub(crate) fn shares_hold(&self) {
        let Marks { away, exact, .. } = self.marks;
        for ask in [Ask::Local, Ask::Default] {
            let mut admitted: BTreeMap<u64, usize> = BTreeMap::new();
            for answer in self.about(ask).answers().iter().filter(|answer| answer.is_degraded) {
                *admitted.entry(answer.key).or_default() +=
                    usize::from(answer.verdict == AnswerKind::Allowed);
            }
            let units = f64::from(TIGHT) * (1.0 + (exact - away).as_secs_f64());
            let most = units.ceil() + self.fleet.nodes.len().to_string().parse::<f64>().unwrap();
            for (key, count) in admitted {
                let count: f64 = count.to_string().parse().unwrap();
                assert!(count <= most, "{count} of {most} units went to key {key} at {ask:?}");
            }
        }
    }

    /// Answers are without the store while something is wrong, as far as it is, and never before.
    #[track_caller]
    pub(crate) fn extent_is(&self, extent: impl Fn(&TimedAnswer) -> Extent) {
        let Marks { away, back, .. } = self.marks;
        for answer in self.tally.answers() {
            if answer.answered < away {
                assert!(!answer.is_degraded, "nothing was wrong until {away:?}: {answer:?}");
            }
            if Ask::of(answer) == Ask::Here {
                continue;
            }
            match extent(answer) {
                Extent::All if Ask::of(answer).may_do_without() => {}
                Extent::Some => {}
                Extent::None => assert!(!answer.is_degraded, "the store could be asked: {answer:?}"),
                Extent::All => {
                    let is_outside = answer.asked < away + NOTICE || answer.answered > back;
                    assert!(
                        is_outside || answer.is_degraded,
                        "the store was away until {back:?}: {answer:?}"
                    );
                }
            }
        }
    }

    /// Nodes use the store soon after it is back, and go on using it, to the unit.
    #[track_caller]
    pub(crate) fn recovers_by_itself(&self) {
        let Marks { back, exact, .. } = self.marks;
        assert!(exact - back <= RECOVERY, "it took {:?} until all was exact again", exact - back);
        let late = self.tally.answers().iter().find(|answer| answer.asked > exact && answer.is_degraded);
        assert_eq!(late, None, "all was exact from {exact:?} on");
        let few = self.fleet.ask_for_few("after");
        assert_eq!((few.allowed, few.degraded), (FEW, 0), "nodes agree to the unit");
    }

    /// What an outage made a node open is closed again, and its memory is as it was.
    #[track_caller]
    pub(crate) fn nothing_leaks(&self) {
        for (before, after) in &self.footprints {
            assert!(after.descriptors <= before.descriptors, "{before:?} became {after:?}");
            assert!(after.threads <= before.threads, "{before:?} became {after:?}");
            assert!(after.memory_kib <= before.memory_kib + GROWTH_KIB, "{before:?} became {after:?}");
        }
    }

    /// Every node told once that the server is away, and once that it is there again.
    #[track_caller]
    pub(crate) fn is_told_once(&self) {
        for log in &self.logs {
            let news: Vec<_> = log.news().into_values().collect();
            assert_eq!(news, [[News::Away, News::There]], "{}", log.lines().join("\n"));
        }
    }

    /// A server has the connections that nodes keep, and no others.
    #[track_caller]
    pub(crate) fn nobody_lingers(&self, server: &RedisServer) {
        let expected = LINKS * self.fleet.nodes.len();
        within(PATIENCE, "a server has as many connections as nodes keep", || {
            let list = server.command(&["CLIENT", "LIST"]).text();
            let count = list.lines().filter(|line| line.split(' ').any(|word| word == "name=ratekeeper"));
            (count.count() == expected).then_some(())
        });
    }

    /// Nobody was charged twice: a client has used no more than what it was granted, and what it asked for in vain, as far as
    /// that `may_count`. If the store kept what it knew, it has used no less than it was granted, either.
    #[track_caller]
    pub(crate) fn nobody_is_charged_twice(&self, kept: Kept, may_count: impl Fn(&TimedAnswer) -> bool) {
        let counted = self.about(Ask::Counted);
        let mut clients: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for answer in counted.answers() {
            let (granted, unsure) = clients.entry(answer.key).or_default();
            *granted += u64::from(!answer.is_degraded);
            *unsure += u64::from(answer.is_degraded && may_count(answer));
        }
        for (key, (granted, unsure)) in clients {
            let used = self.fleet.used(key);
            let said = format!("key {key} was granted {granted}, unsure of {unsure}, and charged {used}");
            assert!(used <= granted + unsure, "{said}");
            assert!(used >= granted || kept == Kept::Nothing, "{said}");
        }
    }
}

/// Whoever waited for the store in vain may have been charged: see [`Account::nobody_is_charged_twice`].
pub(crate) fn waited_in_vain(answer: &TimedAnswer) -> bool {
    answer.answered - answer.asked >= DEADLINE * 4 / 5
}
