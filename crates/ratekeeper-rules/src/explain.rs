//! Why a request is held to what it is held to.
//!
//! It goes through all rules one by one, as slowly and plainly as can be: it is also what the quick way is tested
//! against.

mod words;

use crate::dimension::Dimension;
use crate::draw_plan::limits_of;
use crate::request::CheckRequest;
use crate::rule::{IndexProof, Mismatch, RequestText, Rule};
use crate::set::{RuleSet, TierSource};
use crate::spec::{MissingKey, Mode, UnknownTier};
use ratekeeper_core::{Limit, Micros};

/// Why a request is held to what it is held to.
#[derive(Clone, Debug)]
pub struct Explanation<'r> {
    /// Which list the client is on, if on any. Then no rule is looked at.
    pub listed: Option<ListName>,
    /// The path in canonical form.
    pub path: String,
    /// The client's tier.
    pub tier: Option<String>,
    /// Who said so.
    pub tier_source: TierSource,
    /// The tier that the request states, if the file does not know it, and what the file does with those.
    pub unknown_tier: Option<(String, UnknownTier)>,
    /// Every rule of the file, in order, and behind them the base if it has limits for this client.
    pub rules: Vec<(&'r Rule, RuleExplanation<'r>)>,
}

/// A list of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListName {
    /// Who is on it passes unchecked.
    Allow,
    /// Who is on it is always refused.
    Deny,
}

/// What a rule has to say about a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleExplanation<'r> {
    /// It holds the request to these limits, under a key of these parts.
    Binds {
        /// The limits; none if it is unlimited.
        limits: Vec<Limit>,
        /// What each part of the key is, and its value.
        key: Vec<(String, String)>,
    },
    /// It denies the request, which lacks this.
    Refuses(&'r Dimension),
    /// It would bind a request with neither a key nor an address, but a rule binds it already.
    LastResort,
    /// It would bind, but the rule of this id, which counts the same, comes first.
    ComesLater(&'r str),
    /// It does not match.
    Misfit(Mismatch<'r>),
    /// It would bind, but neither it nor what it inherits from has a limit for this client.
    NoLimit,
    /// It is disabled.
    Disabled,
}

impl Explanation<'_> {
    /// Whether the request is denied for a tier that the file does not know.
    pub fn is_tier_refused(&self) -> bool {
        self.listed.is_none()
            && self.unknown_tier.as_ref().is_some_and(|(_, what)| *what == UnknownTier::Refuse)
    }
}

impl RuleSet {
    /// Says for a request which rules bind it and why the others do not.
    pub fn explain(&self, request: &CheckRequest<'_>, mut now: impl FnMut() -> Micros) -> Explanation<'_> {
        let listed = match (
            self.deny.has(request.client_key, request.ip),
            self.allow.has(request.client_key, request.ip),
        ) {
            (true, _) => Some(ListName::Deny),
            (false, true) => Some(ListName::Allow),
            (false, false) => None,
        };
        let path = match request.endpoint {
            "" => "/".into(),
            endpoint => crate::path::normalise(endpoint, self.style),
        };
        let standing = self.standing(request, &mut now);
        let facts = RuleSet::facts(request, &path, &standing);
        let mut words = RequestText::default();
        words.write_ip(request.ip, self.ipv6_prefix);
        words.write_descriptor(request.descriptor.as_ref());
        let base_of_client = self.base_of(&standing);
        let first_of_base = self.base.map_or(self.rules.len(), |base| base.default as usize);
        let mut winners: Vec<(u32, &str)> = Vec::new();
        let mut rules: Vec<(&Rule, RuleExplanation<'_>)> = Vec::new();
        for (position, rule) in self.rules.iter().enumerate() {
            let is_base = position >= first_of_base;
            let base_limits = match base_of_client {
                Some((own, limits)) if own as usize == position => Some(limits),
                // The base's other rules are other clients'.
                _ if is_base => continue,
                _ => None,
            };
            let limits = match base_limits {
                Some(limits) => Some(limits),
                None => limits_of(self, rule, &standing, request, &mut now),
            };
            let winner = winners.iter().find(|(track, _)| *track == rule.track).map(|(_, id)| *id);
            let misfit = rule.misfit(&facts, IndexProof::Nothing);
            let is_bound = || {
                let mut enforced = rules.iter().filter(|(rule, _)| rule.mode == Mode::Enforced);
                enforced.any(|(_, standing)| matches!(standing, RuleExplanation::Binds { .. }))
            };
            let is_last_resort = is_base && self.base.is_some_and(|base| base.is_last_resort);
            let standing = match (rule.mode, misfit, winner, limits) {
                (Mode::Disabled, ..) => RuleExplanation::Disabled,
                (_, Some(misfit @ Mismatch::Unknown(_)), ..) if rule.missing == MissingKey::Skip => {
                    RuleExplanation::Misfit(misfit)
                }
                (_, Some(misfit), ..) if !matches!(misfit, Mismatch::Unknown(_)) => {
                    RuleExplanation::Misfit(misfit)
                }
                (_, _, Some(id), _) => RuleExplanation::ComesLater(id),
                (_, _, None, None) => RuleExplanation::NoLimit,
                (_, Some(Mismatch::Unknown(dimension)), ..) if rule.missing == MissingKey::Refuse => {
                    RuleExplanation::Refuses(dimension)
                }
                (_, Some(_), ..) if is_last_resort && is_bound() => RuleExplanation::LastResort,
                (_, _, None, Some(limits)) => {
                    winners.push((rule.track, &rule.id));
                    RuleExplanation::Binds { limits: limits.to_vec(), key: rule.named_parts(&facts, &words) }
                }
            };
            rules.push((rule, standing));
        }
        Explanation {
            listed,
            path: path.clone().into_owned(),
            tier: standing.tier.map(str::to_owned),
            tier_source: standing.told_by,
            unknown_tier: standing.has_unknown_tier.then(|| (request.tier.to_owned(), self.unknown_tier)),
            rules,
        }
    }
}
