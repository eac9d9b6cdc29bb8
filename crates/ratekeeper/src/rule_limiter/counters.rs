//! Counting decisions, without threads fighting over a count.
//!
//! Every decision is counted once, under the rule that binds; shadow rules count what they would have refused beside
//! that. Each count is kept in stripes, one cache line for every few threads, and added up when somebody reads it.

use super::batch::CheckBatch;
use super::decision::Reason;
use crate::duration_histogram::{DURATION_BOUNDS_MICROS, DurationHistogram};
use parking_lot::Mutex;
use ratekeeper_rules::{DrawSource, RequestNotes, Rule, Verb};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// One docket in so many is timed: reading the clock twice would be a tenth of a decision.
const TIMED: u32 = 64;
/// The most stripes of a count. More threads than that share them.
const MAX_STRIPES: usize = 16;

/// What was decided so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// For each rule in force, by its id.
    pub rules: Vec<(String, RuleDecisionCounts)>,
    /// For limits that came with their requests.
    pub stated: RuleDecisionCounts,
    /// Requests that no rule binds.
    pub unbound: u64,
    /// Requests of clients on the allow list.
    pub allow_listed: u64,
    /// Requests of clients on the deny list.
    pub deny_listed: u64,
    /// Requests that the emergency limit refused.
    pub emergency: u64,
    /// Requests that state a tier which the rule file does not name, and were decided as if they stated none.
    pub unknown_tiers_ignored: u64,
    /// Requests that were denied for such a tier.
    pub unknown_tiers_refused: u64,
    /// Requests that a rule or the default skipped, because they lack something that it counts by.
    pub missing_skipped: u64,
    /// Requests that share a count with all others that lack the same.
    pub missing_shared: u64,
    /// Requests that were denied, because they lack something that a rule counts by.
    pub missing_refused: u64,
    /// How long dockets took, of which one in some was timed.
    pub durations: DurationHistogram,
}

/// What one rule decided so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleDecisionCounts {
    /// Requests that went on.
    pub allowed: u64,
    /// Requests that it refused.
    pub denied: u64,
    /// Requests that it would have refused, were it not a shadow.
    pub shadow_denied: u64,
    /// Requests that went on although the store gave no answer: because the rule fails open, or by this node's share.
    pub degraded: u64,
}

#[derive(Debug)]
pub(super) struct DecisionCounters {
    rules: Mutex<HashMap<Box<str>, Arc<RuleCounters>>>,
    stated: RuleCounters,
    others: RuleCounters,
    odd: RuleCounters,
    timed: [AtomicU64; DURATION_BOUNDS_MICROS.len() + 1],
    timed_nanos: AtomicU64,
}

/// Where the decisions of one rule are counted.
#[derive(Debug)]
pub(super) struct RuleCounters(Box<[CounterStripe]>);

/// What one group of threads has counted, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterStripe([AtomicU64; 8]);

const ALLOWED: usize = 0;
const DENIED: usize = 1;
const SHADOW_DENIED: usize = 2;
const DEGRADED: usize = 3;

/// What the same words count where no rule decides.
const UNBOUND: usize = 0;
const ALLOW_LISTED: usize = 1;
const DENY_LISTED: usize = 2;
const EMERGENCY: usize = 3;

/// What the words count of requests that were odd, whatever became of them.
const TIER_IGNORED: usize = 0;
const TIER_REFUSED: usize = 1;
const MISSING_SKIPPED: usize = 2;
const MISSING_SHARED: usize = 3;
const MISSING_REFUSED: usize = 4;

impl RuleCounters {
    fn new() -> RuleCounters {
        RuleCounters((0..stripes()).map(|_| CounterStripe::default()).collect())
    }

    #[inline]
    fn count(&self, what: usize) {
        self.0[stripe() & (self.0.len() - 1)].0[what].fetch_add(1, Relaxed);
    }

    fn read(&self, what: usize) -> u64 {
        self.0.iter().map(|stripe| stripe.0[what].load(Relaxed)).sum()
    }
}

fn stripes() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    threads.next_power_of_two().min(MAX_STRIPES)
}

/// The number of this thread, in the order in which they first counted something.
#[inline]
fn stripe() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: usize = THREADS.fetch_add(1, Relaxed);
    }
    STRIPE.with(|stripe| *stripe)
}

impl DecisionCounters {
    pub(super) fn new() -> DecisionCounters {
        DecisionCounters {
            rules: Mutex::default(),
            stated: RuleCounters::new(),
            others: RuleCounters::new(),
            odd: RuleCounters::new(),
            timed: Default::default(),
            timed_nanos: AtomicU64::new(0),
        }
    }

    /// Where the decisions of each rule are counted: a rule of the same id goes on where it was. What rules that are no
    /// longer there have counted is forgotten.
    pub(super) fn of(&self, rules: &[Rule]) -> Box<[Arc<RuleCounters>]> {
        let mut known = self.rules.lock();
        let mut kept = HashMap::new();
        let mut meters = Vec::with_capacity(rules.len());
        for rule in rules {
            let meter = kept
                .entry(rule.id().into())
                .or_insert_with(|| known.remove(rule.id()).unwrap_or_else(|| Arc::new(RuleCounters::new())));
            meters.push(Arc::clone(meter));
        }
        *known = kept;
        meters.into()
    }

    /// Whether the next docket is one to be timed.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        thread_local! {
            static TURN: Cell<u32> = const { Cell::new(0) };
        }
        TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)) % TIMED == 0)
    }

    /// Counts what was decided: the only place that does.
    #[inline]
    pub(super) fn record(&self, docket: &CheckBatch) {
        let inner = docket.inner();
        for (index, entry) in inner.entries.iter().enumerate() {
            if entry.verb != Verb::Check {
                continue;
            }
            let verdict = docket.verdict(index);
            match verdict.cause() {
                Reason::Limit | Reason::Degraded => {
                    let what = match (verdict.is_allowed(), verdict.cause()) {
                        (true, Reason::Degraded) => DEGRADED,
                        (true, _) => ALLOWED,
                        (false, _) => DENIED,
                    };
                    match verdict.position() {
                        Some(DrawSource::STATED) => self.stated.count(what),
                        Some(position) => docket.meter(position).count(what),
                        None => self.others.count(UNBOUND),
                    }
                }
                Reason::NoRule => self.others.count(UNBOUND),
                Reason::AllowList => self.others.count(ALLOW_LISTED),
                Reason::DenyList => self.others.count(DENY_LISTED),
                Reason::Emergency => self.others.count(EMERGENCY),
                Reason::UnknownTier => self.odd.count(TIER_REFUSED),
                Reason::Missing => {
                    self.odd.count(MISSING_REFUSED);
                    if let Some(position) = verdict.position() {
                        docket.meter(position).count(DENIED);
                    }
                }
            }
            if entry.notes != RequestNotes::default() {
                self.note(entry.notes, verdict.cause());
            }
            if verdict.has_shadows() {
                for position in verdict.shadows() {
                    docket.meter(position).count(SHADOW_DENIED);
                }
            }
        }
        if let Some(begun) = inner.begun {
            self.time(begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        }
    }

    #[cold]
    fn note(&self, notes: RequestNotes, cause: Reason) {
        let RequestNotes { has_unknown_tier, is_skipped, is_shared } = notes;
        let is_tier_ignored = has_unknown_tier && cause != Reason::UnknownTier;
        for (is_so, what) in
            [(is_tier_ignored, TIER_IGNORED), (is_skipped, MISSING_SKIPPED), (is_shared, MISSING_SHARED)]
        {
            if is_so {
                self.odd.count(what);
            }
        }
    }

    #[cold]
    fn time(&self, nanos: u64) {
        self.timed[DurationHistogram::bucket(nanos)].fetch_add(1, Relaxed);
        self.timed_nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn read(&self) -> DecisionCounts {
        let outcomes = |meter: &RuleCounters| RuleDecisionCounts {
            allowed: meter.read(ALLOWED),
            denied: meter.read(DENIED),
            shadow_denied: meter.read(SHADOW_DENIED),
            degraded: meter.read(DEGRADED),
        };
        let mut rules: Vec<_> =
            self.rules.lock().iter().map(|(id, meter)| (id.to_string(), outcomes(meter))).collect();
        rules.sort_by(|(one, _), (other, _)| one.cmp(other));
        DecisionCounts {
            rules,
            stated: outcomes(&self.stated),
            unbound: self.others.read(UNBOUND),
            allow_listed: self.others.read(ALLOW_LISTED),
            deny_listed: self.others.read(DENY_LISTED),
            emergency: self.others.read(EMERGENCY),
            unknown_tiers_ignored: self.odd.read(TIER_IGNORED),
            unknown_tiers_refused: self.odd.read(TIER_REFUSED),
            missing_skipped: self.odd.read(MISSING_SKIPPED),
            missing_shared: self.odd.read(MISSING_SHARED),
            missing_refused: self.odd.read(MISSING_REFUSED),
            durations: DurationHistogram {
                counts: self.timed.each_ref().map(|count| count.load(Relaxed)),
                sum_nanos: self.timed_nanos.load(Relaxed),
            },
        }
    }
}
