//! `Limiter` through its public API, as an embedding application uses it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    AcquireError, Algorithm, Amount, Capacity, Clock, Draws, KeyedRequest, Leak, Limit, Limiter, ManualClock,
    MemoryStore, Micros, Op, PermitId, Quota, Retry, Scope, Span,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

const START: Micros = Micros::new(1_700_000_000_000_000);

/// Reads tokio's time, which tests pause and advance.
#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Micros {
        START.plus(Span::from(self.0.elapsed()))
    }
}

fn tokio_limiter(algorithm: Algorithm, quota: &str) -> Limiter<MemoryStore<TokioClock>> {
    let limit = Limit::new(algorithm, quota.parse::<Quota>().unwrap()).unwrap();
    let store = MemoryStore::with(TokioClock(Instant::now()), Capacity::keys(100)).unwrap();
    Limiter::with_store(limit, store).unwrap()
}

#[test]
fn check_peek_refund_and_reset() {
    let limiter = Limiter::new("3/day").unwrap();
    assert_eq!(limiter.peek_now("k").remaining(), 3);
    assert_eq!(limiter.check_now(KeyedRequest::from("k").cost(2)).remaining(), 1);
    assert_eq!(
        limiter.peek_now(KeyedRequest::from("k").cost(2)).retry_after().map(|wait| wait.as_secs() / 3600),
        Some(7)
    );
    assert!(!limiter.check_now(KeyedRequest::from("k").cost(2)).is_allowed());
    assert_eq!(limiter.refund_now("k").remaining(), 2);
    assert_eq!(limiter.refund_now(KeyedRequest::from("k").cost(u32::MAX)).remaining(), 3);
    assert_eq!(limiter.check_now(KeyedRequest::from("k").cost(3)).remaining(), 0);
    assert_eq!(limiter.check_now(KeyedRequest::from("k").cost(4)).retry(), Some(Retry::Never));
    limiter.reset_now("k");
    assert_eq!(limiter.peek_now("k").remaining(), 3);
    assert!(limiter.check_now(KeyedRequest::from("k").cost(0)).is_allowed());
    assert_eq!(limiter.peek_now("other").remaining(), 3);
}

/// Compiles only for `Send` values: only a `Send` future can be spawned.
fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn async_calls_decide_like_the_sync_ones() {
    let limiter = Limiter::new(["3/day", "100/h"]).unwrap();
    assert_eq!(limiter.check("k").await.unwrap().remaining(), 2);
    assert_eq!(limiter.peek("k").await.unwrap().remaining(), 2);
    assert_eq!(limiter.refund("k").await.unwrap().remaining(), 3);
    assert_eq!(limiter.check(KeyedRequest::from("k").cost(3)).await.unwrap().remaining(), 0);
    assert!(!limiter.check("k").await.unwrap().is_allowed());
    limiter.reset("k").await.unwrap();
    assert!(limiter.clone().check_now("k").is_allowed());
    assert!(assert_send(limiter.check("k")).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_just_long_enough() {
    let limiter = tokio_limiter(Algorithm::TokenBucket, "10/s burst 2");
    let begun = Instant::now();
    for _ in 0..7 {
        limiter.acquire("k", Duration::from_secs(1)).await.unwrap();
    }
    // Two at once, then five at 100 ms each; the timer rounds each wait up to the next millisecond.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500) && took <= Duration::from_millis(510), "{took:?}");
}

#[test]
fn acquire_outside_a_runtime_is_an_error_and_takes_nothing() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    let limiter = Limiter::new("1/h").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let polled = pin!(limiter.acquire("k", Duration::from_secs(7200))).poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Err(AcquireError::NoRuntime))), "{polled:?}");
    }
    assert!(limiter.check_now("k").is_allowed());
}

#[tokio::test(start_paused = true)]
async fn acquire_fails_at_once_if_the_wait_exceeds_the_timeout() {
    let limiter = tokio_limiter(Algorithm::TokenBucket, "1/s");
    limiter.acquire("k", Duration::ZERO).await.unwrap();
    let begun = Instant::now();
    let denied = limiter.acquire("k", Duration::from_millis(900)).await.unwrap_err();
    assert!(
        matches!(&denied, AcquireError::Denied(decision) if decision.retry_after() == Some(Duration::from_secs(1)))
    );
    assert_eq!(denied.to_string(), "denied by token_bucket 1/s");
    assert!(limiter.acquire(KeyedRequest::from("k").cost(2), Duration::from_secs(3600)).await.is_err());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    limiter.acquire("k", Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_releases_requests_in_order() {
    let limiter = tokio_limiter(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    let begun = Instant::now();
    let waits = (0..5).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter.acquire("k", Duration::from_secs(1)).await.unwrap();
            begun.elapsed().as_millis() / 100
        })
    });
    let waits: Vec<_> = waits.collect();
    let mut turns = Vec::new();
    for wait in waits {
        turns.push(wait.await.unwrap());
    }
    assert_eq!(turns, [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn acquire_that_would_wait_too_long_takes_no_queue_slot() {
    let limiter = tokio_limiter(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    assert_eq!(limiter.check_now("k").delay(), Duration::ZERO);
    assert_eq!(limiter.check_now("k").delay(), Duration::from_millis(100));
    assert!(limiter.acquire("k", Duration::from_millis(50)).await.is_err());
    assert_eq!(limiter.check_now("k").delay(), Duration::from_millis(200));
}

/// Guards against waiting for space in the queue, only to learn then that the turn comes too late.
#[tokio::test(start_paused = true)]
async fn acquire_does_not_wait_for_a_turn_that_comes_too_late() {
    let limiter = tokio_limiter(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 3");
    limiter.check_now("k");
    limiter.check_now("k");
    let begun = Instant::now();
    assert!(limiter.acquire("k", Duration::from_millis(150)).await.is_err());
    limiter.check_now("k");
    assert!(
        limiter.acquire("k", Duration::from_millis(250)).await.is_err(),
        "space in 100 ms, but its turn comes in 300 ms"
    );
    assert_eq!(begun.elapsed(), Duration::ZERO);
    limiter.acquire("k", Duration::from_millis(310)).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

/// Guards against a sleep of zero, which the timer rounds up to a millisecond.
#[tokio::test(start_paused = true)]
async fn acquire_does_not_sleep_if_units_are_available() {
    let limiter = tokio_limiter(Algorithm::TokenBucket, "1000/s");
    let begun = Instant::now();
    for _ in 0..1000 {
        limiter.acquire("k", Duration::ZERO).await.unwrap();
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// A fixed clock that counts its reads.
#[derive(Debug, Default)]
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn now(&self) -> Micros {
        self.0.fetch_add(1, Relaxed);
        START
    }
}

#[test]
fn the_clock_is_read_once_per_call() {
    let clock = Arc::new(CountingClock::default());
    let store = || MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let reads = || clock.0.swap(0, Relaxed);
    let one = Limiter::with_store("9/s", store()).unwrap();
    one.check_now("new");
    assert_eq!(reads(), 1);
    one.check_now("new");
    assert_eq!(reads(), 1);
    let three = Limiter::with_store(["9/s", "9/min", "9/h"], store()).unwrap();
    three.check_now("new");
    assert_eq!(reads(), 1);
    three.peek_now("new");
    assert_eq!(reads(), 1);
    let mut draws = Draws::new();
    for key in ["a", "b", "c"].iter().cycle().take(100) {
        draws.begin_group();
        draws.push((*key).into(), Scope(0), one.limits()[0], Op::Take(Amount::exactly(1)), PermitId(0));
    }
    one.store().draw_now(&mut draws);
    assert_eq!(reads(), 1);
}

#[test]
fn dropping_a_permit_releases_it() {
    let limit = Limit::new(Algorithm::Concurrency, Quota::per_minute(2)).unwrap();
    let limiter = Limiter::new(limit).unwrap();
    let first = limiter.take_permit_now("k").unwrap();
    let second = limiter.take_permit_now("k").unwrap();
    assert_eq!((first.decision().remaining(), second.decision().remaining()), (1, 0));
    let denied = limiter.take_permit_now("k").unwrap_err();
    assert!(denied.retry_after().is_some_and(|wait| wait <= Duration::from_secs(60)));
    let moved = std::thread::spawn(move || drop(first));
    moved.join().unwrap();
    let third = limiter.take_permit_now("k").unwrap();
    assert!(limiter.take_permit_now("k").is_err());
    drop((second, third));
    assert_eq!(limiter.peek_now("k").remaining(), 2);
}

#[test]
fn releasing_an_expired_permit_releases_no_other() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let limiter =
        Limiter::with_store(Limit::new(Algorithm::Concurrency, Quota::per_minute(1)).unwrap(), store)
            .unwrap();
    let expired = limiter.take_permit_now("k").unwrap();
    clock.advance(Span::MINUTE);
    let held = limiter.take_permit_now("k").unwrap();
    drop(expired);
    assert!(limiter.take_permit_now("k").is_err(), "the permit is still held");
    drop(held);
    assert!(limiter.take_permit_now("k").is_ok());
}

#[tokio::test]
async fn a_permit_and_a_rate_are_taken_together_or_not_at_all() {
    let limits = vec![
        Limit::new(Algorithm::Concurrency, Quota::per_minute(1)).unwrap(),
        Limit::new(Algorithm::TokenBucket, "2/day".parse().unwrap()).unwrap(),
    ];
    let limiter = Limiter::new(limits).unwrap();
    let permit = limiter.take_permit("k").await.unwrap();
    assert!(limiter.take_permit("k").await.is_err());
    drop(permit);
    drop(limiter.take_permit("k").await.unwrap());
    let denied = limiter.take_permit_now("k").unwrap_err();
    assert_eq!(denied.index(), Some(1), "the permit is free again, the rate is exhausted");
}

/// The store's clock decides, not the caller's: callers pass no time.
#[test]
fn an_advanced_clock_is_seen_at_the_next_check() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let limiter = Limiter::with_store("1/min", store).unwrap();
    assert!(limiter.check_now("k").is_allowed());
    assert_eq!(limiter.peek_now("k").reset_at(), Some(START.plus(Span::MINUTE)));
    clock.advance(Span::MINUTE);
    assert!(limiter.check_now("k").is_allowed());
}
