//! Many keys in one table: none is lost, none meets another, and the cap holds whatever comes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper::{
    Algorithm, Amount, Capacity, DrawOutcome, Draws, FailureMode, Limit, Limiter, ManualClock, MemoryStore,
    Micros, Op, PermitId, Scope, Span, StoreFailure,
};
use ratekeeper_testkit::{Cell, EngineReply, KeyEngine};
use std::collections::HashMap;
use std::sync::Arc;

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limiter(limit: Limit, cap: Capacity) -> (Arc<ManualClock>, Limiter<MemoryStore<Arc<ManualClock>>>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), cap).unwrap();
    (clock, Limiter::with_store(limit, store).unwrap())
}

fn bucket(quota: &str) -> Limit {
    Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap()
}

/// What may happen to a table.
#[derive(Clone, Debug)]
enum TableOp {
    Act(u16, Op),
    Wait(Span),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<TableOp>> {
    let act = prop_oneof![
        6 => (1..4_u32).prop_map(|units| Op::Take(Amount::exactly(units))),
        1 => Just(Op::Clear),
        1 => Just(Op::Give(1)),
        1 => Just(Op::Look(Amount::exactly(1))),
    ];
    let op = prop_oneof![
        30 => (any::<u16>(), act).prop_map(|(key, act)| TableOp::Act(key % 700, act)),
        2 => (0..300_000_u64).prop_map(|micros| TableOp::Wait(Span::micros(micros))),
        1 => Just(TableOp::Sweep),
    ];
    proptest::collection::vec(op, 1..3000)
}

#[test]
fn every_key_is_decided_as_if_it_were_alone() {
    // Each case is a few thousand draws over hundreds of keys; a fiftieth of the usual number of cases is plenty.
    let cases = (Config::default().cases / 50).max(20);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let limits = [bucket("10/s burst 3"), bucket("100/s burst 5")];
    let outcome = runner.run(&ops(), |ops| {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(4_000)).unwrap();
        let mut alone: HashMap<u16, Cell> = HashMap::new();
        let (mut draws, mut now) = (Draws::new(), START);
        for op in ops {
            match op {
                TableOp::Wait(span) => now = now.plus(span),
                TableOp::Sweep => store.sweep(usize::MAX),
                TableOp::Act(key, act) => {
                    let limit = limits[usize::from(key % 2)];
                    draws.clear();
                    draws.push(format!("key {key}").as_str().into(), Scope(0), limit, act, PermitId(0));
                    store.draw_now(&mut draws);
                    let expected = alone.entry(key).or_default().act(now, &limit, act, PermitId(0));
                    let reply = EngineReply::from(&draws.all()[0]);
                    if reply != expected {
                        return Err(TestCaseError::fail(format!(
                            "key {key} {act:?}: {reply:?}, not {expected:?}"
                        )));
                    }
                }
            }
            clock.set(now);
        }
        assert_eq!(store.stats().evicted + store.stats().unremembered, 0);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn idle_keys_go_when_they_are_swept_and_refused_ones_too_once_they_have_drained() {
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
fn a_table_that_turns_over_stays_as_small_as_its_live_keys() {
    // Without anybody sweeping: drained keys make way when a shard would have to grow.
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
fn a_flood_of_new_keys_neither_breaks_the_cap_nor_forgives_who_is_refused() {
    let (_, limiter) = limiter(bucket("5/day"), Capacity::keys(10_000));
    let refused: Vec<String> = (0..100).map(|key| format!("refused {key}")).collect();
    for key in &refused {
        while limiter.check_now(key).is_allowed() {}
    }
    for key in 0..200_000 {
        assert!(limiter.check_now(&format!("flood {key}")).is_allowed());
    }
    let stats = limiter.store().stats();
    assert!(stats.keys <= 10_000 && stats.keys > 9_000, "{stats:?}");
    assert_eq!(stats.unremembered, 0);
    assert_eq!(stats.evicted + stats.keys as u64, 200_100);
    for key in &refused {
        assert!(!limiter.check_now(key).is_allowed(), "{key} was forgiven");
    }
}

#[test]
fn at_the_cap_the_key_that_used_least_goes_first() {
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

/// A store whose only shard is full of keys that are being denied, under a rule of scope 1.
fn full_of_denied(keys: usize) -> (Arc<ManualClock>, MemoryStore<Arc<ManualClock>>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(keys)).unwrap();
    for key in 0..2 * keys {
        for _ in 0..2 {
            take(&store, &format!("denied {key}"), 1, &bucket("1/day"));
        }
    }
    (clock, store)
}

/// Whether a unit is granted.
fn take(store: &MemoryStore<Arc<ManualClock>>, key: &str, scope: u64, limit: &Limit) -> bool {
    !store.take_now(key.into(), Scope(scope), limit, Amount::exactly(1), PermitId(0)).is_refused()
}

fn granted(
    store: &MemoryStore<Arc<ManualClock>>,
    key: &str,
    scope: u64,
    limit: &Limit,
    tries: usize,
) -> usize {
    (0..tries).filter(|_| take(store, key, scope, limit)).count()
}

#[test]
fn where_everyone_is_refused_a_newcomer_is_held_all_the_same() {
    let (clock, limiter) = limiter(bucket("1/day"), Capacity::keys(100));
    for key in 0..100 {
        let key = format!("key {key}");
        limiter.check_now(&key);
        limiter.check_now(&key);
    }
    let full = limiter.store().stats();
    assert_eq!((full.keys, full.sketched), (100, 0));
    assert!(limiter.check_now("newcomer").is_allowed());
    assert!(!limiter.check_now("newcomer").is_allowed());
    assert!(!limiter.peek_now("newcomer").is_allowed());
    let stats = limiter.store().stats();
    assert_eq!((stats.keys, stats.evicted, stats.moved), (100, 0, 0));
    assert_eq!((stats.sketched, stats.unremembered), (2, 0));
    clock.advance(Span::DAY);
    assert!(limiter.check_now("newcomer").is_allowed());
    assert!(!limiter.check_now("newcomer").is_allowed(), "there is room again");
    assert_eq!(limiter.store().stats().sketched, 2);
}

/// Trap: a flood of keys that are being denied fills the table, and from then on nobody new is held to any limit.
#[test]
fn a_flood_on_one_rule_leaves_the_keys_of_another_as_they_are() {
    let (_, store) = full_of_denied(10_000);
    let login = bucket("5/day");
    for address in 0..300 {
        let key = format!("address {address}");
        let mut passed = 0;
        for attempt in 0..20 {
            passed += usize::from(take(&store, &key, 2, &login));
            // The flood goes on.
            take(&store, &format!("flood {address} {attempt}"), 1, &bucket("1/day"));
        }
        assert_eq!(passed, 5, "{key}");
    }
    for address in 0..300 {
        assert!(!take(&store, &format!("address {address}"), 2, &login), "it was forgiven");
    }
    let stats = store.stats();
    assert!(stats.keys <= 10_000 && stats.moved > 50, "{stats:?}");
    assert_eq!((stats.evicted, stats.unremembered), (0, 0), "{stats:?}");
}

/// Nor may a flood of keys that have hardly used anything have other rules' keys forgotten.
#[test]
fn a_flood_of_light_keys_drives_out_its_own() {
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
        assert_eq!(granted(store, key, 2, &login, 10), 4, "{key}");
    }
}

#[test]
fn who_is_denied_stays_denied_wherever_it_is_counted_and_whatever_the_new_quota() {
    let (clock, store) = full_of_denied(1_000);
    // Another rule takes most of the room.
    for key in 0..10_000 {
        for _ in 0..2 {
            take(&store, &format!("other {key}"), 2, &bucket("1/day"));
        }
    }
    let stats = store.stats();
    assert!(stats.moved > 300, "{stats:?}");
    for key in 0..2_000 {
        assert!(!take(&store, &format!("denied {key}"), 1, &bucket("1/day")), "{key} was forgiven");
        assert!(
            !take(&store, &format!("denied {key}"), 1, &bucket("2/day")),
            "a new quota lends nothing: {key}"
        );
    }
    clock.advance(Span::DAY);
    store.sweep(usize::MAX);
    assert_eq!(granted(&store, "denied 7", 1, &bucket("2/day"), 5), 2);
}

/// Trap: what a quota has used of a key is dropped when the quota that drew since has drained and the table has no room.
#[test]
fn at_the_cap_a_quota_that_comes_back_finds_what_it_has_used() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let (slow, quick) = (bucket("10/day"), bucket("1000/s"));
    assert_eq!(granted(&store, "k", 1, &slow, 20), 10);
    clock.advance(Span::SECOND);
    assert!(!take(&store, "k", 1, &quick), "nothing is left to carry over");
    clock.advance(Span::secs(5));
    store.sweep(usize::MAX);
    assert_eq!(store.stats().keys, 0, "the quick one has drained");
    // Nobody gives way to a key of the same limit.
    for key in 0..200 {
        granted(&store, &format!("denied {key}"), 1, &slow, 11);
    }
    assert_eq!(store.stats().keys, 100);
    for _ in 0..5 {
        assert_eq!(granted(&store, "k", 1, &slow, 20), 0);
        let looked = store.take_now("k".into(), Scope(1), &slow, Amount::PEEK, PermitId(0));
        assert_eq!(ratekeeper::LimitStatus::new(&slow, Amount::PEEK, looked).remaining(), 0);
        take(&store, "k", 1, &quick);
    }
    assert_eq!(store.stats().unremembered, 0);
}

/// A log without room joins its newest runs. Those that it keeps for an earlier quota are joined too, and none is lost.
#[test]
fn without_room_a_log_still_keeps_what_an_earlier_quota_has_used() {
    let log = |quota: &str| {
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Modest), quota.parse().unwrap())
    };
    let (hourly, quick) = (log("5/h").unwrap(), log("8/s").unwrap());
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
    assert!(full.sketched > 0, "{full:?}");
    for _ in 0..5 {
        clock.advance(Span::secs(2));
        assert!(take(&store, "k", 1, &quick));
        assert!(store.stats().roll_entries <= full.roll_entries, "{:?}", store.stats());
        assert!(try_often("k", &quick) <= 7);
        assert_eq!(try_often("k", &quick), 0);
        assert_eq!(try_often("k", &hourly), 0);
    }
    assert_eq!(store.stats().unremembered, 0);
}

/// Draws at the cap: of which key, from which limit, how much, and how long until the next.
fn draws_at_the_cap() -> impl Strategy<Value = Vec<(u16, usize, u32, Span)>> {
    let pause = prop_oneof![
        300 => (0..1_000_000_u64).prop_map(Span::micros),
        1 => Just(Span::micros(2 * Span::DAY.get())),
    ];
    proptest::collection::vec((0..300_u16, 0..6_usize, 1..4_u32, pause), 500..2500)
}

/// What has used less than half of its limit may be forgotten at the cap, so every key's first draw takes more.
#[test]
fn at_the_cap_no_key_is_admitted_more_than_its_limit_allows() {
    let limit = |law, quota: &str| Limit::new(law, quota.parse().unwrap()).unwrap();
    let limits = [
        bucket("8/day"),
        limit(Algorithm::LeakyBucket(ratekeeper::Leak::Meter), "8/day burst 8"),
        limit(Algorithm::FixedWindow(ratekeeper::Align::Wall(ratekeeper::Zone::UTC)), "8/day"),
        limit(Algorithm::FixedWindow(ratekeeper::Align::FirstHit), "8/day"),
        limit(Algorithm::SlidingWindowCounter, "8/day"),
        limit(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Modest), "8/day"),
    ];
    let cases = (Config::default().cases / 8).max(20);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let sketched = std::cell::Cell::new(0);
    let outcome = runner.run(&draws_at_the_cap(), |draws| {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(60)).unwrap();
        let mut alone: HashMap<(u16, usize), Cell> = HashMap::new();
        let mut known = std::collections::HashSet::new();
        let (mut buffer, mut now) = (Draws::new(), START);
        for (turn, (key, which, units, pause)) in draws.into_iter().enumerate() {
            let units = if known.contains(&(key, which)) { units } else { 5 };
            let (limit, act) = (limits[which], Op::Take(Amount::exactly(units)));
            buffer.clear();
            buffer.push(format!("key {key}").as_str().into(), Scope(which as u64), limit, act, PermitId(0));
            store.draw_now(&mut buffer);
            if !buffer.all()[0].is_refused() {
                known.insert((key, which));
                let exact = alone.entry((key, which)).or_default().act(now, &limit, act, PermitId(0));
                if exact.answer == DrawOutcome::Refused {
                    return Err(TestCaseError::fail(format!("{limit}: key {key} got {units} too many")));
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
        assert_eq!((store.stats().evicted, store.stats().unremembered), (0, 0));
        sketched.set(sketched.get() + store.stats().sketched);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // A case of few draws may need none.
    assert!(sketched.get() > 100 * u64::from(cases), "{} draws were counted in the sketch", sketched.get());
}

#[test]
fn rolls_have_a_bound_of_their_own_and_no_log_is_longer_for_it() {
    let limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Modest), "10/day".parse().unwrap())
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
    assert_eq!((stats.roll_entries, stats.max_roll_entries), (88, 100), "an eighth is for others");
    assert!(stats.sketched >= 900, "{stats:?}");
    assert_eq!((0..50).filter(|_| check("key 7")).count(), 9, "a log that is known is exact in number");
    assert!((0..50).filter(|_| check("key 999")).count() < 10, "and nobody gets more than the limit");
    assert_eq!(limiter.store().stats().unremembered, 0);
    // Another rule still has room.
    let others = (0..10).filter(|_| granted(limiter.store(), "other", 7, &limit, 1) == 1).count();
    assert_eq!(others, 10);
    clock.advance(Span::micros(10 * Span::DAY.get()));
    limiter.store().sweep(usize::MAX);
    assert_eq!((limiter.store().stats().roll_entries, limiter.store().stats().rolls), (0, 0));
    assert_eq!((0..50).filter(|_| check("key 999")).count(), 10);
}

/// A permit can't be counted roughly: without room for it the rule's failure mode decides.
#[test]
fn permits_that_find_no_room_are_answered_as_the_rule_says() {
    let limit = Limit::new(Algorithm::Concurrency, "5 per h".parse().unwrap()).unwrap();
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(100)).unwrap();
    for key in 0..200 {
        take(&store, &format!("holder {key}"), 1, &limit);
    }
    let decide = |on_failure| {
        let mut draws = Draws::new();
        draws.push("late".into(), Scope(1), limit, Op::Take(Amount::exactly(1)), PermitId(9));
        draws.set_terms(ratekeeper::DrawOptions { on_failure, ..ratekeeper::DrawOptions::default() });
        store.draw_now(&mut draws);
        (!draws.all()[0].is_refused(), draws.group_failure(0))
    };
    assert_eq!(decide(FailureMode::Open), (true, Some(StoreFailure::Full)));
    assert_eq!(decide(FailureMode::Closed), (false, Some(StoreFailure::Full)));
    assert_eq!(decide(FailureMode::Local), (false, Some(StoreFailure::Full)));
    assert!(take(&store, "late", 2, &limit), "another rule still has room");
    assert!(store.stats().unremembered >= 3);
}

/// Trap: rolls that nobody draws from any more hold the bound for ever, and new keys go unlimited.
#[test]
fn drained_rolls_make_way_without_anybody_sweeping() {
    let limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper::LogSize::Modest), "2/s".parse().unwrap()).unwrap();
    let (clock, limiter) = limiter(limit, Capacity::keys(100));
    for key in 0..88 {
        limiter.check_now(&format!("key {key}"));
    }
    assert_eq!(limiter.store().stats().roll_entries, 88, "and an eighth is for others");
    clock.advance(Span::HOUR);
    let granted = (0..50).filter(|_| limiter.check_now("newcomer").is_allowed()).count();
    assert_eq!((granted, limiter.store().stats().unremembered), (2, 0));
    assert_eq!(limiter.store().stats().rolls, 1);
}

#[test]
fn a_key_in_parts_and_a_key_in_text_are_two_keys() {
    let (_, limiter) = limiter(bucket("1/day"), Capacity::keys(100));
    let parts = ratekeeper::Key::new(["a", "b"]).unwrap();
    assert!(limiter.check_now(&parts).is_allowed());
    let bytes = std::str::from_utf8(parts.borrow().bytes()).unwrap();
    assert!(limiter.check_now(bytes).is_allowed());
    assert!(!limiter.check_now(&parts).is_allowed());
}

/// Trap: limits that are no longer used fill the table of limits, and new quotas hold for nobody.
#[test]
fn years_of_new_quotas_leave_room_for_the_next() {
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(1_000)).unwrap();
    let written = bucket("10/day");
    assert!(take(&store, "k", 1, &written));
    for amount in 0..1_200_000 {
        take(&store, "changing", 1, &bucket(&format!("{}/h", amount + 1)));
    }
    assert_eq!(granted(&store, "newcomer", 1, &bucket("6/h burst 6"), 50), 6);
    assert_eq!(granted(&store, "k", 1, &written, 50), 9, "its state is still read in its own units");
    let stats = store.stats();
    assert!(stats.unremembered == 0 && stats.limits < 200_000, "{stats:?}");
}

/// Trap: a client that states its own limits makes up so many that those of rules find no page.
#[test]
fn limits_that_come_with_requests_leave_room_for_rules_and_for_newer_ones() {
    let store = MemoryStore::with(Arc::new(ManualClock::new(START)), Capacity::keys(2_000_000)).unwrap();
    // All in use: each has a key of its own that has not drained.
    for amount in 0..400_000 {
        take(&store, &format!("stated {amount}"), 1, &bucket(&format!("{}/day", amount + 2)));
    }
    assert_eq!(granted(&store, "address", 2, &bucket("6/h"), 50), 6, "a rule that is new");
    let last = bucket("400001/day");
    assert_eq!(granted(&store, "stated again", 1, &last, 1), 1);
    let latest = bucket("3/day burst 3");
    assert_eq!(granted(&store, "stated now", 1, &latest, 50), 3, "a stated limit that is new");
    let stats = store.stats();
    assert!(stats.limits <= 1 << 18 && stats.limits_retired > 100_000, "{stats:?}");
}
