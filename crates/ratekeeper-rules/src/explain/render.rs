//! Formats an explanation as text for people, and as JSON for programs.

use super::{Explanation, ListName, RuleExplanation};
use crate::rule::{MISSING_LABEL, Rule};
use crate::set::TierSource;
use crate::spec::{Consistency, FailureMode, Mode, UnknownTier};
use serde_json::json;
use std::fmt::{self, Display, Formatter, Write as _};
use std::num::NonZeroU16;

impl Display for Explanation<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "path: {}", self.path)?;
        match &self.tier {
            Some(tier) => writeln!(f, "tier: {tier} ({})", tier_source_text(self.tier_source))?,
            None => writeln!(f, "tier: not known")?,
        }
        if let Some((tier, what)) = &self.unknown_tier {
            let what = match what {
                UnknownTier::Ignore => "ignored",
                UnknownTier::Refuse => "denied",
            };
            writeln!(f, "unknown tier: the request states {tier:?}, which the file does not define: {what}")?;
        }
        match self.listed {
            Some(ListName::Deny) => f.write_str("DENIED: the client is on the deny list\n")?,
            Some(ListName::Allow) => {
                f.write_str("ALLOWED: the client is on the allow list, so no rule is checked\n")?;
            }
            None if self.is_tier_denied() => f.write_str("DENIED: the file denies unknown tiers\n")?,
            None if self
                .rules
                .iter()
                .any(|(_, explanation)| matches!(explanation, RuleExplanation::Denies(_))) =>
            {
                f.write_str("DENIED: the request lacks what a rule counts by\n")?;
            }
            None if self
                .rules
                .iter()
                .all(|(_, explanation)| !matches!(explanation, RuleExplanation::Applies { .. })) =>
            {
                f.write_str("ALLOWED: no rule applies\n")?;
            }
            None if self.rules.iter().all(|(_, explanation)| !has_limits(explanation)) => {
                f.write_str("ALLOWED: only unlimited rules apply\n")?;
            }
            None => {}
        }
        let is_listed = self.is_decided_before_rules();
        for (rule, explanation) in &self.rules {
            let shadow = if rule.mode() == Mode::Shadow { " (shadow: not enforced)" } else { "" };
            let is_relevant =
                matches!(explanation, RuleExplanation::Applies { .. } | RuleExplanation::Denies(_));
            let mark = if is_relevant && !is_listed { '*' } else { ' ' };
            writeln!(f, "{mark} {}: {}{shadow}", rule.id(), describe(rule, explanation, is_listed))?;
        }
        Ok(())
    }
}

impl Explanation<'_> {
    fn is_decided_before_rules(&self) -> bool {
        self.listed.is_some() || self.is_tier_denied()
    }

    /// Formats the explanation as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let is_listed = self.is_decided_before_rules();
        let rules = self.rules.iter().map(|(rule, explanation)| {
            let mut value = json!({
                "id": rule.id(),
                "binds": matches!(explanation, RuleExplanation::Applies { .. }) && !is_listed,
                "shadow": rule.mode() == Mode::Shadow,
                "why": describe(rule, explanation, is_listed),
            });
            if let RuleExplanation::Applies { limits, key } = explanation {
                value["on_store_failure"] = rule.on_store_failure().name().into();
                value["consistency"] = rule.consistency().name().into();
                value["store_timeout_ms"] = rule.store_timeout_ms().map(NonZeroU16::get).into();
                value["limits"] = limits.iter().map(ToString::to_string).collect();
                value["key"] =
                    key.iter().map(|(name, part)| json!({ "name": name, "value": part })).collect();
            }
            value
        });
        json!({
            "path": self.path,
            "tier": self.tier,
            "tier_source": match self.tier_source {
                TierSource::None => None,
                TierSource::Request => Some("request"),
                TierSource::Client => Some("client"),
                TierSource::Pattern => Some("pattern"),
                TierSource::Default => Some("default"),
            },
            "unknown_tier": self.unknown_tier.as_ref().map(|(tier, what)| {
                json!({ "tier": tier, "handling": what.name() })
            }),
            "listed": self.listed.map(|listed| match listed {
                ListName::Allow => "allow",
                ListName::Deny => "deny",
            }),
            "rules": rules.collect::<Vec<_>>(),
        })
    }
}

/// Whether a rule applies with at least one limit.
fn has_limits(explanation: &RuleExplanation<'_>) -> bool {
    matches!(explanation, RuleExplanation::Applies { limits, .. } if !limits.is_empty())
}

/// Describes what a rule does with the request, or would do if it had not been decided before the rules.
fn describe(rule: &Rule, explanation: &RuleExplanation<'_>, is_listed: bool) -> String {
    match explanation {
        RuleExplanation::Applies { limits, .. } if limits.is_empty() => {
            let applies = if is_listed { "would apply" } else { "applies" };
            format!("{applies}: unlimited, and later rules with the same key are skipped")
        }
        RuleExplanation::Applies { limits, key } => {
            let limits: Vec<_> = limits.iter().map(ToString::to_string).collect();
            let key: Vec<_> = key.iter().filter_map(|part| part_in_words(part, key)).collect();
            let counted = if key.is_empty() {
                "for all requests together".to_owned()
            } else {
                format!("for {}", key.join(", "))
            };
            let applies = if is_listed { "would apply" } else { "applies" };
            format!("{applies}: {}, counted {counted}{}", limits.join(" and "), store_options(rule))
        }
        RuleExplanation::Denies(dimension) => {
            format!("denies: it counts by {dimension}, which the request does not have")
        }
        RuleExplanation::LastResort => {
            "no: the request has neither a key nor an address, and another rule applies".to_owned()
        }
        RuleExplanation::ComesLater(id) => format!("no: {id} has the same key and comes first"),
        RuleExplanation::Mismatch(mismatch) => format!("no: {mismatch}"),
        RuleExplanation::NoLimit => {
            "no: it has no limit for this client, not even an inherited one".to_owned()
        }
        RuleExplanation::Disabled => "no: it is disabled".to_owned(),
    }
}

/// Describes a part of a key: its name and value, or that it is missing. Returns `None` for the value of a missing
/// part, since the key has a separate part that says so.
fn part_in_words((name, value): &(String, String), key: &[(String, String)]) -> Option<String> {
    let is_missing =
        |name: &str| key.iter().any(|(other, _)| other.strip_prefix(MISSING_LABEL) == Some(name));
    if name.starts_with(MISSING_LABEL) && name.contains(' ') {
        return Some(format!("requests without {}", &name[MISSING_LABEL.len() + 1..]));
    }
    (!is_missing(&format!(" {name}"))).then(|| format!("{name} {value:?}"))
}

/// Describes the store options of a rule that differ from the defaults.
fn store_options(rule: &Rule) -> String {
    let mut text = String::new();
    match rule.consistency() {
        Consistency::Exact => text.push_str(", checked in the store every time"),
        Consistency::Leased => {}
        Consistency::Local => text.push_str(", on each node separately"),
    }
    if let Some(millis) = rule.store_timeout_ms() {
        let _ = write!(text, ", store timeout {millis}ms");
    }
    match rule.on_store_failure() {
        FailureMode::Local => {}
        FailureMode::Open => text.push_str(", allowed if the store fails"),
        FailureMode::Closed => text.push_str(", denied if the store fails"),
    }
    text
}

fn tier_source_text(source: TierSource) -> &'static str {
    match source {
        TierSource::None => "not stated",
        TierSource::Request => "from the request",
        TierSource::Client => "from the client record",
        TierSource::Pattern => "from the tier's keys",
        TierSource::Default => "the default tier",
    }
}
