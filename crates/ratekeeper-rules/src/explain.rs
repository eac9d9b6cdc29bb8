//! Explains which rules apply to a request, and why the others do not.
//!
//! It checks all rules one by one, without an index. It is deliberately simple, because it is also the reference that
//! the indexed lookup is tested against.

mod render;

use crate::dimension::Dimension;
use crate::draw_plan::limits_of;
use crate::request::CheckRequest;
use crate::rule::{IndexProof, Mismatch, RequestText, Rule};
use crate::set::{RuleSet, TierSource};
use crate::spec::{MissingKey, Mode, UnknownTier};
use ratekeeper_core::{Limit, Micros};

/// Which rules apply to a request, and why the others do not.
#[derive(Clone, Debug)]
pub struct Explanation<'r> {
    /// The list that the client is on, if any. Then no rule is checked.
    pub listed: Option<ListName>,
    /// The normalized path.
    pub path: String,
    /// The client's tier, if it is known.
    pub tier: Option<String>,
    /// Where the tier comes from.
    pub tier_source: TierSource,
    /// The tier that the request states, and how it is handled, if the file does not define that tier.
    pub unknown_tier: Option<(String, UnknownTier)>,
    /// Every rule of the file, in order, then the fallback if it has limits for this client.
    pub rules: Vec<(&'r Rule, RuleExplanation<'r>)>,
}

/// The allow or the deny list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListName {
    /// Its clients pass unchecked.
    Allow,
    /// Its clients are always denied.
    Deny,
}

/// Whether a rule applies to a request, and why not.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleExplanation<'r> {
    /// It applies.
    Applies {
        /// The limits that the request must pass; empty if it is unlimited.
        limits: Vec<Limit>,
        /// The name and value of each part of the key that it counts by.
        key: Vec<(String, String)>,
    },
    /// It denies the request, which lacks this part of its key.
    Denies(&'r Dimension),
    /// It is the fallback for a request with neither a key nor an address, and is not used because a rule applies.
    LastResort,
    /// It matches, but the earlier rule with this id has the same key.
    ComesLater(&'r str),
    /// It does not match.
    Mismatch(Mismatch<'r>),
    /// It matches, but has no limit for this client, not even an inherited one.
    NoLimit,
    /// It is disabled.
    Disabled,
}

impl Explanation<'_> {
    /// Whether the request is denied because it states a tier that the file does not define.
    pub fn is_tier_denied(&self) -> bool {
        self.listed.is_none()
            && self.unknown_tier.as_ref().is_some_and(|(_, what)| *what == UnknownTier::Refuse)
    }
}

impl RuleSet {
    /// Explains which rules apply to a request, and why the others do not.
    pub fn explain(&self, request: &CheckRequest<'_>, mut now: impl FnMut() -> Micros) -> Explanation<'_> {
        let listed = match (
            self.deny.contains(request.client_key, request.ip),
            self.allow.contains(request.client_key, request.ip),
        ) {
            (true, _) => Some(ListName::Deny),
            (false, true) => Some(ListName::Allow),
            (false, false) => None,
        };
        let path = match request.endpoint {
            "" => "/".into(),
            endpoint => crate::path::normalise(endpoint, self.path_style),
        };
        let client = self.client_profile(request, &mut now);
        let facts = RuleSet::request_facts(request, &path, &client);
        let mut words = RequestText::default();
        words.write_ip(request.ip, self.ipv6_prefix);
        words.write_descriptor(request.descriptor.as_ref());
        let fallback_of_client = self.fallback_of(&client);
        let first_fallback = self.fallback.map_or(self.rules.len(), |base| base.default as usize);
        let mut winners: Vec<(u32, &str)> = Vec::new();
        let mut rules: Vec<(&Rule, RuleExplanation<'_>)> = Vec::new();
        for (position, rule) in self.rules.iter().enumerate() {
            let is_fallback = position >= first_fallback;
            let fallback_limits = match fallback_of_client {
                Some((own, limits)) if own as usize == position => Some(limits),
                // The other fallback rules are for other clients.
                _ if is_fallback => continue,
                _ => None,
            };
            let limits = match fallback_limits {
                Some(limits) => Some(limits),
                None => limits_of(self, rule, &client, request, &mut now),
            };
            let winner = winners.iter().find(|(track, _)| *track == rule.key_group).map(|(_, id)| *id);
            let mismatch = rule.mismatch(&facts, IndexProof::None);
            let is_limited = || {
                let mut enforced = rules.iter().filter(|(rule, _)| rule.mode == Mode::Enforced);
                enforced.any(|(_, explanation)| matches!(explanation, RuleExplanation::Applies { .. }))
            };
            let is_last_resort = is_fallback && self.fallback.is_some_and(|base| base.is_last_resort);
            let explanation = match (rule.mode, mismatch, winner, limits) {
                (Mode::Disabled, ..) => RuleExplanation::Disabled,
                (_, Some(mismatch @ Mismatch::MissingDimension(_)), ..)
                    if rule.missing == MissingKey::Skip =>
                {
                    RuleExplanation::Mismatch(mismatch)
                }
                (_, Some(mismatch), ..) if !matches!(mismatch, Mismatch::MissingDimension(_)) => {
                    RuleExplanation::Mismatch(mismatch)
                }
                (_, _, Some(id), _) => RuleExplanation::ComesLater(id),
                (_, _, None, None) => RuleExplanation::NoLimit,
                (_, Some(Mismatch::MissingDimension(dimension)), ..)
                    if rule.missing == MissingKey::Refuse =>
                {
                    RuleExplanation::Denies(dimension)
                }
                (_, Some(_), ..) if is_last_resort && is_limited() => RuleExplanation::LastResort,
                (_, _, None, Some(limits)) => {
                    winners.push((rule.key_group, &rule.id));
                    RuleExplanation::Applies {
                        limits: limits.to_vec(),
                        key: rule.named_key_parts(&facts, &words),
                    }
                }
            };
            rules.push((rule, explanation));
        }
        Explanation {
            listed,
            path: path.clone().into_owned(),
            tier: client.tier.map(str::to_owned),
            tier_source: client.tier_source,
            unknown_tier: client.has_unknown_tier.then(|| (request.tier.to_owned(), self.unknown_tier)),
            rules,
        }
    }
}
