//! The memory store under thread schedules that shuttle picks at random: run with `--cfg shuttle`.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    Algorithm, Amount, Capacity, DrawOutcome, Draws, Limit, LogSize, ManualClock, MemoryStore, Micros, Op,
    PermitId, Quota, Scope,
};
use shuttle::sync::Arc;
use shuttle::thread;

const SCHEDULES: usize = 3_000;

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse::<Quota>().unwrap()).unwrap()
}

fn store(keys: usize) -> Arc<MemoryStore<ManualClock>> {
    let clock = ManualClock::new(Micros::new(1_700_000_000_000_000));
    Arc::new(MemoryStore::with(clock, Capacity::keys(keys)).unwrap())
}

/// Takes one unit of each key, and returns whether all were granted.
fn take(store: &MemoryStore<ManualClock>, draws: &[(&str, Limit)]) -> bool {
    let mut buffer = Draws::new();
    for (key, limit) in draws {
        let permit = PermitId(shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng()));
        buffer.push((*key).into(), Scope(0), *limit, Op::Take(Amount::exactly(1)), permit);
    }
    store.draw_now(&mut buffer);
    let granted =
        buffer.all().iter().filter(|draw| matches!(draw.outcome(), DrawOutcome::Granted(1))).count();
    assert!(granted == 0 || granted == draws.len(), "a request took from some of its limits only");
    granted > 0
}

fn explore(run: impl Fn() + Send + Sync + 'static) {
    let run = std::sync::Arc::new(run);
    let random = std::sync::Arc::clone(&run);
    shuttle::check_random(move || random(), SCHEDULES);
    shuttle::check_pct(move || run(), SCHEDULES, 3);
}

#[test]
fn threads_on_one_key_are_granted_exactly_the_limit() {
    explore(|| {
        let store = store(100);
        let limit = limit(Algorithm::TokenBucket, "5/day");
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || (0..3).filter(|_| take(&store, &[("k", limit)])).count())
            })
            .collect();
        let granted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(granted, 5);
    });
}

#[test]
fn requests_over_several_keys_never_deadlock_and_never_take_partially() {
    explore(|| {
        let store = store(40_000);
        let (bucket, log) = (
            limit(Algorithm::TokenBucket, "4/day"),
            limit(Algorithm::SlidingWindowLog(LogSize::Standard), "3/day"),
        );
        // The same keys in opposite order, and one key twice.
        let orders: [&[(&str, Limit)]; 3] = [
            &[("a", bucket), ("b", log), ("c", bucket)],
            &[("c", bucket), ("b", log), ("a", bucket)],
            &[("a", bucket), ("a", bucket)],
        ];
        let threads: Vec<_> = orders
            .iter()
            .map(|order| {
                let store = Arc::clone(&store);
                let order = order.to_vec();
                thread::spawn(move || (0..2).filter(|_| take(&store, &order)).count())
            })
            .collect();
        let granted: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let left = |key: &str, limit: Limit| {
            let mut draws = Draws::new();
            draws.push(key.into(), Scope(0), limit, Op::Peek(Amount::ZERO), PermitId(0));
            store.draw_now(&mut draws);
            draws.all()[0].status().remaining() as usize
        };
        assert_eq!(left("a", bucket), 4 - granted[0] - granted[1] - 2 * granted[2]);
        assert_eq!(left("b", log), 3 - granted[0] - granted[1]);
        assert_eq!(left("c", bucket), 4 - granted[0] - granted[1]);
    });
}

#[test]
fn concurrent_sweeps_lose_no_state() {
    explore(|| {
        let store = store(100);
        let limit = limit(Algorithm::TokenBucket, "2/day");
        let sweeper = {
            let store = Arc::clone(&store);
            thread::spawn(move || (0..3).for_each(|_| store.sweep(usize::MAX)))
        };
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                let keys = ["a", "b", "c", "d"];
                thread::spawn(move || keys.iter().filter(|key| take(&store, &[(*key, limit)])).count())
            })
            .collect();
        sweeper.join().unwrap();
        let granted: usize = takers.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(granted, 8);
        assert!(!take(&store, &[("a", limit)]));
    });
}

/// A key that was denied is read without the lock, while its units come back and while other keys move it to other
/// slots: it is granted what is there, and no other key's state is taken for its own.
#[test]
fn a_key_read_without_the_lock_is_never_seen_half_written() {
    explore(|| {
        let store = store(100);
        let limit = limit(Algorithm::TokenBucket, "1000000/day");
        let all = |key: &str, op: Op| {
            let mut draws = Draws::new();
            draws.push(key.into(), Scope(0), limit, op, PermitId(0));
            store.draw_now(&mut draws);
            draws.all()[0].outcome()
        };
        let everything = Op::Take(Amount::exactly(1_000_000));
        assert_eq!(all("a", everything), DrawOutcome::Granted(1_000_000));
        assert_eq!(all("a", everything), DrawOutcome::Denied);
        let taker = {
            let store = Arc::clone(&store);
            thread::spawn(move || (0..4).filter(|_| take(&store, &[("a", limit)])).count())
        };
        let others = {
            let store = Arc::clone(&store);
            thread::spawn(move || ["b", "c", "d"].iter().filter(|key| take(&store, &[(*key, limit)])).count())
        };
        all("a", Op::Refund(2));
        let granted = taker.join().unwrap();
        assert!(granted <= 2, "{granted}");
        assert_eq!(others.join().unwrap(), 3);
        let left = (0..4).filter(|_| take(&store, &[("a", limit)])).count();
        assert_eq!(granted + left, 2);
    });
}

/// Sweeps reuse the slots of limits that no state refers to, while states are written under other limits.
#[test]
fn a_reused_limit_slot_is_never_mistaken_for_its_former_limit() {
    explore(|| {
        let store = store(100);
        let sweeper = {
            let store = Arc::clone(&store);
            thread::spawn(move || (0..4).for_each(|_| store.sweep(usize::MAX)))
        };
        let users: Vec<_> = (0..2)
            .map(|user| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    for amount in 1..4_usize {
                        let limit = limit(Algorithm::TokenBucket, &format!("{amount}/day"));
                        let key = format!("{user} {amount}");
                        let granted = (0..=amount).filter(|_| take(&store, &[(&key, limit)])).count();
                        assert_eq!(granted, amount);
                        // No state refers to the limit from here on, until the other thread uses it.
                        let mut draws = Draws::new();
                        draws.push(key.as_str().into(), Scope(0), limit, Op::Reset, PermitId(0));
                        store.draw_now(&mut draws);
                    }
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        sweeper.join().unwrap();
    });
}
