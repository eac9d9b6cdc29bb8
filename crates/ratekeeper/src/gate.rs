//! The limiter by rules: from requests to what each client hears.
//!
//! A gate has the rules in force, a store, and the emergency limit. Requests are gathered in a [`Docket`], all under one
//! version of the rules; the store decides them in one call; each then has its [`Verdict`]. Rules may be replaced at any
//! time: a docket goes on with those it began with, and no request sees half of two versions.

mod docket;
mod emergency;
mod meter;
mod tier_log;
mod verdict;

pub use docket::Docket;
pub use emergency::Emergency;
pub use meter::{Outcomes, RuleOutcomes};
pub use verdict::{Binding, Cause, HeldTo, Policy, Verdict};

use crate::store::Store;
use arc_swap::ArcSwap;
use meter::{Meters, RuleMeter};
use ratekeeper_core::{Clock, Limit};
use ratekeeper_rules::{Request, RuleSet, Stated, Verb};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tier_log::TierLog;

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
pub struct Gate<S> {
    shared: Arc<Shared<S>>,
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Gate<S> {
        Gate { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<S> {
    current: ArcSwap<Installed>,
    store: S,
    clock: Arc<dyn Clock>,
    emergency: Emergency,
    meters: Meters,
    tier_log: TierLog,
    installs: AtomicU64,
}

/// Rules in force, and where each one's decisions are counted.
#[derive(Debug)]
struct Installed {
    rules: RuleSet,
    meters: Box<[Arc<RuleMeter>]>,
}

impl<S: Store> Gate<S> {
    /// A gate that enforces `rules` with its state in `store`. The clock tells which overrides have expired.
    pub fn new(rules: RuleSet, store: S, clock: impl Clock) -> Gate<S> {
        let meters = Meters::new();
        let current = ArcSwap::from_pointee(Installed { meters: meters.of(rules.rules()), rules });
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let emergency = Emergency::new(Arc::clone(&clock));
        Gate {
            shared: Arc::new(Shared {
                current,
                store,
                clock,
                emergency,
                meters,
                tier_log: TierLog::default(),
                installs: AtomicU64::new(1),
            }),
        }
    }

    /// Puts other rules in force, all at once. Clients keep what they have left; new rates count from now.
    pub fn install(&self, rules: RuleSet) {
        let meters = self.shared.meters.of(rules.rules());
        self.shared.current.store(Arc::new(Installed { rules, meters }));
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
    pub fn emergency(&self) -> &Emergency {
        &self.shared.emergency
    }

    /// What was decided so far.
    pub fn outcomes(&self) -> Outcomes {
        self.shared.meters.read()
    }

    /// Begins a docket under the rules now in force.
    pub fn begin(&self) -> Docket {
        Docket::begin(&self.shared.current, &self.shared.meters)
    }

    /// Adds a request to a docket.
    #[inline]
    pub fn add(&self, docket: &mut Docket, verb: Verb, request: &Request<'_>) {
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
        docket: &mut Docket,
        stated: Stated,
        limit: &Limit,
        verb: Verb,
        request: &Request<'_>,
    ) {
        docket.add_stated(stated, limit, verb, request, &self.shared.emergency);
    }

    /// From now until [`Docket::part`], requests are decided together, all or nothing, as parts of a single request of `who`:
    /// see [`Docket::join`]. The emergency limit is asked once, for `who`, and what it refuses is refused in all parts.
    pub fn join(&self, docket: &mut Docket, who: &Request<'_>) {
        docket.join_as(who, &self.shared.emergency);
    }

    /// Has all that was added decided, in one call to the store.
    ///
    /// It always answers: if the store does not, each request is answered as its rules say for that case.
    pub async fn settle(&self, docket: &mut Docket) {
        if !docket.is_settled() {
            self.shared.store.draw(docket.draws_mut()).await;
        }
        self.shared.meters.record(docket);
    }

    /// Has a single request decided.
    pub async fn ask(&self, verb: Verb, request: &Request<'_>) -> Docket {
        let mut docket = self.begin();
        self.add(&mut docket, verb, request);
        self.settle(&mut docket).await;
        docket
    }
}
