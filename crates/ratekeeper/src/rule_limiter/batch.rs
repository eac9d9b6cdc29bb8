//! A batch of requests that are decided together.

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
    /// Batch buffers to reuse, one per thread: they are allocated already, and their rules are nearly always those in
    /// force. Idle connections hold no batch, so old rules can be freed.
    static SPARE_BUFFERS: RefCell<Option<Box<BatchBuffers>>> = const { RefCell::new(None) };
}

/// A batch of requests that are decided together, under the same version of the rules.
///
/// [`RuleLimiter::begin`](super::RuleLimiter::begin) creates a batch, [`RuleLimiter::add`](super::RuleLimiter::add)
/// adds requests, and after [`RuleLimiter::decide`](super::RuleLimiter::decide) each request has its
/// [`decision`](CheckBatch::decision).
#[derive(Debug)]
pub struct CheckBatch {
    /// `Some` until the batch is dropped.
    inner: Option<Box<BatchBuffers>>,
}

/// The contents of a batch, reused by the thread's next one.
#[derive(Debug)]
pub(super) struct BatchBuffers {
    pub(super) installed: Arc<InstalledRules>,
    pub(super) plan: DrawPlan,
    /// One entry per request.
    pub(super) entries: Vec<BatchEntry>,
    /// Within an atomic group, the emergency limit's denial of the whole group, or `Some(None)` if it allowed it.
    /// `None` outside of a group.
    group_denial: Option<Option<Decision>>,
    /// When the batch began, if its latency is sampled.
    pub(super) started_at: Option<quanta::Instant>,
}

/// A request of a batch.
#[derive(Clone, Debug)]
pub(super) struct BatchEntry {
    pub(super) verb: Verb,
    /// The emergency limit's decision, if it denied the request.
    pub(super) emergency: Option<Box<Decision>>,
    pub(super) notes: RequestNotes,
}

impl CheckBatch {
    pub(super) fn begin(current: &ArcSwap<InstalledRules>, counters: &DecisionCounters) -> CheckBatch {
        let spare = SPARE_BUFFERS.take();
        let current_rules = current.load();
        let started_at = counters.should_sample().then(quanta::Instant::now);
        let inner = match spare {
            Some(mut inner) => {
                if !Arc::ptr_eq(&inner.installed, &current_rules) {
                    inner.installed = Arc::clone(&current_rules);
                }
                inner.started_at = started_at;
                inner
            }
            None => Box::new(BatchBuffers {
                installed: Arc::clone(&current_rules),
                plan: DrawPlan::new(),
                entries: Vec::new(),
                group_denial: None,
                started_at,
            }),
        };
        CheckBatch { inner: Some(inner) }
    }

    #[inline]
    pub(super) fn inner(&self) -> &BatchBuffers {
        self.inner.as_ref().expect("the buffers exist until the batch is dropped")
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut BatchBuffers {
        self.inner.as_mut().expect("the buffers exist until the batch is dropped")
    }

    #[inline]
    pub(super) fn add(
        &mut self,
        verb: Verb,
        request: &CheckRequest<'_>,
        clock: &dyn Clock,
        emergency: &EmergencyLimit,
    ) -> RequestNotes {
        self.push_request(verb, request, emergency, |inner| {
            inner.plan.add(&inner.installed.rules, verb, request, || clock.now())
        })
    }

    #[inline]
    pub(super) fn add_inline(
        &mut self,
        inline: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
        emergency: &EmergencyLimit,
    ) {
        self.push_request(verb, request, emergency, |inner| {
            inner.plan.add_inline(&inner.installed.rules, inline, limit, verb, request);
            RequestNotes::default()
        });
    }

    /// Adds a request with `plan`, unless the emergency limit denies it.
    #[inline]
    fn push_request(
        &mut self,
        verb: Verb,
        request: &CheckRequest<'_>,
        emergency: &EmergencyLimit,
        plan: impl FnOnce(&mut BatchBuffers) -> RequestNotes,
    ) -> RequestNotes {
        let inner = self.inner_mut();
        let denial = match inner.group_denial {
            Some(denial) => denial.filter(|_| verb == Verb::Check),
            None if emergency.is_on() => emergency.deny(verb, request),
            None => None,
        };
        let notes = match denial {
            Some(_) => {
                inner.plan.add_denied();
                RequestNotes::default()
            }
            None => plan(inner),
        };
        inner.entries.push(BatchEntry { verb, emergency: denial.map(Box::new), notes });
        notes
    }

    /// Begins a group of requests that are decided together: all of them take, or none does. The group ends with
    /// [`CheckBatch::end_atomic_group`].
    ///
    /// A request that is denied without a limit, by a list or by the emergency limit, takes nothing and does not affect
    /// the others: the caller detects it with [`CheckBatch::is_denied_outright`].
    pub fn begin_atomic_group(&mut self) {
        self.inner_mut().plan.begin_atomic_group();
    }

    pub(super) fn begin_atomic_group_for(&mut self, request: &CheckRequest<'_>, emergency: &EmergencyLimit) {
        let denial = if emergency.is_on() { emergency.deny(Verb::Check, request) } else { None };
        self.inner_mut().group_denial = Some(denial);
        self.begin_atomic_group();
    }

    /// Ends the group: further requests are decided individually.
    pub fn end_atomic_group(&mut self) {
        let inner = self.inner_mut();
        inner.plan.end_atomic_group();
        inner.group_denial = None;
    }

    /// Whether a request is denied regardless of its limits.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn is_denied_outright(&self, index: usize) -> bool {
        self.inner().plan.resolutions()[index].is_denied()
    }

    pub(super) fn draws_mut(&mut self) -> &mut Draws {
        self.inner_mut().plan.draws_mut()
    }

    pub(super) fn is_decided(&self) -> bool {
        self.inner().plan.is_decided()
    }

    /// Removes the requests from index `len` on. Must be called before the batch is decided.
    pub fn truncate(&mut self, len: usize) {
        let inner = self.inner_mut();
        inner.plan.truncate(len);
        inner.entries.truncate(len);
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.inner().entries.len()
    }

    /// Whether the batch has no requests.
    pub fn is_empty(&self) -> bool {
        self.inner().entries.is_empty()
    }

    /// The decision of a request. Requests are numbered from 0 in the order in which they were added.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[inline]
    pub fn decision(&self, index: usize) -> RuleDecision<'_> {
        let inner = self.inner();
        let resolution = inner.plan.resolutions()[index];
        match resolution {
            Resolution::Allowed => RuleDecision::new(true, Reason::AllowList),
            Resolution::Denied => match &inner.entries[index].emergency {
                Some(decision) => RuleDecision::emergency(decision),
                None => RuleDecision::new(false, Reason::DenyList),
            },
            Resolution::UnknownTier => RuleDecision::new(false, Reason::UnknownTier),
            Resolution::MissingKey { rule } => RuleDecision::missing(rule, inner.installed.rules.rules()),
            Resolution::Unlimited => RuleDecision::new(true, Reason::NoRule),
            Resolution::Limited { .. } => {
                let (draws, sources) = inner.plan.draws_of(resolution);
                let rules = inner.installed.rules.rules();
                match inner.plan.failure(resolution) {
                    None => RuleDecision::from_draws(draws, sources, rules),
                    Some(_) => RuleDecision::degraded(draws, sources, rules),
                }
            }
        }
    }

    /// The decisions of all requests, in order.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = RuleDecision<'_>> {
        (0..self.len()).map(|index| self.decision(index))
    }

    /// The rules that the batch is decided by.
    pub fn rules(&self) -> &RuleSet {
        &self.inner().installed.rules
    }

    /// The limits that apply to a request, shadow rules included. May be called before the batch is decided.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn applied_limits(&self, index: usize) -> impl Iterator<Item = AppliedLimit<'_>> {
        let inner = self.inner();
        let (draws, sources) = inner.plan.draws_of(inner.plan.resolutions()[index]);
        draws.iter().zip(sources).map(|(draw, source)| AppliedLimit {
            policy: Policy::of(draw, *source, inner.installed.rules.rules()),
            is_decided: draw.is_decided(),
            is_shadow: draw.is_shadow(),
            key: inner.plan.draws().key(draw),
            scope: draw.scope(),
        })
    }

    /// The counters of a rule.
    pub(super) fn rule_counters(&self, position: u32) -> &RuleCounters {
        &self.inner().installed.counters[position as usize]
    }
}

impl Drop for CheckBatch {
    fn drop(&mut self) {
        if let Some(mut inner) = self.inner.take() {
            inner.plan.clear();
            inner.entries.clear();
            inner.group_denial = None;
            // Fails if the thread is exiting, which has no use for the buffers.
            let _ = SPARE_BUFFERS.try_with(|spare| spare.replace(Some(inner)));
        }
    }
}
