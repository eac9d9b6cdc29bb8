//! Random rules: every reported rule is in fact hidden, and every hidden rule is reported.

use super::*;
use crate::spec::{At, Position};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ratekeeper_core::{Limit, Quota};

fn path() -> impl Strategy<Value = Option<PathPattern>> {
    let plain = select(&["/a", "/a/b", "/a/{x}", "/{x}/b", "/{*x}", "/a/*", "/a/**", "/**", "/*/b"][..]);
    let plain = plain.prop_map(|text| PathPattern::new(text, PathStyle::default()).unwrap());
    let regex = select(&["^/a", "^/a/[0-9]", ".*", "b$"][..]);
    let regex = regex.prop_map(|text| PathPattern::regex(text, PathStyle::default()).unwrap());
    prop_oneof![Just(None), plain.prop_map(Some), regex.prop_map(Some)]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    select(&["*", "k", "k1", "k*", "k1*", "*1", "*k1", "k*1", "k1*1"][..]).prop_map(Pattern::new)
}

fn some<T: Clone + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![2 => Just(Vec::new()), 1 => subsequence(all, 1..=all.len())]
}

fn words(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    some(all).prop_map(|words| words.into_iter().map(str::to_owned).collect())
}

fn when() -> impl Strategy<Value = MatchSpec> {
    let networks = some(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::/0", "2001:db8::/32"][..]);
    let ip = networks.prop_map(|all| all.iter().map(|text| text.parse().unwrap()).collect());
    let values = prop::collection::vec(pattern(), 1..6);
    let attributes = prop::collection::vec((select(&["x", "y", "z"][..]), values), 0..3);
    let attributes = prop_oneof![2 => Just(Vec::new()), 1 => attributes];
    let attributes = attributes.prop_map(|mut all| {
        all.sort_by_key(|(name, _)| *name);
        all.dedup_by_key(|(name, _)| *name);
        all.into_iter().map(|(name, patterns)| (name.to_owned(), patterns)).collect()
    });
    let tier = prop_oneof![3 => Just(None), 1 => Just(Some("t1".to_owned()))];
    let methods = words(&["GET", "POST", "PUT", "PATCH", "HEAD"]);
    let domain = prop::option::weighted(0.3, select(&["*", "k", "k1", "k*"][..]).prop_map(Pattern::new));
    let entry = (select(&["a", "b"][..]).prop_map(str::to_owned), pattern());
    let descriptor = prop_oneof![1 => Just(Vec::new()), 1 => prop::collection::vec(entry, 1..3)];
    let parts = (
        prop::option::weighted(0.4, pattern()),
        path(),
        methods,
        words(&["t1", "t2"]),
        tier,
        ip,
        attributes,
        (domain, descriptor),
    );
    parts.prop_map(|(api_key, path, methods, tiers, rule_tier, ip, attributes, (domain, descriptor))| {
        // A rule for one tier that matches only others applies to nothing, and the parser rejects it.
        let rule_tier = rule_tier.filter(|tier| tiers.is_empty() || tiers.contains(tier));
        MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor }
    })
}

fn rule(index: usize, when: MatchSpec) -> RuleSpec {
    let place = Position { line: u32::try_from(index).unwrap() + 1, column: 1 };
    let limit = Limit::new(ratekeeper_core::Algorithm::TokenBucket, Quota::per_second(1)).unwrap();
    RuleSpec {
        id: At { value: format!("r{index}"), place },
        version: None,
        description: None,
        mode: Mode::Enforced,
        when,
        key: Vec::new(),
        missing: None,
        limits: Some(vec![limit]),
        overrides: Vec::new(),
        on_store_failure: None,
        consistency: None,
        store_timeout_ms: None,
    }
}

/// The values of each part of a request: path, key, method, tier, address, the value of every attribute but `z`, and the
/// descriptor (its domain and entries, written like a URL with a query). Every combination of them is a request.
const REQUEST_PARTS: [&[&str]; 7] = [
    &["/", "/a", "/a/b", "/a/1", "/c/b", "/b"],
    &["", "k", "k1", "k11", "x1"],
    &["", "GET", "POST"],
    &["", "t1", "t2", "t3"],
    &["10.1.2.3", "10.2.0.1", "192.0.2.1", "2001:db8::1"],
    &["k", "k1", "k21"],
    &["", "k?a=k", "k1?a=k1&b=k", "x?b=k11"],
];

/// For each part, the values that a rule matches. The rule applies to a request if it matches all its parts, since no
/// condition is about two of them. A reference implementation, as simple as possible.
fn matched_parts(when: &MatchSpec) -> [Vec<&'static str>; 7] {
    let is_path = |path: &str| when.path.as_ref().is_none_or(|own| own.matches(path));
    let is_key = |key: &str| when.api_key.as_ref().is_none_or(|own| own.matches(key));
    let is_method = |method: &str| when.methods.is_empty() || when.methods.iter().any(|own| own == method);
    let is_tier = |tier: &str| {
        let is_rule_tier = match &when.rule_tier {
            Some(own) => own == tier || tier.is_empty() && when.api_key.is_some(),
            None => true,
        };
        is_rule_tier && (when.tiers.is_empty() || when.tiers.iter().any(|own| own == tier))
    };
    let is_ip = |ip: &str| when.ip.is_empty() || when.ip.iter().any(|own| own.contains(ip.parse().unwrap()));
    let is_value = |value: &str| {
        when.attributes.iter().all(|(name, own)| name != "z" && own.iter().any(|own| own.matches(value)))
    };
    let is_descriptor = |descriptor: &str| {
        let (domain, entries) = descriptor.split_once('?').unzip();
        let entries: Vec<_> = entries.iter().flat_map(|all| all.split('&')).collect();
        let is_entry = |((name, value), entry): (&(String, Pattern), &&str)| match entry.split_once('=') {
            Some((known, found)) => known == name && value.matches(found),
            None => false,
        };
        let has_entries =
            entries.len() == when.descriptor.len() && when.descriptor.iter().zip(&entries).all(is_entry);
        when.domain.as_ref().is_none_or(|own| domain.is_some_and(|domain| own.matches(domain)))
            && (when.descriptor.is_empty() || has_entries)
    };
    let matchers: [&dyn Fn(&str) -> bool; 7] =
        [&is_path, &is_key, &is_method, &is_tier, &is_ip, &is_value, &is_descriptor];
    let mut parts = REQUEST_PARTS.iter().zip(matchers);
    std::array::from_fn(|_| {
        let (values, matches) = parts.next().unwrap();
        values.iter().copied().filter(|value| matches(value)).collect()
    })
}

proptest! {
    #[test]
    fn a_hiding_rule_applies_to_every_request_of_the_hidden_rule(conditions in prop::collection::vec(when(), 12)) {
        let rules: Vec<_> = conditions.into_iter().map(|when| rule(0, when)).collect();
        let universal = Universal::new();
        let views: Vec<_> = rules.iter().map(|rule| RuleView::of(rule, None, &universal)).collect();
        let matched: Vec<_> = rules.iter().map(|rule| matched_parts(&rule.when)).collect();
        for (hider, hidden) in (0..rules.len()).flat_map(|a| (0..rules.len()).map(move |b| (a, b))) {
            let is_ever_used = matched[hidden].iter().all(|values| !values.is_empty());
            if hider == hidden || !is_ever_used || !views[hider].covers(&views[hidden]) {
                continue;
            }
            for (own, other) in matched[hider].iter().zip(&matched[hidden]) {
                let missed = other.iter().find(|value| !own.contains(value));
                let (hider, hidden) = (&rules[hider].when, &rules[hidden].when);
                prop_assert_eq!(missed, None, "{:?} hides {:?}", hider, hidden);
            }
        }
    }

    #[test]
    fn the_index_finds_what_comparing_all_pairs_finds(conditions in prop::collection::vec(when(), 0..24)) {
        let rules = conditions.into_iter().enumerate().map(|(index, when)| rule(index, when)).collect();
        let spec = FileSpec { rules, ..FileSpec::default() };
        let mut diagnostics = Diagnostics::default();
        check(&spec, &[], &mut diagnostics);
        let found: Vec<_> = diagnostics.finish().into_iter().map(|diagnostic| {
            let hider = diagnostic.message.split('"').nth(1).unwrap().to_owned();
            (diagnostic.place.line, hider)
        }).collect();

        let universal = Universal::new();
        let mut seen: Vec<RuleView<'_>> = Vec::new();
        let mut expected = Vec::new();
        for rule in &spec.rules {
            let view = RuleView::of(rule, None, &universal);
            match seen.iter().find(|earlier| earlier.covers(&view)) {
                Some(hider) => expected.push((rule.id.place.line, hider.rule.id.value.clone())),
                None => seen.push(view),
            }
        }
        prop_assert_eq!(found, expected);
    }
}
