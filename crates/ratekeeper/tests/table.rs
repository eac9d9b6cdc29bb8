//! Many keys in one memory table: no key is lost, no key affects another, and the capacity is never exceeded.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper::{
    Algorithm, Amount, Capacity, DrawOutcome, Draws, FailureMode, Limit, Limiter, ManualClock, MemoryStore,
    Micros, Op, PermitId, Scope, Span, StoreFailure,
};
use ratekeeper_testkit::{EngineReply, KeyEngine, SingleKeyStore};
use std::collections::HashMap;
use std::sync::Arc;

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limiter(limit: Limit, capacity: Capacity) -> (Arc<ManualClock>, Limiter<MemoryStore<Arc<ManualClock>>>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), capacity).unwrap();
    (clock, Limiter::with_store(limit, store).unwrap())
}

fn bucket(quota: &str) -> Limit {
    Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap()
}

/// One step of a random table test.
#[derive(Clone, Debug)]
enum TableOp {
    Draw(u16, Op),
    Wait(Span),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<TableOp>> {
    let op = prop_oneof![
        6 => (1..4_u32).prop_map(|units| Op::Take(Amount::exactly(units))),
        1 => Just(Op::Reset),
        1 => Just(Op::Refund(1)),
        1 => Just(Op::Peek(Amount::exactly(1))),
    ];
    let step = prop_oneof![
        30 => (any::<u16>(), op).prop_map(|(key, op)| TableOp::Draw(key % 700, op)),
        2 => (0..300_000_u64).prop_map(|micros| TableOp::Wait(Span::micros(micros))),
        1 => Just(TableOp::Sweep),
    ];
    proptest::collection::vec(step, 1..3000)
}

#[test]
fn every_key_is_decided_as_if_it_were_alone() {
    // Each case is a few thousand draws over hundreds of keys, so a fiftieth of the usual number of cases suffices.
    let cases = (Config::default().cases / 50).max(20);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let limits = [bucket("10/s burst 3"), bucket("100/s burst 5")];
    let outcome = runner.run(&ops(), |ops| {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(4_000)).unwrap();
        let mut alone: HashMap<u16, SingleKeyStore> = HashMap::new();
        let (mut draws, mut now) = (Draws::new(), START);
        for step in ops {
            match step {
                TableOp::Wait(span) => now = now.plus(span),
                TableOp::Sweep => store.sweep(usize::MAX),
                TableOp::Draw(key, op) => {
                    let limit = limits[usize::from(key % 2)];
                    draws.clear();
                    draws.push(format!("key {key}").as_str().into(), Scope(0), limit, op, PermitId(0));
                    store.draw_now(&mut draws);
                    let expected = alone.entry(key).or_default().apply(now, &limit, op, PermitId(0));
                    let reply = EngineReply::from(&draws.all()[0]);
                    if reply != expected {
                        return Err(TestCaseError::fail(format!(
                            "key {key} {op:?}: {reply:?}, expected {expected:?}"
                        )));
                    }
                }
            }
            clock.set(now);
        }
        assert_eq!(store.stats().evicted + store.stats().uncounted, 0);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn a_sweep_drops_keys_once_they_have_drained() {
    let (clock, limiter) = limiter(bucket("10/s burst 1"), Capacity::keys(10_000));
    for key in 0..1_000 {
        let key = format!("key {key}");
        assert!(limiter.check_now(&key).is_allowed());
        assert!(!limiter.check_now(&key).is_allowed());
    }
    limiter.store().sweep(usize::MAX);
    assert_eq!(limiter.store().stats().keys, 1_000);
    clock.advance(Span::millis(100));
    limiter.store().sweep(usize::MAX);
    assert_eq!(limiter.store().stats().keys, 0);
}

#[test]
fn a_table_with_short_lived_keys_stays_small() {
    // Without sweeps: drained keys are dropped when a shard would have to grow.
    let (clock, limiter) = limiter(bucket("1000/s burst 1"), Capacity::keys(1_000_000));
    for round in 0..200 {
        for key in 0..1_000 {
            limiter.check_now(&format!("key {round} {key}"));
        }
        clock.advance(Span::SECOND);
    }
    let stats = limiter.store().stats();
    assert!(stats.keys < 40_000, "{stats:?}");
    assert_eq!(stats.evicted, 0);
}

#[test]
fn a_flood_of_new_keys_neither_exceeds_the_capacity_nor_evicts_denied_keys() {
    let (_, limiter) = limiter(bucket("5/day"), Capacity::keys(10_000));
    let denied: Vec<String> = (0..100).map(|key| format!("denied {key}")).collect();
    for key in &denied {
        while limiter.check_now(key).is_allowed() {}
    }
    for key in 0..200_000 {
        assert!(limiter.check_now(&format!("flood {key}")).is_allowed());
    }
    let stats = limiter.store().stats();
    assert!(stats.keys <= 10_000 && stats.keys > 9_000, "{stats:?}");
    assert_eq!(stats.uncounted, 0);
    assert_eq!(stats.evicted + stats.keys as u64, 200_100);
    for key in &denied {
        assert!(!limiter.check_now(key).is_allowed(), "{key} lost its denial");
    }
}

#[test]
fn at_capacity_the_least_used_key_is_evicted_first() {
    let (_, limiter) = limiter(bucket("100/day"), Capacity::keys(2_000));
    let heavy: Vec<String> = (0..20).map(|key| format!("heavy {key}")).collect();
    for key in &heavy {
        for _ in 0..90 {
            assert!(limiter.check_now(key).is_allowed());
        }
    }
    for key in 0..50_000 {
        limiter.check_now(&format!("light {key}"));
    }
    let kept = heavy.iter().filter(|key| limiter.peek_now(*key).remaining() == 10).count();
    assert_eq!(kept, heavy.len());
}

/// A store whose only shard is full of denied keys, under a rule with scope 1.
fn store_full_of_denied_keys(keys: usize) -> (Arc<ManualClock>, MemoryStore<Arc<ManualClock>>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(keys)).unwrap();
    for key in 0..2 * keys {
        for _ in 0..2 {
            take(&store, &format!("denied {key}"), 1, &bucket("1/day"));
        }
    }
    (clock, store)
}

/// Takes one unit, and returns whether it is granted.
fn take(store: &MemoryStore<Arc<ManualClock>>, key: &str, scope: u64, limit: &Limit) -> bool {
    !store.take_now(key.into(), Scope(scope), limit, Amount::exactly(1), PermitId(0)).is_denied()
}

fn count_granted(
    store: &MemoryStore<Arc<ManualClock>>,
    key: &str,
    scope: u64,
    limit: &Limit,
    tries: usize,
) -> usize {
    (0..tries).filter(|_| take(store, key, scope, limit)).count()
}

#[test]
fn a_new_key_is_limited_even_if_every_stored_key_is_denied() {
    let (clock, limiter) = limiter(bucket("1/day"), Capacity::keys(100));
    for key in 0..100 {
        let key = format!("key {key}");
        limiter.check_now(&key);
        limiter.check_now(&key);
    }
    let full = limiter.store().stats();
    assert_eq!((full.keys, full.sketch_decisions), (100, 0));
    assert!(limiter.check_now("new key").is_allowed());
    assert!(!limiter.check_now("new key").is_allowed());
    assert!(!limiter.peek_now("new key").is_allowed());
    let stats = limiter.store().stats();
    assert_eq!((stats.keys, stats.evicted, stats.moved_to_sketch), (100, 0, 0));
    assert_eq!((stats.sketch_decisions, stats.uncounted), (2, 0));
    clock.advance(Span::DAY);
    assert!(limiter.check_now("new key").is_allowed());
    assert!(!limiter.check_now("new key").is_allowed(), "it is counted exactly again");
    assert_eq!(limiter.store().stats().sketch_decisions, 2);
}

/// Guards against a flood of denied keys that fills the table, after which no new key is limited.
#[test]
fn a_flood_on_one_rule_does_not_affect_the_keys_of_another() {
    let (_, store) = store_full_of_denied_keys(10_000);
    let login = bucket("5/day");
    for address in 0..300 {
        let key = format!("address {address}");
        let mut passed = 0;
        for attempt in 0..20 {
            passed += usize::from(take(&store, &key, 2, &login));
            // The flood continues.
            take(&store, &format!("flood {address} {attempt}"), 1, &bucket("1/day"));
        }
        assert_eq!(passed, 5, "{key}");
    }
    for address in 0..300 {
        assert!(!take(&store, &format!("address {address}"), 2, &login), "it lost its denial");
    }
    let stats = store.stats();
    assert!(stats.keys <= 10_000 && stats.moved_to_sketch > 50, "{stats:?}");
    assert_eq!((stats.evicted, stats.uncounted), (0, 0), "{stats:?}");
}

/// A flood of lightly used keys must not evict keys of other rules either.
#[test]
fn a_flood_of_light_keys_evicts_only_keys_of_its_own_rule() {
    let (_, limiter) = limiter(bucket("100/day"), Capacity::keys(5_000));
    let store = limiter.store();
    let login = bucket("5/day");
    let keys: Vec<String> = (0..100).map(|key| format!("address {key}")).collect();
    for key in &keys {
        assert!(take(store, key, 2, &login));
    }
    for key in 0..50_000 {
        take(store, &format!("flood {key}"), 1, &bucket("100/day"));
    }
    for key in &keys {
        assert_eq!(count_granted(store, key, 2, &login, 10), 4, "{key}");
    }
}

#[test]
fn a_denied_key_stays_denied_in_the_sketch_and_under_a_new_quota() {
    let (clock, store) = store_full_of_denied_keys(1_000);
    // Another rule takes most of the capacity.
    for key in 0..10_000 {
        for _ in 0..2 {
            take(&store, &format!("other {key}"), 2, &bucket("1/day"));
        }
    }
    let stats = store.stats();
    assert!(stats.moved_to_sketch > 300, "{stats:?}");
    for key in 0..2_000 {
        assert!(!take(&store, &format!("denied {key}"), 1, &bucket("1/day")), "{key} lost its denial");
        assert!(
            !take(&store, &format!("denied {key}"), 1, &bucket("2/day")),
            "a new quota grants no extra units: {key}"
        );
    }
    clock.advance(Span::DAY);
    store.sweep(usize::MAX);
    assert_eq!(count_granted(&store, "denied 7", 1, &bucket("2/day"), 5), 2);
}

/// Guards against dropping units used under one quota when a later quota has drained and the table is full.
#[test]
fn at_capacity_a_restored_quota_keeps_its_used_units() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let (slow, fast) = (bucket("10/day"), bucket("1000/s"));
    assert_eq!(count_granted(&store, "k", 1, &slow, 20), 10);
    clock.advance(Span::SECOND);
    assert!(!take(&store, "k", 1, &fast), "no units are left to carry over");
    clock.advance(Span::secs(5));
    store.sweep(usize::MAX);
    assert_eq!(store.stats().keys, 0, "the fast quota has drained");
    // No denied key is evicted for a key of the same limit.
    for key in 0..200 {
        count_granted(&store, &format!("denied {key}"), 1, &slow, 11);
    }
    assert_eq!(store.stats().keys, 100);
    for _ in 0..5 {
        assert_eq!(count_granted(&store, "k", 1, &slow, 20), 0);
        let peeked = store.take_now("k".into(), Scope(1), &slow, Amount::ZERO, PermitId(0));
        assert_eq!(ratekeeper::LimitStatus::new(&slow, Amount::ZERO, peeked).remaining(), 0);
        take(&store, "k", 1, &fast);
    }
    assert_eq!(store.stats().uncounted, 0);
}

/// A log that may not grow merges its newest runs. Runs kept for an earlier quota are merged too, and none is lost.
#[test]
fn a_full_log_keeps_the_units_used_under_an_earlier_quota() {
    let log = |quota: &str| {
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Standard), quota.parse().unwrap())
    };
    let (hourly, fast) = (log("5/h").unwrap(), log("8/s").unwrap());
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let try_often = |key: &str, limit: &Limit| {
        let tries = (0..20).filter(|_| {
            clock.advance(Span::micros(1));
            take(&store, key, 1, limit)
        });
        tries.count()
    };
    assert_eq!(try_often("k", &hourly), 5);
    for key in 0..100 {
        try_often(&format!("other {key}"), &hourly);
    }
    let full = store.stats();
    assert!(full.sketch_decisions > 0, "{full:?}");
    for _ in 0..5 {
        clock.advance(Span::secs(2));
        assert!(take(&store, "k", 1, &fast));
        assert!(store.stats().list_entries <= full.list_entries, "{:?}", store.stats());
        assert!(try_often("k", &fast) <= 7);
        assert_eq!(try_often("k", &fast), 0);
        assert_eq!(try_often("k", &hourly), 0);
    }
    assert_eq!(store.stats().uncounted, 0);
}

/// Draws at capacity: key, limit index, units, and the time until the next draw.
fn draws_at_capacity() -> impl Strategy<Value = Vec<(u16, usize, u32, Span)>> {
    let pause = prop_oneof![
        300 => (0..1_000_000_u64).prop_map(Span::micros),
        1 => Just(Span::micros(2 * Span::DAY.get())),
    ];
    proptest::collection::vec((0..300_u16, 0..6_usize, 1..4_u32, pause), 500..2500)
}

/// At capacity, a key that has used less than half of its limit may be evicted, so every key's first draw takes more.
#[test]
fn at_capacity_no_key_exceeds_its_limit() {
    let limit = |algorithm, quota: &str| Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    let limits = [
        bucket("8/day"),
        limit(Algorithm::LeakyBucket(ratekeeper::Leak::Meter), "8/day burst 8"),
        limit(Algorithm::FixedWindow(ratekeeper::Align::WallClock(ratekeeper::Zone::UTC)), "8/day"),
        limit(Algorithm::FixedWindow(ratekeeper::Align::FirstHit), "8/day"),
        limit(Algorithm::SlidingWindowCounter, "8/day"),
        limit(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Standard), "8/day"),
    ];
    let cases = (Config::default().cases / 8).max(20);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let sketched = std::cell::Cell::new(0);
    let outcome = runner.run(&draws_at_capacity(), |draws| {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(60)).unwrap();
        let mut alone: HashMap<(u16, usize), SingleKeyStore> = HashMap::new();
        let mut known = std::collections::HashSet::new();
        let (mut buffer, mut now) = (Draws::new(), START);
        for (turn, (key, which, units, pause)) in draws.into_iter().enumerate() {
            let units = if known.contains(&(key, which)) { units } else { 5 };
            let (limit, op) = (limits[which], Op::Take(Amount::exactly(units)));
            buffer.clear();
            buffer.push(format!("key {key}").as_str().into(), Scope(which as u64), limit, op, PermitId(0));
            store.draw_now(&mut buffer);
            if !buffer.all()[0].is_denied() {
                known.insert((key, which));
                let exact = alone.entry((key, which)).or_default().apply(now, &limit, op, PermitId(0));
                if exact.outcome == DrawOutcome::Denied {
                    return Err(TestCaseError::fail(format!(
                        "{limit}: key {key} was granted {units} units beyond its limit"
                    )));
                }
            }
            now = now.plus(pause);
            clock.set(now);
            if pause > Span::DAY {
                known.clear();
            }
            if turn % 100 == 99 {
                store.sweep(usize::MAX);
            }
        }
        assert_eq!((store.stats().evicted, store.stats().uncounted), (0, 0));
        sketched.set(sketched.get() + store.stats().sketch_decisions);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // A case with few draws may never use the sketch.
    assert!(sketched.get() > 100 * u64::from(cases), "{} draws were decided by the sketch", sketched.get());
}

#[test]
fn list_states_have_their_own_bound_and_no_log_exceeds_its_limit() {
    let limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Standard), "10/day".parse().unwrap())
            .unwrap();
    let (clock, limiter) = limiter(limit, Capacity::keys(100));
    let check = |key: &str| {
        clock.advance(Span::micros(1));
        limiter.check_now(key).is_allowed()
    };
    for key in 0..1_000 {
        check(&format!("key {key}"));
    }
    let stats = limiter.store().stats();
    assert_eq!(
        (stats.list_entries, stats.max_list_entries),
        (88, 100),
        "an eighth is reserved for other rules"
    );
    assert!(stats.sketch_decisions >= 900, "{stats:?}");
    assert_eq!((0..50).filter(|_| check("key 7")).count(), 9, "a stored log counts exactly");
    assert!((0..50).filter(|_| check("key 999")).count() < 10, "no key gets more than its limit");
    assert_eq!(limiter.store().stats().uncounted, 0);
    // Another rule still has capacity.
    let others = (0..10).filter(|_| count_granted(limiter.store(), "other", 7, &limit, 1) == 1).count();
    assert_eq!(others, 10);
    clock.advance(Span::micros(10 * Span::DAY.get()));
    limiter.store().sweep(usize::MAX);
    assert_eq!((limiter.store().stats().list_entries, limiter.store().stats().list_states), (0, 0));
    assert_eq!((0..50).filter(|_| check("key 999")).count(), 10);
}

/// The sketch cannot count permits: if a permit does not fit, the rule's failure mode decides.
#[test]
fn permits_that_do_not_fit_follow_the_failure_mode() {
    let limit = Limit::new(Algorithm::Concurrency, "5 per h".parse().unwrap()).unwrap();
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(100)).unwrap();
    for key in 0..200 {
        take(&store, &format!("holder {key}"), 1, &limit);
    }
    let decide = |on_failure| {
        let mut draws = Draws::new();
        draws.push("late".into(), Scope(1), limit, Op::Take(Amount::exactly(1)), PermitId(9));
        draws.set_options(ratekeeper::DrawOptions { on_failure, ..ratekeeper::DrawOptions::default() });
        store.draw_now(&mut draws);
        (!draws.all()[0].is_denied(), draws.group_failure(0))
    };
    assert_eq!(decide(FailureMode::Open), (true, Some(StoreFailure::Full)));
    assert_eq!(decide(FailureMode::Closed), (false, Some(StoreFailure::Full)));
    assert_eq!(decide(FailureMode::Local), (false, Some(StoreFailure::Full)));
    assert!(take(&store, "late", 2, &limit), "another rule still has capacity");
    assert!(store.stats().uncounted >= 3);
}

/// Guards against idle list states that occupy the capacity forever, so that new keys go unlimited.
#[test]
fn drained_list_states_are_dropped_without_a_sweep() {
    let limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Standard), "2/s".parse().unwrap())
            .unwrap();
    let (clock, limiter) = limiter(limit, Capacity::keys(100));
    for key in 0..88 {
        limiter.check_now(&format!("key {key}"));
    }
    assert_eq!(limiter.store().stats().list_entries, 88, "an eighth is reserved for other rules");
    clock.advance(Span::HOUR);
    let granted = (0..50).filter(|_| limiter.check_now("new key").is_allowed()).count();
    assert_eq!((granted, limiter.store().stats().uncounted), (2, 0));
    assert_eq!(limiter.store().stats().list_states, 1);
}

#[test]
fn a_key_of_parts_and_its_text_are_two_keys() {
    let (_, limiter) = limiter(bucket("1/day"), Capacity::keys(100));
    let parts = ratekeeper::Key::new(["a", "b"]).unwrap();
    assert!(limiter.check_now(&parts).is_allowed());
    let bytes = std::str::from_utf8(parts.borrow().bytes()).unwrap();
    assert!(limiter.check_now(bytes).is_allowed());
    assert!(!limiter.check_now(&parts).is_allowed());
}

/// Guards against unused limits that fill the limit table, so that new quotas are not enforced.
#[test]
fn a_million_quota_changes_leave_limit_slots_free() {
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(1_000)).unwrap();
    let in_file = bucket("10/day");
    assert!(take(&store, "k", 1, &in_file));
    for amount in 0..1_200_000 {
        take(&store, "changing", 1, &bucket(&format!("{}/h", amount + 1)));
    }
    assert_eq!(count_granted(&store, "new key", 1, &bucket("6/h burst 6"), 50), 6);
    assert_eq!(
        count_granted(&store, "k", 1, &in_file, 50),
        9,
        "its state is still interpreted in its own units"
    );
    let stats = store.stats();
    assert!(stats.uncounted == 0 && stats.limits < 200_000, "{stats:?}");
}

/// Guards against a client whose inline limits take every limit slot, so that rules find none.
#[test]
fn inline_limits_leave_limit_slots_for_rules_and_newer_limits() {
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(2_000_000)).unwrap();
    // All are in use: each has a key that has not drained.
    for amount in 0..400_000 {
        take(&store, &format!("inline {amount}"), 1, &bucket(&format!("{}/day", amount + 2)));
    }
    assert_eq!(count_granted(&store, "address", 2, &bucket("6/h"), 50), 6, "a new rule");
    let last = bucket("400001/day");
    assert_eq!(count_granted(&store, "inline again", 1, &last, 1), 1);
    let latest = bucket("3/day burst 3");
    assert_eq!(count_granted(&store, "inline now", 1, &latest, 50), 3, "a new inline limit");
    let stats = store.stats();
    assert!(stats.limits <= 1 << 18 && stats.limits_retired > 100_000, "{stats:?}");
}
