//! Whom a request is counted for: its key, its address, its tier, and what becomes of those that have none.

use super::*;

/// Compiles a file that is in order.
fn compiled(text: &str) -> RuleSet {
    let review = ratekeeper_rules::read(text, NOW);
    RuleSet::compile(review.spec.as_ref().unwrap_or_else(|| panic!("{:?}", review.complaints))).unwrap()
}

/// What binds a request, as the rule and the parts of the key.
fn bound(rules: &RuleSet, request: &CheckRequest<'_>) -> Vec<(String, Vec<String>)> {
    agree(rules, request);
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || NOW);
    let (draws, bound) = plan.bound(plan.cases()[0]);
    let one = |(draw, bound): (&ratekeeper_core::Draw, &ratekeeper_rules::DrawSource)| {
        let parts = plan.draws().key(draw).parts().map(str::to_owned).collect();
        (rules.rules()[bound.rule as usize].id().to_owned(), parts)
    };
    draws.iter().zip(bound).map(one).collect()
}

fn case(rules: &RuleSet, request: &CheckRequest<'_>) -> Resolution {
    agree(rules, request);
    planned(rules, request).0
}

#[test]
fn an_unknown_tier_falls_back_to_what_is_known() {
    let file = "
tiers: {free: {limit: 10/min}, pro: {limit: 100/min, keys: ['sk_pro_*']}}
default_tier: free
clients: {acme: {tier: pro}}
";
    let rules = compiled(file);
    let id = |tier, key| bound(&rules, &CheckRequest { tier, ..CheckRequest::new(key) })[0].0.clone();
    assert_eq!(id("pro", "x"), "tier:pro");
    assert_eq!(id("Pro", "x"), "tier:free", "the default tier");
    assert_eq!(id("Pro", "sk_pro_1"), "tier:pro", "the key tells it");
    assert_eq!(id("Pro", "acme"), "tier:pro", "the record tells it");
    let mut plan = DrawPlan::new();
    let mut is_noted = |tier| {
        plan.add(&rules, Verb::Check, &CheckRequest { tier, ..CheckRequest::new("x") }, || NOW)
            .has_unknown_tier
    };
    assert_eq!([is_noted("Pro"), is_noted("pro"), is_noted("")], [true, false, false]);

    let strict = compiled(&format!("{file}unknown_tier: refuse\n"));
    let request = |tier| CheckRequest { tier, ..CheckRequest::new("acme") };
    assert_eq!(case(&strict, &request("Pro")), Resolution::UnknownTier);
    assert!(matches!(case(&strict, &request("pro")), Resolution::Bound { .. }));
    assert!(matches!(case(&strict, &request("")), Resolution::Bound { .. }));
}

#[test]
fn a_tier_that_only_rules_name_is_known_and_others_are_not() {
    let rules = compiled("rules: [{id: r, match: {tier: pro}, limit: 1/s}, {id: other, limit: 2/s}]");
    let id = |tier| bound(&rules, &CheckRequest { tier, ..CheckRequest::new("x") })[0].0.clone();
    assert_eq!([id("pro"), id("Pro"), id("")], ["r", "other", "other"]);
    let open = compiled("rules: [{id: r, key: tier, limit: 1/s}]");
    let parts = bound(&open, &CheckRequest { tier: "Pro", ..CheckRequest::new("x") });
    assert_eq!(parts, [("r".to_owned(), vec!["Pro".to_owned()])], "a file that names no tier knows all");
}

#[test]
fn who_has_no_key_is_counted_by_address() {
    let rules = compiled("default: 10/min\nrules: [{id: login, match: {path: /login}, limit: 1/min}]");
    let address = |ip: &str| Some(ip.parse().unwrap());
    let parts = |key, ip: &str, endpoint| {
        let found = bound(&rules, &CheckRequest { ip: address(ip), endpoint, ..CheckRequest::new(key) });
        let [(id, parts)] = &found[..] else { panic!("{found:?}") };
        format!("{id} {}", parts.join("|"))
    };
    assert_eq!(parts("", "1.2.3.4", "/"), "default 1.2.3.4|ip");
    assert_eq!(parts("1.2.3.4", "1.2.3.4", "/"), "default 1.2.3.4", "a key that looks like an address");
    assert_eq!(parts("", "2001:db8::1:2:3:4", "/"), "default 2001:db8::|ip");
    assert_eq!(parts("k", "1.2.3.4", "/login"), "login k");
    assert_eq!(parts("", "1.2.3.4", "/login"), "default 1.2.3.4|ip", "the rule counts by keys");
    assert_eq!(
        bound(&rules, &CheckRequest::new("")),
        [("default".to_owned(), vec![String::new(), "0".to_owned()])]
    );
}

#[test]
fn who_has_neither_is_held_to_the_default_only_where_no_rule_binds() {
    let file =
        "rules: [{id: all, key: global, limit: 5/s}, {id: shadow, key: path, shadow: true, limit: 1/s}]\n";
    let ids = |more: &str| -> Vec<String> {
        let rules = compiled(&format!("{file}{more}"));
        bound(&rules, &CheckRequest::new("")).into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(ids("default: 10/min"), ["all", "shadow"]);
    assert_eq!(ids("default: {limit: 10/min, missing: shared}"), ["all", "shadow", "default"]);
    let rules = compiled(&format!("{file}default: {{limit: 10/min, missing: refuse}}"));
    assert!(matches!(case(&rules, &CheckRequest::new("")), Resolution::Missing { .. }));
    assert!(matches!(case(&rules, &CheckRequest::new("k")), Resolution::Bound { .. }));
}

#[test]
fn no_two_identities_meet() {
    let rules = compiled(
        "rules: [{id: r, key: [client, m, n], missing: shared, limit: 1/s}, {id: s, key: m, missing: shared, limit: 1/s}]",
    );
    let mut seen = std::collections::HashMap::new();
    for key in ["", "key", "ip", "0", "1.2.3.4"] {
        for ip in [None, Some("1.2.3.4"), Some("5.6.7.8")] {
            // Whoever has a key is that key, wherever it comes from.
            let ip = if key.is_empty() { ip.map(|ip| ip.parse().unwrap()) } else { None };
            for m in [None, Some(""), Some("0"), Some("key")] {
                for n in [None, Some(""), Some("1"), Some("2")] {
                    let attributes: Vec<_> = [("m", m), ("n", n)]
                        .into_iter()
                        .filter_map(|(name, value)| Some((name, value?)))
                        .collect();
                    let request = CheckRequest { ip, attributes: &attributes, ..CheckRequest::new(key) };
                    let found = bound(&rules, &request);
                    let [(first, whole), (second, part)] = &found[..] else { panic!("{found:?}") };
                    let who = (key, ip, m, n);
                    let same = seen.insert((first.clone(), whole.clone()), format!("{who:?}"));
                    assert!(same.is_none_or(|same| same == format!("{who:?}")), "{whole:?}");
                    let same = seen.insert((second.clone(), part.clone()), format!("{m:?}"));
                    assert!(same.is_none_or(|same| same == format!("{m:?}")), "{part:?}");
                }
            }
        }
    }
}

#[test]
fn a_rule_says_what_to_do_with_requests_that_lack_its_key() {
    let rule = |missing: &str| {
        compiled(&format!(
            "rules: [{{id: all, key: global, limit: 9/s}}, {{id: r, key: tenant, {missing}limit: 1/s}}]"
        ))
    };
    let ids = |rules: &RuleSet| -> Vec<String> {
        bound(rules, &CheckRequest::new("k")).into_iter().map(|(id, _)| id).collect()
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
    assert_eq!(case(&rules, &CheckRequest::new("k")), Resolution::Missing { rule: 1 });
    let mut plan = DrawPlan::new();
    plan.add(&rules, Verb::Check, &CheckRequest::new("k"), || NOW);
    assert!(plan.is_settled() && plan.draws().all().is_empty(), "what is refused takes nothing");
}

#[test]
fn an_absolute_path_of_a_proxy_meets_the_rule_of_its_path() {
    let rules = compiled("rules: [{id: login, key: ip, match: {path: /login}, limit: 1/s}]");
    for path in ["http://h/login", "https://user@h:443/x/..;/login?q", "/login;a=b"] {
        let entries = [(":path", path), ("remote_address", "192.0.2.1")];
        let bound = bound(&rules, &CheckRequest::new("").told_by(&entries));
        assert_eq!(bound, [("login".to_owned(), vec!["192.0.2.1".to_owned()])], "{path}");
    }
}
