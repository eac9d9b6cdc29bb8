//! Requests held to rules: what each client hears, what is counted, and what a change of rules leaves alone.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::rules::spec::{
    At, FailureMode, FallbackSpec, FileSpec, ListEntry, MatchSpec, Mode, OverrideSpec, Position, RuleSpec,
};
use ratekeeper::rules::{CheckRequest, Descriptor, Dimension, InlineLimit, Pattern, RuleSet, Verb};
use ratekeeper::{
    Algorithm, Capacity, DrawOutcome, DrawResult, Draws, Forecast, KeyRef, Limit, ManualClock, MemoryStore,
    Micros, PermitId, Reason, RuleDecisionCounts, RuleLimiter, Scope, Span, Store, StoreFailure,
};
use std::sync::Arc;

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limit(text: &str) -> Limit {
    Limit::new(Algorithm::TokenBucket, text.parse().unwrap()).unwrap()
}

fn at<T>(value: T) -> At<T> {
    At { value, place: Position::default() }
}

fn rule(id: &str, key: &str, limits: &[&str]) -> RuleSpec {
    RuleSpec {
        id: at(id.to_owned()),
        version: None,
        description: None,
        mode: Mode::Enforced,
        when: MatchSpec::default(),
        key: vec![Dimension::named(key)],
        missing: None,
        limits: Some(limits.iter().map(|text| limit(text)).collect()),
        overrides: Vec::new(),
        on_store_failure: None,
        consistency: None,
        store_timeout_ms: None,
    }
}

fn compile(rules: Vec<RuleSpec>) -> RuleSet {
    RuleSet::compile(&FileSpec { rules, ..FileSpec::default() }).unwrap()
}

type Clocked = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

fn gate(rules: RuleSet) -> (Clocked, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(10_000)).unwrap();
    (RuleLimiter::new(rules, store, Arc::clone(&clock)), clock)
}

/// Allowed or not, what is left, and who says so.
async fn check<S: Store>(gate: &RuleLimiter<S>, request: &CheckRequest<'_>) -> (bool, u32, String) {
    let docket = gate.ask(Verb::Check, request).await;
    let verdict = docket.verdict(0);
    let by = verdict.limit_name().map_or_else(|| format!("{:?}", verdict.cause()), str::to_owned);
    (verdict.is_allowed(), verdict.decision().remaining(), by)
}

fn said(allowed: bool, remaining: u32, by: &str) -> (bool, u32, String) {
    (allowed, remaining, by.to_owned())
}

#[tokio::test]
async fn a_request_passes_all_its_rules_or_takes_from_none() {
    let (gate, clock) =
        gate(compile(vec![rule("key", "api_key", &["3/s", "100/h"]), rule("tenant", "tenant", &["4/s"])]));
    let alice = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("alice") };
    let bob = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("bob") };
    for left in [2, 1, 0] {
        assert_eq!(check(&gate, &alice).await, said(true, left, "key"));
    }
    assert_eq!(check(&gate, &alice).await, said(false, 0, "key"));
    assert_eq!(check(&gate, &bob).await, said(true, 0, "tenant"), "what alice was refused was not taken");
    assert_eq!(check(&gate, &bob).await, said(false, 0, "tenant"));
    clock.advance(Span::SECOND);
    assert_eq!(check(&gate, &CheckRequest { cost: 3, ..bob }).await, said(true, 0, "key"));
    let rules = gate.outcomes().rules;
    let counts = |allowed, denied| RuleDecisionCounts { allowed, denied, ..RuleDecisionCounts::default() };
    assert_eq!(rules, [("key".to_owned(), counts(4, 1)), ("tenant".to_owned(), counts(1, 1))]);
}

#[tokio::test]
async fn lists_come_before_rules_and_refusal_before_leave() {
    let whom = |text: &str| match text.parse() {
        Ok(net) => at(ListEntry::Net(net)),
        Err(_) => at(ListEntry::Key(Pattern::new(text))),
    };
    let file = FileSpec {
        rules: vec![rule("all", "api_key", &["1/h"])],
        allow: vec![whom("sk_internal_*"), whom("10.0.0.0/8")],
        deny: vec![whom("sk_internal_old"), whom("10.6.6.6")],
        ..FileSpec::default()
    };
    let (gate, _) = gate(RuleSet::compile(&file).unwrap());
    let from = |ip: &str| CheckRequest { ip: Some(ip.parse().unwrap()), ..CheckRequest::new("x") };
    for _ in 0..3 {
        assert_eq!(
            check(&gate, &CheckRequest::new("sk_internal_1")).await,
            said(true, u32::MAX, "AllowList")
        );
        assert_eq!(check(&gate, &from("10.1.2.3")).await, said(true, u32::MAX, "AllowList"));
        assert_eq!(check(&gate, &CheckRequest::new("sk_internal_old")).await, said(false, 0, "DenyList"));
        assert_eq!(check(&gate, &from("10.6.6.6")).await, said(false, 0, "DenyList"));
    }
    assert_eq!(check(&gate, &from("11.0.0.1")).await, said(true, 0, "all"));
    let outcomes = gate.outcomes();
    assert_eq!((outcomes.allow_listed, outcomes.deny_listed, outcomes.unbound), (6, 6, 0));
}

#[tokio::test]
async fn a_shadow_is_counted_and_refuses_nobody() {
    let shadow = RuleSpec { mode: Mode::Shadow, ..rule("tight", "api_key", &["1/h"]) };
    let (gate, _) = gate(compile(vec![shadow, rule("loose", "api_key", &["3/h"])]));
    for (allowed, left) in [(true, 2), (true, 1), (true, 0), (false, 0)] {
        assert_eq!(check(&gate, &CheckRequest::new("a")).await, said(allowed, left, "loose"));
    }
    let rules = gate.outcomes().rules;
    assert_eq!(rules[0].1, RuleDecisionCounts { allowed: 3, denied: 1, ..RuleDecisionCounts::default() });
    // Of the fourth, which was refused anyway, it says the same.
    assert_eq!(rules[1].1, RuleDecisionCounts { shadow_denied: 3, ..RuleDecisionCounts::default() });
}

#[tokio::test]
async fn an_override_holds_until_it_expires() {
    let until = START.plus(Span::MINUTE);
    let vip =
        OverrideSpec { key: at("vip".to_owned()), limits: vec![limit("100/h")], valid_until: Some(until) };
    let (gate, clock) =
        gate(compile(vec![RuleSpec { overrides: vec![vip], ..rule("r", "api_key", &["10/h"]) }]));
    assert_eq!(check(&gate, &CheckRequest::new("vip")).await, said(true, 99, "r"));
    assert_eq!(check(&gate, &CheckRequest::new("other")).await, said(true, 9, "r"));
    clock.advance(Span::MINUTE);
    assert_eq!(
        check(&gate, &CheckRequest::new("vip")).await,
        said(true, 9, "r"),
        "the burst caps what was left"
    );
}

#[tokio::test]
async fn a_change_of_rules_keeps_what_is_left() {
    let (gate, clock) = gate(compile(vec![rule("r", "api_key", &["100/h"])]));
    assert_eq!(check(&gate, &CheckRequest { cost: 70, ..CheckRequest::new("a") }).await, said(true, 30, "r"));
    let mut moved = rule("r", "api_key", &["200/h"]);
    moved.description = Some("twice as much".to_owned());
    gate.install(compile(vec![rule("first", "ip", &["1/s"]), moved]));
    assert_eq!(check(&gate, &CheckRequest::new("a")).await, said(true, 29, "r"));
    clock.advance(Span::micros(Span::HOUR.get() / 200));
    assert_eq!(
        check(&gate, &CheckRequest::new("a")).await,
        said(true, 29, "r"),
        "the new rate counts from the change"
    );
    assert_eq!(gate.installs(), 2);
    let counted = gate.outcomes().rules.into_iter().find(|(id, _)| id == "r").unwrap().1;
    assert_eq!(counted.allowed, 3, "and so do its counts");
}

#[tokio::test]
async fn a_docket_is_decided_by_the_rules_it_began_with() {
    let (gate, _) = gate(compile(vec![rule("old", "api_key", &["10/h"])]));
    let mut docket = gate.begin();
    gate.add(&mut docket, Verb::Check, &CheckRequest::new("a"));
    gate.install(compile(vec![rule("new", "api_key", &["10/h"])]));
    gate.add(&mut docket, Verb::Check, &CheckRequest::new("b"));
    gate.settle(&mut docket).await;
    let names: Vec<_> = docket.verdicts().map(|verdict| verdict.limit_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["old", "old"]);
    drop(docket);
    assert_eq!(check(&gate, &CheckRequest::new("a")).await, said(true, 9, "new"));
}

#[tokio::test]
async fn peek_refund_and_reset_follow_the_same_rules() {
    let (gate, _) = gate(compile(vec![rule("a", "api_key", &["10/h"]), rule("b", "tenant", &["8/h"])]));
    let request = CheckRequest { attributes: &[("tenant", "t")], cost: 5, ..CheckRequest::new("k") };
    let ask = async |verb| {
        let docket = gate.ask(verb, &request).await;
        docket.verdict(0).policies().map(|policy| policy.reading.remaining()).collect::<Vec<_>>()
    };
    assert_eq!(ask(Verb::Peek).await, [10, 8]);
    assert_eq!(ask(Verb::Check).await, [5, 3]);
    assert_eq!(ask(Verb::Check).await, [5, 3], "refused");
    assert_eq!(ask(Verb::Refund).await, [10, 8]);
    assert_eq!(ask(Verb::Check).await, [5, 3]);
    assert_eq!(ask(Verb::Reset).await, [10, 8]);
    let counted: u64 = gate.outcomes().rules.iter().map(|(_, rule)| rule.allowed + rule.denied).sum();
    assert_eq!(counted, 3, "only checks are counted");
}

#[tokio::test]
async fn the_emergency_limit_comes_before_everything() {
    let file = FileSpec {
        default: Some(FallbackSpec {
            key: vec![Dimension::Client],
            missing: None,
            limits: vec![limit("100/s")],
            place: Position::default(),
        }),
        allow: vec![at(ListEntry::Key(Pattern::new("vip")))],
        ..FileSpec::default()
    };
    let (gate, _) = gate(RuleSet::compile(&file).unwrap());
    gate.emergency().switch_on(limit("2/s"));
    let vip = CheckRequest { ip: Some("10.0.0.1".parse().unwrap()), ..CheckRequest::new("vip") };
    assert!(check(&gate, &vip).await.0 && check(&gate, &vip).await.0);
    assert_eq!(check(&gate, &vip).await, said(false, 0, "emergency"));
    assert_eq!(gate.outcomes().emergency, 1);
    gate.emergency().switch_off();
    assert_eq!(check(&gate, &vip).await, said(true, u32::MAX, "AllowList"));
}

/// Never answers.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    async fn draw(&self, draws: &mut Draws) {
        for group in 0..draws.len() {
            draws.fail(group, StoreFailure::Unreachable);
        }
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

#[tokio::test]
async fn without_a_store_the_rules_say_what_to_answer() {
    let with =
        |id: &str, key: &str, mode| RuleSpec { on_store_failure: Some(mode), ..rule(id, key, &["1/s"]) };
    let rules = compile(vec![
        with("login", "user", FailureMode::Closed),
        with("rest", "api_key", FailureMode::Open),
        RuleSpec { mode: Mode::Shadow, ..with("shadow", "api_key", FailureMode::Closed) },
    ]);
    let gate = RuleLimiter::new(rules, Gone, ManualClock::new(START));
    let docket = gate.ask(Verb::Check, &CheckRequest::new("a")).await;
    let verdict = docket.verdict(0);
    assert_eq!((verdict.is_allowed(), verdict.cause()), (true, Reason::Degraded));
    assert_eq!(verdict.rule().unwrap().id(), "rest");
    let docket =
        gate.ask(Verb::Check, &CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("a") }).await;
    let verdict = docket.verdict(0);
    assert_eq!((verdict.is_allowed(), verdict.cause()), (false, Reason::Degraded));
    assert_eq!(verdict.rule().unwrap().id(), "login");
    let rules = gate.outcomes().rules;
    assert_eq!((rules[0].1.denied, rules[1].1.degraded), (1, 1), "{rules:?}");
}

/// Never answers, but decides from memory, among three nodes, what may be decided so.
#[derive(Debug)]
struct Alone(MemoryStore<Arc<ManualClock>>);

impl Store for Alone {
    async fn draw(&self, draws: &mut Draws) {
        let asked = draws.clone();
        for group in 0..draws.len() {
            draws.fail(group, StoreFailure::Timeout);
            for (draw, asked_of) in draws.group_mut(group).iter_mut().zip(asked.group(group)) {
                if draw.terms().on_failure == FailureMode::Local {
                    let (key, scope) = (asked.key(asked_of), draw.scope());
                    draw.divide(3);
                    draw.settle(|limit, act, permit| self.0.take_now(key, scope, limit, act.ask(), permit));
                }
            }
        }
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

#[tokio::test]
async fn without_a_store_each_node_enforces_its_share() {
    let with = |id: &str, key: &str, mode, limit| RuleSpec {
        on_store_failure: Some(mode),
        ..rule(id, key, &[limit])
    };
    let rules = compile(vec![
        // It is the tightest by far, but nothing is known of it.
        with("open", "tenant", FailureMode::Open, "1/h"),
        with("local", "api_key", FailureMode::Local, "7/h"),
        with("closed", "user", FailureMode::Closed, "100/h"),
        RuleSpec { mode: Mode::Shadow, ..with("shadow", "ip", FailureMode::Local, "1/h") },
    ]);
    let clock = Arc::new(ManualClock::new(START));
    let memory = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let gate = RuleLimiter::new(rules, Alone(memory), Arc::clone(&clock));
    let ip = Some("192.0.2.7".parse().unwrap());
    let alice = CheckRequest { attributes: &[("tenant", "acme")], ip, ..CheckRequest::new("alice") };
    for (allowed, left) in [(true, 1), (true, 0), (false, 0)] {
        assert_eq!(check(&gate, &alice).await, said(allowed, left, "local"));
    }
    let docket = gate.ask(Verb::Peek, &alice).await;
    let verdict = docket.verdict(0);
    assert_eq!((verdict.cause(), verdict.rule().unwrap().id()), (Reason::Degraded, "local"));
    let binding = verdict.binding().unwrap();
    assert_eq!((binding.limit.capacity(), binding.limit.shares()), (2, 3));
    assert_eq!(
        verdict.decision().limit(),
        Some(binding.limit),
        "every word is that of the limit that is known"
    );
    let policies: Vec<_> = verdict.policies().map(|policy| policy.name).collect();
    assert_eq!(policies, ["local"], "of the others nothing is known");
    drop(docket);
    // Who fails closed speaks before all others.
    let closed = CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("bob") };
    assert_eq!(check(&gate, &closed).await, said(false, 0, "Degraded"));
    // A shadow alone binds nobody, store or not.
    let only_shadow = CheckRequest { ip, ..CheckRequest::new("") };
    assert_eq!(check(&gate, &only_shadow).await, said(true, u32::MAX, "NoRule"));
    let outcomes = gate.outcomes();
    let of = |id: &str| outcomes.rules.iter().find(|(own, _)| own == id).unwrap().1;
    assert_eq!(of("local"), RuleDecisionCounts { degraded: 2, denied: 1, ..RuleDecisionCounts::default() });
    assert_eq!(of("closed"), RuleDecisionCounts { denied: 1, ..RuleDecisionCounts::default() });
    assert_eq!(of("shadow").shadow_denied, 3);
    assert_eq!((of("open"), outcomes.unbound), (RuleDecisionCounts::default(), 1));
}

/// Several servers, of which one answered before another failed.
#[derive(Debug)]
struct Half;

impl Store for Half {
    async fn draw(&self, draws: &mut Draws) {
        draws.fail(0, StoreFailure::Timeout);
        let outlook = Forecast { remaining: 9, reset: Span::ZERO, delay: Span::ZERO, retry: None };
        let told = DrawResult::of_outlook(DrawOutcome::Spared, START, outlook);
        draws.group_mut(0)[0].settle(|_, _, _| told);
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

#[tokio::test]
async fn what_one_server_said_opens_nothing_that_fails_closed() {
    let with =
        |id: &str, key: &str, mode| RuleSpec { on_store_failure: Some(mode), ..rule(id, key, &["9/h"]) };
    let rules = compile(vec![
        with("login", "user", FailureMode::Closed),
        with("rest", "api_key", FailureMode::Local),
    ]);
    let gate = RuleLimiter::new(rules, Half, ManualClock::new(START));
    let docket =
        gate.ask(Verb::Check, &CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("a") }).await;
    let verdict = docket.verdict(0);
    assert_eq!((verdict.is_allowed(), verdict.cause()), (false, Reason::Degraded));
}

#[tokio::test]
async fn a_stated_limit_without_a_store_holds_as_the_file_says() {
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let file = FileSpec { on_store_failure: Some(mode), ..FileSpec::default() };
        let gate = RuleLimiter::new(RuleSet::compile(&file).unwrap(), Gone, ManualClock::new(START));
        let mut docket = gate.begin();
        gate.add_stated(&mut docket, InlineLimit::Key, &limit("5/h"), Verb::Check, &CheckRequest::new("a"));
        gate.settle(&mut docket).await;
        let verdict = docket.verdict(0);
        assert_eq!((verdict.is_allowed(), verdict.cause()), (allowed, Reason::Degraded));
        assert!(verdict.is_stated() && verdict.binding().is_none());
        let stated = gate.outcomes().stated;
        assert_eq!((stated.degraded, stated.denied), (u64::from(allowed), u64::from(!allowed)));
    }
}

#[test]
fn a_warm_gate_allocates_nothing() {
    let mut by_path = rule("path", "api_key", &["1000000/s"]);
    by_path.when.path = Some(ratekeeper::rules::PathPattern::new("/v1/{x}", Default::default()).unwrap());
    let (gate, _) = gate(compile(vec![by_path, rule("ip", "ip", &["1000000/s", "1000000/h"])]));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ip = Some("2001:db8::7".parse().unwrap());
    let run = || {
        runtime.block_on(async {
            for turn in 0..200 {
                let mut docket = gate.begin();
                for _ in 0..=turn % 50 {
                    gate.add(
                        &mut docket,
                        Verb::Check,
                        &CheckRequest { endpoint: "/v1/orders", ip, ..CheckRequest::new("user:1") },
                    );
                }
                gate.settle(&mut docket).await;
                assert!(docket.verdicts().all(|verdict| verdict.is_allowed()));
            }
        });
    };
    run();
    assert_eq!(allocation_counter::measure(run).count_total, 0);
}

#[tokio::test]
async fn a_limit_that_comes_with_its_request_holds_whatever_the_rules_say() {
    let (gate, _) = gate(compile(vec![rule("key", "api_key", &["1/h"])]));
    let five = limit("5/h");
    let ask = async |stated, request: &CheckRequest<'_>| {
        let mut docket = gate.begin();
        gate.add_stated(&mut docket, stated, &five, Verb::Check, request);
        gate.settle(&mut docket).await;
        let verdict = docket.verdict(0);
        assert!(verdict.is_stated() && verdict.rule().is_none());
        (verdict.is_allowed(), verdict.decision().remaining())
    };
    let alice = CheckRequest { cost: 4, ..CheckRequest::new("alice") };
    assert_eq!(ask(InlineLimit::Key, &alice).await, (true, 1));
    assert_eq!(ask(InlineLimit::Key, &alice).await, (false, 1));
    assert_eq!(
        check(&gate, &CheckRequest::new("alice")).await,
        said(true, 0, "key"),
        "the rule counts by itself"
    );
    // Descriptors are told apart by everything in them, and from keys.
    let entries = [("a", "b"), ("c", "d")];
    let moved = [("a", "bc"), ("", "d")];
    for (domain, entries) in [("alice", &entries), ("alice", &moved), ("bob", &entries)] {
        let request = CheckRequest { descriptor: Some(Descriptor { domain, entries }), ..alice };
        assert_eq!(ask(InlineLimit::Descriptor, &request).await, (true, 1));
        assert_eq!(ask(InlineLimit::Descriptor, &request).await, (false, 1));
    }
    let outcomes = gate.outcomes();
    assert_eq!(
        outcomes.stated,
        RuleDecisionCounts { allowed: 4, denied: 4, ..RuleDecisionCounts::default() }
    );
}

#[tokio::test]
async fn joined_requests_take_together_or_not_at_all() {
    let (gate, _) = gate(compile(vec![rule("key", "api_key", &["3/h"])]));
    let ask = async |keys: &[&str]| {
        let mut docket = gate.begin();
        gate.add(&mut docket, Verb::Check, &CheckRequest::new("before"));
        docket.join();
        for key in keys {
            gate.add(&mut docket, Verb::Check, &CheckRequest::new(key));
        }
        docket.part();
        gate.add(&mut docket, Verb::Check, &CheckRequest::new("behind"));
        gate.settle(&mut docket).await;
        let said = docket.verdicts().map(|verdict| (verdict.is_allowed(), verdict.decision().remaining()));
        said.collect::<Vec<_>>()
    };
    assert_eq!(ask(&["a", "b"]).await, [(true, 2), (true, 2), (true, 2), (true, 2)]);
    assert_eq!(ask(&["a", "a", "b"]).await, [(true, 1), (true, 1), (true, 0), (true, 1), (true, 1)]);
    // `a` has nothing left, so `b` keeps its own; the others have nothing to do with it.
    assert_eq!(ask(&["b", "a"]).await, [(true, 0), (true, 1), (false, 0), (true, 0)]);
    assert_eq!(check(&gate, &CheckRequest::new("b")).await, said(true, 0, "key"));
    // More than one group can hold: still every one is decided.
    let many: Vec<_> = (0..40).map(|number| format!("many {number}")).collect();
    let keys: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(ask(&keys).await[1..41], [(true, 2); 40]);
}

#[tokio::test]
async fn in_an_emergency_what_is_joined_as_one_request_counts_once() {
    let (gate, _) = gate(compile(vec![rule("key", "api_key", &["10/h"])]));
    gate.emergency().switch_on(limit("2/h"));
    let who = CheckRequest { ip: Some("192.0.2.7".parse().unwrap()), ..CheckRequest::new("") };
    let ask = async || {
        let mut docket = gate.begin();
        gate.join(&mut docket, &who);
        for (verb, key) in [(Verb::Check, "a"), (Verb::Check, "b"), (Verb::Peek, "c")] {
            gate.add(&mut docket, verb, &CheckRequest::new(key));
        }
        docket.part();
        gate.settle(&mut docket).await;
        docket.verdicts().map(|verdict| (verdict.is_allowed(), verdict.cause())).collect::<Vec<_>>()
    };
    assert_eq!(ask().await, [(true, Reason::Limit); 3]);
    assert_eq!(ask().await, [(true, Reason::Limit); 3]);
    let refused = (false, Reason::Emergency);
    assert_eq!(ask().await, [refused, refused, (true, Reason::Limit)], "looking takes nothing");
    // By itself, each is counted by its own key again.
    assert_eq!(check(&gate, &CheckRequest::new("a")).await, said(true, 7, "key"));
}

#[tokio::test]
async fn odd_requests_are_counted_and_refused_where_the_file_says_so() {
    let gate_of = |text: &str| {
        let review = ratekeeper::rules::read(text, Micros::EPOCH);
        gate(RuleSet::compile(&review.spec.unwrap()).unwrap()).0
    };
    let counts = |gate: &Clocked| {
        let seen = gate.outcomes();
        (
            [seen.unknown_tiers_ignored, seen.unknown_tiers_refused],
            [seen.missing_skipped, seen.missing_shared, seen.missing_refused],
        )
    };
    let from = |ip: &str| CheckRequest { ip: Some(ip.parse().unwrap()), ..CheckRequest::new("") };
    let file = "tiers: {free: 2/h, pro: 9/h}\ndefault_tier: free\n";
    let open = gate_of(file);
    let misspelled = CheckRequest { tier: "Pro", ..CheckRequest::new("a") };
    assert_eq!(check(&open, &misspelled).await, said(true, 1, "tier:free"));
    assert_eq!(check(&open, &from("1.2.3.4")).await, said(true, 1, "tier:free"));
    assert_eq!(check(&open, &from("5.6.7.8")).await, said(true, 1, "tier:free"), "a count of its own");
    assert_eq!(
        check(&open, &CheckRequest::new("1.2.3.4")).await,
        said(true, 1, "tier:free"),
        "a key is no address"
    );
    assert_eq!(check(&open, &CheckRequest::new("")).await, said(true, 1, "tier:free"));
    assert_eq!(check(&open, &CheckRequest::new("")).await, said(true, 0, "tier:free"), "they share a count");
    open.ask(Verb::Peek, &misspelled).await;
    assert_eq!(counts(&open), ([1, 0], [0, 2, 0]), "only checks are counted");

    let strict = gate_of(&format!("{file}unknown_tier: refuse\nmissing: refuse\n"));
    let docket = strict.ask(Verb::Check, &misspelled).await;
    assert_eq!((docket.verdict(0).is_allowed(), docket.verdict(0).cause()), (false, Reason::UnknownTier));
    let docket = strict.ask(Verb::Check, &CheckRequest::new("")).await;
    let verdict = docket.verdict(0);
    assert_eq!((verdict.is_allowed(), verdict.cause()), (false, Reason::Missing));
    assert_eq!(verdict.rule().unwrap().id(), "tier:free");
    assert_eq!(counts(&strict), ([0, 1], [0, 0, 1]));
}
