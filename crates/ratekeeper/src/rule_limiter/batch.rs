//! A batch of requests that are decided together.

use super::InstalledRules;
use super::decision::{AppliedLimit, DecisionRecord, Policy, Reason, RuleDecision};
use super::emergency::EmergencyLimit;
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
struct BatchBuffers {
    installed: Arc<InstalledRules>,
    plan: DrawPlan,
    /// One entry per request.
    entries: Vec<BatchEntry>,
    /// Within an atomic group, the emergency limit's denial of the whole group, or `Some(None)` if it allowed it.
    /// `None` outside of a group.
    group_denial: Option<Option<Decision>>,
    /// When the batch began, if its latency is sampled.
    started_at: Option<quanta::Instant>,
}

/// A request of a batch.
#[derive(Clone, Debug)]
pub(super) struct BatchEntry {
    pub(super) verb: Verb,
    /// The emergency limit's decision, if it denied the request.
    emergency: Option<Box<Decision>>,
    pub(super) notes: RequestNotes,
    /// Its decision, once the batch is decided.
    record: Option<DecisionRecord>,
}

impl CheckBatch {
    /// Begins a batch under the current rules. If `is_sampled`, its latency is measured.
    pub(super) fn begin(current: &ArcSwap<InstalledRules>, is_sampled: bool) -> CheckBatch {
        let spare = SPARE_BUFFERS.take();
        let current_rules = current.load();
        let started_at = is_sampled.then(quanta::Instant::now);
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
    fn inner(&self) -> &BatchBuffers {
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
        inner.entries.push(BatchEntry { verb, emergency: denial.map(Box::new), notes, record: None });
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

    /// Computes the decision of each request from its decided draws, once: afterwards decisions are only read.
    #[inline]
    pub(super) fn decide(&mut self) {
        let BatchBuffers { plan, entries, .. } = self.inner_mut();
        for (entry, resolution) in entries.iter_mut().zip(plan.resolutions()) {
            let record = match (*resolution, &entry.emergency) {
                (Resolution::Allowed, _) => DecisionRecord::without_limit(true, Reason::AllowList),
                (Resolution::Denied, Some(denial)) => DecisionRecord::emergency(denial),
                (Resolution::Denied, None) => DecisionRecord::without_limit(false, Reason::DenyList),
                (Resolution::UnknownTier, _) => DecisionRecord::without_limit(false, Reason::UnknownTier),
                (Resolution::MissingKey { rule }, _) => DecisionRecord::missing(rule),
                (Resolution::Unlimited, _) => DecisionRecord::without_limit(true, Reason::NoRule),
                (resolution @ Resolution::Limited { .. }, _) => {
                    let (draws, sources) = plan.draws_of(resolution);
                    match plan.failure(resolution) {
                        None => DecisionRecord::from_draws(draws),
                        Some(_) => DecisionRecord::degraded(draws, sources),
                    }
                }
            };
            entry.record = Some(record);
        }
    }

    /// The decision of a request. Requests are numbered from 0 in the order in which they were added.
    ///
    /// # Panics
    /// If `index` is out of range, or the batch is not decided.
    #[inline]
    pub fn decision(&self, index: usize) -> RuleDecision<'_> {
        let BatchBuffers { installed, plan, entries, .. } = self.inner();
        let entry = &entries[index];
        let record = entry.record.as_ref().expect("decisions are read after the batch is decided");
        let (draws, sources) = plan.draws_of(plan.resolutions()[index]);
        RuleDecision::new(record, entry.emergency.as_deref(), draws, sources, installed.rules.rules())
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

    /// The rules that the batch is decided by, with their counters.
    pub(super) fn installed(&self) -> &InstalledRules {
        &self.inner().installed
    }

    /// The requests, in order.
    pub(super) fn entries(&self) -> &[BatchEntry] {
        &self.inner().entries
    }

    /// When the batch began, if its latency is sampled.
    pub(super) fn started_at(&self) -> Option<quanta::Instant> {
        self.inner().started_at
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
