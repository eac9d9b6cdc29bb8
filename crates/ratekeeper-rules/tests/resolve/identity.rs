//! Client identity: key, address and tier, and requests that lack them.

use super::*;

/// Compiles a valid file.
fn compiled(text: &str) -> RuleSet {
    let parsed = ratekeeper_rules::read(text, NOW);
    RuleSet::compile(parsed.spec.as_ref().unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))).unwrap()
}

/// The rules that apply to a request, and the parts of their counting keys.
fn applied(rules: &RuleSet, request: &CheckRequest<'_>) -> Vec<(String, Vec<String>)> {
    check(rules, request);
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || NOW);
    let (draws, sources) = plan.draws_of(plan.resolutions()[0]);
    let one = |(draw, source): (&ratekeeper_core::Draw, &ratekeeper_rules::DrawSource)| {
        let parts = plan.draws().key(draw).parts().map(str::to_owned).collect();
        (rules.rules()[source.rule as usize].id().to_owned(), parts)
    };
    draws.iter().zip(sources).map(one).collect()
}

fn resolution(rules: &RuleSet, request: &CheckRequest<'_>) -> Resolution {
    check(rules, request);
    planned(rules, request).0
}

#[test]
fn an_unknown_tier_is_resolved_like_no_tier() {
    let file = "
tiers: {free: {limit: 10/min}, pro: {limit: 100/min, keys: ['sk_pro_*']}}
default_tier: free
clients: {acme: {tier: pro}}
";
    let rules = compiled(file);
    let id = |tier, key| applied(&rules, &CheckRequest { tier, ..CheckRequest::new(key) })[0].0.clone();
    assert_eq!(id("pro", "x"), "tier:pro");
    assert_eq!(id("Pro", "x"), "tier:free", "by the default tier");
    assert_eq!(id("Pro", "sk_pro_1"), "tier:pro", "by the key pattern");
    assert_eq!(id("Pro", "acme"), "tier:pro", "by the client record");
    let mut plan = DrawPlan::new();
    let mut is_unknown = |tier| {
        plan.add(&rules, Verb::Check, &CheckRequest { tier, ..CheckRequest::new("x") }, || NOW)
            .has_unknown_tier
    };
    assert_eq!([is_unknown("Pro"), is_unknown("pro"), is_unknown("")], [true, false, false]);

    let strict = compiled(&format!("{file}unknown_tier: refuse\n"));
    let request = |tier| CheckRequest { tier, ..CheckRequest::new("acme") };
    assert_eq!(resolution(&strict, &request("Pro")), Resolution::UnknownTier);
    assert!(matches!(resolution(&strict, &request("pro")), Resolution::Limited { .. }));
    assert!(matches!(resolution(&strict, &request("")), Resolution::Limited { .. }));
}

#[test]
fn a_tier_that_only_rules_mention_is_known() {
    let rules = compiled("rules: [{id: r, match: {tier: pro}, limit: 1/s}, {id: other, limit: 2/s}]");
    let id = |tier| applied(&rules, &CheckRequest { tier, ..CheckRequest::new("x") })[0].0.clone();
    assert_eq!([id("pro"), id("Pro"), id("")], ["r", "other", "other"]);
    let open = compiled("rules: [{id: r, key: tier, limit: 1/s}]");
    let parts = applied(&open, &CheckRequest { tier: "Pro", ..CheckRequest::new("x") });
    assert_eq!(parts, [("r".to_owned(), vec!["Pro".to_owned()])], "any tier if the file mentions none");
}

#[test]
fn clients_without_a_key_are_counted_by_address() {
    let rules = compiled("default: 10/min\nrules: [{id: login, match: {path: /login}, limit: 1/min}]");
    let address = |ip: &str| Some(ip.parse().unwrap());
    let parts = |key, ip: &str, endpoint| {
        let found = applied(&rules, &CheckRequest { ip: address(ip), endpoint, ..CheckRequest::new(key) });
        let [(id, parts)] = &found[..] else { panic!("{found:?}") };
        format!("{id} {}", parts.join("|"))
    };
    assert_eq!(parts("", "1.2.3.4", "/"), "default 1.2.3.4|ip");
    assert_eq!(parts("1.2.3.4", "1.2.3.4", "/"), "default 1.2.3.4", "a key that looks like an address");
    assert_eq!(parts("", "2001:db8::1:2:3:4", "/"), "default 2001:db8::|ip");
    assert_eq!(parts("k", "1.2.3.4", "/login"), "login k");
    assert_eq!(parts("", "1.2.3.4", "/login"), "default 1.2.3.4|ip", "the rule counts by keys");
    assert_eq!(
        applied(&rules, &CheckRequest::new("")),
        [("default".to_owned(), vec![String::new(), "0".to_owned()])]
    );
}

#[test]
fn clients_without_key_and_address_get_the_default_only_if_no_rule_applies() {
    let file =
        "rules: [{id: all, key: global, limit: 5/s}, {id: shadow, key: path, shadow: true, limit: 1/s}]\n";
    let ids = |more: &str| -> Vec<String> {
        let rules = compiled(&format!("{file}{more}"));
        applied(&rules, &CheckRequest::new("")).into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(ids("default: 10/min"), ["all", "shadow"]);
    assert_eq!(ids("default: {limit: 10/min, missing: shared}"), ["all", "shadow", "default"]);
    let rules = compiled(&format!("{file}default: {{limit: 10/min, missing: refuse}}"));
    assert!(matches!(resolution(&rules, &CheckRequest::new("")), Resolution::MissingKey { .. }));
    assert!(matches!(resolution(&rules, &CheckRequest::new("k")), Resolution::Limited { .. }));
}

#[test]
fn different_clients_never_share_a_count() {
    let rules = compiled(
        "rules: [{id: r, key: [client, m, n], missing: shared, limit: 1/s}, {id: s, key: m, missing: shared, limit: 1/s}]",
    );
    let mut seen = std::collections::HashMap::new();
    for key in ["", "key", "ip", "0", "1.2.3.4"] {
        for ip in [None, Some("1.2.3.4"), Some("5.6.7.8")] {
            // A client with a key is identified by it, whatever its address.
            let ip = if key.is_empty() { ip.map(|ip| ip.parse().unwrap()) } else { None };
            for m in [None, Some(""), Some("0"), Some("key")] {
                for n in [None, Some(""), Some("1"), Some("2")] {
                    let attributes: Vec<_> = [("m", m), ("n", n)]
                        .into_iter()
                        .filter_map(|(name, value)| Some((name, value?)))
                        .collect();
                    let request = CheckRequest { ip, attributes: &attributes, ..CheckRequest::new(key) };
                    let found = applied(&rules, &request);
                    let [(first, whole), (second, part)] = &found[..] else { panic!("{found:?}") };
                    let identity = (key, ip, m, n);
                    let same = seen.insert((first.clone(), whole.clone()), format!("{identity:?}"));
                    assert!(same.is_none_or(|same| same == format!("{identity:?}")), "{whole:?}");
                    let same = seen.insert((second.clone(), part.clone()), format!("{m:?}"));
                    assert!(same.is_none_or(|same| same == format!("{m:?}")), "{part:?}");
                }
            }
        }
    }
}

#[test]
fn missing_decides_about_requests_that_lack_the_key() {
    let rule = |missing: &str| {
        compiled(&format!(
            "rules: [{{id: all, key: global, limit: 9/s}}, {{id: r, key: tenant, {missing}limit: 1/s}}]"
        ))
    };
    let ids = |rules: &RuleSet| -> Vec<String> {
        applied(rules, &CheckRequest::new("k")).into_iter().map(|(id, _)| id).collect()
    };
    let notes = |rules: &RuleSet| {
        let notes = DrawPlan::new().add(rules, Verb::Check, &CheckRequest::new("k"), || NOW);
        (notes.is_skipped, notes.is_shared)
    };
    for (missing, expected, noted) in [
        ("", &["all"][..], (true, false)),
        ("missing: skip, ", &["all"], (true, false)),
        ("missing: shared, ", &["all", "r"], (false, true)),
        ("missing: refuse, shadow: true, ", &["all"], (true, false)),
    ] {
        let rules = rule(missing);
        assert_eq!(
            (ids(&rules), notes(&rules)),
            (expected.iter().map(|id| (*id).to_owned()).collect(), noted)
        );
    }
    let rules = rule("missing: refuse, ");
    assert_eq!(resolution(&rules, &CheckRequest::new("k")), Resolution::MissingKey { rule: 1 });
    let mut plan = DrawPlan::new();
    plan.add(&rules, Verb::Check, &CheckRequest::new("k"), || NOW);
    assert!(plan.is_decided() && plan.draws().all().is_empty(), "a denied request takes nothing");
}

#[test]
fn an_absolute_path_of_a_proxy_matches_the_rule_for_its_path() {
    let rules = compiled("rules: [{id: login, key: ip, match: {path: /login}, limit: 1/s}]");
    for path in ["http://h/login", "https://user@h:443/x/..;/login?q", "/login;a=b"] {
        let entries = [(":path", path), ("remote_address", "192.0.2.1")];
        let applied = applied(&rules, &CheckRequest::new("").with_known_entries(&entries));
        assert_eq!(applied, [("login".to_owned(), vec!["192.0.2.1".to_owned()])], "{path}");
    }
}
