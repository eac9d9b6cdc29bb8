//! Requests that are decided together.

use super::counters::DecisionCounters;
use super::decision::{AppliedLimit, Policy, Reason, RuleDecision};
use super::emergency::EmergencyLimit;
use super::{InstalledRules, RuleCounters};
use arc_swap::ArcSwap;
use ratekeeper_core::{Clock, Decision, Draws, Limit};
use ratekeeper_rules::{CheckRequest, DrawPlan, InlineLimit, RequestNotes, Resolution, RuleSet, Verb};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// A used docket for each thread: its buffers are warm, and the rules that it knows are nearly always those in
    /// force. Connections that wait hold none, so that old rules can go.
    static SPARE: RefCell<Option<Box<BatchBuffers>>> = const { RefCell::new(None) };
}

/// Requests that are decided together, all under the same rules.
///
/// [`RuleLimiter::begin`](super::RuleLimiter::begin) gives one, [`RuleLimiter::add`](super::RuleLimiter::add) fills it, and once
/// [`RuleLimiter::settle`](super::RuleLimiter::settle) is through, each request has its [`verdict`](CheckBatch::verdict).
#[derive(Debug)]
pub struct CheckBatch {
    /// Always there until the docket is dropped.
    inner: Option<Box<BatchBuffers>>,
}

#[derive(Debug)]
pub(super) struct BatchBuffers {
    pub(super) installed: Arc<InstalledRules>,
    pub(super) plan: DrawPlan,
    /// For each request.
    pub(super) entries: Vec<BatchEntry>,
    /// What the emergency limit refused, and perhaps nothing, while requests are parts of a single one.
    whole: Option<Option<Decision>>,
    /// When it began, if this one is timed.
    pub(super) begun: Option<quanta::Instant>,
}

/// A request on the docket.
#[derive(Clone, Debug)]
pub(super) struct BatchEntry {
    pub(super) verb: Verb,
    /// What the emergency limit said, if it refused.
    pub(super) emergency: Option<Box<Decision>>,
    pub(super) notes: RequestNotes,
}

impl CheckBatch {
    pub(super) fn begin(current: &ArcSwap<InstalledRules>, meters: &DecisionCounters) -> CheckBatch {
        let spare = SPARE.take();
        let in_force = current.load();
        let begun = meters.is_timed().then(quanta::Instant::now);
        let inner = match spare {
            Some(mut inner) => {
                if !Arc::ptr_eq(&inner.installed, &in_force) {
                    inner.installed = Arc::clone(&in_force);
                }
                inner.begun = begun;
                inner
            }
            None => Box::new(BatchBuffers {
                installed: Arc::clone(&in_force),
                plan: DrawPlan::new(),
                entries: Vec::new(),
                whole: None,
                begun,
            }),
        };
        CheckBatch { inner: Some(inner) }
    }

    #[inline]
    pub(super) fn inner(&self) -> &BatchBuffers {
        self.inner.as_ref().expect("it is there until the docket is dropped")
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut BatchBuffers {
        self.inner.as_mut().expect("it is there until the docket is dropped")
    }

    #[inline]
    pub(super) fn add(
        &mut self,
        verb: Verb,
        request: &CheckRequest<'_>,
        clock: &dyn Clock,
        emergency: &EmergencyLimit,
    ) -> RequestNotes {
        self.enter(verb, request, emergency, |inner| {
            inner.plan.add(&inner.installed.rules, verb, request, || clock.now())
        })
    }

    #[inline]
    pub(super) fn add_stated(
        &mut self,
        stated: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
        emergency: &EmergencyLimit,
    ) {
        self.enter(verb, request, emergency, |inner| {
            inner.plan.add_stated(&inner.installed.rules, stated, limit, verb, request);
            RequestNotes::default()
        });
    }

    /// Has `plan` add a request, unless the emergency limit refuses it.
    #[inline]
    fn enter(
        &mut self,
        verb: Verb,
        request: &CheckRequest<'_>,
        emergency: &EmergencyLimit,
        plan: impl FnOnce(&mut BatchBuffers) -> RequestNotes,
    ) -> RequestNotes {
        let inner = self.inner_mut();
        let refused = match inner.whole {
            Some(refused) => refused.filter(|_| verb == Verb::Check),
            None if emergency.is_on() => emergency.refuse(verb, request),
            None => None,
        };
        let notes = match refused {
            Some(_) => {
                inner.plan.add_refused();
                RequestNotes::default()
            }
            None => plan(inner),
        };
        inner.entries.push(BatchEntry { verb, emergency: refused.map(Box::new), notes });
        notes
    }

    /// From now until [`CheckBatch::part`], requests are decided together: all of them take, or none does.
    ///
    /// One that is denied without a limit, by a list or in an emergency, takes nothing anyway and keeps the others from
    /// nothing: whoever joins requests looks for it with [`CheckBatch::is_denied`].
    pub fn join(&mut self) {
        self.inner_mut().plan.join();
    }

    pub(super) fn join_as(&mut self, who: &CheckRequest<'_>, emergency: &EmergencyLimit) {
        let refused = if emergency.is_on() { emergency.refuse(Verb::Check, who) } else { None };
        self.inner_mut().whole = Some(refused);
        self.join();
    }

    /// From now on, each request is decided by itself again.
    pub fn part(&mut self) {
        let inner = self.inner_mut();
        inner.plan.part();
        inner.whole = None;
    }

    /// Whether a request is denied whatever its limits say.
    ///
    /// # Panics
    /// If there is no such request.
    pub fn is_denied(&self, index: usize) -> bool {
        self.inner().plan.cases()[index].is_denied()
    }

    pub(super) fn draws_mut(&mut self) -> &mut Draws {
        self.inner_mut().plan.draws_mut()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.inner().plan.is_settled()
    }

    /// Takes requests off it again, from the one at `len` on: they were not meant. Only before it is settled.
    pub fn cut(&mut self, len: usize) {
        let inner = self.inner_mut();
        inner.plan.cut(len);
        inner.entries.truncate(len);
    }

    /// How many requests are on it.
    pub fn len(&self) -> usize {
        self.inner().entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.inner().entries.is_empty()
    }

    /// What was decided about a request, counted from 0 in the order in which they were added.
    ///
    /// # Panics
    /// If there is no such request.
    #[inline]
    pub fn verdict(&self, index: usize) -> RuleDecision<'_> {
        let inner = self.inner();
        let case = inner.plan.cases()[index];
        match case {
            Resolution::Allowed => RuleDecision::new(true, Reason::AllowList),
            Resolution::Denied => match &inner.entries[index].emergency {
                Some(decision) => RuleDecision::emergency(decision),
                None => RuleDecision::new(false, Reason::DenyList),
            },
            Resolution::UnknownTier => RuleDecision::new(false, Reason::UnknownTier),
            Resolution::Missing { rule } => RuleDecision::missing(rule, inner.installed.rules.rules()),
            Resolution::Unbound => RuleDecision::new(true, Reason::NoRule),
            Resolution::Bound { .. } => {
                let (draws, bound) = inner.plan.bound(case);
                let rules = inner.installed.rules.rules();
                match inner.plan.failure(case) {
                    None => RuleDecision::of(draws, bound, rules),
                    Some(_) => RuleDecision::without_store(draws, bound, rules),
                }
            }
        }
    }

    /// What was decided about each request, in order.
    pub fn verdicts(&self) -> impl ExactSizeIterator<Item = RuleDecision<'_>> {
        (0..self.len()).map(|index| self.verdict(index))
    }

    /// The rules that all of it is held to.
    pub fn rules(&self) -> &RuleSet {
        &self.inner().installed.rules
    }

    /// The limits that a request is held to, shadows too; also before it is settled.
    ///
    /// # Panics
    /// If there is no such request.
    pub fn held_to(&self, index: usize) -> impl Iterator<Item = AppliedLimit<'_>> {
        let inner = self.inner();
        let (draws, bound) = inner.plan.bound(inner.plan.cases()[index]);
        draws.iter().zip(bound).map(|(draw, bound)| AppliedLimit {
            policy: Policy::of(draw, *bound, inner.installed.rules.rules()),
            is_decided: draw.is_decided(),
            is_shadow: draw.is_shadow(),
            key: inner.plan.draws().key(draw),
            scope: draw.scope(),
        })
    }

    /// Where the decisions of a rule are counted.
    pub(super) fn meter(&self, position: u32) -> &RuleCounters {
        &self.inner().installed.meters[position as usize]
    }
}

impl Drop for CheckBatch {
    fn drop(&mut self) {
        if let Some(mut inner) = self.inner.take() {
            inner.plan.clear();
            inner.entries.clear();
            inner.whole = None;
            // A thread that is ending has no use for it.
            let _ = SPARE.try_with(|spare| spare.replace(Some(inner)));
        }
    }
}
