//! An explanation in words, for people, and in JSON, for programs.

use super::{Explanation, ListName, RuleExplanation};
use crate::rule::{MISSING, Rule};
use crate::set::TierSource;
use crate::spec::{Consistency, FailureMode, Mode, UnknownTier};
use serde_json::json;
use std::fmt::{self, Display, Formatter, Write as _};
use std::num::NonZeroU16;

impl Display for Explanation<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "path: {}", self.path)?;
        match &self.tier {
            Some(tier) => writeln!(f, "tier: {tier} ({})", source(self.tier_source))?,
            None => writeln!(f, "tier: not known")?,
        }
        if let Some((tier, what)) = &self.unknown_tier {
            let what = match what {
                UnknownTier::Ignore => "ignored",
                UnknownTier::Refuse => "refused",
            };
            writeln!(f, "unknown tier: the request states {tier:?}, which the file does not name: {what}")?;
        }
        match self.listed {
            Some(ListName::Deny) => f.write_str("REFUSED: the client is on the deny list\n")?,
            Some(ListName::Allow) => {
                f.write_str("ALLOWED: the client is on the allow list, and no rule is looked at\n")?;
            }
            None if self.is_tier_refused() => f.write_str("REFUSED: the file refuses unknown tiers\n")?,
            None if self
                .rules
                .iter()
                .any(|(_, standing)| matches!(standing, RuleExplanation::Refuses(_))) =>
            {
                f.write_str("REFUSED: the request lacks what a rule counts by\n")?;
            }
            None if self
                .rules
                .iter()
                .all(|(_, standing)| !matches!(standing, RuleExplanation::Binds { .. })) =>
            {
                f.write_str("ALLOWED: no rule binds it\n")?;
            }
            None if self.rules.iter().all(|(_, standing)| !limits(standing)) => {
                f.write_str("ALLOWED: what binds it is unlimited\n")?;
            }
            None => {}
        }
        let is_listed = self.is_decided_before_rules();
        for (rule, standing) in &self.rules {
            let shadow = if rule.mode() == Mode::Shadow { " (shadow: refuses nobody)" } else { "" };
            let has_a_say = matches!(standing, RuleExplanation::Binds { .. } | RuleExplanation::Refuses(_));
            let mark = if has_a_say && !is_listed { '*' } else { ' ' };
            writeln!(f, "{mark} {}: {}{shadow}", rule.id(), verdict(rule, standing, is_listed))?;
        }
        Ok(())
    }
}

impl Explanation<'_> {
    fn is_decided_before_rules(&self) -> bool {
        self.listed.is_some() || self.is_tier_refused()
    }

    /// The same for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let is_listed = self.is_decided_before_rules();
        let rules = self.rules.iter().map(|(rule, standing)| {
            let mut value = json!({
                "id": rule.id(),
                "binds": matches!(standing, RuleExplanation::Binds { .. }) && !is_listed,
                "shadow": rule.mode() == Mode::Shadow,
                "why": verdict(rule, standing, is_listed),
            });
            if let RuleExplanation::Binds { limits, key } = standing {
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
                TierSource::Nobody => None,
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

/// Whether a rule holds the request to something.
fn limits(standing: &RuleExplanation<'_>) -> bool {
    matches!(standing, RuleExplanation::Binds { limits, .. } if !limits.is_empty())
}

/// What a rule has to say; of a client on a list, what it would.
fn verdict(rule: &Rule, standing: &RuleExplanation<'_>, is_listed: bool) -> String {
    match standing {
        RuleExplanation::Binds { limits, .. } if limits.is_empty() => {
            let binds = if is_listed { "would bind" } else { "binds" };
            format!("{binds}: unlimited, and no rule behind it that counts the same is looked at")
        }
        RuleExplanation::Binds { limits, key } => {
            let limits: Vec<_> = limits.iter().map(ToString::to_string).collect();
            let key: Vec<_> = key.iter().filter_map(|part| part_in_words(part, key)).collect();
            let counted = if key.is_empty() {
                "for everybody together".to_owned()
            } else {
                format!("for {}", key.join(", "))
            };
            let binds = if is_listed { "would bind" } else { "binds" };
            format!("{binds}: {}, counted {counted}{}", limits.join(" and "), terms(rule))
        }
        RuleExplanation::Refuses(dimension) => {
            format!("refuses: it counts by {dimension}, and the request does not tell it")
        }
        RuleExplanation::LastResort => {
            "no: it has neither a key nor an address to be counted by, and a rule binds it".to_owned()
        }
        RuleExplanation::ComesLater(id) => format!("no: {id} counts the same and comes first"),
        RuleExplanation::Misfit(misfit) => format!("no: {misfit}"),
        RuleExplanation::NoLimit => {
            "no: neither it nor what it inherits from has a limit for this client".to_owned()
        }
        RuleExplanation::Disabled => "no: it is disabled".to_owned(),
    }
}

/// A part of a key in words: its name and value, or that it is missing, which is told once.
fn part_in_words((name, value): &(String, String), key: &[(String, String)]) -> Option<String> {
    let is_missing = |name: &str| key.iter().any(|(other, _)| other.strip_prefix(MISSING) == Some(name));
    if name.starts_with(MISSING) && name.contains(' ') {
        return Some(format!("requests without {}", &name[MISSING.len() + 1..]));
    }
    (!is_missing(&format!(" {name}"))).then(|| format!("{name} {value:?}"))
}

/// What a rule says of a store that several nodes share, where that is not what is usual.
fn terms(rule: &Rule) -> String {
    let mut said = String::new();
    match rule.consistency() {
        Consistency::Exact => said.push_str(", by asking the store each time"),
        Consistency::Leased => {}
        Consistency::Local => said.push_str(", on each node by itself"),
    }
    if let Some(millis) = rule.store_timeout_ms() {
        let _ = write!(said, ", the store has {millis}ms to answer");
    }
    match rule.on_store_failure() {
        FailureMode::Local => {}
        FailureMode::Open => said.push_str(", allowed if the store gives no answer"),
        FailureMode::Closed => said.push_str(", refused if the store gives no answer"),
    }
    said
}

fn source(source: TierSource) -> &'static str {
    match source {
        TierSource::Nobody => "nobody said so",
        TierSource::Request => "the request says so",
        TierSource::Client => "the client's record says so",
        TierSource::Pattern => "the tier's keys match",
        TierSource::Default => "the default tier",
    }
}
