//! `Limiter` under contention: real threads and the system clock.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{Decision, KeyedRequest, LimitStatus, Limiter, Span};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Takes the burst, lets four threads take for a second, then takes until the first denial. Returns the number of units
/// granted and the time that passed on the store's clock.
fn take_concurrently(limiter: &Limiter, key: &str, burst: u32) -> (u64, Span) {
    let granted = AtomicU64::new(burst.into());
    let time = |decision: &Decision| decision.status().map(LimitStatus::decided_at).unwrap();
    // All at once: a nearly full bucket would overflow while the threads are starting.
    let first = limiter.check_now(KeyedRequest::from(key).cost(burst));
    assert!(first.is_allowed());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut own = 0;
                loop {
                    let decision = limiter.check_now(key);
                    own += u64::from(decision.is_allowed());
                    if time(&decision).since(time(&first)) >= Span::SECOND {
                        break;
                    }
                }
                granted.fetch_add(own, Relaxed);
            });
        }
    });
    let mut granted = granted.into_inner();
    loop {
        let decision = limiter.check_now(key);
        if !decision.is_allowed() {
            return (granted, time(&decision).since(time(&first)));
        }
        granted += 1;
    }
}

/// The bursts are half a second of the rate: no bucket overflows if the scheduler stalls for less than that.
#[test]
fn four_threads_are_granted_the_burst_and_the_rate_to_the_unit() {
    let limiter = Limiter::new("10000/s burst 5000").unwrap();
    let (granted, took) = take_concurrently(&limiter, "k", 5_000);
    let most = 5_000 + 10_000 * took.get() / 1_000_000;
    assert!(granted <= most && granted + 1 >= most, "{granted} granted, expected {most} or one less");
}

#[test]
fn four_threads_stay_within_several_limits() {
    let limiter = Limiter::new(["20000/s burst 10000", "5000/s burst 2500"]).unwrap();
    let (granted, took) = take_concurrently(&limiter, "k", 2_500);
    let most = 2_500 + 5_000 * took.get() / 1_000_000;
    assert!(granted <= most && granted + 2 >= most, "{granted} granted, expected {most} or two less");
}

#[test]
fn threads_on_many_keys_with_concurrent_sweeps_lose_no_unit() {
    let limiter = Limiter::new("7/day").unwrap();
    let granted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (limiter, granted) = (&limiter, &granted);
            scope.spawn(move || {
                let mut own = 0;
                for turn in 0..200_000_u64 {
                    let key = (turn * 7919 + thread * 104_729) % 5_000;
                    own += u64::from(limiter.check_now(&format!("key {key}")).is_allowed());
                    if turn.is_multiple_of(1_000) {
                        limiter.store().sweep(1);
                    }
                }
                granted.fetch_add(own, Relaxed);
            });
        }
    });
    assert_eq!(granted.into_inner(), 7 * 5_000);
    assert_eq!(limiter.store().stats().keys, 5_000);
}
