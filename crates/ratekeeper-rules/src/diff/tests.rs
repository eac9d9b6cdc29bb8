//! Each kind of change, and its description.

use super::*;
use proptest::prelude::*;

fn spec(text: &str) -> FileSpec {
    let parsed = crate::read(text, Micros::EPOCH);
    let report = parsed.report("", text);
    parsed.spec.unwrap_or_else(|| panic!("{report}"))
}

#[track_caller]
fn check(before: &str, after: &str, changes: &[&str]) {
    let found: Vec<_> = diff(&spec(before), &spec(after)).iter().map(ToString::to_string).collect();
    assert_eq!(found, changes);
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

#[test]
fn a_change_names_the_item_the_field_and_both_values() {
    let before = "
rules:
  - {id: a, limit: 1/s, override: {k: 2/s, l: 3/s}}
  - {id: b, limit: 1/s, key: ip}
tiers: {t: {limit: 1/s, keys: t*}, u: {limit: 1/s, keys: u*}}
deny: x
";
    let after = "
rules:
  - {id: b, limit: 1/s, key: ip, description: new}
  - {id: a, limit: 1/s, override: {k: 4/s, m: 3/s}}
tiers: {u: {limit: 1/s, keys: u*}, t: {limit: 1/s, keys: t*}}
ipv6_prefix: 56
";
    let shown = |change: &RuleChange| {
        let RuleChange { kind, section, id, override_key, field, before, after, .. } = change;
        let names = [Some(*section), id.as_deref(), override_key.as_deref(), *field];
        let names: Vec<_> = names.into_iter().flatten().collect();
        let [before, after] = [before, after].map(|value| value.as_deref().unwrap_or("-"));
        format!("{kind:?} {}: {before}, {after}", names.join("/"))
    };
    let found: Vec<_> = diff(&spec(before), &spec(after)).iter().map(shown).collect();
    assert_eq!(
        found,
        [
            "Moved rules/b/position: after a, first",
            "Changed rules/b/description: -, new",
            "Removed rules/a/l: 3/s, -",
            "Changed rules/a/k/limits: 2/s, 4/s",
            "Added rules/a/m: -, 3/s",
            "Moved tiers/position: t, u, u, t",
            "Removed blacklist: key x, -",
            "Changed ipv6_prefix: 64, 56",
        ]
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
