//! Valid rule files are read to the expected specs.

use ratekeeper_core::{Algorithm, Align, Limit, LogSize, Micros};
use ratekeeper_rules::spec::{Consistency, FailureMode, FileSpec, ListEntry, Mode, RuleSpec};
use ratekeeper_rules::{Dimension, Pattern, read};
use std::fs;
use std::num::NonZeroU16;
use std::path::Path;

fn spec(text: &str) -> FileSpec {
    let parsed = read(text, Micros::EPOCH);
    let report = parsed.report("rules.yaml", text);
    parsed.spec.unwrap_or_else(|| panic!("{report}"))
}

fn file(name: &str) -> FileSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/valid").join(name);
    spec(&fs::read_to_string(path).expect("the file can be read"))
}

fn shown(limits: &[Limit]) -> Vec<String> {
    limits.iter().map(ToString::to_string).collect()
}

fn limits_of(rule: &RuleSpec) -> Vec<String> {
    shown(rule.limits.as_deref().unwrap_or_default())
}

/// Checks the limits of a rule with these fields.
#[track_caller]
fn check(fields: &str, expected: &[&str]) {
    let spec = spec(&format!("rules: [{{id: r, {fields}}}]"));
    assert_eq!(limits_of(&spec.rules[0]), expected, "{fields}");
}

#[test]
fn the_file_of_the_design_document_is_valid() {
    let spec = file("design.yaml");
    let [first, second] = &spec.rules[..] else { panic!("there are two rules") };
    assert_eq!((&*first.id.value, first.version), ("rule_001", Some(42)));
    assert_eq!(first.when.rule_tier.as_deref(), Some("pro"));
    assert_eq!(first.when.api_key.as_ref().unwrap().as_str(), "sk_prod_*");
    assert!(first.when.path.as_ref().unwrap().matches("/v1/orders/7"));
    assert_eq!(limits_of(first), ["token_bucket 167 per 100s burst 100"]);
    assert_eq!(first.key, [Dimension::ApiKey]);
    assert_eq!(first.overrides[0].key.value, "sk_prod_vip_001");
    assert_eq!(shown(&first.overrides[0].limits), ["token_bucket 1667 per 100s burst 1000"]);
    assert_eq!(limits_of(second), ["sliding_window_counter 100/min"]);
    let keys = |list: &[ratekeeper_rules::spec::At<ListEntry>]| -> Vec<String> {
        list.iter().map(|entry| format!("{:?}", entry.value)).collect()
    };
    assert!(keys(&spec.allow)[1].contains("sk_monitoring_*") && keys(&spec.deny)[0].contains("sk_revoked_*"));
    assert_eq!((first.id.place.line, first.id.place.column), (2, 9));
}

#[test]
fn numbers_are_read_exactly() {
    check("params: {capacity: 100, refill_rate: 0.1}", &["token_bucket 1 per 10s burst 100"]);
    check("params: {capacity: 100, refill_rate: 2.50}", &["token_bucket 5 per 2s burst 100"]);
    check("params: {capacity: 100, refill_rate: 100}", &["token_bucket 100/s"]);
    check("params: {capacity: 1_000, refill_rate: '0.000_001'}", &["token_bucket 1 per 1000000s burst 1000"]);
    check("params: {capacity: 100, window: 60}", &["token_bucket 100/min"]);
    check("params: {limit: 100, window: 1h}", &["token_bucket 100/h"]);
    check("params: {capacity: 100, window: 0.5}", &["token_bucket 100 per 500ms"]);
    check(
        "algorithm: leaky_bucket, params: {capacity: 100, window: 60}",
        &["leaky_bucket 100/min burst 100"],
    );
    check("algorithm: leaky_bucket, limit: 100/min", &["leaky_bucket 100/min"]);
    check("algorithm: fixed_window, params: {limit: '7', window: 1 week}", &["fixed_window 7/week"]);
    check(
        "limits: [{capacity: 5, window: 1}, 100/h burst 7]",
        &["token_bucket 5/s", "token_bucket 100/h burst 7"],
    );
}

#[test]
fn an_override_inherits_the_fields_of_its_rule() {
    let overridden = |rule: &str, client: &str| {
        let spec = spec(&format!("rules: [{{id: r, {rule}, override: {{c: {client}}}}}]"));
        shown(&spec.rules[0].overrides[0].limits).join(", ")
    };
    let rate = "params: {capacity: 10, refill_rate: 2, window: 5}";
    assert_eq!(overridden(rate, "{capacity: 50}"), "token_bucket 2/s burst 50");
    assert_eq!(overridden(rate, "{refill_rate: 4}"), "token_bucket 4/s burst 10");
    assert_eq!(overridden(rate, "{window: 10}"), "token_bucket 10 per 10s");
    assert_eq!(overridden("params: {capacity: 10, window: 60}", "{capacity: 50}"), "token_bucket 50/min");
    assert_eq!(overridden("limit: 10/min", "{limit: 50}"), "token_bucket 50/min");
    assert_eq!(overridden("limit: 10/min burst 5", "{capacity: 50}"), "token_bucket 1 per 6s burst 50");
    let window = "algorithm: fixed_window, zone: Asia/Tokyo, limit: 10/day";
    assert_eq!(overridden(window, "{limit: 50}"), "fixed_window 50/day");
    assert_eq!(overridden(window, "{limit: 50, algorithm: token_bucket, window: 60}"), "token_bucket 50/min");
    let spec = spec(&format!("rules: [{{id: r, {window}, override: {{c: 50/day}}}}]"));
    assert_eq!(
        spec.rules[0].overrides[0].limits[0].algorithm(),
        spec.rules[0].limits.as_ref().unwrap()[0].algorithm()
    );
}

#[test]
fn every_field_is_read() {
    let spec = file("everything.yaml");
    let rule = |id: &str| spec.rules.iter().find(|rule| rule.id.value == id).unwrap();
    let algorithm = |id: &str| rule(id).limits.as_ref().unwrap()[0].algorithm();
    let orders = rule("rules/orders:v1");
    assert_eq!(orders.when.methods, ["GET", "POST"]);
    assert_eq!(orders.when.tiers, ["pro", "enterprise"]);
    assert_eq!(orders.when.ip.len(), 3);
    assert_eq!(orders.when.attributes[1].1.len(), 2);
    assert_eq!(orders.key, [Dimension::ApiKey, Dimension::Endpoint]);
    assert_eq!(orders.overrides[2].valid_until, Some(Micros::new(4_073_500_800_000_000)));
    assert_eq!(orders.overrides[3].valid_until, Some(Micros::new(4_073_540_400_000_000)));
    assert_eq!(orders.overrides[4].limits[0].algorithm().name(), "fixed_window");
    assert_eq!(orders.consistency, Some(Consistency::Leased));
    assert_eq!(orders.on_store_failure, Some(FailureMode::Closed));
    assert_eq!(orders.store_timeout_ms.map(NonZeroU16::get), Some(20));
    assert!(
        matches!(algorithm("daily"), Algorithm::FixedWindow(Align::WallClock(zone)) if zone.name() == "Europe/Berlin")
    );
    assert_eq!(shown(&rule("daily").overrides[0].limits), ["fixed_window 5000/day"]);
    assert_eq!(algorithm("from-the-first"), Algorithm::FixedWindow(Align::FirstHit));
    assert_eq!(algorithm("logins"), Algorithm::SlidingWindowLog(LogSize::Large));
    assert_eq!(rule("logins").when.methods, ["POST"]);
    assert_eq!(rule("inherits").limits, None);
    let entry = |name: &str, value: &str| (name.to_owned(), Pattern::new(value));
    let edge = rule("edge/slow");
    assert_eq!(edge.when.domain, Some(Pattern::new("edge")));
    let slow = [
        ("generic_key", "slowpath"),
        ("header_match", "/api/*"),
        ("header_match", ""),
        ("remote_address", "*"),
    ];
    assert_eq!(edge.when.descriptor, slow.map(|(name, value)| entry(name, value)));
    assert_eq!(edge.key, [Dimension::Descriptor]);
    let map = &rule("edge/map").when.descriptor;
    assert_eq!(*map, [entry("generic_key", "fastpath"), entry("remote_address", "*")]);
    assert_eq!((limits_of(rule("edge/map")), rule("edge/map").limits.is_some()), (Vec::new(), true));
    assert_eq!(rule("edge/name").when.descriptor, [entry("remote_address", "*")]);
    assert_eq!(rule("whole-domain").key, [Dimension::Domain, Dimension::named("remote_address")]);
    let unlimited = &rule("whole-domain").overrides;
    assert!(unlimited.iter().all(|client| client.limits.is_empty()) && unlimited.len() == 2);
    assert_eq!(
        (spec.tiers[3].limits.as_deref(), spec.clients[3].limits.as_deref()),
        (Some(&[][..]), Some(&[][..]))
    );
    assert_eq!(rule("tried-out").mode, Mode::Shadow);
    assert_eq!(rule("off").mode, Mode::Disabled);
    let default = spec.default.as_ref().unwrap();
    assert_eq!(shown(&default.limits), ["sliding_window_counter 100/s", "sliding_window_counter 10000/h"]);
    assert_eq!(spec.tiers.len(), 4);
    assert_eq!(shown(spec.tiers[1].limits.as_ref().unwrap()), ["fixed_window 1000/min"]);
    assert_eq!(spec.clients[0].tier.as_ref().unwrap().value, "enterprise");
    assert_eq!((spec.allow.len(), spec.deny.len()), (3, 2));
    assert!(
        matches!(spec.allow[1].value, ListEntry::Network(_))
            && matches!(spec.allow[2].value, ListEntry::Key(_))
    );
    assert_eq!(spec.ipv6_prefix, Some(56));
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    let spec = file("aliases.yaml");
    assert_eq!(limits_of(&spec.rules[0]), ["sliding_window_counter 100/min"]);
    assert_eq!(limits_of(&spec.rules[1]), ["token_bucket 100/min"]);
    assert_eq!(spec.rules[0].when, spec.rules[1].when);
    let merged =
        self::spec("x-a: &a {limit: 1/s}\nx-b: &b {limit: 2/s, key: ip}\nrules: [{id: r, <<: [*a, *b]}]");
    assert_eq!(
        (limits_of(&merged.rules[0]), &merged.rules[0].key[..]),
        (vec!["token_bucket 1/s".into()], &[Dimension::Ip][..])
    );
}

#[test]
fn a_key_is_a_set() {
    let key = |text: &str| spec(&format!("rules: [{{id: r, limit: 1/s, key: {text}}}]")).rules[0].key.clone();
    assert_eq!(key("[endpoint, client_key]"), key("[api_key, endpoint]"));
    assert_eq!(key("global"), []);
    assert_eq!(key("[global]"), []);
    assert_eq!(key("tenant"), [Dimension::named("tenant")]);
}

#[test]
fn errors_and_sizes_are_bounded() {
    let many = format!("rules:\n{}", "  - {limt: 1}\n".repeat(20_000));
    let parsed = read(&many, Micros::EPOCH);
    assert_eq!(parsed.diagnostics.len(), 1_001);
    assert!(parsed.diagnostics[1_000].message.contains("more problems are not shown"));
    let large = format!("rules: []\n#{}", "x".repeat(16 << 20));
    assert!(read(&large, Micros::EPOCH).diagnostics[0].message.contains("at most 16 MiB"));
    let rules = format!("rules:\n{}", "  - {id: r}\n".repeat(100_001));
    let parsed = read(&rules, Micros::EPOCH);
    assert_eq!(parsed.diagnostics.len(), 1);
    assert!(parsed.diagnostics[0].message.contains("at most 100000 rules"));
    let chain: String = (1..10_000).map(|n| format!("x-{n}: &a{n} [*a{}]\n", n - 1)).collect();
    let parsed = read(&format!("x-0: &a0 1\n{chain}"), Micros::EPOCH);
    assert!(parsed.diagnostics[0].message.contains("levels deep"), "{:?}", parsed.diagnostics);
}

#[test]
fn columns_count_characters_with_any_line_ending() {
    for (text, place) in [
        ("rules:\r\n  - id: a\r\n    limt: 1\r\n", (3, 5)),
        ("rules:\n  - {description: 日本, limt: 1}\n", (2, 23)),
        ("\u{feff}limt: 1\n", (1, 1)),
    ] {
        let parsed = read(text, Micros::EPOCH);
        let found = parsed.diagnostics.iter().find(|diagnostic| diagnostic.message.contains("limt")).unwrap();
        assert_eq!((found.place.line, found.place.column), place, "{text:?}");
    }
}
