//! Describes the parts of a rule file in words.

use crate::descriptor::DescriptorDisplay;
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::pattern::PathPattern;
use crate::spec::{At, ClientSpec, ListEntry, MatchSpec, MissingKey, Mode, RuleSpec, TierSpec};
use jiff::Timestamp;
use ratekeeper_core::{Algorithm, Align, Leak, Limit, LogSize, Micros, Zone};
use std::fmt::Display;
use std::num::NonZeroU16;

pub(super) fn tier_in_words(tier: Option<&At<String>>) -> String {
    tier.map_or("none".to_owned(), |tier| tier.value.clone())
}

/// The patterns of a tier's keys.
pub(super) fn tier_keys_in_words(tier: &TierSpec) -> String {
    let keys: Vec<_> = tier.keys.iter().map(|key| key.value.to_string()).collect();
    if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
}

pub(super) fn client_in_words(client: &ClientSpec) -> String {
    match (&client.tier, &client.limits) {
        (Some(tier), None) => format!("tier {}", tier.value),
        (Some(tier), Some(limits)) => format!("tier {} and {}", tier.value, limits_in_words(limits, true)),
        (None, limits) => limits_or_inherited(limits.as_deref()),
    }
}

pub(super) fn list_entry_in_words(entry: &At<ListEntry>) -> String {
    match &entry.value {
        ListEntry::Key(pattern) => format!("key {pattern}"),
        ListEntry::Network(network) => format!("network {network}"),
    }
}

pub(super) fn missing_in_words(missing: Option<MissingKey>, default: &'static str) -> &'static str {
    missing.map_or(default, MissingKey::name)
}

pub(super) fn timeout_in_words(millis: Option<NonZeroU16>, default: &str) -> String {
    millis.map_or_else(|| default.to_owned(), |millis| format!("{millis}ms"))
}

pub(super) fn until_suffix(moment: Option<Micros>) -> String {
    let Some(moment) = moment else { return String::new() };
    let stamp = i64::try_from(moment.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    stamp.map_or(String::new(), |stamp| format!(" until {stamp}"))
}

pub(super) fn rule_in_words(rule: &RuleSpec) -> String {
    let mut words = format!(
        "{} by {} for {}",
        limits_or_inherited(rule.limits.as_deref()),
        key_in_words(&rule.key),
        match_in_words(&rule.when)
    );
    match rule.overrides.len() {
        0 => {}
        1 => words.push_str(", with 1 override"),
        count => words.push_str(&format!(", with {count} overrides")),
    }
    if rule.mode != Mode::Enforced {
        words.push_str(&format!(", {}", mode_in_words(rule.mode)));
    }
    words
}

pub(super) fn mode_in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforced => "enforced",
        Mode::Shadow => "in shadow mode",
        Mode::Disabled => "disabled",
    }
}

pub(super) fn key_in_words(key: &[Dimension]) -> String {
    let names: Vec<_> = key.iter().map(ToString::to_string).collect();
    if names.is_empty() { "global".to_owned() } else { names.join(" and ") }
}

pub(super) fn match_in_words(when: &MatchSpec) -> String {
    let mut parts = Vec::new();
    if let Some(tier) = &when.rule_tier {
        parts.push(format!("the {tier} tier"));
    }
    if let Some(key) = &when.api_key {
        parts.push(format!("api_key {key}"));
    }
    match &when.path {
        Some(path @ PathPattern::Regex { .. }) => parts.push(format!("path_regex {}", path.as_str())),
        Some(path) => parts.push(format!("path {}", path.as_str())),
        None => {}
    }
    if !when.methods.is_empty() {
        parts.push(format!("method {}", when.methods.join(" or ")));
    }
    if !when.tiers.is_empty() {
        parts.push(format!("tier {}", when.tiers.join(" or ")));
    }
    if !when.ip.is_empty() {
        parts.push(format!("ip {}", join_or(&when.ip)));
    }
    parts.extend(when.attributes.iter().map(|(name, patterns)| format!("{name} {}", join_or(patterns))));
    parts.extend(when.domain.iter().map(|domain| format!("domain {domain}")));
    if !when.descriptor.is_empty() {
        parts.push(format!("descriptor {}", DescriptorDisplay(&when.descriptor)));
    }
    if parts.is_empty() { "all requests".to_owned() } else { parts.join(", ") }
}

fn join_or<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

pub(super) fn limits_or_inherited(limits: Option<&[Limit]>) -> String {
    limits.map_or("inherited limits".to_owned(), |limits| limits_in_words(limits, true))
}

/// Describes limits, with their algorithm if `with_algorithm` is set and it is not the default one.
pub(super) fn limits_in_words(limits: &[Limit], with_algorithm: bool) -> String {
    let show = |limit: &Limit| match (with_algorithm, algorithm_in_words(limit.algorithm())) {
        (true, algorithm) if limit.algorithm() != Algorithm::TokenBucket => {
            format!("{algorithm} {}", limit.quota())
        }
        _ => limit.quota().to_string(),
    };
    let shown: Vec<_> = limits.iter().map(show).collect();
    if shown.is_empty() { "unlimited".to_owned() } else { shown.join(" and ") }
}

fn algorithm_in_words(algorithm: Algorithm) -> String {
    let name = algorithm.name();
    match algorithm {
        Algorithm::FixedWindow(Align::FirstHit) => format!("{name} (from the first hit)"),
        Algorithm::FixedWindow(Align::WallClock(zone)) if zone != Zone::UTC => format!("{name} ({zone})"),
        Algorithm::SlidingWindowLog(LogSize::Large) => format!("{name} (large)"),
        Algorithm::LeakyBucket(Leak::Queue) => format!("{name} (queue)"),
        _ => name.to_owned(),
    }
}

pub(super) fn paths_in_words(style: PathStyle) -> String {
    let slashes = if style.keep_escaped_slashes { "%2F kept" } else { "%2F separates" };
    let case = if style.ignore_case { "case ignored" } else { "case matters" };
    let matrix = if style.keep_matrix_parameters { "; kept" } else { "; stripped" };
    format!("{slashes}, {case}, {matrix}")
}
