//! What was decided about a request by rules, and why.

use ratekeeper_core::{
    Consistency, Decision, Draw, FailureMode, Forecast, KeyRef, Limit, LimitStatus, Micros, Scope,
};
use ratekeeper_rules::{DrawSource, Rule};

/// What a limit goes by that came with its request.
const STATED: &str = "stated";

/// What was decided about a request by rules, and why.
#[derive(Clone, Copy, Debug)]
pub struct RuleDecision<'d> {
    is_allowed: bool,
    cause: Reason,
    /// Which of the draws binds.
    binding: Option<usize>,
    /// What the emergency limit said, if it refused.
    emergency: Option<&'d Decision>,
    draws: &'d [Draw],
    bound: &'d [DrawSource],
    rules: &'d [Rule],
    /// The position of the rule that decided where no limit did.
    by: Option<u32>,
}

/// Why a request was decided as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit of a rule said so.
    Limit,
    /// No rule binds it.
    NoRule,
    /// The client is on the allow list.
    AllowList,
    /// The client is on the deny list.
    DenyList,
    /// It states a tier that the rule file does not name, and the file refuses those.
    UnknownTier,
    /// It lacks something that a rule counts by, and the rule refuses those.
    Missing,
    /// The emergency limit refused it.
    Emergency,
    /// The store gave no answer, and the rule says what to do then.
    Degraded,
}

/// One limit that a request had to pass, and what it said.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'d> {
    /// The rule it belongs to; nothing if it came with the request.
    pub rule: Option<&'d Rule>,
    /// What the limit goes by.
    pub name: &'d str,
    /// The limit.
    pub limit: &'d Limit,
    /// What it said.
    pub reading: LimitStatus,
}

/// A limit that a request is held to, and whose units it counts.
#[derive(Clone, Copy, Debug)]
pub struct AppliedLimit<'d> {
    /// The limit, and what it said if it is decided.
    pub policy: Policy<'d>,
    /// Whether it is.
    pub is_decided: bool,
    /// Whether it refuses nobody.
    pub is_shadow: bool,
    /// The key that it counts by.
    pub key: KeyRef<'d>,
    /// Which limit of which rule it is, for the store.
    pub scope: Scope,
}

/// What the limit that binds says.
#[derive(Clone, Copy, Debug)]
pub struct BindingLimit<'d> {
    /// The limit.
    pub limit: &'d Limit,
    /// The store's time when it was asked.
    pub now: Micros,
    /// What it says is to come.
    pub outlook: Forecast,
}

impl<'d> RuleDecision<'d> {
    #[inline]
    pub(super) fn new(is_allowed: bool, cause: Reason) -> RuleDecision<'d> {
        let (draws, bound, rules) = (&[][..], &[][..], &[][..]);
        RuleDecision { is_allowed, cause, binding: None, emergency: None, draws, bound, rules, by: None }
    }

    /// A request that lacks something that this rule counts by.
    pub(super) fn missing(rule: u32, rules: &'d [Rule]) -> RuleDecision<'d> {
        RuleDecision { rules, by: Some(rule), ..RuleDecision::new(false, Reason::Missing) }
    }

    /// What holds if the store gave no answer: a limit that fails closed refuses; of those that this node enforces from
    /// memory, the one that binds speaks; the others let pass.
    pub(super) fn without_store(
        draws: &'d [Draw],
        bound: &'d [DrawSource],
        rules: &'d [Rule],
    ) -> RuleDecision<'d> {
        // What one server granted does not stand if another gave no answer.
        let is_closed = |draw: &Draw| {
            let terms = draw.terms();
            terms.on_failure == FailureMode::Closed && terms.consistency != Consistency::Local
        };
        let closed = draws.iter().position(|draw| !draw.is_shadow() && is_closed(draw));
        let binding = match closed {
            Some(_) => None,
            None => Decision::weigh_decided(draws),
        };
        let first = closed.or_else(|| draws.iter().position(|draw| !draw.is_shadow()));
        let by = first.map(|index| bound[index].rule);
        let is_allowed = closed.is_none() && binding.is_none_or(|index| !draws[index].stops());
        RuleDecision {
            is_allowed,
            // Shadows alone bind nobody, with the store or without it.
            cause: if first.is_some() { Reason::Degraded } else { Reason::NoRule },
            binding,
            emergency: None,
            draws,
            bound,
            rules,
            by,
        }
    }

    pub(super) fn emergency(decision: &'d Decision) -> RuleDecision<'d> {
        RuleDecision {
            emergency: Some(decision),
            ..RuleDecision::new(decision.is_allowed(), Reason::Emergency)
        }
    }

    #[inline]
    pub(super) fn of(draws: &'d [Draw], bound: &'d [DrawSource], rules: &'d [Rule]) -> RuleDecision<'d> {
        let (is_allowed, binding) = Decision::weigh(draws);
        let cause = if binding.is_some() { Reason::Limit } else { Reason::NoRule };
        RuleDecision { is_allowed, cause, binding, emergency: None, draws, bound, rules, by: None }
    }

    /// Whether the request may go on.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// What the client hears.
    pub fn decision(&self) -> Decision {
        match (self.emergency, self.binding, self.is_allowed) {
            (Some(decision), ..) => *decision,
            // Beside what this node decided by itself there may be limits of which nothing is known.
            (None, Some(binding), _) if self.cause == Reason::Degraded => {
                Decision::of(&self.draws[binding..=binding])
            }
            (None, Some(_), _) => Decision::of(self.draws),
            (None, None, true) => Decision::UNLIMITED,
            (None, None, false) => Decision::REFUSED,
        }
    }

    /// What the limit that binds says; nothing if none does.
    #[inline]
    pub fn binding(&self) -> Option<BindingLimit<'d>> {
        if let Some(reading) = self.emergency.and_then(Decision::reading) {
            return Some(BindingLimit {
                limit: reading.limit(),
                now: reading.now(),
                outlook: reading.outlook(),
            });
        }
        let draw = &self.draws[self.binding?];
        Some(BindingLimit { limit: draw.limit(), now: draw.now(), outlook: draw.outlook() })
    }

    /// Why.
    #[inline]
    pub fn cause(&self) -> Reason {
        self.cause
    }

    /// The rule that binds.
    pub fn rule(&self) -> Option<&'d Rule> {
        self.position().and_then(|position| self.rules.get(position as usize))
    }

    /// What the limit that binds goes by.
    pub fn limit_name(&self) -> Option<&'d str> {
        if self.cause == Reason::Emergency {
            return Some("emergency");
        }
        let bound = self.bound.get(self.binding?)?;
        Some(name(self.rules.get(bound.rule as usize), *bound))
    }

    /// The limits that it had to pass, without shadows.
    pub fn policies(&self) -> impl Iterator<Item = Policy<'d>> + use<'d> {
        let (rules, is_degraded, is_closed) =
            (self.rules, self.cause == Reason::Degraded, self.binding.is_none());
        // Without the store only what this node knows by itself has a say, and nothing if a limit fails closed.
        let has_a_say =
            move |draw: &Draw| !draw.is_shadow() && (!is_degraded || !is_closed && draw.is_decided());
        let enforced = self.draws.iter().zip(self.bound).filter(move |(draw, _)| has_a_say(draw));
        enforced.map(move |(draw, bound)| Policy::of(draw, *bound, rules))
    }

    /// Whether it was held to a limit of its own, whatever the rules say.
    pub fn is_stated(&self) -> bool {
        self.bound.first().is_some_and(|bound| bound.rule == DrawSource::STATED)
    }

    /// The position of the rule that binds.
    pub(super) fn position(&self) -> Option<u32> {
        match self.binding {
            Some(binding) => self.bound.get(binding).map(|bound| bound.rule),
            None => self.by,
        }
    }

    /// The positions of the shadow rules that would have refused it.
    pub(super) fn shadows(&self) -> impl Iterator<Item = u32> {
        let refused =
            self.draws.iter().zip(self.bound).filter(|(draw, _)| draw.is_shadow() && draw.is_refused());
        refused.map(|(_, bound)| bound.rule)
    }

    /// Whether any draw is a shadow.
    pub(super) fn has_shadows(&self) -> bool {
        self.draws.iter().any(Draw::is_shadow)
    }
}

impl<'d> Policy<'d> {
    pub(super) fn of(draw: &'d Draw, bound: DrawSource, rules: &'d [Rule]) -> Policy<'d> {
        let rule = rules.get(bound.rule as usize);
        Policy { rule, name: name(rule, bound), limit: draw.limit(), reading: draw.reading() }
    }
}

/// What a limit goes by.
#[inline]
fn name(rule: Option<&Rule>, bound: DrawSource) -> &str {
    rule.map_or(STATED, |rule| rule.limit_name(bound.limit as usize))
}
