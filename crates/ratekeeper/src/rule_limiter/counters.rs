//! Decision counters without contention between threads.
//!
//! Every decision is counted once, under the rule of the binding limit. Shadow rules additionally count the requests
//! that they would have denied. Each counter is split into stripes, one cache line for every few threads, which are
//! summed when it is read.

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

/// One batch in this many has its latency sampled: reading the clock twice would take a tenth of the time of a
/// decision.
const SAMPLE_EVERY: u32 = 64;
/// The maximum number of stripes per counter. Additional threads share them.
const MAX_STRIPES: usize = 16;

/// Decisions counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Per rule in force, by its id.
    pub rules: Vec<(String, RuleDecisionCounts)>,
    /// Decisions by inline limits.
    pub inline: RuleDecisionCounts,
    /// Requests that no rule applied to.
    pub no_rule: u64,
    /// Requests of clients on the allow list.
    pub allow_listed: u64,
    /// Requests of clients on the deny list.
    pub deny_listed: u64,
    /// Requests denied by the emergency limit.
    pub emergency: u64,
    /// Requests with a tier that the rule file does not name, decided as if they had none.
    pub unknown_tiers_ignored: u64,
    /// Requests denied because of such a tier.
    pub unknown_tiers_denied: u64,
    /// Requests that a rule or the default skipped because they lack a value that it counts by.
    pub missing_skipped: u64,
    /// Requests counted together with all others that lack the same value.
    pub missing_shared: u64,
    /// Requests denied because they lack a value that a rule counts by.
    pub missing_denied: u64,
    /// The latency of batches, of which one in 64 is sampled.
    pub durations: DurationHistogram,
}

/// Decisions of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleDecisionCounts {
    /// Requests allowed.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Requests that the rule would have denied if it were not a shadow rule.
    pub shadow_denied: u64,
    /// Requests allowed without the store: because the rule fails open, or by this node's share.
    pub degraded: u64,
}

/// The decision counters of a limiter.
#[derive(Debug)]
pub(super) struct DecisionCounters {
    rules: Mutex<HashMap<Box<str>, Arc<RuleCounters>>>,
    inline: RuleCounters,
    without_rule: RuleCounters,
    anomalies: RuleCounters,
    latency_buckets: [AtomicU64; DURATION_BOUNDS_MICROS.len() + 1],
    latency_sum_nanos: AtomicU64,
}

/// The decision counters of one rule.
#[derive(Debug)]
pub(super) struct RuleCounters(Box<[CounterStripe]>);

/// The counts of one group of threads, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterStripe([AtomicU64; 8]);

const ALLOWED: usize = 0;
const DENIED: usize = 1;
const SHADOW_DENIED: usize = 2;
const DEGRADED: usize = 3;

/// Indices of the same stripes where no rule decides.
const NO_RULE: usize = 0;
const ALLOW_LISTED: usize = 1;
const DENY_LISTED: usize = 2;
const EMERGENCY: usize = 3;

/// Indices for anomalous requests, whatever their decision.
const TIER_IGNORED: usize = 0;
const TIER_DENIED: usize = 1;
const MISSING_SKIPPED: usize = 2;
const MISSING_SHARED: usize = 3;
const MISSING_DENIED: usize = 4;

impl RuleCounters {
    fn new() -> RuleCounters {
        RuleCounters((0..stripe_count()).map(|_| CounterStripe::default()).collect())
    }

    #[inline]
    fn increment(&self, event: usize) {
        self.0[thread_index() & (self.0.len() - 1)].0[event].fetch_add(1, Relaxed);
    }

    fn read(&self, event: usize) -> u64 {
        self.0.iter().map(|stripe| stripe.0[event].load(Relaxed)).sum()
    }
}

fn stripe_count() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    threads.next_power_of_two().min(MAX_STRIPES)
}

/// The index of this thread, in the order in which threads first counted something.
#[inline]
fn thread_index() -> usize {
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
            inline: RuleCounters::new(),
            without_rule: RuleCounters::new(),
            anomalies: RuleCounters::new(),
            latency_buckets: Default::default(),
            latency_sum_nanos: AtomicU64::new(0),
        }
    }

    /// The counters of each rule. A rule whose id existed before keeps its counts; those of removed rules are dropped.
    pub(super) fn for_rules(&self, rules: &[Rule]) -> Box<[Arc<RuleCounters>]> {
        let mut existing = self.rules.lock();
        let mut kept = HashMap::new();
        let mut counters = Vec::with_capacity(rules.len());
        for rule in rules {
            let counter = kept.entry(rule.id().into()).or_insert_with(|| {
                existing.remove(rule.id()).unwrap_or_else(|| Arc::new(RuleCounters::new()))
            });
            counters.push(Arc::clone(counter));
        }
        *existing = kept;
        counters.into()
    }

    /// Whether to sample the latency of the next batch.
    #[inline]
    pub(super) fn should_sample(&self) -> bool {
        thread_local! {
            static TURN: Cell<u32> = const { Cell::new(0) };
        }
        TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)) % SAMPLE_EVERY == 0)
    }

    /// Counts the decisions of a batch. This is the only place that does.
    #[inline]
    pub(super) fn record(&self, batch: &CheckBatch) {
        let rule_counters = |rule: u32| &batch.installed().counters[rule as usize];
        for (index, entry) in batch.entries().iter().enumerate() {
            if entry.verb != Verb::Check {
                continue;
            }
            let decision = batch.decision(index);
            match decision.reason() {
                Reason::Limit | Reason::Degraded => {
                    let event = match (decision.is_allowed(), decision.reason()) {
                        (true, Reason::Degraded) => DEGRADED,
                        (true, _) => ALLOWED,
                        (false, _) => DENIED,
                    };
                    match decision.rule_index() {
                        Some(DrawSource::INLINE) => self.inline.increment(event),
                        Some(rule) => rule_counters(rule).increment(event),
                        None => self.without_rule.increment(NO_RULE),
                    }
                }
                Reason::NoRule => self.without_rule.increment(NO_RULE),
                Reason::AllowList => self.without_rule.increment(ALLOW_LISTED),
                Reason::DenyList => self.without_rule.increment(DENY_LISTED),
                Reason::Emergency => self.without_rule.increment(EMERGENCY),
                Reason::UnknownTier => self.anomalies.increment(TIER_DENIED),
                Reason::Missing => {
                    self.anomalies.increment(MISSING_DENIED);
                    if let Some(rule) = decision.rule_index() {
                        rule_counters(rule).increment(DENIED);
                    }
                }
            }
            if entry.notes != RequestNotes::default() {
                self.count_anomalies(entry.notes, decision.reason());
            }
            if decision.has_shadows() {
                for rule in decision.denying_shadows() {
                    rule_counters(rule).increment(SHADOW_DENIED);
                }
            }
        }
        if let Some(started_at) = batch.started_at() {
            self.record_latency(started_at.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        }
    }

    #[cold]
    fn count_anomalies(&self, notes: RequestNotes, reason: Reason) {
        let RequestNotes { has_unknown_tier, is_skipped, is_shared } = notes;
        let is_tier_ignored = has_unknown_tier && reason != Reason::UnknownTier;
        for (is_so, event) in
            [(is_tier_ignored, TIER_IGNORED), (is_skipped, MISSING_SKIPPED), (is_shared, MISSING_SHARED)]
        {
            if is_so {
                self.anomalies.increment(event);
            }
        }
    }

    #[cold]
    fn record_latency(&self, nanos: u64) {
        self.latency_buckets[DurationHistogram::bucket(nanos)].fetch_add(1, Relaxed);
        self.latency_sum_nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn read(&self) -> DecisionCounts {
        let counts = |counter: &RuleCounters| RuleDecisionCounts {
            allowed: counter.read(ALLOWED),
            denied: counter.read(DENIED),
            shadow_denied: counter.read(SHADOW_DENIED),
            degraded: counter.read(DEGRADED),
        };
        let mut rules: Vec<_> =
            self.rules.lock().iter().map(|(id, counter)| (id.to_string(), counts(counter))).collect();
        rules.sort_by(|(one, _), (other, _)| one.cmp(other));
        DecisionCounts {
            rules,
            inline: counts(&self.inline),
            no_rule: self.without_rule.read(NO_RULE),
            allow_listed: self.without_rule.read(ALLOW_LISTED),
            deny_listed: self.without_rule.read(DENY_LISTED),
            emergency: self.without_rule.read(EMERGENCY),
            unknown_tiers_ignored: self.anomalies.read(TIER_IGNORED),
            unknown_tiers_denied: self.anomalies.read(TIER_DENIED),
            missing_skipped: self.anomalies.read(MISSING_SKIPPED),
            missing_shared: self.anomalies.read(MISSING_SHARED),
            missing_denied: self.anomalies.read(MISSING_DENIED),
            durations: DurationHistogram {
                counts: self.latency_buckets.each_ref().map(|count| count.load(Relaxed)),
                sum_nanos: self.latency_sum_nanos.load(Relaxed),
            },
        }
    }
}
