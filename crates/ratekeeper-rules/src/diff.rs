//! Describes the differences between two rule files, for reviewers.
//!
//! It compares parsed files, so formatting, comments and alternative spellings make no difference. Two files that apply
//! the same limits to the same requests in the same order have no differences.

use crate::descriptor::DescriptorDisplay;
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::pattern::PathPattern;
use crate::spec::{
    At, ClientSpec, FallbackSpec, FileSpec, ListEntry, MatchSpec, MissingKey, Mode, OverrideSpec, RuleSpec,
    TierSpec,
};
use jiff::Timestamp;
use ratekeeper_core::{Algorithm, Align, Leak, Limit, LogSize, Micros, Zone};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::num::NonZeroU16;

/// Describes the changes from one file to another, one string each: the rules first, in the order of the new file.
///
/// ```
/// use ratekeeper_core::Micros;
/// use ratekeeper_rules::{diff, read};
///
/// let before = read("rules: [{id: orders, limit: 100/min}]", Micros::EPOCH).spec.expect("valid");
/// let after = read("rules: [{id: orders, limit: 200/min}]", Micros::EPOCH).spec.expect("valid");
/// assert_eq!(diff(&before, &after), ["orders: 100/min → 200/min"]);
/// ```
pub fn diff(before: &FileSpec, after: &FileSpec) -> Vec<String> {
    let mut changes = Vec::new();
    diff_rules(&before.rules, &after.rules, &mut changes);
    diff_default(before.default.as_ref(), after.default.as_ref(), &mut changes);
    diff_tiers(&before.tiers, &after.tiers, &mut changes);
    let tier =
        |file: &FileSpec| file.default_tier.as_ref().map_or("none".to_owned(), |tier| tier.value.clone());
    push_change("default_tier", (tier(before), tier(after)), &mut changes);
    diff_clients(&before.clients, &after.clients, &mut changes);
    diff_list("whitelist", &before.allow, &after.allow, &mut changes);
    diff_list("blacklist", &before.deny, &after.deny, &mut changes);
    push_change("paths", (paths_in_words(before.paths), paths_in_words(after.paths)), &mut changes);
    push_change("unknown_tier", (before.unknown_tier.name(), after.unknown_tier.name()), &mut changes);
    let missing = |file: &FileSpec| missing_in_words(file.missing, "default");
    push_change("missing", (missing(before), missing(after)), &mut changes);
    let bits = |file: &FileSpec| file.ipv6_prefix.unwrap_or(64);
    push_change("ipv6_prefix", (bits(before), bits(after)), &mut changes);
    let mode = |file: &FileSpec| file.on_store_failure.map_or("server default", |mode| mode.name());
    push_change("on_store_failure", (mode(before), mode(after)), &mut changes);
    let consistency = |file: &FileSpec| file.consistency.unwrap_or_default().name();
    push_change("consistency", (consistency(before), consistency(after)), &mut changes);
    let timeout = |file: &FileSpec| timeout_in_words(file.store_timeout_ms, "server default");
    push_change("store_timeout", (timeout(before), timeout(after)), &mut changes);
    changes
}

fn push_change<T: PartialEq + Display>(what: &str, (before, after): (T, T), changes: &mut Vec<String>) {
    if before != after {
        changes.push(format!("{what}: {before} → {after}"));
    }
}

fn diff_rules(before: &[RuleSpec], after: &[RuleSpec], changes: &mut Vec<String>) {
    let old = by_name(before, |rule| &rule.id.value);
    let new = by_name(after, |rule| &rule.id.value);
    for rule in before.iter().filter(|rule| !new.contains_key(&*rule.id.value)) {
        changes.push(format!("{}: removed; it was {}", rule.id.value, rule_in_words(rule)));
    }
    let moved = moved(after.iter().map(|rule| old.get(&*rule.id.value).copied()));
    for (index, rule) in after.iter().enumerate() {
        let id = &rule.id.value;
        let place = match index.checked_sub(1) {
            Some(before) => format!("after {}", after[before].id.value),
            None => "first".to_owned(),
        };
        let Some(old) = old.get(&**id).map(|index| &before[*index]) else {
            changes.push(format!("{id}: new, tried {place}: {}", rule_in_words(rule)));
            continue;
        };
        if moved.contains(&index) {
            changes.push(format!("{id}: moved, now tried {place}"));
        }
        diff_rule(old, rule, changes);
    }
}

fn diff_rule(before: &RuleSpec, after: &RuleSpec, changes: &mut Vec<String>) {
    let id = &after.id.value;
    push_change(id, (mode_in_words(before.mode), mode_in_words(after.mode)), changes);
    diff_limits(id, before.limits.as_deref(), after.limits.as_deref(), changes);
    if before.when != after.when {
        changes.push(format!(
            "{id}: matches {} → {}",
            match_in_words(&before.when),
            match_in_words(&after.when)
        ));
    }
    push_change(&format!("{id}: counts by"), (key_in_words(&before.key), key_in_words(&after.key)), changes);
    let missing = |rule: &RuleSpec| missing_in_words(rule.missing, "file default");
    push_change(&format!("{id}: missing"), (missing(before), missing(after)), changes);
    diff_overrides(id, &before.overrides, &after.overrides, changes);
    let mode = |rule: &RuleSpec| rule.on_store_failure.map_or("file default", |mode| mode.name());
    push_change(&format!("{id}: on_store_failure"), (mode(before), mode(after)), changes);
    let consistency = |rule: &RuleSpec| rule.consistency.map_or("file default", |known| known.name());
    push_change(&format!("{id}: consistency"), (consistency(before), consistency(after)), changes);
    let timeout = |rule: &RuleSpec| timeout_in_words(rule.store_timeout_ms, "file default");
    push_change(&format!("{id}: store_timeout"), (timeout(before), timeout(after)), changes);
    let version = |rule: &RuleSpec| rule.version.map_or("none".to_owned(), |version| version.to_string());
    push_change(&format!("{id}: version"), (version(before), version(after)), changes);
    if before.description != after.description {
        changes.push(format!("{id}: description changed"));
    }
}

fn missing_in_words(missing: Option<MissingKey>, default: &'static str) -> &'static str {
    missing.map_or(default, MissingKey::name)
}

fn timeout_in_words(millis: Option<NonZeroU16>, default: &str) -> String {
    millis.map_or_else(|| default.to_owned(), |millis| format!("{millis}ms"))
}

fn diff_overrides(id: &str, before: &[OverrideSpec], after: &[OverrideSpec], changes: &mut Vec<String>) {
    let old = by_name(before, |client| &client.key.value);
    let new = by_name(after, |client| &client.key.value);
    for client in before.iter().filter(|client| !new.contains_key(&*client.key.value)) {
        changes.push(format!(
            "{id}: override for {} removed; it was {}",
            client.key.value,
            limits_in_words(&client.limits, true)
        ));
    }
    for client in after {
        let key = &client.key.value;
        let Some(old) = old.get(&**key).map(|index| &before[*index]) else {
            changes.push(format!(
                "{id}: new override for {key}: {}{}",
                limits_in_words(&client.limits, true),
                until_suffix(client.valid_until)
            ));
            continue;
        };
        diff_limits(&format!("{id}: override for {key}"), Some(&old.limits), Some(&client.limits), changes);
        diff_expiry(&format!("{id}: override for {key}"), old.valid_until, client.valid_until, changes);
    }
}

fn diff_default(before: Option<&FallbackSpec>, after: Option<&FallbackSpec>, changes: &mut Vec<String>) {
    let words = |spec: &FallbackSpec| {
        format!("{} by {}", limits_in_words(&spec.limits, true), key_in_words(&spec.key))
    };
    match (before, after) {
        (None, None) => {}
        (None, Some(after)) => changes.push(format!("default: new: {}", words(after))),
        (Some(before), None) => changes.push(format!("default: removed; it was {}", words(before))),
        (Some(before), Some(after)) => {
            diff_limits("default", Some(&before.limits), Some(&after.limits), changes);
            push_change("default: counts by", (key_in_words(&before.key), key_in_words(&after.key)), changes);
            let missing = |spec: &FallbackSpec| missing_in_words(spec.missing, "file default");
            push_change("default: missing", (missing(before), missing(after)), changes);
        }
    }
}

fn diff_tiers(before: &[TierSpec], after: &[TierSpec], changes: &mut Vec<String>) {
    let old = by_name(before, |tier| &tier.name.value);
    let new = by_name(after, |tier| &tier.name.value);
    for tier in before.iter().filter(|tier| !new.contains_key(&*tier.name.value)) {
        changes.push(format!(
            "tier {}: removed; it had {}",
            tier.name.value,
            limits_or_inherited(tier.limits.as_deref())
        ));
    }
    for tier in after {
        let name = &tier.name.value;
        let keys = |tier: &TierSpec| {
            tier.keys.iter().map(|key| key.value.to_string()).collect::<Vec<_>>().join(", ")
        };
        let Some(old) = old.get(&**name).map(|index| &before[*index]) else {
            let owned =
                if tier.keys.is_empty() { String::new() } else { format!(", for keys {}", keys(tier)) };
            changes.push(format!("tier {name}: new: {}{owned}", limits_or_inherited(tier.limits.as_deref())));
            continue;
        };
        diff_limits(&format!("tier {name}"), old.limits.as_deref(), tier.limits.as_deref(), changes);
        let shown = |tier: &TierSpec| if tier.keys.is_empty() { "none".to_owned() } else { keys(tier) };
        push_change(&format!("tier {name}: keys"), (shown(old), shown(tier)), changes);
    }
    // The order matters, since a key belongs to the first tier that matches it.
    let kept = |tiers: &[TierSpec], other: &HashMap<&str, usize>| -> Vec<String> {
        let names = tiers.iter().filter(|tier| !tier.keys.is_empty()).map(|tier| tier.name.value.clone());
        names.filter(|name| other.contains_key(&**name)).collect()
    };
    let (kept_before, kept_after) = (kept(before, &new), kept(after, &old));
    if kept_before != kept_after && kept_before.len() == kept_after.len() {
        changes.push(format!("tiers: keys are now matched in the order {}", kept_after.join(", ")));
    }
}

fn diff_clients(before: &[ClientSpec], after: &[ClientSpec], changes: &mut Vec<String>) {
    let old = by_name(before, |client| &client.key.value);
    let new = by_name(after, |client| &client.key.value);
    let tier =
        |client: &ClientSpec| client.tier.as_ref().map_or("none".to_owned(), |tier| tier.value.clone());
    let words = |client: &ClientSpec| match (&client.tier, &client.limits) {
        (Some(tier), None) => format!("tier {}", tier.value),
        (Some(tier), Some(limits)) => format!("tier {} and {}", tier.value, limits_in_words(limits, true)),
        (None, limits) => limits_or_inherited(limits.as_deref()),
    };
    for client in before.iter().filter(|client| !new.contains_key(&*client.key.value)) {
        changes.push(format!("client {}: removed; it had {}", client.key.value, words(client)));
    }
    for client in after {
        let key = &client.key.value;
        let Some(old) = old.get(&**key).map(|index| &before[*index]) else {
            changes.push(format!("client {key}: new: {}{}", words(client), until_suffix(client.valid_until)));
            continue;
        };
        push_change(&format!("client {key}: tier"), (tier(old), tier(client)), changes);
        diff_limits(&format!("client {key}"), old.limits.as_deref(), client.limits.as_deref(), changes);
        diff_expiry(&format!("client {key}"), old.valid_until, client.valid_until, changes);
    }
}

fn diff_list(name: &str, before: &[At<ListEntry>], after: &[At<ListEntry>], changes: &mut Vec<String>) {
    let show = |entry: &At<ListEntry>| match &entry.value {
        ListEntry::Key(pattern) => format!("key {pattern}"),
        ListEntry::Network(network) => format!("network {network}"),
    };
    let [old, new]: [HashSet<String>; 2] = [before, after].map(|list| list.iter().map(show).collect());
    let removed = before.iter().map(show).filter(|entry| !new.contains(entry));
    changes.extend(removed.map(|entry| format!("{name}: {entry} removed")));
    let added = after.iter().map(show).filter(|entry| !old.contains(entry));
    changes.extend(added.map(|entry| format!("{name}: {entry} added")));
}

/// The index of the first item with each name.
fn by_name<T>(items: &[T], name: impl Fn(&T) -> &String) -> HashMap<&str, usize> {
    let mut places = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        places.entry(name(item).as_str()).or_insert(index);
    }
    places
}

/// The items that were moved, by their new index, if as few as possible were moved. The input is the old index of each
/// item; `None` for a new one.
fn moved(before: impl Iterator<Item = Option<usize>>) -> HashSet<usize> {
    let items: Vec<(usize, usize)> =
        before.enumerate().filter_map(|(now, before)| Some((now, before?))).collect();
    // The items that stayed are a longest increasing subsequence of the old indices. `ends[n]` is the item that ends
    // the best subsequence of length n + 1.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(items.len());
    for (index, (_, before)) in items.iter().enumerate() {
        let length = ends.partition_point(|end| items[*end].1 < *before);
        previous.push(length.checked_sub(1).map(|length| ends[length]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut moved: HashSet<usize> = items.iter().map(|(now, _)| *now).collect();
    let mut stayed = ends.last().copied();
    while let Some(index) = stayed {
        moved.remove(&items[index].0);
        stayed = previous[index];
    }
    moved
}

fn diff_limits(what: &str, before: Option<&[Limit]>, after: Option<&[Limit]>, changes: &mut Vec<String>) {
    if before == after {
        return;
    }
    // The algorithm is shown only if it is not the same throughout.
    let algorithms: HashSet<Algorithm> =
        before.iter().chain(&after).copied().flatten().map(Limit::algorithm).collect();
    let show = |limits: Option<&[Limit]>| {
        limits.map_or("inherited limits".to_owned(), |limits| limits_in_words(limits, algorithms.len() > 1))
    };
    changes.push(format!("{what}: {} → {}", show(before), show(after)));
}

fn diff_expiry(what: &str, before: Option<Micros>, after: Option<Micros>, changes: &mut Vec<String>) {
    let show = |moment: Option<Micros>| {
        moment.map_or("forever".to_owned(), |_| until_suffix(moment).trim_start().to_owned())
    };
    push_change(&format!("{what}: valid"), (show(before), show(after)), changes);
}

fn until_suffix(moment: Option<Micros>) -> String {
    let Some(moment) = moment else { return String::new() };
    let stamp = i64::try_from(moment.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    stamp.map_or(String::new(), |stamp| format!(" until {stamp}"))
}

fn rule_in_words(rule: &RuleSpec) -> String {
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

fn mode_in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforced => "enforced",
        Mode::Shadow => "in shadow mode",
        Mode::Disabled => "disabled",
    }
}

fn key_in_words(key: &[Dimension]) -> String {
    let names: Vec<_> = key.iter().map(ToString::to_string).collect();
    if names.is_empty() { "global".to_owned() } else { names.join(" and ") }
}

fn match_in_words(when: &MatchSpec) -> String {
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

fn limits_or_inherited(limits: Option<&[Limit]>) -> String {
    limits.map_or("inherited limits".to_owned(), |limits| limits_in_words(limits, true))
}

/// Describes limits, with their algorithm if `with_algorithm` is set and it is not the default one.
fn limits_in_words(limits: &[Limit], with_algorithm: bool) -> String {
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

fn paths_in_words(style: PathStyle) -> String {
    let slashes = if style.keep_escaped_slashes { "%2F kept" } else { "%2F separates" };
    let case = if style.ignore_case { "case ignored" } else { "case matters" };
    let matrix = if style.keep_matrix_parameters { "; kept" } else { "; stripped" };
    format!("{slashes}, {case}, {matrix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> FileSpec {
        let parsed = crate::read(text, Micros::EPOCH);
        let report = parsed.report("", text);
        parsed.spec.unwrap_or_else(|| panic!("{report}"))
    }

    #[track_caller]
    fn check(before: &str, after: &str, changes: &[&str]) {
        assert_eq!(diff(&spec(before), &spec(after)), changes);
    }

    const RULES: &str = "
rules:
  - {id: a, match: {path: /a}, limit: 1/s}
  - {id: b, match: {path: /b}, limit: 1/s}
  - {id: c, match: {path: /c}, limit: 1/s}
";

    #[test]
    fn other_spellings_are_no_difference() {
        let flow = "rules: [{limit: 1/s, match: {endpoint: /a/}, id: 'a'}, {match: {path: //b}, id: b, \
                    limit: 1/sec}, \
                    {id: c, params: {capacity: 1, refill_rate: 1.0}, match: {path: /c}}]";
        check(RULES, flow, &[]);
    }

    #[test]
    fn rules_are_added_removed_and_moved() {
        let after = "
rules:
  - {id: c, match: {path: /c}, limit: 1/s}
  - {id: a, match: {path: /a}, limit: 1/s}
  - {id: d, key: global, match: {path_regex: ^/d, tier: [x, y]}, limits: [5/s, 9/h], override: {k: 3/s}, \
  shadow: true}
";
        check(
            RULES,
            after,
            &[
                "b: removed; it was 1/s by api_key for path /b",
                "c: moved, now tried first",
                "d: new, tried after a: 5/s and 9/h by global for path_regex ^/d, tier x or y, with 1 override, in \
                 shadow mode",
            ],
        );
    }

    #[test]
    fn a_rule_changes_in_each_of_its_parts() {
        let before = "rules: [{id: r, tier: pro, match: {api_key: 'k*', ip: 10.0.0.0/8}, limit: 1/s, \
                      override: {x: 2/s, y: 3/s}}]";
        let after = "
rules:
  - id: r
    version: 2
    description: new
    enabled: false
    match: {method: [GET, PUT], attributes: {tenant: [a, b*]}}
    limit: 9/day
    algorithm: fixed_window
    zone: Europe/Berlin
    key: [ip, tenant]
    missing: shared
    override: {y: {limit: 4/day, valid_until: 2099-01-31}, z: 5/day}
    on_store_failure: open
    consistency: local
    store_timeout: 20ms
";
        check(
            before,
            after,
            &[
                "r: enforced → disabled",
                "r: 1/s → fixed_window (Europe/Berlin) 9/day",
                "r: matches the pro tier, api_key k*, ip 10.0.0.0/8 → method GET or PUT, tenant a or b*",
                "r: counts by: api_key → ip and tenant",
                "r: missing: file default → shared",
                "r: override for x removed; it was 2/s",
                "r: override for y: 3/s → fixed_window (Europe/Berlin) 4/day",
                "r: override for y: valid: forever → until 2099-01-31T00:00:00Z",
                "r: new override for z: fixed_window (Europe/Berlin) 5/day",
                "r: on_store_failure: file default → open",
                "r: consistency: file default → local",
                "r: store_timeout: file default → 20ms",
                "r: version: none → 2",
                "r: description changed",
            ],
        );
        check(
            "rules: [{id: r, match: {descriptor: [a: x, b]}, limit: 1/s}]",
            "rules: [{id: r, match: {domain: edge, descriptor: {a: y*, b: '*'}}, key: domain, limit: unlimited}]",
            &[
                "r: 1/s → unlimited",
                "r: matches descriptor [a: x, b] → domain edge, descriptor [a: y*, b]",
                "r: counts by: descriptor → domain",
            ],
        );
        check(
            "default: {limit: 5/s, algorithm: leaky_bucket}",
            "default: {limit: 6/s, algorithm: leaky_bucket, missing: skip}",
            &["default: 5/s → 6/s", "default: missing: file default → skip"],
        );
    }

    #[test]
    fn everything_but_the_rules_changes() {
        let before = "
default: 5/s
tiers: {free: {limit: 1/s, keys: 'f*'}, old: 2/s, pro: {keys: ['p*']}}
default_tier: free
clients: {a: {tier: free}, b: 9/s}
allow: [x, 10.0.0.0/8]
";
        let after = "
tiers: {pro: {limit: 7/s, keys: ['p*']}, free: {limit: 1/s, keys: ['f*', 'g*']}, new: {limit: 3/s, keys: n}}
clients: {a: {tier: pro, limit: 8/s}, c: {tier: new, valid_until: 2099-01-01}}
allow: [x, 10.0.0.0/9]
deny: bad
paths: {ignore_case: true}
unknown_tier: refuse
missing: refuse
ipv6_prefix: 56
on_store_failure: closed
consistency: exact
store_timeout: 0.1s
";
        check(
            before,
            after,
            &[
                "default: removed; it was 5/s by client",
                "tier old: removed; it had 2/s",
                "tier pro: inherited limits → 7/s",
                "tier free: keys: f* → f*, g*",
                "tier new: new: 3/s, for keys n",
                "tiers: keys are now matched in the order pro, free",
                "default_tier: free → none",
                "client b: removed; it had 9/s",
                "client a: tier: free → pro",
                "client a: inherited limits → 8/s",
                "client c: new: tier new until 2099-01-01T00:00:00Z",
                "whitelist: network 10.0.0.0/8 removed",
                "whitelist: network 10.0.0.0/9 added",
                "blacklist: key bad added",
                "paths: %2F separates, case matters, ; stripped → %2F separates, case ignored, ; stripped",
                "unknown_tier: ignore → refuse",
                "missing: default → refuse",
                "ipv6_prefix: 64 → 56",
                "on_store_failure: server default → closed",
                "consistency: leased → exact",
                "store_timeout: server default → 100ms",
            ],
        );
    }

    proptest! {
        #[test]
        fn items_that_stayed_keep_their_order(order in Just((0..12).collect::<Vec<usize>>()).prop_shuffle()) {
            let moved = moved(order.iter().map(|before| Some(*before)));
            let stayed = order.iter().enumerate().filter(|(now, _)| !moved.contains(now));
            prop_assert!(stayed.map(|(_, before)| before).is_sorted());
        }
    }
}
