//! From requests to draws.

use crate::index::IndexMatches;
use crate::request::CheckRequest;
use crate::rule::{IndexProof, Mismatch, RequestFacts, RequestText, Rule, is_valid};
use crate::set::{ClientProfile, HotRuleKey, RuleSet};
use crate::spec::{MissingKey, UnknownTier};
use ratekeeper_core::{Amount, Draw, Draws, Limit, Micros, Op, PermitId, Scope, StoreFailure};

/// What is to be done with a request's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take them if every limit agrees.
    Check,
    /// Say what a check would, and take nothing.
    Peek,
    /// Give them back.
    Refund,
    /// Forget all that was taken.
    Reset,
}

impl Verb {
    fn act(self, cost: u32) -> Op {
        match self {
            Verb::Check => Op::Take(Amount::exactly(cost)),
            Verb::Peek => Op::Look(Amount::exactly(cost)),
            Verb::Refund => Op::Give(cost),
            Verb::Reset => Op::Clear,
        }
    }
}

/// The draws that requests make under a [`RuleSet`], and which rule each is for.
///
/// It is made to be kept and filled again: once warm, it allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct DrawPlan {
    draws: Draws,
    /// For each draw.
    bound: Vec<DrawSource>,
    /// For each request.
    cases: Vec<Resolution>,
    found: IndexMatches,
    words: RequestText,
    /// How many groups there were when requests were joined, while they are.
    joined: Option<usize>,
}

/// Which rule a draw is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawSource {
    /// The rule's position in [`RuleSet::rules`]; [`DrawSource::STATED`] if the limit came with the request.
    pub rule: u32,
    /// Which of its limits.
    pub limit: u32,
}

impl DrawSource {
    /// Where no rule is: the limit came with the request.
    pub const STATED: u32 = u32::MAX;
}

/// What a limit that comes with its request counts by. Each has counts of its own, apart from those of all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineLimit {
    /// The client's key.
    Key,
    /// The whole descriptor: its domain and all its entries.
    Descriptor,
}

impl InlineLimit {
    /// Those of rules are hashes: that one of them is one of these is as likely as that two rules meet.
    fn scope(self) -> Scope {
        match self {
            InlineLimit::Key => Scope(0x7b1e_4c09_d2a6_835f),
            InlineLimit::Descriptor => Scope(0xa90d_36e5_174b_f2c8),
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The client is on the allow list.
    Allowed,
    /// The client is on the deny list.
    Denied,
    /// It states a tier that the file does not know, and the file refuses those.
    UnknownTier,
    /// It lacks something that a rule counts by, and the rule refuses those.
    Missing {
        /// The rule's position in [`RuleSet::rules`].
        rule: u32,
    },
    /// No limit binds it.
    Unbound,
    /// Its draws decide.
    Bound {
        /// The first of its draws.
        first: u32,
        /// The first behind its draws.
        end: u32,
    },
}

/// What was odd about a request, whatever became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNotes {
    /// It states a tier that the file does not know.
    pub has_unknown_tier: bool,
    /// A rule that matches it, or the base, did not bind it, because it lacks something that is counted by.
    pub is_skipped: bool,
    /// It shares a count with others that lack the same.
    pub is_shared: bool,
}

impl Resolution {
    /// Whether it is denied whatever its limits say.
    pub fn is_denied(self) -> bool {
        matches!(self, Resolution::Denied | Resolution::UnknownTier | Resolution::Missing { .. })
    }
}

impl DrawPlan {
    /// An empty plan. It allocates when it is first filled.
    pub fn new() -> DrawPlan {
        DrawPlan::default()
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.draws.clear();
        self.bound.clear();
        self.cases.clear();
        self.joined = None;
    }

    /// Adds what a request must pass.
    ///
    /// All requests of one plan are resolved by the same rules. `now` is asked only if something that expires might
    /// apply. Returns what was odd about the request.
    pub fn add(
        &mut self,
        rules: &RuleSet,
        verb: Verb,
        request: &CheckRequest<'_>,
        mut now: impl FnMut() -> Micros,
    ) -> RequestNotes {
        let mut notes = RequestNotes::default();
        let first = self.draws.all().len();
        let case = self.resolve(rules, verb, request, &mut notes, &mut now);
        if case.is_denied() {
            // Rules before the one that refuses may have made draws.
            self.draws.cut(first);
            self.bound.truncate(first);
        }
        self.cases.push(case);
        notes
    }

    /// Adds a request that is held to a limit of its own, whatever the rules say, on the terms that hold for all of them.
    ///
    /// # Panics
    /// If it is counted by its descriptor and has none.
    pub fn add_stated(
        &mut self,
        rules: &RuleSet,
        stated: InlineLimit,
        limit: &Limit,
        verb: Verb,
        request: &CheckRequest<'_>,
    ) {
        let first = self.draws.all().len();
        self.begin();
        let (scope, act) = (stated.scope(), verb.act(request.cost));
        match stated {
            InlineLimit::Key => {
                self.draws.push(request.client_key.into(), scope, *limit, act, PermitId::default());
            }
            InlineLimit::Descriptor => {
                let descriptor = request.descriptor.expect("what counts by its descriptor has one");
                self.draws.push_parts(descriptor.parts(), scope, *limit, act, PermitId::default());
            }
        }
        self.draws.set_terms(rules.stated);
        self.bound.push(DrawSource { rule: DrawSource::STATED, limit: 0 });
        self.cases.push(self.case(first));
    }

    /// From now until [`DrawPlan::part`], requests are decided together: all of them take, or none does. Those with more
    /// than [`MAX_DRAWS`](ratekeeper_core::MAX_DRAWS) draws among them are decided in several such groups.
    pub fn join(&mut self) {
        self.joined = Some(self.draws.len());
    }

    /// From now on, each request is decided by itself again.
    pub fn part(&mut self) {
        self.joined = None;
    }

    /// Begins a group, unless a request before began it for this one too.
    fn begin(&mut self) {
        if self.joined.is_none_or(|groups| groups == self.draws.len()) || self.draws.is_group_full() {
            self.draws.begin();
        }
    }

    /// Takes requests off it again, from the one at `len` on.
    pub fn cut(&mut self, len: usize) {
        let dropped = self.cases.get(len..).unwrap_or_default();
        let first = dropped.iter().find_map(|case| match case {
            Resolution::Bound { first, .. } => Some(*first as usize),
            _ => None,
        });
        if let Some(first) = first {
            self.draws.cut(first);
            self.bound.truncate(first);
        }
        self.cases.truncate(len);
    }

    /// Adds a request that was refused before any rule was looked at.
    pub fn add_refused(&mut self) {
        self.cases.push(Resolution::Denied);
    }

    fn resolve(
        &mut self,
        rules: &RuleSet,
        verb: Verb,
        request: &CheckRequest<'_>,
        notes: &mut RequestNotes,
        now: &mut impl FnMut() -> Micros,
    ) -> Resolution {
        if rules.deny.has(request.client_key, request.ip) {
            return Resolution::Denied;
        }
        if rules.allow.has(request.client_key, request.ip) {
            return Resolution::Allowed;
        }
        let path = rules.path_of(request);
        let standing = rules.standing(request, now);
        if standing.has_unknown_tier {
            notes.has_unknown_tier = true;
            if rules.unknown_tier == UnknownTier::Refuse {
                return Resolution::UnknownTier;
            }
        }
        let facts = RuleSet::facts(request, &path, &standing);
        self.words.write_ip(request.ip, rules.ipv6_prefix);
        if rules.needs_descriptor {
            self.words.write_descriptor(request.descriptor.as_ref());
        }
        let first = self.draws.all().len();
        let act = verb.act(request.cost);
        let mut decided = 0_u64;
        let mut is_bound = false;
        if rules.tracks != 0 {
            rules.index.find(&facts, &mut self.found);
            for at in 0..self.found.positions.len() {
                let position = self.found.positions[at];
                let hot = &rules.hot[position as usize];
                if decided & 1 << hot.track != 0 {
                    continue;
                }
                let limits = match hot.is_plain && !facts.client_key.is_empty() {
                    true => &rules.limits[hot.limits.0 as usize..hot.limits.1 as usize],
                    false => match bind(rules, position, &facts, &standing, request, notes, now) {
                        RuleBinding::To(limits) => limits,
                        RuleBinding::None => continue,
                        RuleBinding::Refused => return Resolution::Missing { rule: position },
                    },
                };
                self.draw(rules, position, limits, &facts, act, first);
                is_bound |= !hot.terms.is_shadow;
                decided |= 1 << hot.track;
                if decided == rules.tracks {
                    break;
                }
            }
        }
        if let Some((position, limits)) = rules.base_of(&standing) {
            let hot = &rules.hot[position as usize];
            if decided & 1 << hot.track == 0 {
                let is_known = match hot.key {
                    HotRuleKey::ApiKey => !facts.client_key.is_empty(),
                    HotRuleKey::Client => !facts.client_key.is_empty() || facts.ip.is_some(),
                    HotRuleKey::Other => {
                        rules.rules[position as usize].misfit(&facts, IndexProof::Nothing).is_none()
                    }
                };
                let is_spared = rules.base.is_some_and(|base| base.is_last_resort) && is_bound;
                match rules.rules[position as usize].missing {
                    _ if is_known => self.draw(rules, position, limits, &facts, act, first),
                    MissingKey::Refuse => return Resolution::Missing { rule: position },
                    MissingKey::Shared if !is_spared => {
                        notes.is_shared = true;
                        self.draw(rules, position, limits, &facts, act, first);
                    }
                    MissingKey::Shared | MissingKey::Skip => notes.is_skipped = true,
                }
            }
        }
        self.case(first)
    }

    /// A request whose draws are those from `first` on.
    fn case(&self, first: usize) -> Resolution {
        let end = self.draws.all().len();
        match end == first {
            true => Resolution::Unbound,
            false => Resolution::Bound { first: number(first), end: number(end) },
        }
    }

    /// Adds a rule's draws; `first` is where those of this request begin.
    #[inline]
    fn draw(
        &mut self,
        rules: &RuleSet,
        position: u32,
        limits: &[Limit],
        facts: &RequestFacts<'_>,
        act: Op,
        first: usize,
    ) {
        // What is unlimited makes no draw, and a group without draws is none.
        if self.draws.all().len() == first && !limits.is_empty() {
            self.begin();
        }
        let hot = &rules.hot[position as usize];
        for (limit, scope) in
            (0..).zip(limits).map(|(index, limit)| (limit, Scope(hot.scope.wrapping_add(index))))
        {
            if self.draws.is_group_full() {
                self.draws.begin();
            }
            match (scope.0 == hot.scope, hot.key) {
                (false, _) => self.draws.push_again(scope, *limit, act, PermitId::default()),
                (true, HotRuleKey::ApiKey | HotRuleKey::Client) if !facts.client_key.is_empty() => {
                    self.draws.push(facts.client_key.into(), scope, *limit, act, PermitId::default());
                }
                (true, _) => {
                    let parts = rules.rules[position as usize].parts(facts, &self.words);
                    self.draws.push_parts(parts, scope, *limit, act, PermitId::default());
                }
            }
            self.draws.set_terms(hot.terms);
            let limit = u32::try_from(scope.0.wrapping_sub(hot.scope)).unwrap_or(u32::MAX);
            self.bound.push(DrawSource { rule: position, limit });
        }
    }

    /// The draws, for a store to decide.
    pub fn draws_mut(&mut self) -> &mut Draws {
        &mut self.draws
    }

    /// The draws.
    pub fn draws(&self) -> &Draws {
        &self.draws
    }

    /// What became of each request, in order.
    pub fn cases(&self) -> &[Resolution] {
        &self.cases
    }

    /// The draws of a request and the rules that they are for.
    pub fn bound(&self, case: Resolution) -> (&[Draw], &[DrawSource]) {
        match case {
            Resolution::Bound { first, end } => {
                let range = first as usize..end as usize;
                (&self.draws.all()[range.clone()], &self.bound[range])
            }
            _ => (&[], &[]),
        }
    }

    /// Why a request was not decided by the store; nothing if it was.
    #[inline]
    pub fn failure(&self, case: Resolution) -> Option<StoreFailure> {
        match case {
            Resolution::Bound { first, end } => self.draws.failure(first as usize..end as usize),
            _ => None,
        }
    }

    /// Whether no store has anything to decide.
    pub fn is_settled(&self) -> bool {
        self.draws.is_empty()
    }
}

/// A position among draws: more of them than 2^32 would not fit in memory.
fn number(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Whether a rule binds a request.
enum RuleBinding<'a> {
    /// To these limits.
    To(&'a [Limit]),
    /// It does not.
    None,
    /// The request lacks something that the rule counts by, and is denied.
    Refused,
}

/// The limits that a rule holds a client to, if it binds the request at all.
fn bind<'a>(
    rules: &'a RuleSet,
    position: u32,
    facts: &RequestFacts<'_>,
    standing: &ClientProfile<'a>,
    request: &CheckRequest<'_>,
    notes: &mut RequestNotes,
    now: &mut impl FnMut() -> Micros,
) -> RuleBinding<'a> {
    let rule = &rules.rules[position as usize];
    // What is missing is looked for behind all conditions, so a rule that does not match says nothing of it.
    let is_missing = match rule.misfit(facts, rules.index.proof(position as usize)) {
        None => false,
        Some(Mismatch::Unknown(_)) => true,
        Some(_) => return RuleBinding::None,
    };
    let Some(limits) = limits_of(rules, rule, standing, request, now) else { return RuleBinding::None };
    match rule.missing {
        _ if !is_missing => RuleBinding::To(limits),
        MissingKey::Refuse => RuleBinding::Refused,
        MissingKey::Shared => {
            notes.is_shared = true;
            RuleBinding::To(limits)
        }
        MissingKey::Skip => {
            notes.is_skipped = true;
            RuleBinding::None
        }
    }
}

/// The limits that a rule holds a client to: its override's, the rule's own, or those it inherits.
pub(crate) fn limits_of<'a>(
    rules: &'a RuleSet,
    rule: &'a Rule,
    standing: &ClientProfile<'a>,
    request: &CheckRequest<'_>,
    now: &mut impl FnMut() -> Micros,
) -> Option<&'a [Limit]> {
    let own = match rule.overrides.is_empty() {
        true => None,
        false => rule.overrides.get(request.client_key).filter(|terms| is_valid(terms.valid_until, now)),
    };
    match (own, &rule.limits) {
        (Some(terms), _) => Some(&terms.limits),
        (None, Some(limits)) => Some(limits),
        (None, None) => rules.base_of(standing).map(|(_, limits)| limits),
    }
}
