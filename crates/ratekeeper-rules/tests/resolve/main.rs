//! Resolving through the index agrees with the explanation, which tries every rule one by one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod identity;

use proptest::prelude::*;
use proptest::sample::select;
use ratekeeper_core::{Algorithm, Limit, Micros, Quota};
use ratekeeper_rules::spec::{
    At, ClientSpec, FallbackSpec, FileSpec, ListEntry, MatchSpec, MissingKey, Mode, OverrideSpec, Position,
    RuleSpec, TierSpec, UnknownTier,
};
use ratekeeper_rules::{
    CheckRequest, Descriptor, Dimension, DrawPlan, ListName, PathPattern, PathStyle, Pattern, Resolution,
    RuleExplanation, RuleSet, Verb,
};

const NOW: Micros = Micros::new(1_700_000_000_000_000);

/// A limit that applies: the rule's id, the limit, and the parts of the counting key.
type ResolvedLimit = (String, Limit, String);

fn at<T>(value: T) -> At<T> {
    At { value, place: Position::default() }
}

fn limit(text: &str) -> Limit {
    Limit::new(Algorithm::TokenBucket, text.parse::<Quota>().unwrap()).unwrap()
}

fn planned(rules: &RuleSet, request: &CheckRequest<'_>) -> (Resolution, Vec<ResolvedLimit>) {
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || NOW);
    let resolution = plan.resolutions()[0];
    assert_eq!(matches!(resolution, Resolution::Limited { .. }), !plan.is_decided());
    let mut copy = plan.clone();
    let (draws, sources) = plan.draws_of(resolution);
    let mut bindings = Vec::new();
    for (draw, source) in draws.iter().zip(sources) {
        let key = copy.draws_mut().key(draw).parts().collect::<Vec<_>>().join("|");
        bindings.push((rules.rules()[source.rule as usize].id().to_owned(), *draw.limit(), key));
    }
    (resolution, bindings)
}

/// The explanation of a request: the list that the client is on, what denies the request, and the limits that apply.
fn explained(
    rules: &RuleSet,
    request: &CheckRequest<'_>,
) -> (Option<ListName>, Option<String>, Vec<ResolvedLimit>) {
    let explanation = rules.explain(request, || NOW);
    let denying = explanation.rules.iter().find(|(_, found)| matches!(found, RuleExplanation::Denies(_)));
    let denied_by = if explanation.is_tier_denied() {
        Some("tier".to_owned())
    } else {
        denying.map(|(rule, _)| format!("rule {}", rule.id()))
    };
    let mut bindings = Vec::new();
    for (rule, found) in explanation.rules {
        if let RuleExplanation::Applies { limits, key } = found {
            let key = key.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("|");
            bindings.extend(limits.into_iter().map(|limit| (rule.id().to_owned(), limit, key.clone())));
        }
    }
    (explanation.listed, denied_by, bindings)
}

/// Checks that resolution and explanation of a request agree.
#[track_caller]
fn check(rules: &RuleSet, request: &CheckRequest<'_>) {
    let (resolution, planned) = planned(rules, request);
    let (listed, denied_by, explained) = explained(rules, request);
    let denied = |by: String| assert_eq!((listed, denied_by.clone()), (None, Some(by)), "{request:?}");
    match resolution {
        Resolution::Denied => assert_eq!(listed, Some(ListName::Deny), "{request:?}"),
        Resolution::Allowed => assert_eq!(listed, Some(ListName::Allow), "{request:?}"),
        Resolution::UnknownTier => denied("tier".to_owned()),
        Resolution::MissingKey { rule } => denied(format!("rule {}", rules.rules()[rule as usize].id())),
        Resolution::Unlimited | Resolution::Limited { .. } => {
            assert_eq!((listed, denied_by, planned), (None, None, explained), "{request:?}");
        }
    }
}

fn pattern() -> impl Strategy<Value = Pattern> {
    select(&["a", "b", "ab", "a*", "ab*", "*b", "a*b", "*", "b*"][..]).prop_map(Pattern::new)
}

fn path_pattern() -> impl Strategy<Value = PathPattern> {
    let style = PathStyle::default();
    let paths = [
        "/", "/x", "/x/y", "/x/{a}", "/{a}", "/{a}/y", "/x/{*r}", "/{*r}", "/x/*", "/*", "/**", "/x*/y",
        "/x/**/y",
    ];
    let regexes = ["^/x", "^/x/y$", "y$", ".*", "^/x/[yz]$", "^/[a-z]$", "z", "^/x/.*"];
    prop_oneof![
        select(paths.to_vec()).prop_map(move |text| PathPattern::new(text, style).unwrap()),
        select(regexes.to_vec()).prop_map(move |text| PathPattern::regex(text, style).unwrap()),
    ]
}

fn matches() -> impl Strategy<Value = MatchSpec> {
    let tier = || select(&["free", "pro"][..]).prop_map(str::to_owned);
    (
        prop::option::weighted(0.4, pattern()),
        prop::option::weighted(0.6, path_pattern()),
        prop::collection::vec(select(&["GET", "POST"][..]).prop_map(str::to_owned), 0..2),
        prop::collection::vec(tier(), 0..2),
        prop::option::weighted(0.2, tier()),
        prop::collection::vec(select(&["10.0.0.0/8", "::/0"][..]).prop_map(|net| net.parse().unwrap()), 0..2),
        prop::collection::vec(("[mn]", prop::collection::vec(pattern(), 1..3)), 0..2),
        domain(),
        descriptor(),
    )
        .prop_map(|(api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor)| {
            MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor }
        })
}

fn domain() -> impl Strategy<Value = Option<Pattern>> {
    prop::option::weighted(0.3, pattern())
}

fn descriptor() -> impl Strategy<Value = Vec<(String, Pattern)>> {
    prop_oneof![1 => Just(Vec::new()), 2 => prop::collection::vec(("[mn]", pattern()), 1..3)]
}

fn key() -> impl Strategy<Value = Vec<Dimension>> {
    let keys = [
        &["api_key"][..],
        &["client"],
        &["client", "endpoint"],
        &["ip"],
        &[],
        &["api_key", "endpoint"],
        &["path", "method"],
        &["tier", "m"],
        &["descriptor"],
        &["domain", "n"],
    ];
    select(keys.to_vec()).prop_map(|names| {
        let mut key: Vec<_> = names.iter().map(|name| Dimension::named(name)).collect();
        key.sort();
        key
    })
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    // An empty list is unlimited.
    prop::collection::vec(select(&["1/s", "2/s", "3/min", "4/h"][..]).prop_map(limit), 0..3)
}

fn until() -> impl Strategy<Value = Option<Micros>> {
    select(vec![None, Some(Micros::new(NOW.get() - 1)), Some(NOW), Some(Micros::new(NOW.get() + 1))])
}

fn missing() -> impl Strategy<Value = Option<MissingKey>> {
    // A request that one rule denies is not resolved further, so few rules deny.
    prop_oneof![
        8 => Just(None),
        2 => Just(Some(MissingKey::Skip)),
        4 => Just(Some(MissingKey::Shared)),
        1 => Just(Some(MissingKey::Refuse)),
    ]
}

fn rule() -> impl Strategy<Value = RuleSpec> {
    let mode = prop_oneof![4 => Just(Mode::Enforced), 1 => Just(Mode::Shadow), 1 => Just(Mode::Disabled)];
    let overrides = prop::collection::vec(("[ab]", limits(), until()), 0..2);
    (mode, matches(), key(), prop::option::weighted(0.8, limits()), overrides, missing()).prop_map(
        |(mode, when, key, limits, overrides, missing)| RuleSpec {
            id: at(String::new()),
            version: None,
            description: None,
            mode,
            when,
            key,
            missing,
            limits,
            overrides: overrides
                .into_iter()
                .map(|(key, limits, valid_until)| OverrideSpec { key: at(key), limits, valid_until })
                .collect(),
            on_store_failure: None,
            consistency: None,
            store_timeout_ms: None,
        },
    )
}

fn file() -> impl Strategy<Value = FileSpec> {
    let tier = |name: &'static str| {
        (prop::option::of(limits()), prop::collection::vec(pattern().prop_map(at), 0..2))
            .prop_map(move |(limits, keys)| TierSpec { name: at(name.to_owned()), keys, limits })
    };
    let tiers = prop_oneof![
        Just(Vec::new()).boxed(),
        (tier("free"), tier("pro")).prop_map(|(free, pro)| vec![free, pro]).boxed()
    ];
    let client = (select(vec![None, Some("pro"), Some("gold")]), prop::option::of(limits()), until())
        .prop_map(|(tier, limits, valid_until)| ClientSpec {
            key: at("ab".to_owned()),
            tier: tier.map(|tier| at(tier.to_owned())),
            limits,
            valid_until,
        });
    let list_entry = || {
        prop_oneof![
            pattern().prop_map(ListEntry::Key),
            Just(ListEntry::Network("10.1.0.0/16".parse().unwrap()))
        ]
    };
    let default = (key(), limits(), missing()).prop_map(|(key, limits, missing)| FallbackSpec {
        key,
        missing,
        limits,
        place: Position::default(),
    });
    let unknown_tier = select(&[UnknownTier::Ignore, UnknownTier::Ignore, UnknownTier::Refuse][..]);
    let style = any::<bool>()
        .prop_map(|keep_matrix_parameters| PathStyle { keep_matrix_parameters, ..PathStyle::default() });
    (
        prop::collection::vec(rule(), 0..40),
        prop::option::of(default),
        tiers,
        any::<bool>(),
        prop::option::of(client),
        prop::collection::vec(list_entry().prop_map(at), 0..2),
        prop::collection::vec(list_entry().prop_map(at), 0..1),
        (missing(), unknown_tier, style),
    )
        .prop_map(
            |(
                mut rules,
                default,
                tiers,
                default_tier,
                client,
                allow,
                deny,
                (missing, unknown_tier, paths),
            )| {
                for (index, rule) in rules.iter_mut().enumerate() {
                    rule.id.value = format!("r{index}");
                }
                FileSpec {
                    rules,
                    default,
                    default_tier: (default_tier && !tiers.is_empty()).then(|| at("free".to_owned())),
                    tiers,
                    clients: client.into_iter().collect(),
                    allow,
                    deny,
                    missing,
                    unknown_tier,
                    paths,
                    ..FileSpec::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn resolution_and_explanation_agree(
        file in file(),
        key in select(&["", "a", "b", "ab", "abb", "ba"][..]),
        endpoint in select(&["", "/", "/x", "/x/", "/x/y", "/x/z", "/y", "x//y?q", "/x/y/z", "/%78/y", "/x;a/y", "http://h/x"][..]),
        method in select(&["", "GET", "post", "PUT"][..]),
        tier in select(&["", "free", "pro", "gold"][..]),
        ip in select(&[None, Some("10.1.2.3"), Some("10.2.2.3"), Some("2001:db8::1")][..]),
        attributes in prop::collection::vec(
            (select(&["m", "n"][..]), select(&["a", "b", "ab", "c"][..])), 0..3),
        descriptor in prop::option::of((
            select(&["", "a", "b", "ab"][..]),
            prop::collection::vec((select(&["m", "n"][..]), select(&["", "a", "b", "ab"][..])), 0..3),
        )),
    ) {
        let Ok(rules) = RuleSet::compile(&file) else { return Ok(()) };
        let ip = ip.map(|ip| ip.parse().unwrap());
        let descriptor = descriptor.as_ref().map(|(domain, entries)| Descriptor { domain, entries });
        let request = CheckRequest { endpoint, method, tier, ip, attributes: &attributes, descriptor, ..CheckRequest::new(key) };
        check(&rules, &request);
        // A tier that the file does not define is ignored, or the request is denied.
        let unknown = CheckRequest { tier: "Pro", ..request };
        let (found, stated_none) = (planned(&rules, &unknown), planned(&rules, &CheckRequest { tier: "", ..request }));
        let is_as_none = found.0 == Resolution::UnknownTier || found == stated_none;
        prop_assert!(is_as_none || file.tiers.is_empty(), "{:?}", unknown);
        check(&rules, &unknown);
    }

    /// Rules with few other conditions, so that many of them apply.
    #[test]
    fn resolution_and_explanation_agree_on_descriptors(
        mut rules in prop::collection::vec((rule(), domain(), descriptor()), 0..40),
        requests in prop::collection::vec((
            select(&["", "a", "b", "ab"][..]),
            prop::collection::vec((select(&["m", "n"][..]), select(&["", "a", "b", "ab"][..])), 0..3),
        ), 20),
    ) {
        for (index, (rule, domain, descriptor)) in rules.iter_mut().enumerate() {
            rule.id.value = format!("r{index}");
            let (domain, descriptor) = (domain.take(), std::mem::take(descriptor));
            rule.when = MatchSpec { domain, descriptor, ..MatchSpec::default() };
        }
        let rules = rules.into_iter().map(|(rule, ..)| rule).collect();
        let Ok(rules) = RuleSet::compile(&FileSpec { rules, ..FileSpec::default() }) else { return Ok(()) };
        for (domain, entries) in &requests {
            let descriptor = Some(Descriptor { domain, entries });
            check(&rules, &CheckRequest { descriptor, attributes: entries, ..CheckRequest::new("a") });
        }
    }
}

fn simple(id: &str, key: &[&str], path: Option<&str>, text: &str) -> RuleSpec {
    let style = PathStyle::default();
    RuleSpec {
        id: at(id.to_owned()),
        version: None,
        description: None,
        mode: Mode::Enforced,
        when: MatchSpec {
            path: path.map(|path| PathPattern::new(path, style).unwrap()),
            ..MatchSpec::default()
        },
        key: key.iter().map(|name| Dimension::named(name)).collect(),
        missing: None,
        limits: Some(vec![limit(text)]),
        overrides: Vec::new(),
        on_store_failure: None,
        consistency: None,
        store_timeout_ms: None,
    }
}

fn compile(rules: Vec<RuleSpec>) -> RuleSet {
    RuleSet::compile(&FileSpec { rules, ..FileSpec::default() }).unwrap()
}

fn shown(rules: &RuleSet, request: &CheckRequest<'_>) -> Vec<String> {
    planned(rules, request).1.into_iter().map(|(id, _, key)| format!("{id} {key}")).collect()
}

#[test]
fn the_first_match_of_each_key_group_applies() {
    let rules = compile(vec![
        simple("login", &["api_key"], Some("/login"), "5/min"),
        simple("all", &["api_key"], None, "100/min"),
        simple("ip", &["ip"], None, "1000/min"),
        simple("tenant", &["tenant"], None, "2000/min"),
        simple("global", &[], None, "9000/min"),
    ]);
    let ip = Some("2001:db8::1:2:3:4".parse().unwrap());
    let request = CheckRequest { endpoint: "/login", ip, ..CheckRequest::new("alice") };
    assert_eq!(shown(&rules, &request), ["login alice", "ip 2001:db8::", "global "]);
    let request = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("alice") };
    assert_eq!(shown(&rules, &request), ["all alice", "tenant acme", "global "]);
    assert_eq!(shown(&rules, &CheckRequest::new("")), ["global "]);
}

#[test]
fn endpoint_counts_by_the_template_of_the_rule() {
    let rules = compile(vec![
        simple("user", &["api_key", "endpoint"], Some("/users/{id}"), "5/min"),
        simple("glob", &["api_key", "endpoint"], Some("/files/*"), "5/min"),
        simple("path", &["api_key", "path"], Some("/users/{id}"), "5/min"),
        simple("any", &["api_key", "endpoint"], None, "5/min"),
    ]);
    let shown = |endpoint: &str| shown(&rules, &CheckRequest { endpoint, ..CheckRequest::new("a") });
    assert_eq!(shown("/users/7/"), ["user a|/users/{id}", "path a|/users/7"]);
    assert_eq!(shown("/files/x"), ["glob a|/files/*"]);
    assert_eq!(shown("/other"), ["any a|/other"]);
}

fn descriptor_rule(id: &str, domain: &str, entries: &[(&str, &str)], text: &str) -> RuleSpec {
    let mut rule = simple(id, &["descriptor"], None, "1/s");
    rule.when.domain = Some(Pattern::new(domain));
    rule.when.descriptor =
        entries.iter().map(|(name, value)| ((*name).to_owned(), Pattern::new(value))).collect();
    rule.limits = Some(if text == "unlimited" { Vec::new() } else { vec![limit(text)] });
    rule
}

#[test]
fn the_first_rule_that_matches_the_whole_descriptor_applies() {
    let rules = compile(vec![
        descriptor_rule("vip", "edge", &[("user", "vip"), ("path", "*")], "unlimited"),
        descriptor_rule("api", "edge", &[("user", "*"), ("path", "/api/*")], "5/s"),
        descriptor_rule("user", "edge", &[("user", "*")], "6/s"),
        descriptor_rule("twice", "edge", &[("user", "*"), ("user", "b")], "7/s"),
        simple("domain", &["domain"], None, "8/s"),
    ]);
    let shown = |domain, entries: &[(&str, &str)]| {
        let descriptor = Some(Descriptor { domain, entries });
        shown(&rules, &CheckRequest { descriptor, ..CheckRequest::new("") })
    };
    assert_eq!(
        shown("edge", &[("user", "a"), ("path", "/api/x")]),
        ["api edge;user=a;path=/api/x", "domain edge"]
    );
    assert_eq!(shown("edge", &[("user", "vip"), ("path", "/api/x")]), ["domain edge"]);
    assert_eq!(shown("edge", &[("user", "a")]), ["user edge;user=a", "domain edge"]);
    assert_eq!(shown("edge", &[("user", "a"), ("user", "b")]), ["twice edge;user=a;user=b", "domain edge"]);
    assert_eq!(shown("edge", &[("path", "/api/x"), ("user", "a")]), ["domain edge"]);
    assert_eq!(shown("edge", &[("user", "a"), ("path", "/api/x"), ("x", "")]), ["domain edge"]);
    assert_eq!(shown("other", &[("user", "a")]), ["domain other"]);
    assert_eq!(shown("", &[("user", "a")]), [""; 0]);
}

#[test]
fn an_unlimited_rule_makes_no_draw_and_hides_later_rules() {
    let mut staff = simple("staff", &["api_key"], Some("/x"), "1/s");
    staff.limits = Some(Vec::new());
    let rules =
        compile(vec![staff, simple("all", &["api_key"], None, "2/s"), simple("ip", &[], None, "3/s")]);
    let mut plan = DrawPlan::new();
    for endpoint in ["/x", "/y", "/x"] {
        plan.add(&rules, Verb::Check, &CheckRequest { endpoint, ..CheckRequest::new("a") }, || NOW);
    }
    let ids = |resolution| {
        let (_, sources) = plan.draws_of(resolution);
        sources.iter().map(|source| rules.rules()[source.rule as usize].id()).collect()
    };
    let ids: Vec<Vec<_>> = plan.resolutions().iter().map(|resolution| ids(*resolution)).collect();
    assert_eq!(ids, [vec!["ip"], vec!["all", "ip"], vec!["ip"]]);
    let mut only = simple("only", &["api_key"], None, "1/s");
    only.limits = Some(Vec::new());
    let rules = compile(vec![only]);
    plan.clear();
    plan.add(&rules, Verb::Check, &CheckRequest::new("a"), || NOW);
    assert_eq!((plan.resolutions(), plan.is_decided()), (&[Resolution::Unlimited][..], true));
}

/// From 16 expressions without a prefix on, they are found by their literals.
#[test]
fn many_expressions_without_a_prefix_are_found() {
    let style = PathStyle { ignore_case: true, ..PathStyle::default() };
    let rule = |index: usize| {
        let mut rule = simple(&format!("r{index}"), &["api_key"], None, "1/s");
        rule.when.path = Some(PathPattern::regex(&format!("Item{index}$"), style).unwrap());
        rule
    };
    let file = FileSpec { rules: (0..100).map(rule).collect(), paths: style, ..FileSpec::default() };
    let rules = RuleSet::compile(&file).unwrap();
    for index in 0..100 {
        let endpoint = format!("/a/ITEM{index}");
        let request = CheckRequest { endpoint: &endpoint, ..CheckRequest::new("k") };
        assert_eq!(shown(&rules, &request), [format!("r{index} k")]);
    }
    assert!(shown(&rules, &CheckRequest { endpoint: "/a/item1x", ..CheckRequest::new("k") }).is_empty());
}

#[test]
fn too_many_limits_for_one_request_are_rejected() {
    let names: Vec<_> = (0..17).map(|index| format!("n{index}")).collect();
    let rules = names.iter().map(|name| simple(name, &[name], None, "1/s")).collect();
    assert_eq!(RuleSet::compile(&FileSpec { rules, ..FileSpec::default() }).unwrap_err().limits, 17);
}

#[test]
fn long_parts_are_truncated_separately() {
    let rules = compile(vec![simple("two", &["api_key", "path"], None, "1/s")]);
    let long = "k".repeat(70_000);
    let request = CheckRequest { endpoint: "/p", ..CheckRequest::new(&long) };
    assert_eq!(shown(&rules, &request), [format!("two {}|/p", "k".repeat(65_535))]);
}

#[test]
fn unsafe_characters_in_ids_are_replaced() {
    let mut rule = simple("a\r\nx: \"y\"é", &["api_key"], None, "1/s");
    rule.limits = Some(vec![limit("1/s"), limit("2/h")]);
    let rules = compile(vec![rule]);
    let rule = &rules.rules()[0];
    assert_eq!((rule.id(), rule.limit_name(1)), ("a--x:--y--", "a--x:--y---2"));
}
