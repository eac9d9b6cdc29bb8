//! `RuleLimiter`: the decision for each request, what is counted, and what a change of rules preserves.
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

type ClockedLimiter = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

fn clocked_limiter(rules: RuleSet) -> (ClockedLimiter, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(10_000)).unwrap();
    (RuleLimiter::new(rules, store, Arc::clone(&clock)), clock)
}

/// Whether the request is allowed, the remaining units, and the name of the limit, or the reason if there is none.
async fn check<S: Store>(limiter: &RuleLimiter<S>, request: &CheckRequest<'_>) -> (bool, u32, String) {
    let batch = limiter.decide_one(Verb::Check, request).await;
    let decision = batch.decision(0);
    let by = decision.limit_name().map_or_else(|| format!("{:?}", decision.reason()), str::to_owned);
    (decision.is_allowed(), decision.remaining(), by)
}

fn decided(allowed: bool, remaining: u32, by: &str) -> (bool, u32, String) {
    (allowed, remaining, by.to_owned())
}

#[tokio::test]
async fn a_request_passes_all_its_rules_or_takes_from_none() {
    let (limiter, clock) = clocked_limiter(compile(vec![
        rule("key", "api_key", &["3/s", "100/h"]),
        rule("tenant", "tenant", &["4/s"]),
    ]));
    let alice = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("alice") };
    let bob = CheckRequest { attributes: &[("tenant", "acme")], ..CheckRequest::new("bob") };
    for left in [2, 1, 0] {
        assert_eq!(check(&limiter, &alice).await, decided(true, left, "key"));
    }
    assert_eq!(check(&limiter, &alice).await, decided(false, 0, "key"));
    assert_eq!(
        check(&limiter, &bob).await,
        decided(true, 0, "tenant"),
        "a denied request takes nothing from `tenant`"
    );
    assert_eq!(check(&limiter, &bob).await, decided(false, 0, "tenant"));
    clock.advance(Span::SECOND);
    assert_eq!(check(&limiter, &CheckRequest { cost: 3, ..bob }).await, decided(true, 0, "key"));
    let rules = limiter.decision_counts().rules;
    let counts = |allowed, denied| RuleDecisionCounts { allowed, denied, ..RuleDecisionCounts::default() };
    assert_eq!(rules, [("key".to_owned(), counts(4, 1)), ("tenant".to_owned(), counts(1, 1))]);
}

#[tokio::test]
async fn lists_come_before_rules_and_deny_before_allow() {
    let entry = |text: &str| match text.parse() {
        Ok(net) => at(ListEntry::Network(net)),
        Err(_) => at(ListEntry::Key(Pattern::new(text))),
    };
    let file = FileSpec {
        rules: vec![rule("all", "api_key", &["1/h"])],
        allow: vec![entry("sk_internal_*"), entry("10.0.0.0/8")],
        deny: vec![entry("sk_internal_old"), entry("10.6.6.6")],
        ..FileSpec::default()
    };
    let (limiter, _) = clocked_limiter(RuleSet::compile(&file).unwrap());
    let from = |ip: &str| CheckRequest { ip: Some(ip.parse().unwrap()), ..CheckRequest::new("x") };
    for _ in 0..3 {
        assert_eq!(
            check(&limiter, &CheckRequest::new("sk_internal_1")).await,
            decided(true, u32::MAX, "AllowList")
        );
        assert_eq!(check(&limiter, &from("10.1.2.3")).await, decided(true, u32::MAX, "AllowList"));
        assert_eq!(
            check(&limiter, &CheckRequest::new("sk_internal_old")).await,
            decided(false, 0, "DenyList")
        );
        assert_eq!(check(&limiter, &from("10.6.6.6")).await, decided(false, 0, "DenyList"));
    }
    assert_eq!(check(&limiter, &from("11.0.0.1")).await, decided(true, 0, "all"));
    let outcomes = limiter.decision_counts();
    assert_eq!((outcomes.allow_listed, outcomes.deny_listed, outcomes.no_rule), (6, 6, 0));
}

#[tokio::test]
async fn a_shadow_rule_is_counted_and_denies_nothing() {
    let shadow = RuleSpec { mode: Mode::Shadow, ..rule("tight", "api_key", &["1/h"]) };
    let (limiter, _) = clocked_limiter(compile(vec![shadow, rule("loose", "api_key", &["3/h"])]));
    for (allowed, left) in [(true, 2), (true, 1), (true, 0), (false, 0)] {
        assert_eq!(check(&limiter, &CheckRequest::new("a")).await, decided(allowed, left, "loose"));
    }
    let rules = limiter.decision_counts().rules;
    assert_eq!(rules[0].1, RuleDecisionCounts { allowed: 3, denied: 1, ..RuleDecisionCounts::default() });
    // The fourth request, which `loose` denies, counts as shadow-denied too.
    assert_eq!(rules[1].1, RuleDecisionCounts { shadow_denied: 3, ..RuleDecisionCounts::default() });
}

#[tokio::test]
async fn an_override_applies_until_it_expires() {
    let until = START.plus(Span::MINUTE);
    let vip =
        OverrideSpec { key: at("vip".to_owned()), limits: vec![limit("100/h")], valid_until: Some(until) };
    let (limiter, clock) =
        clocked_limiter(compile(vec![RuleSpec { overrides: vec![vip], ..rule("r", "api_key", &["10/h"]) }]));
    assert_eq!(check(&limiter, &CheckRequest::new("vip")).await, decided(true, 99, "r"));
    assert_eq!(check(&limiter, &CheckRequest::new("other")).await, decided(true, 9, "r"));
    clock.advance(Span::MINUTE);
    assert_eq!(
        check(&limiter, &CheckRequest::new("vip")).await,
        decided(true, 9, "r"),
        "the burst caps the remaining units"
    );
}

#[tokio::test]
async fn a_change_of_rules_keeps_the_remaining_units() {
    let (limiter, clock) = clocked_limiter(compile(vec![rule("r", "api_key", &["100/h"])]));
    assert_eq!(
        check(&limiter, &CheckRequest { cost: 70, ..CheckRequest::new("a") }).await,
        decided(true, 30, "r")
    );
    let mut moved = rule("r", "api_key", &["200/h"]);
    moved.description = Some("twice as much".to_owned());
    limiter.install(compile(vec![rule("first", "ip", &["1/s"]), moved]));
    assert_eq!(check(&limiter, &CheckRequest::new("a")).await, decided(true, 29, "r"));
    clock.advance(Span::micros(Span::HOUR.get() / 200));
    assert_eq!(
        check(&limiter, &CheckRequest::new("a")).await,
        decided(true, 29, "r"),
        "the new rate applies from the change on"
    );
    assert_eq!(limiter.installs(), 2);
    let counted = limiter.decision_counts().rules.into_iter().find(|(id, _)| id == "r").unwrap().1;
    assert_eq!(counted.allowed, 3, "and its counts are kept");
}

#[tokio::test]
async fn a_batch_is_decided_by_the_rules_it_began_with() {
    let (limiter, _) = clocked_limiter(compile(vec![rule("old", "api_key", &["10/h"])]));
    let mut batch = limiter.begin();
    limiter.add(&mut batch, Verb::Check, &CheckRequest::new("a"));
    limiter.install(compile(vec![rule("new", "api_key", &["10/h"])]));
    limiter.add(&mut batch, Verb::Check, &CheckRequest::new("b"));
    limiter.decide(&mut batch).await;
    let names: Vec<_> = batch.decisions().map(|decision| decision.limit_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["old", "old"]);
    drop(batch);
    assert_eq!(check(&limiter, &CheckRequest::new("a")).await, decided(true, 9, "new"));
}

#[tokio::test]
async fn peek_refund_and_reset_follow_the_same_rules() {
    let (limiter, _) =
        clocked_limiter(compile(vec![rule("a", "api_key", &["10/h"]), rule("b", "tenant", &["8/h"])]));
    let request = CheckRequest { attributes: &[("tenant", "t")], cost: 5, ..CheckRequest::new("k") };
    let ask = async |verb| {
        let batch = limiter.decide_one(verb, &request).await;
        batch.decision(0).policies().map(|policy| policy.status.remaining()).collect::<Vec<_>>()
    };
    assert_eq!(ask(Verb::Peek).await, [10, 8]);
    assert_eq!(ask(Verb::Check).await, [5, 3]);
    assert_eq!(ask(Verb::Check).await, [5, 3], "denied");
    assert_eq!(ask(Verb::Refund).await, [10, 8]);
    assert_eq!(ask(Verb::Check).await, [5, 3]);
    assert_eq!(ask(Verb::Reset).await, [10, 8]);
    let counted: u64 =
        limiter.decision_counts().rules.iter().map(|(_, rule)| rule.allowed + rule.denied).sum();
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
    let (limiter, _) = clocked_limiter(RuleSet::compile(&file).unwrap());
    limiter.emergency().switch_on(limit("2/s"));
    let vip = CheckRequest { ip: Some("10.0.0.1".parse().unwrap()), ..CheckRequest::new("vip") };
    assert!(check(&limiter, &vip).await.0 && check(&limiter, &vip).await.0);
    assert_eq!(check(&limiter, &vip).await, decided(false, 0, "emergency"));
    assert_eq!(limiter.decision_counts().emergency, 1);
    limiter.emergency().switch_off();
    assert_eq!(check(&limiter, &vip).await, decided(true, u32::MAX, "AllowList"));
}

/// A store that is always unreachable.
#[derive(Debug)]
struct UnreachableStore;

impl Store for UnreachableStore {
    async fn draw(&self, draws: &mut Draws) {
        for group in 0..draws.len() {
            draws.fail_group(group, StoreFailure::Unreachable);
        }
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

#[tokio::test]
async fn without_a_store_the_failure_mode_decides() {
    let with =
        |id: &str, key: &str, mode| RuleSpec { on_store_failure: Some(mode), ..rule(id, key, &["1/s"]) };
    let rules = compile(vec![
        with("login", "user", FailureMode::Closed),
        with("rest", "api_key", FailureMode::Open),
        RuleSpec { mode: Mode::Shadow, ..with("shadow", "api_key", FailureMode::Closed) },
    ]);
    let limiter = RuleLimiter::new(rules, UnreachableStore, ManualClock::new(START));
    let batch = limiter.decide_one(Verb::Check, &CheckRequest::new("a")).await;
    let decision = batch.decision(0);
    assert_eq!((decision.is_allowed(), decision.reason()), (true, Reason::Degraded));
    assert_eq!(decision.rule().unwrap().id(), "rest");
    let batch = limiter
        .decide_one(Verb::Check, &CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("a") })
        .await;
    let decision = batch.decision(0);
    assert_eq!((decision.is_allowed(), decision.reason()), (false, Reason::Degraded));
    assert_eq!(decision.rule().unwrap().id(), "login");
    let rules = limiter.decision_counts().rules;
    assert_eq!((rules[0].1.denied, rules[1].1.degraded), (1, 1), "{rules:?}");
}

/// A store that always times out and decides `Local` draws from memory, as one of three nodes.
#[derive(Debug)]
struct LocalFallbackStore(MemoryStore<Arc<ManualClock>>);

impl Store for LocalFallbackStore {
    async fn draw(&self, draws: &mut Draws) {
        let requested = draws.clone();
        for group in 0..draws.len() {
            draws.fail_group(group, StoreFailure::Timeout);
            for (draw, original) in draws.group_mut(group).iter_mut().zip(requested.group(group)) {
                if draw.options().on_failure == FailureMode::Local {
                    let (key, scope) = (requested.key(original), draw.scope());
                    draw.use_share(3);
                    draw.decide_with(|limit, op, permit| {
                        self.0.take_now(key, scope, limit, op.amount(), permit)
                    });
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
        // By far the tightest limit, but it fails open, so its state is unknown.
        with("open", "tenant", FailureMode::Open, "1/h"),
        with("local", "api_key", FailureMode::Local, "7/h"),
        with("closed", "user", FailureMode::Closed, "100/h"),
        RuleSpec { mode: Mode::Shadow, ..with("shadow", "ip", FailureMode::Local, "1/h") },
    ]);
    let clock = Arc::new(ManualClock::new(START));
    let memory = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let limiter = RuleLimiter::new(rules, LocalFallbackStore(memory), Arc::clone(&clock));
    let ip = Some("192.0.2.7".parse().unwrap());
    let alice = CheckRequest { attributes: &[("tenant", "acme")], ip, ..CheckRequest::new("alice") };
    for (allowed, left) in [(true, 1), (true, 0), (false, 0)] {
        assert_eq!(check(&limiter, &alice).await, decided(allowed, left, "local"));
    }
    let batch = limiter.decide_one(Verb::Peek, &alice).await;
    let decision = batch.decision(0);
    assert_eq!((decision.reason(), decision.rule().unwrap().id()), (Reason::Degraded, "local"));
    let binding = decision.binding().unwrap();
    assert_eq!((binding.limit.capacity(), binding.limit.share_count()), (2, 3));
    assert_eq!(
        decision.binding().map(|binding| binding.limit),
        Some(binding.limit),
        "the decision reports the only limit whose state is known"
    );
    let policies: Vec<_> = decision.policies().map(|policy| policy.name).collect();
    assert_eq!(policies, ["local"], "the state of the others is unknown");
    drop(batch);
    // A rule that fails closed takes precedence over all others.
    let closed = CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("bob") };
    assert_eq!(check(&limiter, &closed).await, decided(false, 0, "Degraded"));
    // A request that matches only a shadow rule is unlimited, with or without a store.
    let only_shadow = CheckRequest { ip, ..CheckRequest::new("") };
    assert_eq!(check(&limiter, &only_shadow).await, decided(true, u32::MAX, "NoRule"));
    let outcomes = limiter.decision_counts();
    let of = |id: &str| outcomes.rules.iter().find(|(own, _)| own == id).unwrap().1;
    assert_eq!(of("local"), RuleDecisionCounts { degraded: 2, denied: 1, ..RuleDecisionCounts::default() });
    assert_eq!(of("closed"), RuleDecisionCounts { denied: 1, ..RuleDecisionCounts::default() });
    assert_eq!(of("shadow").shadow_denied, 3);
    assert_eq!((of("open"), outcomes.no_rule), (RuleDecisionCounts::default(), 1));
}

/// Several servers, one of which replied before another one failed.
#[derive(Debug)]
struct HalfFailedStore;

impl Store for HalfFailedStore {
    async fn draw(&self, draws: &mut Draws) {
        draws.fail_group(0, StoreFailure::Timeout);
        let forecast = Forecast { remaining: 9, reset: Span::ZERO, delay: Span::ZERO, retry: None };
        let result = DrawResult::from_forecast(DrawOutcome::WouldGrant, START, forecast);
        draws.group_mut(0)[0].decide_with(|_, _, _| result);
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

#[tokio::test]
async fn a_partial_reply_does_not_override_a_rule_that_fails_closed() {
    let with =
        |id: &str, key: &str, mode| RuleSpec { on_store_failure: Some(mode), ..rule(id, key, &["9/h"]) };
    let rules = compile(vec![
        with("login", "user", FailureMode::Closed),
        with("rest", "api_key", FailureMode::Local),
    ]);
    let limiter = RuleLimiter::new(rules, HalfFailedStore, ManualClock::new(START));
    let batch = limiter
        .decide_one(Verb::Check, &CheckRequest { attributes: &[("user", "7")], ..CheckRequest::new("a") })
        .await;
    let decision = batch.decision(0);
    assert_eq!((decision.is_allowed(), decision.reason()), (false, Reason::Degraded));
}

#[tokio::test]
async fn an_inline_limit_without_a_store_follows_the_files_failure_mode() {
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let file = FileSpec { on_store_failure: Some(mode), ..FileSpec::default() };
        let limiter =
            RuleLimiter::new(RuleSet::compile(&file).unwrap(), UnreachableStore, ManualClock::new(START));
        let mut batch = limiter.begin();
        limiter.add_inline(&mut batch, InlineLimit::Key, &limit("5/h"), Verb::Check, &CheckRequest::new("a"));
        limiter.decide(&mut batch).await;
        let decision = batch.decision(0);
        assert_eq!((decision.is_allowed(), decision.reason()), (allowed, Reason::Degraded));
        assert!(decision.is_inline() && decision.binding().is_none());
        let stated = limiter.decision_counts().inline;
        assert_eq!((stated.degraded, stated.denied), (u64::from(allowed), u64::from(!allowed)));
    }
}

#[test]
fn a_warm_rule_limiter_allocates_nothing() {
    let mut by_path = rule("path", "api_key", &["1000000/s"]);
    by_path.when.path = Some(ratekeeper::rules::PathPattern::new("/v1/{x}", Default::default()).unwrap());
    let (limiter, _) = clocked_limiter(compile(vec![by_path, rule("ip", "ip", &["1000000/s", "1000000/h"])]));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ip = Some("2001:db8::7".parse().unwrap());
    let run = || {
        runtime.block_on(async {
            for turn in 0..200 {
                let mut batch = limiter.begin();
                for _ in 0..=turn % 50 {
                    limiter.add(
                        &mut batch,
                        Verb::Check,
                        &CheckRequest { endpoint: "/v1/orders", ip, ..CheckRequest::new("user:1") },
                    );
                }
                limiter.decide(&mut batch).await;
                assert!(batch.decisions().all(|decision| decision.is_allowed()));
            }
        });
    };
    run();
    assert_eq!(allocation_counter::measure(run).count_total, 0);
}

#[tokio::test]
async fn an_inline_limit_applies_whatever_the_rules_say() {
    let (limiter, _) = clocked_limiter(compile(vec![rule("key", "api_key", &["1/h"])]));
    let five = limit("5/h");
    let ask = async |kind, request: &CheckRequest<'_>| {
        let mut batch = limiter.begin();
        limiter.add_inline(&mut batch, kind, &five, Verb::Check, request);
        limiter.decide(&mut batch).await;
        let decision = batch.decision(0);
        assert!(decision.is_inline() && decision.rule().is_none());
        (decision.is_allowed(), decision.remaining())
    };
    let alice = CheckRequest { cost: 4, ..CheckRequest::new("alice") };
    assert_eq!(ask(InlineLimit::Key, &alice).await, (true, 1));
    assert_eq!(ask(InlineLimit::Key, &alice).await, (false, 1));
    assert_eq!(
        check(&limiter, &CheckRequest::new("alice")).await,
        decided(true, 0, "key"),
        "the rule has its own count"
    );
    // Descriptors differ if any part differs, and never share a count with keys.
    let entries = [("a", "b"), ("c", "d")];
    let moved = [("a", "bc"), ("", "d")];
    for (domain, entries) in [("alice", &entries), ("alice", &moved), ("bob", &entries)] {
        let request = CheckRequest { descriptor: Some(Descriptor { domain, entries }), ..alice };
        assert_eq!(ask(InlineLimit::Descriptor, &request).await, (true, 1));
        assert_eq!(ask(InlineLimit::Descriptor, &request).await, (false, 1));
    }
    let outcomes = limiter.decision_counts();
    assert_eq!(
        outcomes.inline,
        RuleDecisionCounts { allowed: 4, denied: 4, ..RuleDecisionCounts::default() }
    );
}

#[tokio::test]
async fn joined_requests_take_together_or_not_at_all() {
    let (limiter, _) = clocked_limiter(compile(vec![rule("key", "api_key", &["3/h"])]));
    let ask = async |keys: &[&str]| {
        let mut batch = limiter.begin();
        limiter.add(&mut batch, Verb::Check, &CheckRequest::new("before"));
        batch.begin_atomic_group();
        for key in keys {
            limiter.add(&mut batch, Verb::Check, &CheckRequest::new(key));
        }
        batch.end_atomic_group();
        limiter.add(&mut batch, Verb::Check, &CheckRequest::new("behind"));
        limiter.decide(&mut batch).await;
        let decisions = batch.decisions().map(|decision| (decision.is_allowed(), decision.remaining()));
        decisions.collect::<Vec<_>>()
    };
    assert_eq!(ask(&["a", "b"]).await, [(true, 2), (true, 2), (true, 2), (true, 2)]);
    assert_eq!(ask(&["a", "a", "b"]).await, [(true, 1), (true, 1), (true, 0), (true, 1), (true, 1)]);
    // `a` is exhausted, so `b` is not charged; the requests outside the group are unaffected.
    assert_eq!(ask(&["b", "a"]).await, [(true, 0), (true, 1), (false, 0), (true, 0)]);
    assert_eq!(check(&limiter, &CheckRequest::new("b")).await, decided(true, 0, "key"));
    // More draws than one group can hold: every request is still decided.
    let many: Vec<_> = (0..40).map(|number| format!("many {number}")).collect();
    let keys: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(ask(&keys).await[1..41], [(true, 2); 40]);
}

#[tokio::test]
async fn in_an_emergency_an_atomic_group_counts_once() {
    let (limiter, _) = clocked_limiter(compile(vec![rule("key", "api_key", &["10/h"])]));
    limiter.emergency().switch_on(limit("2/h"));
    let client = CheckRequest { ip: Some("192.0.2.7".parse().unwrap()), ..CheckRequest::new("") };
    let ask = async || {
        let mut batch = limiter.begin();
        limiter.begin_atomic_group(&mut batch, &client);
        for (verb, key) in [(Verb::Check, "a"), (Verb::Check, "b"), (Verb::Peek, "c")] {
            limiter.add(&mut batch, verb, &CheckRequest::new(key));
        }
        batch.end_atomic_group();
        limiter.decide(&mut batch).await;
        batch.decisions().map(|decision| (decision.is_allowed(), decision.reason())).collect::<Vec<_>>()
    };
    assert_eq!(ask().await, [(true, Reason::Limit); 3]);
    assert_eq!(ask().await, [(true, Reason::Limit); 3]);
    let denied = (false, Reason::Emergency);
    assert_eq!(ask().await, [denied, denied, (true, Reason::Limit)], "a peek takes nothing");
    // Outside the group, a request counts by its own key again.
    assert_eq!(check(&limiter, &CheckRequest::new("a")).await, decided(true, 7, "key"));
}

#[tokio::test]
async fn unknown_tiers_and_missing_keys_are_counted_and_denied_if_configured() {
    let limiter_of = |text: &str| {
        let parsed = ratekeeper::rules::read(text, Micros::EPOCH);
        clocked_limiter(RuleSet::compile(&parsed.spec.unwrap()).unwrap()).0
    };
    let counts = |limiter: &ClockedLimiter| {
        let counts = limiter.decision_counts();
        (
            [counts.unknown_tiers_ignored, counts.unknown_tiers_denied],
            [counts.missing_skipped, counts.missing_shared, counts.missing_denied],
        )
    };
    let from = |ip: &str| CheckRequest { ip: Some(ip.parse().unwrap()), ..CheckRequest::new("") };
    let file = "tiers: {free: 2/h, pro: 9/h}\ndefault_tier: free\n";
    let open = limiter_of(file);
    let misspelled = CheckRequest { tier: "Pro", ..CheckRequest::new("a") };
    assert_eq!(check(&open, &misspelled).await, decided(true, 1, "tier:free"));
    assert_eq!(check(&open, &from("1.2.3.4")).await, decided(true, 1, "tier:free"));
    assert_eq!(
        check(&open, &from("5.6.7.8")).await,
        decided(true, 1, "tier:free"),
        "each address has its own count"
    );
    assert_eq!(
        check(&open, &CheckRequest::new("1.2.3.4")).await,
        decided(true, 1, "tier:free"),
        "a key and an address with the same text have separate counts"
    );
    assert_eq!(check(&open, &CheckRequest::new("")).await, decided(true, 1, "tier:free"));
    assert_eq!(
        check(&open, &CheckRequest::new("")).await,
        decided(true, 0, "tier:free"),
        "requests without key and address share a count"
    );
    open.decide_one(Verb::Peek, &misspelled).await;
    assert_eq!(counts(&open), ([1, 0], [0, 2, 0]), "only checks are counted");

    let strict = limiter_of(&format!("{file}unknown_tier: refuse\nmissing: refuse\n"));
    let batch = strict.decide_one(Verb::Check, &misspelled).await;
    assert_eq!((batch.decision(0).is_allowed(), batch.decision(0).reason()), (false, Reason::UnknownTier));
    let batch = strict.decide_one(Verb::Check, &CheckRequest::new("")).await;
    let decision = batch.decision(0);
    assert_eq!((decision.is_allowed(), decision.reason()), (false, Reason::Missing));
    assert_eq!(decision.rule().unwrap().id(), "tier:free");
    assert_eq!(counts(&strict), ([0, 1], [0, 0, 1]));
}
