//! Several limits at once: all or nothing, and the decision names the binding limit.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper::{
    Algorithm, Align, Amount, Capacity, Decision, Draws, Key, Leak, Limit, Limiter, LogSize, ManualClock,
    MemoryStore, Micros, Op, PermitId, Quota, Retry, Scope, Span,
};
use std::sync::Arc;

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limits() -> Vec<Limit> {
    let limit = |algorithm, quota: &str| Limit::new(algorithm, quota.parse::<Quota>().unwrap()).unwrap();
    vec![
        limit(Algorithm::TokenBucket, "10/s burst 4"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "20/s burst 3"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "5/s"),
        limit(Algorithm::SlidingWindowCounter, "6/s"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "7/s"),
        limit(Algorithm::Concurrency, "8/s"),
    ]
}

#[test]
fn the_binding_limit_has_the_longest_wait_or_the_fewest_units() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100)).unwrap();
    let limiter = Limiter::with_store(["100/s burst 5", "3/s", "4/min burst 4"], store).unwrap();
    let decision = limiter.check_now("k");
    assert_eq!((decision.index(), decision.remaining()), (Some(1), 2));
    assert!(limiter.check_now("k").is_allowed());
    assert!(limiter.check_now("k").is_allowed());
    let decision = limiter.check_now("k");
    assert!(!decision.is_allowed());
    assert_eq!((decision.index(), decision.retry()), (Some(1), Some(Retry::After(Span::micros(333_334)))));
    clock.advance(Span::SECOND);
    assert!(limiter.check_now("k").is_allowed());
    let decision = limiter.check_now("k");
    assert_eq!((decision.index(), decision.remaining()), (Some(2), 0), "4/min has the longest wait");
    assert_eq!(decision.limit(), Some(&limiter.limits()[2]));
}

#[test]
fn retry_never_outranks_every_wait() {
    let limiter = Limiter::new(["1/month", "100/s burst 2"]).unwrap();
    limiter.check_now("k");
    let decision = limiter.check_now(ratekeeper::KeyedRequest::from("k").cost(3));
    assert_eq!(
        (decision.index(), decision.retry(), decision.retry_after()),
        (Some(0), Some(Retry::Never), None)
    );
    let decision = limiter.check_now(ratekeeper::KeyedRequest::from("k").cost(1));
    assert!(decision.retry_after().is_some());
}

#[test]
fn a_batch_is_decided_as_if_its_requests_had_come_one_by_one() {
    let make = || MemoryStore::with(ManualClock::new(START), Capacity::keys(1_000)).unwrap();
    let (together, apart) = (make(), make());
    let limits = limits();
    let fill = |draws: &mut Draws, request: usize| {
        for offset in 0..=request % 3 {
            let key = Key::new(["tenant", &format!("{}", request % 11)]).unwrap();
            draws.push(
                key.borrow(),
                Scope(0),
                limits[(request + offset) % 6],
                Op::Take(Amount::exactly(1)),
                PermitId(request as u64),
            );
        }
    };
    let mut batch = Draws::new();
    for request in 0..300 {
        batch.begin_group();
        fill(&mut batch, request);
    }
    together.draw_now(&mut batch);
    assert_eq!(batch.len(), 300);
    let mut denied = 0;
    for request in 0..300 {
        let mut one = Draws::new();
        fill(&mut one, request);
        apart.draw_now(&mut one);
        let (a, b) = (Decision::from_group(batch.group(request)), Decision::from_group(one.group(0)));
        assert_eq!(a, b, "request {request}");
        denied += usize::from(!a.is_allowed());
    }
    assert!(denied > 50 && denied < 250, "{denied}");
}
