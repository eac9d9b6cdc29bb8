//! What changed between two files, in sentences for whoever reviews the change.
//!
//! What only moved, was written in another way, or got another comment is no change. Two files that bind the same
//! requests to the same limits in the same order have no difference.

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

/// What changed from one file to another: one sentence each, the rules first, in the order of the new file.
///
/// ```
/// use ratekeeper_core::Micros;
/// use ratekeeper_rules::{diff, read};
///
/// let before = read("rules: [{id: orders, limit: 100/min}]", Micros::EPOCH).spec.expect("in order");
/// let after = read("rules: [{id: orders, limit: 200/min}]", Micros::EPOCH).spec.expect("in order");
/// assert_eq!(diff(&before, &after), ["orders: 100/min → 200/min"]);
/// ```
pub fn diff(before: &FileSpec, after: &FileSpec) -> Vec<String> {
    let mut said = Vec::new();
    rules(&before.rules, &after.rules, &mut said);
    default(before.default.as_ref(), after.default.as_ref(), &mut said);
    tiers(&before.tiers, &after.tiers, &mut said);
    let tier =
        |file: &FileSpec| file.default_tier.as_ref().map_or("none".to_owned(), |tier| tier.value.clone());
    changed("default_tier", (tier(before), tier(after)), &mut said);
    clients(&before.clients, &after.clients, &mut said);
    list("whitelist", &before.allow, &after.allow, &mut said);
    list("blacklist", &before.deny, &after.deny, &mut said);
    changed("paths", (paths(before.paths), paths(after.paths)), &mut said);
    changed("unknown_tier", (before.unknown_tier.name(), after.unknown_tier.name()), &mut said);
    let missing = |file: &FileSpec| missing_in_words(file.missing, "as usual");
    changed("missing", (missing(before), missing(after)), &mut said);
    let bits = |file: &FileSpec| file.ipv6_prefix.unwrap_or(64);
    changed("ipv6_prefix", (bits(before), bits(after)), &mut said);
    let mode = |file: &FileSpec| file.on_store_failure.map_or("as the server says", |mode| mode.name());
    changed("on_store_failure", (mode(before), mode(after)), &mut said);
    let consistency = |file: &FileSpec| file.consistency.unwrap_or_default().name();
    changed("consistency", (consistency(before), consistency(after)), &mut said);
    let timeout = |file: &FileSpec| timeout_in_words(file.store_timeout_ms, "as the server says");
    changed("store_timeout", (timeout(before), timeout(after)), &mut said);
    said
}

fn changed<T: PartialEq + Display>(what: &str, (before, after): (T, T), said: &mut Vec<String>) {
    if before != after {
        said.push(format!("{what}: {before} → {after}"));
    }
}

fn rules(before: &[RuleSpec], after: &[RuleSpec], said: &mut Vec<String>) {
    let old = by_name(before, |rule| &rule.id.value);
    let new = by_name(after, |rule| &rule.id.value);
    for rule in before.iter().filter(|rule| !new.contains_key(&*rule.id.value)) {
        said.push(format!("{}: removed; it was {}", rule.id.value, rule_in_words(rule)));
    }
    let moved = moved(after.iter().map(|rule| old.get(&*rule.id.value).copied()));
    for (index, rule) in after.iter().enumerate() {
        let id = &rule.id.value;
        let place = match index.checked_sub(1) {
            Some(before) => format!("after {}", after[before].id.value),
            None => "first".to_owned(),
        };
        let Some(old) = old.get(&**id).map(|index| &before[*index]) else {
            said.push(format!("{id}: new, tried {place}: {}", rule_in_words(rule)));
            continue;
        };
        if moved.contains(&index) {
            said.push(format!("{id}: moved, now tried {place}"));
        }
        rule_changes(old, rule, said);
    }
}

fn rule_changes(before: &RuleSpec, after: &RuleSpec, said: &mut Vec<String>) {
    let id = &after.id.value;
    changed(id, (mode_in_words(before.mode), mode_in_words(after.mode)), said);
    limits(id, before.limits.as_deref(), after.limits.as_deref(), said);
    if before.when != after.when {
        said.push(format!("{id}: binds {} → {}", match_in_words(&before.when), match_in_words(&after.when)));
    }
    changed(&format!("{id}: counts by"), (key_in_words(&before.key), key_in_words(&after.key)), said);
    let missing = |rule: &RuleSpec| missing_in_words(rule.missing, "as the file says");
    changed(&format!("{id}: missing"), (missing(before), missing(after)), said);
    overrides(id, &before.overrides, &after.overrides, said);
    let mode = |rule: &RuleSpec| rule.on_store_failure.map_or("as the file says", |mode| mode.name());
    changed(&format!("{id}: on_store_failure"), (mode(before), mode(after)), said);
    let consistency = |rule: &RuleSpec| rule.consistency.map_or("as the file says", |known| known.name());
    changed(&format!("{id}: consistency"), (consistency(before), consistency(after)), said);
    let timeout = |rule: &RuleSpec| timeout_in_words(rule.store_timeout_ms, "as the file says");
    changed(&format!("{id}: store_timeout"), (timeout(before), timeout(after)), said);
    let version = |rule: &RuleSpec| rule.version.map_or("none".to_owned(), |version| version.to_string());
    changed(&format!("{id}: version"), (version(before), version(after)), said);
    if before.description != after.description {
        said.push(format!("{id}: its description is another"));
    }
}

fn missing_in_words(said: Option<MissingKey>, unsaid: &'static str) -> &'static str {
    said.map_or(unsaid, MissingKey::name)
}

fn timeout_in_words(millis: Option<NonZeroU16>, unsaid: &str) -> String {
    millis.map_or_else(|| unsaid.to_owned(), |millis| format!("{millis}ms"))
}

fn overrides(id: &str, before: &[OverrideSpec], after: &[OverrideSpec], said: &mut Vec<String>) {
    let old = by_name(before, |client| &client.key.value);
    let new = by_name(after, |client| &client.key.value);
    for client in before.iter().filter(|client| !new.contains_key(&*client.key.value)) {
        said.push(format!("{id}: {} no longer has its own {}", client.key.value, all(&client.limits, true)));
    }
    for client in after {
        let key = &client.key.value;
        let Some(old) = old.get(&**key).map(|index| &before[*index]) else {
            said.push(format!("{id}: {key} gets {}{}", all(&client.limits, true), until(client.valid_until)));
            continue;
        };
        limits(&format!("{id}: {key}"), Some(&old.limits), Some(&client.limits), said);
        expiry(&format!("{id}: {key}"), old.valid_until, client.valid_until, said);
    }
}

fn default(before: Option<&FallbackSpec>, after: Option<&FallbackSpec>, said: &mut Vec<String>) {
    let base = |base: &FallbackSpec| format!("{} by {}", all(&base.limits, true), key_in_words(&base.key));
    match (before, after) {
        (None, None) => {}
        (None, Some(after)) => said.push(format!("default: new: {}", base(after))),
        (Some(before), None) => said.push(format!("default: removed; it was {}", base(before))),
        (Some(before), Some(after)) => {
            limits("default", Some(&before.limits), Some(&after.limits), said);
            changed("default: counts by", (key_in_words(&before.key), key_in_words(&after.key)), said);
            let missing = |base: &FallbackSpec| missing_in_words(base.missing, "as the file says");
            changed("default: missing", (missing(before), missing(after)), said);
        }
    }
}

fn tiers(before: &[TierSpec], after: &[TierSpec], said: &mut Vec<String>) {
    let old = by_name(before, |tier| &tier.name.value);
    let new = by_name(after, |tier| &tier.name.value);
    for tier in before.iter().filter(|tier| !new.contains_key(&*tier.name.value)) {
        said.push(format!("tier {}: removed; it had {}", tier.name.value, some(tier.limits.as_deref())));
    }
    for tier in after {
        let name = &tier.name.value;
        let keys = |tier: &TierSpec| {
            tier.keys.iter().map(|key| key.value.to_string()).collect::<Vec<_>>().join(", ")
        };
        let Some(old) = old.get(&**name).map(|index| &before[*index]) else {
            let owned =
                if tier.keys.is_empty() { String::new() } else { format!(", for keys {}", keys(tier)) };
            said.push(format!("tier {name}: new: {}{owned}", some(tier.limits.as_deref())));
            continue;
        };
        limits(&format!("tier {name}"), old.limits.as_deref(), tier.limits.as_deref(), said);
        let shown = |tier: &TierSpec| if tier.keys.is_empty() { "none".to_owned() } else { keys(tier) };
        changed(&format!("tier {name}: keys"), (shown(old), shown(tier)), said);
    }
    // A key belongs to the first tier that matches it.
    let kept = |tiers: &[TierSpec], other: &HashMap<&str, usize>| -> Vec<String> {
        let names = tiers.iter().filter(|tier| !tier.keys.is_empty()).map(|tier| tier.name.value.clone());
        names.filter(|name| other.contains_key(&**name)).collect()
    };
    let (kept_before, kept_after) = (kept(before, &new), kept(after, &old));
    if kept_before != kept_after && kept_before.len() == kept_after.len() {
        said.push(format!("tiers: keys are now looked for in {}", kept_after.join(", then ")));
    }
}

fn clients(before: &[ClientSpec], after: &[ClientSpec], said: &mut Vec<String>) {
    let old = by_name(before, |client| &client.key.value);
    let new = by_name(after, |client| &client.key.value);
    let tier =
        |client: &ClientSpec| client.tier.as_ref().map_or("none".to_owned(), |tier| tier.value.clone());
    let words = |client: &ClientSpec| match (&client.tier, &client.limits) {
        (Some(tier), None) => format!("tier {}", tier.value),
        (Some(tier), Some(limits)) => format!("tier {} and {}", tier.value, all(limits, true)),
        (None, limits) => some(limits.as_deref()),
    };
    for client in before.iter().filter(|client| !new.contains_key(&*client.key.value)) {
        said.push(format!("client {}: removed; it had {}", client.key.value, words(client)));
    }
    for client in after {
        let key = &client.key.value;
        let Some(old) = old.get(&**key).map(|index| &before[*index]) else {
            said.push(format!("client {key}: new: {}{}", words(client), until(client.valid_until)));
            continue;
        };
        changed(&format!("client {key}: tier"), (tier(old), tier(client)), said);
        limits(&format!("client {key}"), old.limits.as_deref(), client.limits.as_deref(), said);
        expiry(&format!("client {key}"), old.valid_until, client.valid_until, said);
    }
}

fn list(name: &str, before: &[At<ListEntry>], after: &[At<ListEntry>], said: &mut Vec<String>) {
    let show = |entry: &At<ListEntry>| match &entry.value {
        ListEntry::Key(pattern) => format!("key {pattern}"),
        ListEntry::Net(network) => format!("network {network}"),
    };
    let [old, new]: [HashSet<String>; 2] = [before, after].map(|list| list.iter().map(show).collect());
    let removed = before.iter().map(show).filter(|entry| !new.contains(entry));
    said.extend(removed.map(|entry| format!("{name}: {entry} is taken off")));
    let added = after.iter().map(show).filter(|entry| !old.contains(entry));
    said.extend(added.map(|entry| format!("{name}: {entry} is put on")));
}

/// Where each name is first.
fn by_name<T>(items: &[T], name: impl Fn(&T) -> &String) -> HashMap<&str, usize> {
    let mut places = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        places.entry(name(item).as_str()).or_insert(index);
    }
    places
}

/// Which items, by their index now, were moved, if as few as possible were. Each comes with its index before; what is
/// new has none.
fn moved(before: impl Iterator<Item = Option<usize>>) -> HashSet<usize> {
    let items: Vec<(usize, usize)> =
        before.enumerate().filter_map(|(now, before)| Some((now, before?))).collect();
    // Those that stayed are a longest run that rises in both. `ends[n]` is the item that ends the best run of n + 1.
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

fn limits(what: &str, before: Option<&[Limit]>, after: Option<&[Limit]>, said: &mut Vec<String>) {
    if before == after {
        return;
    }
    // The algorithm is worth a word only where it is not the same throughout.
    let laws: HashSet<Algorithm> = before.iter().chain(&after).copied().flatten().map(Limit::law).collect();
    let show = |limits: Option<&[Limit]>| {
        limits.map_or("inherited limits".to_owned(), |limits| all(limits, laws.len() > 1))
    };
    said.push(format!("{what}: {} → {}", show(before), show(after)));
}

fn expiry(what: &str, before: Option<Micros>, after: Option<Micros>, said: &mut Vec<String>) {
    let show = |moment: Option<Micros>| {
        moment.map_or("for ever".to_owned(), |_| until(moment).trim_start().to_owned())
    };
    changed(&format!("{what}: holds"), (show(before), show(after)), said);
}

fn until(moment: Option<Micros>) -> String {
    let Some(moment) = moment else { return String::new() };
    let stamp = i64::try_from(moment.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    stamp.map_or(String::new(), |stamp| format!(" until {stamp}"))
}

fn rule_in_words(rule: &RuleSpec) -> String {
    let mut words = format!(
        "{} by {} for {}",
        some(rule.limits.as_deref()),
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
        Mode::Shadow => "in shadow, refusing nobody",
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
        parts.push(format!("ip {}", or(&when.ip)));
    }
    parts.extend(when.attributes.iter().map(|(name, patterns)| format!("{name} {}", or(patterns))));
    parts.extend(when.domain.iter().map(|domain| format!("domain {domain}")));
    if !when.descriptor.is_empty() {
        parts.push(format!("descriptor {}", DescriptorDisplay(&when.descriptor)));
    }
    if parts.is_empty() { "everybody".to_owned() } else { parts.join(", ") }
}

fn or<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

fn some(limits: Option<&[Limit]>) -> String {
    limits.map_or("inherited limits".to_owned(), |limits| all(limits, true))
}

/// Limits in words, with their algorithm where it is not the usual one or must be told.
fn all(limits: &[Limit], with_law: bool) -> String {
    let show = |limit: &Limit| match (with_law, law_in_words(limit.law())) {
        (true, law) if limit.law() != Algorithm::TokenBucket => format!("{law} {}", limit.quota()),
        _ => limit.quota().to_string(),
    };
    let shown: Vec<_> = limits.iter().map(show).collect();
    if shown.is_empty() { "unlimited".to_owned() } else { shown.join(" and ") }
}

fn law_in_words(law: Algorithm) -> String {
    let name = law.name();
    match law {
        Algorithm::FixedWindow(Align::FirstHit) => format!("{name} (from the first hit)"),
        Algorithm::FixedWindow(Align::Wall(zone)) if zone != Zone::UTC => format!("{name} ({zone})"),
        Algorithm::SlidingWindowLog(LogSize::Large) => format!("{name} (large)"),
        Algorithm::LeakyBucket(Leak::Queue) => format!("{name} (queue)"),
        _ => name.to_owned(),
    }
}

fn paths(style: PathStyle) -> String {
    let slashes = if style.keep_escaped_slashes { "%2F kept" } else { "%2F separates" };
    let case = if style.ignore_case { "case ignored" } else { "case matters" };
    let matrix = if style.keep_matrix_parameters { "; kept" } else { "; cut off" };
    format!("{slashes}, {case}, {matrix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> FileSpec {
        let review = crate::read(text, Micros::EPOCH);
        let report = review.report("", text);
        review.spec.unwrap_or_else(|| panic!("{report}"))
    }

    #[track_caller]
    fn check(before: &str, after: &str, said: &[&str]) {
        assert_eq!(diff(&spec(before), &spec(after)), said);
    }

    const RULES: &str = "
rules:
  - {id: a, match: {path: /a}, limit: 1/s}
  - {id: b, match: {path: /b}, limit: 1/s}
  - {id: c, match: {path: /c}, limit: 1/s}
";

    #[test]
    fn the_same_has_no_difference() {
        let flow = "rules: [{limit: 1/s, match: {endpoint: /a/}, id: 'a'}, {match: {path: //b}, id: b, \
                    limit: 1/sec}, \
                    {id: c, params: {capacity: 1, refill_rate: 1.0}, match: {path: /c}}]";
        check(RULES, flow, &[]);
    }

    #[test]
    fn rules_come_go_and_move() {
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
                "d: new, tried after a: 5/s and 9/h by global for path_regex ^/d, tier x or y, with 1 \
                 override, in shadow, \
                 refusing nobody",
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
                "r: binds the pro tier, api_key k*, ip 10.0.0.0/8 → method GET or PUT, tenant a or b*",
                "r: counts by: api_key → ip and tenant",
                "r: missing: as the file says → shared",
                "r: x no longer has its own 2/s",
                "r: y: 3/s → fixed_window (Europe/Berlin) 4/day",
                "r: y: holds: for ever → until 2099-01-31T00:00:00Z",
                "r: z gets fixed_window (Europe/Berlin) 5/day",
                "r: on_store_failure: as the file says → open",
                "r: consistency: as the file says → local",
                "r: store_timeout: as the file says → 20ms",
                "r: version: none → 2",
                "r: its description is another",
            ],
        );
        check(
            "rules: [{id: r, match: {descriptor: [a: x, b]}, limit: 1/s}]",
            "rules: [{id: r, match: {domain: edge, descriptor: {a: y*, b: '*'}}, key: domain, limit: unlimited}]",
            &[
                "r: 1/s → unlimited",
                "r: binds descriptor [a: x, b] → domain edge, descriptor [a: y*, b]",
                "r: counts by: descriptor → domain",
            ],
        );
        check(
            "default: {limit: 5/s, algorithm: leaky_bucket}",
            "default: {limit: 6/s, algorithm: leaky_bucket, missing: skip}",
            &["default: 5/s → 6/s", "default: missing: as the file says → skip"],
        );
    }

    #[test]
    fn what_stands_beside_the_rules_changes() {
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
                "tiers: keys are now looked for in pro, then free",
                "default_tier: free → none",
                "client b: removed; it had 9/s",
                "client a: tier: free → pro",
                "client a: inherited limits → 8/s",
                "client c: new: tier new until 2099-01-01T00:00:00Z",
                "whitelist: network 10.0.0.0/8 is taken off",
                "whitelist: network 10.0.0.0/9 is put on",
                "blacklist: key bad is put on",
                "paths: %2F separates, case matters, ; cut off → %2F separates, case ignored, ; cut off",
                "unknown_tier: ignore → refuse",
                "missing: as usual → refuse",
                "ipv6_prefix: 64 → 56",
                "on_store_failure: as the server says → closed",
                "consistency: leased → exact",
                "store_timeout: as the server says → 100ms",
            ],
        );
    }

    proptest! {
        #[test]
        fn what_did_not_move_is_in_order(order in Just((0..12).collect::<Vec<usize>>()).prop_shuffle()) {
            let moved = moved(order.iter().map(|before| Some(*before)));
            let stayed = order.iter().enumerate().filter(|(now, _)| !moved.contains(now));
            prop_assert!(stayed.map(|(_, before)| before).is_sorted());
        }
    }
}
