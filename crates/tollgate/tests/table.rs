//! Many keys in one table: none is lost, none meets another, and the cap holds whatever comes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::HashMap;
use std::sync::Arc;
use tollgate::{
    Act, Ask, Cap, Draws, Law, Limit, Limiter, ManualClock, MemoryStore, Micros, PermitId, Scope, Span,
};
use tollgate_testkit::{Account, Cell, Reply};

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limiter(limit: Limit, cap: Cap) -> (Arc<ManualClock>, Limiter<MemoryStore<Arc<ManualClock>>>) {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), cap).unwrap();
    (clock, Limiter::with_store(limit, store).unwrap())
}

fn bucket(quota: &str) -> Limit {
    Limit::new(Law::TokenBucket, quota.parse().unwrap()).unwrap()
}

/// What may happen to a table.
#[derive(Clone, Debug)]
enum Op {
    Act(u16, Act),
    Wait(Span),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let act = prop_oneof![
        6 => (1..4_u32).prop_map(|units| Act::Take(Ask::exactly(units))),
        1 => Just(Act::Clear),
        1 => Just(Act::Give(1)),
        1 => Just(Act::Look(Ask::exactly(1))),
    ];
    let op = prop_oneof![
        30 => (any::<u16>(), act).prop_map(|(key, act)| Op::Act(key % 700, act)),
        2 => (0..300_000_u64).prop_map(|micros| Op::Wait(Span::micros(micros))),
        1 => Just(Op::Sweep),
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
        let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(4_000)).unwrap();
        let mut alone: HashMap<u16, Cell> = HashMap::new();
        let (mut draws, mut now) = (Draws::new(), START);
        for op in ops {
            match op {
                Op::Wait(span) => now = now.plus(span),
                Op::Sweep => store.sweep(usize::MAX),
                Op::Act(key, act) => {
                    let limit = limits[usize::from(key % 2)];
                    draws.clear();
                    draws.push(format!("key {key}").as_str().into(), Scope(0), limit, act, PermitId(0));
                    store.draw_now(&mut draws);
                    let expected = alone.entry(key).or_default().act(now, &limit, act, PermitId(0));
                    let reply = Reply::from(&draws.all()[0]);
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
    let (clock, limiter) = limiter(bucket("10/s burst 1"), Cap::keys(10_000));
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
    let (clock, limiter) = limiter(bucket("1000/s burst 1"), Cap::keys(1_000_000));
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
    let (_, limiter) = limiter(bucket("5/day"), Cap::keys(10_000));
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
    let (_, limiter) = limiter(bucket("100/day"), Cap::keys(2_000));
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

#[test]
fn where_everyone_is_refused_a_newcomer_is_decided_but_not_remembered() {
    let (clock, limiter) = limiter(bucket("1/day"), Cap::keys(100));
    for key in 0..100 {
        let key = format!("key {key}");
        limiter.check_now(&key);
        limiter.check_now(&key);
    }
    let full = limiter.store().stats();
    assert_eq!((full.keys, full.unremembered), (100, 0));
    assert!(limiter.check_now("newcomer").is_allowed());
    assert!(limiter.check_now("newcomer").is_allowed());
    let stats = limiter.store().stats();
    assert_eq!((stats.keys, stats.evicted, stats.unremembered), (100, 0, 2));
    clock.advance(Span::DAY);
    assert!(limiter.check_now("newcomer").is_allowed());
    assert!(!limiter.check_now("newcomer").is_allowed(), "there is room again");
}

#[test]
fn rolls_have_a_bound_of_their_own() {
    let limit =
        Limit::new(Law::SlidingWindowLog(tollgate::LogSize::Modest), "10/day".parse().unwrap()).unwrap();
    let (clock, limiter) = limiter(limit, Cap::keys(100));
    for key in 0..1_000 {
        assert!(limiter.check_now(&format!("key {key}")).is_allowed());
        clock.advance(Span::micros(1));
    }
    let stats = limiter.store().stats();
    assert_eq!((stats.roll_entries, stats.max_roll_entries), (100, 100));
    assert_eq!(stats.unremembered, 900);
    clock.advance(Span::DAY);
    limiter.store().sweep(usize::MAX);
    assert_eq!((limiter.store().stats().roll_entries, limiter.store().stats().rolls), (0, 0));
}

/// Trap: rolls that nobody draws from any more hold the bound for ever, and new keys go unlimited.
#[test]
fn drained_rolls_make_way_without_anybody_sweeping() {
    let limit = Limit::new(Law::SlidingWindowLog(tollgate::LogSize::Modest), "2/s".parse().unwrap()).unwrap();
    let (clock, limiter) = limiter(limit, Cap::keys(100));
    for key in 0..100 {
        limiter.check_now(&format!("key {key}"));
    }
    assert_eq!(limiter.store().stats().roll_entries, 100);
    clock.advance(Span::HOUR);
    let granted = (0..50).filter(|_| limiter.check_now("newcomer").is_allowed()).count();
    assert_eq!((granted, limiter.store().stats().unremembered), (2, 0));
    assert_eq!(limiter.store().stats().rolls, 1);
}

#[test]
fn a_key_in_parts_and_a_key_in_text_are_two_keys() {
    let (_, limiter) = limiter(bucket("1/day"), Cap::keys(100));
    let parts = tollgate::Key::new(["a", "b"]).unwrap();
    assert!(limiter.check_now(&parts).is_allowed());
    let bytes = std::str::from_utf8(parts.borrow().bytes()).unwrap();
    assert!(limiter.check_now(bytes).is_allowed());
    assert!(!limiter.check_now(&parts).is_allowed());
}

/// Trap: a state kept under the page of another limit, and later read in that limit's units.
#[test]
fn a_limit_that_no_longer_fits_the_book_leaves_others_states_alone() {
    let store = MemoryStore::with(ManualClock::new(START), Cap::keys(1_000)).unwrap();
    let take = |key: &str, limit: &Limit| {
        store.take_now(key.into(), Scope(0), limit, Ask::exactly(1), PermitId(0));
    };
    let left = |limit: &Limit| {
        let mut draws = Draws::new();
        draws.push("k".into(), Scope(0), *limit, Act::Look(Ask::PEEK), PermitId(0));
        store.draw_now(&mut draws);
        draws.all()[0].reading().remaining()
    };
    let written = bucket("10/day");
    take("k", &written);
    for amount in 0..1 << 20 {
        take("crowd", &bucket(&format!("{}/h", amount + 1)));
    }
    let late = bucket("7/s burst 5");
    assert_eq!(
        store.stats().unremembered,
        1,
        "the book has a page for a million limits, and this is one more"
    );
    take("k", &late);
    assert_eq!(left(&written), 9);
    assert_eq!(store.stats().unremembered, 2);
}
