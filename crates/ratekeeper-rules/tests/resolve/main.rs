//! The quick way from a request to its limits agrees with the slow and plain one, whatever the rules.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

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

/// What binds: a rule's id, a limit, and the parts of the key.
type Binding = (String, Limit, String);

fn at<T>(value: T) -> At<T> {
    At { value, place: Position::default() }
}

fn limit(text: &str) -> Limit {
    Limit::new(Algorithm::TokenBucket, text.parse::<Quota>().unwrap()).unwrap()
}

fn planned(rules: &RuleSet, request: &CheckRequest<'_>) -> (Resolution, Vec<Binding>) {
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || NOW);
    let case = plan.cases()[0];
    assert_eq!(matches!(case, Resolution::Bound { .. }), !plan.is_settled());
    let mut copy = plan.clone();
    let (draws, bound) = plan.bound(case);
    let mut bindings = Vec::new();
    for (draw, bound) in draws.iter().zip(bound) {
        let key = copy.draws_mut().key(draw).parts().collect::<Vec<_>>().join("|");
        bindings.push((rules.rules()[bound.rule as usize].id().to_owned(), *draw.limit(), key));
    }
    (case, bindings)
}

/// What the plain explanation says: on which list the client is, what is refused, and what binds.
fn explained(
    rules: &RuleSet,
    request: &CheckRequest<'_>,
) -> (Option<ListName>, Option<String>, Vec<Binding>) {
    let explanation = rules.explain(request, || NOW);
    let refusing =
        explanation.rules.iter().find(|(_, standing)| matches!(standing, RuleExplanation::Refuses(_)));
    let refusing = match explanation.is_tier_refused() {
        true => Some("tier".to_owned()),
        false => refusing.map(|(rule, _)| format!("rule {}", rule.id())),
    };
    let mut bindings = Vec::new();
    for (rule, standing) in explanation.rules {
        if let RuleExplanation::Binds { limits, key } = standing {
            let key = key.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("|");
            bindings.extend(limits.into_iter().map(|limit| (rule.id().to_owned(), limit, key.clone())));
        }
    }
    (explanation.listed, refusing, bindings)
}

#[track_caller]
fn agree(rules: &RuleSet, request: &CheckRequest<'_>) {
    let (case, planned) = planned(rules, request);
    let (listed, refusing, explained) = explained(rules, request);
    let refused = |by: String| assert_eq!((listed, refusing.clone()), (None, Some(by)), "{request:?}");
    match case {
        Resolution::Denied => assert_eq!(listed, Some(ListName::Deny), "{request:?}"),
        Resolution::Allowed => assert_eq!(listed, Some(ListName::Allow), "{request:?}"),
        Resolution::UnknownTier => refused("tier".to_owned()),
        Resolution::Missing { rule } => refused(format!("rule {}", rules.rules()[rule as usize].id())),
        Resolution::Unbound | Resolution::Bound { .. } => {
            assert_eq!((listed, refusing, planned), (None, None, explained), "{request:?}");
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
    // None at all is unlimited.
    prop::collection::vec(select(&["1/s", "2/s", "3/min", "4/h"][..]).prop_map(limit), 0..3)
}

fn until() -> impl Strategy<Value = Option<Micros>> {
    select(vec![None, Some(Micros::new(NOW.get() - 1)), Some(NOW), Some(Micros::new(NOW.get() + 1))])
}

fn missing() -> impl Strategy<Value = Option<MissingKey>> {
    // A request that any rule refuses meets no other, so few do.
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
    let whom = || {
        prop_oneof![pattern().prop_map(ListEntry::Key), Just(ListEntry::Net("10.1.0.0/16".parse().unwrap()))]
    };
    let base = (key(), limits(), missing()).prop_map(|(key, limits, missing)| FallbackSpec {
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
        prop::option::of(base),
        tiers,
        any::<bool>(),
        prop::option::of(client),
        prop::collection::vec(whom().prop_map(at), 0..2),
        prop::collection::vec(whom().prop_map(at), 0..1),
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
    fn the_quick_way_and_the_plain_one_agree(
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
        agree(&rules, &request);
        // A tier that the file does not know is no tier at all, or none that passes.
        let unknown = CheckRequest { tier: "Pro", ..request };
        let (found, stated_none) = (planned(&rules, &unknown), planned(&rules, &CheckRequest { tier: "", ..request }));
        let is_as_none = found.0 == Resolution::UnknownTier || found == stated_none;
        prop_assert!(is_as_none || file.tiers.is_empty(), "{:?}", unknown);
        agree(&rules, &unknown);
    }

    /// Rules that ask for little else, so that many of them bind.
    #[test]
    fn the_quick_way_and_the_plain_one_agree_on_descriptors(
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
            agree(&rules, &CheckRequest { descriptor, attributes: entries, ..CheckRequest::new("a") });
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
fn the_first_of_those_that_count_the_same_binds_and_others_bind_too() {
    let rules = compile(vec![
        simple("login", &["api_key"], Some("/login"), "5/min"),
        simple("all", &["api_key"], None, "100/min"),
        simple("ip", &["ip"], None, "1000/min"),
        simple("tenant", &["tenant"], None, "2000/min"),
        simple("everybody", &[], None, "9000/min"),
    ]);
    let ip = Some("2001:db8::1:2:3:4".parse().unwrap());
    let request = CheckRequest { endpoint: "/login", ip, ..CheckRequest::new("alice") };
    assert_eq!(shown(&rules, &request), ["login alice", "ip 2001:db8::", "everybody "]);
    let request = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("alice") };
    assert_eq!(shown(&rules, &request), ["all alice", "tenant acme", "everybody "]);
    assert_eq!(shown(&rules, &CheckRequest::new("")), ["everybody "]);
}

#[test]
fn an_endpoint_is_the_template_where_a_rule_has_one() {
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

fn of_descriptor(id: &str, domain: &str, entries: &[(&str, &str)], text: &str) -> RuleSpec {
    let mut rule = simple(id, &["descriptor"], None, "1/s");
    rule.when.domain = Some(Pattern::new(domain));
    rule.when.descriptor =
        entries.iter().map(|(name, value)| ((*name).to_owned(), Pattern::new(value))).collect();
    rule.limits = Some(if text == "unlimited" { Vec::new() } else { vec![limit(text)] });
    rule
}

#[test]
fn a_descriptor_is_bound_by_the_first_rule_that_asks_for_all_of_it() {
    let rules = compile(vec![
        of_descriptor("vip", "edge", &[("user", "vip"), ("path", "*")], "unlimited"),
        of_descriptor("api", "edge", &[("user", "*"), ("path", "/api/*")], "5/s"),
        of_descriptor("user", "edge", &[("user", "*")], "6/s"),
        of_descriptor("twice", "edge", &[("user", "*"), ("user", "b")], "7/s"),
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
fn what_is_unlimited_makes_no_draw_and_stands_before_the_rest() {
    let mut staff = simple("staff", &["api_key"], Some("/x"), "1/s");
    staff.limits = Some(Vec::new());
    let rules =
        compile(vec![staff, simple("all", &["api_key"], None, "2/s"), simple("ip", &[], None, "3/s")]);
    let mut plan = DrawPlan::new();
    for endpoint in ["/x", "/y", "/x"] {
        plan.add(&rules, Verb::Check, &CheckRequest { endpoint, ..CheckRequest::new("a") }, || NOW);
    }
    let ids = |case| plan.bound(case).1.iter().map(|bound| rules.rules()[bound.rule as usize].id()).collect();
    let ids: Vec<Vec<_>> = plan.cases().iter().map(|case| ids(*case)).collect();
    assert_eq!(ids, [vec!["ip"], vec!["all", "ip"], vec!["ip"]]);
    let mut alone = simple("alone", &["api_key"], None, "1/s");
    alone.limits = Some(Vec::new());
    let rules = compile(vec![alone]);
    plan.clear();
    plan.add(&rules, Verb::Check, &CheckRequest::new("a"), || NOW);
    assert_eq!((plan.cases(), plan.is_settled()), (&[Resolution::Unbound][..], true));
}

/// Rules whose expressions begin with anything are tried as one when there are many.
#[test]
fn many_loose_expressions_are_told_apart() {
    let style = PathStyle { ignore_case: true, ..PathStyle::default() };
    let loose = |index: usize| {
        let mut rule = simple(&format!("r{index}"), &["api_key"], None, "1/s");
        rule.when.path = Some(PathPattern::regex(&format!("Item{index}$"), style).unwrap());
        rule
    };
    let file = FileSpec { rules: (0..100).map(loose).collect(), paths: style, ..FileSpec::default() };
    let rules = RuleSet::compile(&file).unwrap();
    for index in 0..100 {
        let endpoint = format!("/a/ITEM{index}");
        let request = CheckRequest { endpoint: &endpoint, ..CheckRequest::new("k") };
        assert_eq!(shown(&rules, &request), [format!("r{index} k")]);
    }
    assert!(shown(&rules, &CheckRequest { endpoint: "/a/item1x", ..CheckRequest::new("k") }).is_empty());
}

#[test]
fn more_limits_than_a_request_may_pass_are_refused() {
    let names: Vec<_> = (0..17).map(|index| format!("n{index}")).collect();
    let rules = names.iter().map(|name| simple(name, &[name], None, "1/s")).collect();
    assert_eq!(RuleSet::compile(&FileSpec { rules, ..FileSpec::default() }).unwrap_err().limits, 17);
}

#[test]
fn the_longest_parts_stay_apart() {
    let rules = compile(vec![simple("two", &["api_key", "path"], None, "1/s")]);
    let long = "k".repeat(70_000);
    let request = CheckRequest { endpoint: "/p", ..CheckRequest::new(&long) };
    assert_eq!(shown(&rules, &request), [format!("two {}|/p", "k".repeat(65_535))]);
}

#[test]
fn a_name_that_could_break_an_answer_is_cleaned() {
    let mut rule = simple("a\r\nx: \"y\"é", &["api_key"], None, "1/s");
    rule.limits = Some(vec![limit("1/s"), limit("2/h")]);
    let rules = compile(vec![rule]);
    let rule = &rules.rules()[0];
    assert_eq!((rule.id(), rule.limit_name(1)), ("a--x:--y--", "a--x:--y---2"));
}
