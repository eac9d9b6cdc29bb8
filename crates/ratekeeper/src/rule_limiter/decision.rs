//! The decision of a request, and its reason.

use ratekeeper_core::{
    BindingDraw, Consistency, Decision, Draw, FailureMode, Forecast, KeyRef, Limit, LimitStatus, Micros,
    Scope,
};
use ratekeeper_rules::{DrawSource, Rule};

/// The name of an inline limit in output.
const INLINE_LIMIT_NAME: &str = "stated";

/// The decision of a request under rules, and its reason.
///
/// It was computed once, when its batch was decided; all methods only read it.
#[derive(Clone, Copy, Debug)]
pub struct RuleDecision<'d> {
    record: &'d DecisionRecord,
    /// The emergency limit's decision, if it denied the request.
    emergency: Option<&'d Decision>,
    draws: &'d [Draw],
    sources: &'d [DrawSource],
    rules: &'d [Rule],
}

/// The decision of a request as plain data, which a batch keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionRecord {
    is_allowed: bool,
    reason: Reason,
    /// The index of the binding draw.
    binding: Option<usize>,
    /// The forecast of the binding draw, or of the emergency limit.
    forecast: Option<Forecast>,
    /// The index of the deciding rule, if no limit decided.
    deciding_rule: Option<u32>,
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit decided.
    Limit,
    /// No rule applies.
    NoRule,
    /// The client is on the allow list.
    AllowList,
    /// The client is on the deny list.
    DenyList,
    /// The request has a tier that the rule file does not name, and the file denies such requests.
    UnknownTier,
    /// The request lacks a value that a rule counts by, and the rule denies such requests.
    Missing,
    /// The emergency limit denied the request.
    Emergency,
    /// The store failed, and the rule's failure mode decided.
    Degraded,
}

impl Reason {
    /// The name of the reason in responses and logs.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Limit => "limit",
            Reason::NoRule => "no_rule",
            Reason::AllowList => "allow_list",
            Reason::DenyList => "deny_list",
            Reason::Emergency => "emergency",
            Reason::Degraded => "degraded",
            Reason::UnknownTier => "unknown_tier",
            Reason::Missing => "missing",
        }
    }
}

/// One limit that a request had to pass, and its status.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'d> {
    /// The rule of the limit, or `None` for an inline limit.
    pub rule: Option<&'d Rule>,
    /// The name of the limit.
    pub name: &'d str,
    /// The limit.
    pub limit: &'d Limit,
    /// The status of the limit after the decision.
    pub status: LimitStatus,
}

/// A limit that applies to a request, and the key that it counts.
#[derive(Clone, Copy, Debug)]
pub struct AppliedLimit<'d> {
    /// The limit, and its status if it is decided.
    pub policy: Policy<'d>,
    /// Whether the limit is decided.
    pub is_decided: bool,
    /// Whether the limit belongs to a shadow rule, which never denies.
    pub is_shadow: bool,
    /// The key that the limit counts by.
    pub key: KeyRef<'d>,
    /// The limit's scope in the store: identifies the limit and its rule.
    pub scope: Scope,
}

/// The binding limit of a decision.
#[derive(Clone, Copy, Debug)]
pub struct BindingLimit<'d> {
    /// The limit.
    pub limit: &'d Limit,
    /// The store's time of the decision.
    pub now: Micros,
    /// Remaining units, reset and retry times.
    pub forecast: Forecast,
}

impl DecisionRecord {
    /// A decision that no limit made.
    #[inline]
    pub(super) fn without_limit(is_allowed: bool, reason: Reason) -> DecisionRecord {
        DecisionRecord { is_allowed, reason, binding: None, forecast: None, deciding_rule: None }
    }

    /// The decision of a request that lacks a value that this rule counts by.
    pub(super) fn missing(rule: u32) -> DecisionRecord {
        DecisionRecord { deciding_rule: Some(rule), ..DecisionRecord::without_limit(false, Reason::Missing) }
    }

    /// The decision of the emergency limit.
    pub(super) fn emergency(decision: &Decision) -> DecisionRecord {
        DecisionRecord {
            forecast: decision.status().map(LimitStatus::forecast),
            ..DecisionRecord::without_limit(decision.is_allowed(), Reason::Emergency)
        }
    }

    /// The decision of the store.
    #[inline]
    pub(super) fn from_draws(draws: &[Draw]) -> DecisionRecord {
        let is_allowed = !draws.iter().any(Draw::denies_request);
        match BindingDraw::among(draws) {
            Some(binding) => DecisionRecord {
                binding: Some(binding.index),
                forecast: Some(binding.forecast),
                ..DecisionRecord::without_limit(is_allowed, Reason::Limit)
            },
            None => DecisionRecord::without_limit(is_allowed, Reason::NoRule),
        }
    }

    /// The decision when the store failed. A limit that fails closed denies. Of the limits that this node enforces from
    /// memory, the binding one decides. All others allow.
    pub(super) fn degraded(draws: &[Draw], sources: &[DrawSource]) -> DecisionRecord {
        // Units granted by one server do not count if another server failed.
        let is_closed = |draw: &Draw| {
            let options = draw.options();
            options.on_failure == FailureMode::Closed && options.consistency != Consistency::Local
        };
        let closed = draws.iter().position(|draw| !draw.is_shadow() && is_closed(draw));
        let binding = match closed {
            Some(_) => None,
            None => BindingDraw::among_decided(draws),
        };
        let first = closed.or_else(|| draws.iter().position(|draw| !draw.is_shadow()));
        DecisionRecord {
            is_allowed: closed.is_none()
                && binding.is_none_or(|binding| !draws[binding.index].denies_request()),
            // Shadow rules alone never bind, with or without the store.
            reason: if first.is_some() { Reason::Degraded } else { Reason::NoRule },
            binding: binding.map(|binding| binding.index),
            forecast: binding.map(|binding| binding.forecast),
            deciding_rule: first.map(|index| sources[index].rule),
        }
    }
}

impl<'d> RuleDecision<'d> {
    #[inline]
    pub(super) fn new(
        record: &'d DecisionRecord,
        emergency: Option<&'d Decision>,
        draws: &'d [Draw],
        sources: &'d [DrawSource],
        rules: &'d [Rule],
    ) -> RuleDecision<'d> {
        RuleDecision { record, emergency, draws, sources, rules }
    }

    /// Whether the request is allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.record.is_allowed
    }

    /// The reason for the decision.
    #[inline]
    pub fn reason(&self) -> Reason {
        self.record.reason
    }

    /// The binding limit. Returns `None` if no limit applies.
    #[inline]
    pub fn binding(&self) -> Option<BindingLimit<'d>> {
        let forecast = self.record.forecast?;
        let (limit, now) = match (self.record.binding, self.emergency.and_then(Decision::status)) {
            (Some(index), _) => (self.draws[index].limit(), self.draws[index].decided_at()),
            (None, status) => status.map(|status| (status.limit(), status.decided_at()))?,
        };
        Some(BindingLimit { limit, now, forecast })
    }

    /// The units left under the binding limit. Without a limit this is [`u32::MAX`] if allowed, 0 if denied.
    pub fn remaining(&self) -> u32 {
        let without_limit = if self.record.is_allowed { u32::MAX } else { 0 };
        self.record.forecast.map_or(without_limit, |forecast| forecast.remaining)
    }

    /// The rule of the binding limit, or the rule that decided without one. Returns `None` if no rule decided.
    pub fn rule(&self) -> Option<&'d Rule> {
        self.rule_index().and_then(|position| self.rules.get(position as usize))
    }

    /// The name of the binding limit. Returns `None` if no limit applies.
    pub fn limit_name(&self) -> Option<&'d str> {
        if self.record.reason == Reason::Emergency {
            return Some("emergency");
        }
        let source = self.sources.get(self.record.binding?)?;
        Some(name(self.rules.get(source.rule as usize), *source))
    }

    /// The limits that the request had to pass, without shadow rules.
    pub fn policies(&self) -> impl Iterator<Item = Policy<'d>> + use<'d> {
        let (rules, is_degraded, is_closed) =
            (self.rules, self.record.reason == Reason::Degraded, self.record.binding.is_none());
        // Without the store, only limits that this node decided are reported, and none if a limit fails closed.
        let is_shown =
            move |draw: &Draw| !draw.is_shadow() && (!is_degraded || !is_closed && draw.is_decided());
        let enforced = self.draws.iter().zip(self.sources).filter(move |(draw, _)| is_shown(draw));
        enforced.map(move |(draw, source)| Policy::of(draw, *source, rules))
    }

    /// Whether the request was subject to an inline limit instead of the rules.
    pub fn is_inline(&self) -> bool {
        self.sources.first().is_some_and(|source| source.rule == DrawSource::INLINE)
    }

    /// The index of the rule that [`RuleDecision::rule`] returns.
    pub(super) fn rule_index(&self) -> Option<u32> {
        match self.record.binding {
            Some(binding) => self.sources.get(binding).map(|source| source.rule),
            None => self.record.deciding_rule,
        }
    }

    /// The indices of the shadow rules that would have denied the request.
    pub(super) fn denying_shadows(&self) -> impl Iterator<Item = u32> {
        let denied =
            self.draws.iter().zip(self.sources).filter(|(draw, _)| draw.is_shadow() && draw.is_denied());
        denied.map(|(_, source)| source.rule)
    }

    /// Whether any draw belongs to a shadow rule.
    pub(super) fn has_shadows(&self) -> bool {
        self.draws.iter().any(Draw::is_shadow)
    }
}

impl<'d> Policy<'d> {
    pub(super) fn of(draw: &'d Draw, source: DrawSource, rules: &'d [Rule]) -> Policy<'d> {
        let rule = rules.get(source.rule as usize);
        Policy { rule, name: name(rule, source), limit: draw.limit(), status: draw.status() }
    }
}

/// The name of a limit.
#[inline]
fn name(rule: Option<&Rule>, source: DrawSource) -> &str {
    rule.map_or(INLINE_LIMIT_NAME, |rule| rule.limit_name(source.limit as usize))
}
