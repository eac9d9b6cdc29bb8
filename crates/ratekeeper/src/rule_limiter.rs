//! The limiter by rules: from requests to what each client hears.
//!
//! A gate has the rules in force, a store, and the emergency limit. Requests are gathered in a [`CheckBatch`], all under one
//! version of the rules; the store decides them in one call; each then has its [`RuleDecision`]. Rules may be replaced at any
//! time: a docket goes on with those it began with, and no request sees half of two versions.

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

/// Holds requests to rules. A clone shares everything: hand clones to threads and tasks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use ratekeeper::rules::spec::FileSpec;
/// use ratekeeper::rules::{Request, RuleSet, Verb};
/// use ratekeeper::{Gate, MemoryStore, SystemClock};
///
/// let rules = RuleSet::compile(&FileSpec::default()).expect("no rules are never too many");
/// let gate = Gate::new(rules, MemoryStore::new(), SystemClock::new());
/// let docket = gate.ask(Verb::Check, &Request::new("alice")).await;
/// assert!(docket.verdict(0).is_allowed(), "no rule binds alice");
/// # }
/// ```
#[derive(Debug)]
pub struct RuleLimiter<S> {
    shared: Arc<RuleLimiterInner<S>>,
}

impl<S> Clone for RuleLimiter<S> {
    fn clone(&self) -> RuleLimiter<S> {
        RuleLimiter { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct RuleLimiterInner<S> {
    current: ArcSwap<InstalledRules>,
    store: S,
    clock: Arc<dyn Clock>,
    emergency: EmergencyLimit,
    meters: DecisionCounters,
    tier_log: UnknownTierLog,
    installs: AtomicU64,
}

/// Rules in force, and where each one's decisions are counted.
#[derive(Debug)]
struct InstalledRules {
    rules: RuleSet,
    meters: Box<[Arc<RuleCounters>]>,
}

impl<S: Store> RuleLimiter<S> {
    /// A gate that enforces `rules` with its state in `store`. The clock tells which overrides have expired.
    pub fn new(rules: RuleSet, store: S, clock: impl Clock) -> RuleLimiter<S> {
        let meters = DecisionCounters::new();
        let current = ArcSwap::from_pointee(InstalledRules { meters: meters.of(rules.rules()), rules });
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let emergency = EmergencyLimit::new(Arc::clone(&clock));
        RuleLimiter {
            shared: Arc::new(RuleLimiterInner {
                current,
                store,
                clock,
                emergency,
                meters,
                tier_log: UnknownTierLog::default(),
                installs: AtomicU64::new(1),
            }),
        }
    }

    /// Puts other rules in force, all at once. Clients keep what they have left; new rates count from now.
    pub fn install(&self, rules: RuleSet) {
        let meters = self.shared.meters.of(rules.rules());
        self.shared.current.store(Arc::new(InstalledRules { rules, meters }));
        self.shared.installs.fetch_add(1, Relaxed);
    }

    /// How often rules were put in force, the first ones included.
    pub fn installs(&self) -> u64 {
        self.shared.installs.load(Relaxed)
    }

    /// Looks at the rules in force.
    pub fn with_rules<T>(&self, look: impl FnOnce(&RuleSet) -> T) -> T {
        look(&self.shared.current.load().rules)
    }

    /// The store it keeps its state in.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// The clock it reads.
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// The emergency limit.
    pub fn emergency(&self) -> &EmergencyLimit {
        &self.shared.emergency
    }

    /// What was decided so far.
    pub fn outcomes(&self) -> DecisionCounts {
        self.shared.meters.read()
    }

    /// Begins a docket under the rules now in force.
    pub fn begin(&self) -> CheckBatch {
        CheckBatch::begin(&self.shared.current, &self.shared.meters)
    }

    /// Adds a request to a docket.
    #[inline]
    pub fn add(&self, docket: &mut CheckBatch, verb: Verb, request: &CheckRequest<'_>) {
        let notes = docket.add(verb, request, &*self.shared.clock, &self.shared.emergency);
        if notes.has_unknown_tier && verb == Verb::Check {
            let handling = docket.rules().unknown_tier();
            self.shared.tier_log.note(request.tier, handling, self.shared.clock.now());
        }
    }

    /// Adds a request that is held to a limit of its own, whatever the rules say.
    ///
    /// # Panics
    /// If it is counted by its descriptor and has none.
    #[inline]
    pub fn add_stated(
        &self,
        docket: &mut CheckBatch,
        stated: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
    ) {
        docket.add_stated(stated, limit, verb, request, &self.shared.emergency);
    }

    /// From now until [`CheckBatch::part`], requests are decided together, all or nothing, as parts of a single request of `who`:
    /// see [`CheckBatch::join`]. The emergency limit is asked once, for `who`, and what it refuses is refused in all parts.
    pub fn join(&self, docket: &mut CheckBatch, who: &CheckRequest<'_>) {
        docket.join_as(who, &self.shared.emergency);
    }

    /// Has all that was added decided, in one call to the store.
    ///
    /// It always answers: if the store does not, each request is answered as its rules say for that case.
    pub async fn settle(&self, docket: &mut CheckBatch) {
        if !docket.is_settled() {
            self.shared.store.draw(docket.draws_mut()).await;
        }
        self.shared.meters.record(docket);
    }

    /// Has a single request decided.
    pub async fn ask(&self, verb: Verb, request: &CheckRequest<'_>) -> CheckBatch {
        let mut docket = self.begin();
        self.add(&mut docket, verb, request);
        self.settle(&mut docket).await;
        docket
    }
}
