//! A limiter driven by rules: from requests to the decisions that clients receive.
//!
//! A [`RuleLimiter`] has the rules in force, a store, and the emergency limit. Requests are collected in a
//! [`CheckBatch`], all under one version of the rules. The store decides the batch in one call, and each request then
//! has its [`RuleDecision`]. Rules may be replaced at any time: a batch keeps the rules that it began with, so no
//! request sees parts of two versions.

mod batch;
mod counters;
mod decision;
mod emergency;
mod unknown_tier_log;

pub use batch::CheckBatch;
pub use counters::{DecisionCounts, RuleDecisionCounts};
pub use decision::{AppliedLimit, BindingLimit, Policy, Reason, RuleDecision};
pub use emergency::EmergencyLimit;

use crate::store::Store;
use arc_swap::ArcSwap;
use counters::{DecisionCounters, RuleCounters};
use ratekeeper_core::{Clock, Limit};
use ratekeeper_rules::{CheckRequest, InlineLimit, RuleSet, Verb};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use unknown_tier_log::UnknownTierLog;

/// Applies rules to requests. Clones share all state, so a clone can be passed to each thread or task.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use ratekeeper::rules::spec::FileSpec;
/// use ratekeeper::rules::{CheckRequest, RuleSet, Verb};
/// use ratekeeper::{MemoryStore, RuleLimiter, SystemClock};
///
/// let rules = RuleSet::compile(&FileSpec::default()).expect("an empty rule file compiles");
/// let limiter = RuleLimiter::new(rules, MemoryStore::new(), SystemClock::new());
/// let batch = limiter.decide_one(Verb::Check, &CheckRequest::new("alice")).await;
/// assert!(batch.decision(0).is_allowed(), "no rule applies to alice");
/// # }
/// ```
#[derive(Debug)]
pub struct RuleLimiter<S> {
    inner: Arc<RuleLimiterInner<S>>,
}

impl<S> Clone for RuleLimiter<S> {
    fn clone(&self) -> RuleLimiter<S> {
        RuleLimiter { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct RuleLimiterInner<S> {
    current: ArcSwap<InstalledRules>,
    store: S,
    clock: Arc<dyn Clock>,
    emergency: EmergencyLimit,
    counters: DecisionCounters,
    unknown_tier_log: UnknownTierLog,
    installs: AtomicU64,
}

/// The rules in force, and the decision counters of each.
#[derive(Debug)]
struct InstalledRules {
    rules: RuleSet,
    counters: Box<[Arc<RuleCounters>]>,
}

impl<S: Store> RuleLimiter<S> {
    /// Creates a limiter that enforces `rules` with its state in `store`. The clock determines which overrides have
    /// expired.
    pub fn new(rules: RuleSet, store: S, clock: impl Clock) -> RuleLimiter<S> {
        let counters = DecisionCounters::new();
        let current =
            ArcSwap::from_pointee(InstalledRules { counters: counters.for_rules(rules.rules()), rules });
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let emergency = EmergencyLimit::new(Arc::clone(&clock));
        RuleLimiter {
            inner: Arc::new(RuleLimiterInner {
                current,
                store,
                clock,
                emergency,
                counters,
                unknown_tier_log: UnknownTierLog::default(),
                installs: AtomicU64::new(1),
            }),
        }
    }

    /// Replaces the rules atomically. Clients keep their remaining units; new rates apply from now on.
    pub fn install(&self, rules: RuleSet) {
        let counters = self.inner.counters.for_rules(rules.rules());
        self.inner.current.store(Arc::new(InstalledRules { rules, counters }));
        self.inner.installs.fetch_add(1, Relaxed);
    }

    /// The number of times that rules were installed, including the first.
    pub fn installs(&self) -> u64 {
        self.inner.installs.load(Relaxed)
    }

    /// Calls `read` with the rules in force.
    pub fn with_rules<T>(&self, read: impl FnOnce(&RuleSet) -> T) -> T {
        read(&self.inner.current.load().rules)
    }

    /// The store that holds the state.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The limiter's clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.inner.clock
    }

    /// The emergency limit.
    pub fn emergency(&self) -> &EmergencyLimit {
        &self.inner.emergency
    }

    /// The decisions counted so far.
    pub fn decision_counts(&self) -> DecisionCounts {
        self.inner.counters.read()
    }

    /// Begins a batch under the rules in force.
    pub fn begin(&self) -> CheckBatch {
        CheckBatch::begin(&self.inner.current, self.inner.counters.should_sample())
    }

    /// Adds a request to a batch.
    #[inline]
    pub fn add(&self, batch: &mut CheckBatch, verb: Verb, request: &CheckRequest<'_>) {
        let notes = batch.add(verb, request, &*self.inner.clock, &self.inner.emergency);
        if notes.has_unknown_tier && verb == Verb::Check {
            let handling = batch.rules().unknown_tier();
            self.inner.unknown_tier_log.record(request.tier, handling, self.inner.clock.now());
        }
    }

    /// Adds a request that is subject to an inline limit instead of the rules.
    ///
    /// # Panics
    /// If the limit counts by descriptor and the request has none.
    #[inline]
    pub fn add_inline(
        &self,
        batch: &mut CheckBatch,
        inline: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
    ) {
        batch.add_inline(inline, limit, verb, request, &self.inner.emergency);
    }

    /// Begins a group of requests that are decided together, all or nothing, as parts of the single request `request`;
    /// see [`CheckBatch::begin_atomic_group`]. The emergency limit is checked once, for `request`; if it denies, all
    /// parts are denied. The group ends with [`CheckBatch::end_atomic_group`].
    pub fn begin_atomic_group(&self, batch: &mut CheckBatch, request: &CheckRequest<'_>) {
        batch.begin_atomic_group_for(request, &self.inner.emergency);
    }

    /// Decides all requests of a batch in one call to the store.
    ///
    /// Every request gets a decision: if the store fails, by the failure mode of its rules.
    pub async fn decide(&self, batch: &mut CheckBatch) {
        if !batch.is_decided() {
            self.inner.store.draw(batch.draws_mut()).await;
        }
        batch.decide();
        self.inner.counters.record(batch);
    }

    /// Decides a single request.
    pub async fn decide_one(&self, verb: Verb, request: &CheckRequest<'_>) -> CheckBatch {
        let mut batch = self.begin();
        self.add(&mut batch, verb, request);
        self.decide(&mut batch).await;
        batch
    }
}
