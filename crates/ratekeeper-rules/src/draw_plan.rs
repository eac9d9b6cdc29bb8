//! Resolves requests to draws.
//!
//! [`DrawPlan::add`] finds the rules that apply to a request and adds one draw for each of their limits. Requests that
//! are decided without a store (access lists, unknown tiers, missing key dimensions) add none.

use crate::index::IndexMatches;
use crate::request::CheckRequest;
use crate::rule::{IndexProof, Mismatch, RequestFacts, RequestText, Rule, is_valid};
use crate::set::{ClientProfile, HotRuleKey, RuleSet};
use crate::spec::{MissingKey, UnknownTier};
use ratekeeper_core::{Amount, Draw, Draws, Limit, Micros, Op, PermitId, Scope, StoreFailure};

/// What to do with the units of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take them if every limit allows it.
    Check,
    /// Return what a check would, and take nothing.
    Peek,
    /// Return them to the limits.
    Refund,
    /// Clear the state of every limit.
    Reset,
}

impl Verb {
    fn op(self, cost: u32) -> Op {
        match self {
            Verb::Check => Op::Take(Amount::exactly(cost)),
            Verb::Peek => Op::Peek(Amount::exactly(cost)),
            Verb::Refund => Op::Refund(cost),
            Verb::Reset => Op::Reset,
        }
    }
}

/// The draws of a batch of requests under a [`RuleSet`], and the rule of each draw.
///
/// A plan is meant to be reused: once warm, it does not allocate.
#[derive(Clone, Debug, Default)]
pub struct DrawPlan {
    draws: Draws,
    /// The rule and limit of each draw.
    sources: Vec<DrawSource>,
    /// One per request.
    resolutions: Vec<Resolution>,
    matches: IndexMatches,
    text: RequestText,
    /// The number of groups at the last [`DrawPlan::begin_atomic_group`]; `None` if requests are decided one by one.
    atomic_since: Option<usize>,
}

/// The rule and limit that a draw is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawSource {
    /// The rule's position in [`RuleSet::rules`]; [`DrawSource::INLINE`] if the limit came with the request.
    pub rule: u32,
    /// The index of the limit within the rule.
    pub limit: u32,
}

impl DrawSource {
    /// Stands for a rule position if the limit came with the request.
    pub const INLINE: u32 = u32::MAX;
}

/// What an inline limit, one that comes with the request, counts by. Its counts are separate from those of all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineLimit {
    /// The client's key.
    Key,
    /// The whole descriptor: its domain and all its entries.
    Descriptor,
}

impl InlineLimit {
    /// Fixed random numbers. The scopes of rules are hashes, so a rule is no more likely to collide with these than
    /// with another rule.
    fn scope(self) -> Scope {
        match self {
            InlineLimit::Key => Scope(0x7b1e_4c09_d2a6_835f),
            InlineLimit::Descriptor => Scope(0xa90d_36e5_174b_f2c8),
        }
    }
}

/// How a request was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The client is on the allow list.
    Allowed,
    /// The client is on the deny list.
    Denied,
    /// The request states a tier that the file does not define, and the file denies those.
    UnknownTier,
    /// The request lacks a dimension of a rule's key, and the rule denies such requests.
    MissingKey {
        /// The rule's position in [`RuleSet::rules`].
        rule: u32,
    },
    /// No limit applies.
    Unlimited,
    /// The request's draws decide.
    Limited {
        /// The index of its first draw.
        first: u32,
        /// The index after its last draw.
        end: u32,
    },
}

/// Notable facts about a request, whichever way it was resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNotes {
    /// The request states a tier that the file does not define.
    pub has_unknown_tier: bool,
    /// A matching rule or the fallback was skipped, because the request lacks a dimension of its key.
    pub is_skipped: bool,
    /// The request shares a count with others that lack the same dimensions.
    pub is_shared: bool,
}

impl Resolution {
    /// Whether the request is denied without asking a store.
    pub fn is_denied(self) -> bool {
        matches!(self, Resolution::Denied | Resolution::UnknownTier | Resolution::MissingKey { .. })
    }
}

impl DrawPlan {
    /// Creates an empty plan, without allocating.
    pub fn new() -> DrawPlan {
        DrawPlan::default()
    }

    /// Removes all requests and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.draws.clear();
        self.sources.clear();
        self.resolutions.clear();
        self.atomic_since = None;
    }

    /// Adds a request: a draw for each limit that applies to it.
    ///
    /// All requests of one plan must be resolved by the same rules. `now` is called only if something that expires
    /// might apply. Returns notable facts about the request, for metrics.
    pub fn add(
        &mut self,
        rules: &RuleSet,
        verb: Verb,
        request: &CheckRequest<'_>,
        mut now: impl FnMut() -> Micros,
    ) -> RequestNotes {
        let mut notes = RequestNotes::default();
        let first = self.draws.all().len();
        let resolution = self.resolve(rules, verb, request, &mut notes, &mut now);
        if resolution.is_denied() {
            // Rules before the one that denies may have added draws.
            self.draws.truncate(first);
            self.sources.truncate(first);
        }
        self.resolutions.push(resolution);
        notes
    }

    /// Adds a request with an inline limit, without consulting the rules. The draw's options are the file's defaults.
    ///
    /// # Panics
    /// If the limit counts by descriptor and the request has none.
    pub fn add_inline(
        &mut self,
        rules: &RuleSet,
        inline: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
    ) {
        let first = self.draws.all().len();
        self.begin_group();
        let (scope, op) = (inline.scope(), verb.op(request.cost));
        match inline {
            InlineLimit::Key => {
                self.draws.push(request.client_key.into(), scope, *limit, op, PermitId::default());
            }
            InlineLimit::Descriptor => {
                let descriptor = request.descriptor.expect("a limit by descriptor comes with a descriptor");
                self.draws.push_parts(descriptor.parts(), scope, *limit, op, PermitId::default());
            }
        }
        self.draws.set_options(rules.inline_options);
        self.sources.push(DrawSource { rule: DrawSource::INLINE, limit: 0 });
        self.resolutions.push(self.resolution_from(first));
    }

    /// Makes the following requests, until [`DrawPlan::end_atomic_group`], all-or-nothing: all of them take, or none
    /// does. If they have more than [`MAX_DRAWS`](ratekeeper_core::MAX_DRAWS) draws together, they are split into
    /// several such groups.
    pub fn begin_atomic_group(&mut self) {
        self.atomic_since = Some(self.draws.len());
    }

    /// Makes each following request its own group again.
    pub fn end_atomic_group(&mut self) {
        self.atomic_since = None;
    }

    /// Begins a group, unless an earlier request of the same all-or-nothing group did.
    fn begin_group(&mut self) {
        if self.atomic_since.is_none_or(|groups| groups == self.draws.len()) || self.draws.is_group_full() {
            self.draws.begin_group();
        }
    }

    /// Removes the requests from index `len` on.
    pub fn truncate(&mut self, len: usize) {
        let dropped = self.resolutions.get(len..).unwrap_or_default();
        let first = dropped.iter().find_map(|resolution| match resolution {
            Resolution::Limited { first, .. } => Some(*first as usize),
            _ => None,
        });
        if let Some(first) = first {
            self.draws.truncate(first);
            self.sources.truncate(first);
        }
        self.resolutions.truncate(len);
    }

    /// Adds a request that was denied before any rule was evaluated.
    pub fn add_denied(&mut self) {
        self.resolutions.push(Resolution::Denied);
    }

    fn resolve(
        &mut self,
        rules: &RuleSet,
        verb: Verb,
        request: &CheckRequest<'_>,
        notes: &mut RequestNotes,
        now: &mut impl FnMut() -> Micros,
    ) -> Resolution {
        if rules.deny.contains(request.client_key, request.ip) {
            return Resolution::Denied;
        }
        if rules.allow.contains(request.client_key, request.ip) {
            return Resolution::Allowed;
        }
        let path = rules.path_of(request);
        let profile = rules.client_profile(request, now);
        if profile.has_unknown_tier {
            notes.has_unknown_tier = true;
            if rules.unknown_tier == UnknownTier::Refuse {
                return Resolution::UnknownTier;
            }
        }
        let facts = RuleSet::request_facts(request, &path, &profile);
        self.text.write_ip(request.ip, rules.ipv6_prefix);
        if rules.needs_descriptor {
            self.text.write_descriptor(request.descriptor.as_ref());
        }
        let first = self.draws.all().len();
        let op = verb.op(request.cost);
        // A bit for each key group of which a rule applies: its other rules are skipped.
        let mut decided_groups = 0_u64;
        let mut has_enforced_rule = false;
        if rules.key_groups != 0 {
            rules.index.find(&facts, &mut self.matches);
            for at in 0..self.matches.positions.len() {
                let position = self.matches.positions[at];
                let hot = &rules.hot_rules[position as usize];
                if decided_groups & 1 << hot.key_group != 0 {
                    continue;
                }
                let limits = if hot.always_applies && !facts.client_key.is_empty() {
                    &rules.limits[hot.limits.0 as usize..hot.limits.1 as usize]
                } else {
                    match evaluate_rule(rules, position, &facts, &profile, request, notes, now) {
                        RuleOutcome::Applies(limits) => limits,
                        RuleOutcome::DoesNotApply => continue,
                        RuleOutcome::Denies => return Resolution::MissingKey { rule: position },
                    }
                };
                self.push_draws(rules, position, limits, &facts, op, first);
                has_enforced_rule |= !hot.draw_options.is_shadow;
                decided_groups |= 1 << hot.key_group;
                if decided_groups == rules.key_groups {
                    break;
                }
            }
        }
        if let Some((position, limits)) = rules.fallback_of(&profile) {
            let hot = &rules.hot_rules[position as usize];
            if decided_groups & 1 << hot.key_group == 0 {
                let is_known = match hot.key {
                    HotRuleKey::ApiKey => !facts.client_key.is_empty(),
                    HotRuleKey::Client => !facts.client_key.is_empty() || facts.ip.is_some(),
                    HotRuleKey::Other => {
                        rules.rules[position as usize].mismatch(&facts, IndexProof::None).is_none()
                    }
                };
                let is_exempt = rules.fallback.is_some_and(|base| base.is_last_resort) && has_enforced_rule;
                match rules.rules[position as usize].missing {
                    _ if is_known => self.push_draws(rules, position, limits, &facts, op, first),
                    MissingKey::Refuse => return Resolution::MissingKey { rule: position },
                    MissingKey::Shared if !is_exempt => {
                        notes.is_shared = true;
                        self.push_draws(rules, position, limits, &facts, op, first);
                    }
                    MissingKey::Shared | MissingKey::Skip => notes.is_skipped = true,
                }
            }
        }
        self.resolution_from(first)
    }

    /// The resolution of a request whose draws begin at `first`.
    fn resolution_from(&self, first: usize) -> Resolution {
        let end = self.draws.all().len();
        if end == first {
            Resolution::Unlimited
        } else {
            Resolution::Limited { first: draw_index(first), end: draw_index(end) }
        }
    }

    /// Adds a rule's draws; `first` is the index of the request's first draw.
    #[inline]
    fn push_draws(
        &mut self,
        rules: &RuleSet,
        position: u32,
        limits: &[Limit],
        facts: &RequestFacts<'_>,
        op: Op,
        first: usize,
    ) {
        // An unlimited rule makes no draw, and there are no empty groups.
        if self.draws.all().len() == first && !limits.is_empty() {
            self.begin_group();
        }
        let hot = &rules.hot_rules[position as usize];
        for (limit, scope) in
            (0..).zip(limits).map(|(index, limit)| (limit, Scope(hot.scope.wrapping_add(index))))
        {
            if self.draws.is_group_full() {
                self.draws.begin_group();
            }
            match (scope.0 == hot.scope, hot.key) {
                (false, _) => self.draws.push_same_key(scope, *limit, op, PermitId::default()),
                (true, HotRuleKey::ApiKey | HotRuleKey::Client) if !facts.client_key.is_empty() => {
                    self.draws.push(facts.client_key.into(), scope, *limit, op, PermitId::default());
                }
                (true, _) => {
                    let parts = rules.rules[position as usize].key_parts(facts, &self.text);
                    self.draws.push_parts(parts, scope, *limit, op, PermitId::default());
                }
            }
            self.draws.set_options(hot.draw_options);
            let limit = u32::try_from(scope.0.wrapping_sub(hot.scope)).unwrap_or(u32::MAX);
            self.sources.push(DrawSource { rule: position, limit });
        }
    }

    /// The draws of all requests, for a store to decide.
    pub fn draws_mut(&mut self) -> &mut Draws {
        &mut self.draws
    }

    /// The draws of all requests.
    pub fn draws(&self) -> &Draws {
        &self.draws
    }

    /// The resolution of each request, in the order of [`DrawPlan::add`].
    pub fn resolutions(&self) -> &[Resolution] {
        &self.resolutions
    }

    /// The draws of a request, and the rule and limit of each; both are empty if no store decides it.
    pub fn draws_of(&self, resolution: Resolution) -> (&[Draw], &[DrawSource]) {
        match resolution {
            Resolution::Limited { first, end } => {
                let range = first as usize..end as usize;
                (&self.draws.all()[range.clone()], &self.sources[range])
            }
            _ => (&[], &[]),
        }
    }

    /// Why the store did not decide a request. Returns `None` if it did, or did not have to.
    #[inline]
    pub fn failure(&self, resolution: Resolution) -> Option<StoreFailure> {
        match resolution {
            Resolution::Limited { first, end } => self.draws.failure_in(first as usize..end as usize),
            _ => None,
        }
    }

    /// Whether all requests are decided without a store.
    pub fn is_decided(&self) -> bool {
        self.draws.is_empty()
    }
}

/// A draw's index as `u32`: 2^32 draws would not fit in memory.
fn draw_index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Whether a rule applies to a request.
enum RuleOutcome<'a> {
    /// It applies, with these limits.
    Applies(&'a [Limit]),
    /// It does not apply.
    DoesNotApply,
    /// It denies the request, which lacks a dimension of its key.
    Denies,
}

/// Decides whether a rule applies to a request, and with which limits.
fn evaluate_rule<'a>(
    rules: &'a RuleSet,
    position: u32,
    facts: &RequestFacts<'_>,
    profile: &ClientProfile<'a>,
    request: &CheckRequest<'_>,
    notes: &mut RequestNotes,
    now: &mut impl FnMut() -> Micros,
) -> RuleOutcome<'a> {
    let rule = &rules.rules[position as usize];
    // A missing dimension is checked after all conditions, so a rule that does not match never reports one.
    let is_missing = match rule.mismatch(facts, rules.index.proof(position as usize)) {
        None => false,
        Some(Mismatch::MissingDimension(_)) => true,
        Some(_) => return RuleOutcome::DoesNotApply,
    };
    let Some(limits) = limits_of(rules, rule, profile, request, now) else {
        return RuleOutcome::DoesNotApply;
    };
    match rule.missing {
        _ if !is_missing => RuleOutcome::Applies(limits),
        MissingKey::Refuse => RuleOutcome::Denies,
        MissingKey::Shared => {
            notes.is_shared = true;
            RuleOutcome::Applies(limits)
        }
        MissingKey::Skip => {
            notes.is_skipped = true;
            RuleOutcome::DoesNotApply
        }
    }
}

/// The limits of a rule for a client: its override's, the rule's own, or inherited fallback limits. Returns `None` if
/// there are none.
pub(crate) fn limits_of<'a>(
    rules: &'a RuleSet,
    rule: &'a Rule,
    profile: &ClientProfile<'a>,
    request: &CheckRequest<'_>,
    now: &mut impl FnMut() -> Micros,
) -> Option<&'a [Limit]> {
    let client_limits = if rule.overrides.is_empty() {
        None
    } else {
        rule.overrides.get(request.client_key).filter(|own| is_valid(own.valid_until, now))
    };
    match (client_limits, &rule.limits) {
        (Some(own), _) => Some(&own.limits),
        (None, Some(limits)) => Some(limits),
        (None, None) => rules.fallback_of(profile).map(|(_, limits)| limits),
    }
}
