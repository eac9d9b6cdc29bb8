//! Checks allocate nothing once warm.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    Algorithm, Amount, Draws, KeyedRequest, Limit, Limiter, LogSize, MemoryStore, Op, PermitId, Scope,
};

fn allocations(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

#[test]
fn a_warm_check_allocates_nothing() {
    let limiter = Limiter::new("1000/s").unwrap();
    let check = || {
        for _ in 0..10_000 {
            limiter.check_now(KeyedRequest::from("user:1234567:/v1/orders"));
        }
    };
    check();
    assert_eq!(allocations(check), 0);
}

#[test]
fn new_keys_allocate_nothing() {
    let limiter = Limiter::new("1000/h").unwrap();
    let keys: Vec<String> = (0..50_000).map(|key| format!("user:{key}")).collect();
    limiter.check_now("warm");
    let fill = || {
        for key in &keys {
            assert!(limiter.check_now(key).is_allowed());
        }
        limiter.store().sweep(usize::MAX);
    };
    assert_eq!(allocations(fill), 0);
    assert_eq!(limiter.store().stats().keys, 50_001);
}

#[test]
fn several_limits_allocate_nothing_once_warm() {
    let limiter = Limiter::new(["1000/s", "10000/h", "7/day"]).unwrap();
    let keys: Vec<String> = (0..100).map(|key| format!("user:{key}")).collect();
    let check = || {
        for key in keys.iter().cycle().take(10_000) {
            limiter.check_now(key);
            limiter.peek_now(key);
        }
    };
    check();
    assert_eq!(allocations(check), 0);
}

#[test]
fn awaited_checks_allocate_nothing_once_warm() {
    let limiter = Limiter::new(["1000/s", "10000/h"]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        limiter.check("k").await.unwrap();
        let mut counted = 0;
        for _ in 0..1_000 {
            let mut check = std::pin::pin!(limiter.check("k"));
            let waker = std::task::Waker::noop();
            counted += allocations(|| {
                assert!(check.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready());
            });
        }
        assert_eq!(counted, 0);
    });
}

#[test]
fn a_warm_batch_allocates_nothing() {
    let store = MemoryStore::new();
    let limit = Limit::new(Algorithm::TokenBucket, "1000/h".parse().unwrap()).unwrap();
    let keys: Vec<String> = (0..64).map(|key| format!("user:{key}")).collect();
    let mut draws = Draws::new();
    let mut batch = || {
        draws.clear();
        for key in &keys {
            draws.begin_group();
            draws.push(key.into(), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId(0));
        }
        store.draw_now(&mut draws);
    };
    batch();
    assert_eq!(allocations(batch), 0);
}

#[test]
fn a_log_that_has_grown_allocates_nothing_more() {
    let limit =
        Limit::new(Algorithm::SlidingWindowLog(LogSize::Standard), "100/day".parse().unwrap()).unwrap();
    let limiter = Limiter::new(limit).unwrap();
    let check = || {
        for _ in 0..1_000 {
            limiter.check_now("k");
        }
    };
    check();
    assert_eq!(allocations(check), 0);
}
