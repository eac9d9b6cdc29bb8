//! Several limits at once: all or nothing, and the one that binds is named.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::sync::Arc;
use tollgate::{
    Act, Align, Answer, Ask, Cap, Decision, Draws, Key, Law, Leak, Limit, Limiter, LogSize, ManualClock,
    MemoryStore, Micros, PermitId, Quota, Retry, Scope, Span, Terms,
};
use tollgate_testkit::{Cell, Engine, Reply};

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limits() -> Vec<Limit> {
    let limit = |law, quota: &str| Limit::new(law, quota.parse::<Quota>().unwrap()).unwrap();
    vec![
        limit(Law::TokenBucket, "10/s burst 4"),
        limit(Law::LeakyBucket(Leak::Meter), "20/s burst 3"),
        limit(Law::FixedWindow(Align::FirstHit), "5/s"),
        limit(Law::SlidingWindowCounter, "6/s"),
        limit(Law::SlidingWindowLog(LogSize::Modest), "7/s"),
        limit(Law::Concurrency, "8/s"),
    ]
}

/// Random requests over a few keys and all laws, the same limit twice in a request included, against cells that are
/// asked first and told to take only if all of them agree. Some draws are shadows, which need not.
#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let draw = (0..3_usize, 0..6_usize, 0..4_u32, proptest::bool::weighted(0.2));
    let requests = vec((vec(draw, 1..6), 0..200_000_u64), 1..40);
    let limits = limits();
    let outcome = runner.run(&requests, |requests| {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(100)).unwrap();
        let mut cells = vec![Cell::default(); 18];
        let (mut draws, mut now) = (Draws::new(), START);
        for (turn, (request, wait)) in requests.iter().enumerate() {
            now = now.plus(Span::micros(*wait));
            clock.set(now);
            draws.clear();
            for (index, (key, law, units, is_shadow)) in request.iter().enumerate() {
                let permit = PermitId((turn * 100 + index) as u64);
                draws.push(
                    ["a", "b", "c"][*key].into(),
                    Scope(0),
                    limits[*law],
                    Act::Take(Ask::exactly(*units)),
                    permit,
                );
                if *is_shadow {
                    draws.set_terms(Terms { is_shadow: true, ..Terms::default() });
                }
            }
            store.draw_now(&mut draws);
            let before = cells.clone();
            let mut allowed = true;
            for (index, (key, law, units, is_shadow)) in request.iter().enumerate() {
                let permit = PermitId((turn * 100 + index) as u64);
                let cell = &mut cells[key * 6 + law];
                let reply = cell.act(now, &limits[*law], Act::Take(Ask::exactly(*units)), permit);
                allowed &= *is_shadow || reply.retry.is_none();
            }
            if !allowed {
                cells = before;
            }
            let decision = Decision::of(draws.all());
            if decision.is_allowed() != allowed {
                return Err(TestCaseError::fail(format!(
                    "{request:?} at {now:?}: allowed should be {allowed}"
                )));
            }
            for (draw, (key, law, ..)) in draws.all().iter().zip(request) {
                let expected =
                    cells[key * 6 + law].act(now, &limits[*law], Act::Look(Ask::PEEK), PermitId(0));
                let is_last = draws
                    .all()
                    .iter()
                    .rev()
                    .find(|other| draws.key(other) == draws.key(draw) && other.limit() == draw.limit());
                let reply = Reply::from(draw);
                let speaks_of_now = !allowed && reply.answer == Answer::Spared
                    || allowed && is_last.is_some_and(|last| std::ptr::eq(last, draw));
                if speaks_of_now && (reply.remaining, reply.reset) != (expected.remaining, expected.reset) {
                    return Err(TestCaseError::fail(format!(
                        "{draw:?} says {reply:?}, but there is {expected:?}"
                    )));
                }
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn the_binding_limit_is_the_longest_wait_or_the_least_left() {
    let clock = Arc::new(ManualClock::new(START));
    let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(100)).unwrap();
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
    assert_eq!((decision.index(), decision.remaining()), (Some(2), 0), "4/min is refused for longest");
    assert_eq!(decision.limit(), Some(&limiter.limits()[2]));
}

#[test]
fn never_outweighs_every_wait() {
    let limiter = Limiter::new(["1/month", "100/s burst 2"]).unwrap();
    limiter.check_now("k");
    let decision = limiter.check_now(tollgate::Request::from("k").cost(3));
    assert_eq!(
        (decision.index(), decision.retry(), decision.retry_after()),
        (Some(0), Some(Retry::Never), None)
    );
    let decision = limiter.check_now(tollgate::Request::from("k").cost(1));
    assert!(decision.retry_after().is_some());
}

#[test]
fn a_batch_is_decided_as_if_its_requests_had_come_one_by_one() {
    let make = || MemoryStore::with(ManualClock::new(START), Cap::keys(1_000)).unwrap();
    let (together, apart) = (make(), make());
    let limits = limits();
    let fill = |draws: &mut Draws, request: usize| {
        for law in 0..=request % 3 {
            let key = Key::new(["tenant", &format!("{}", request % 11)]).unwrap();
            draws.push(
                key.borrow(),
                Scope(0),
                limits[(request + law) % 6],
                Act::Take(Ask::exactly(1)),
                PermitId(request as u64),
            );
        }
    };
    let mut batch = Draws::new();
    for request in 0..300 {
        batch.begin();
        fill(&mut batch, request);
    }
    together.draw_now(&mut batch);
    assert_eq!(batch.len(), 300);
    let mut refused = 0;
    for request in 0..300 {
        let mut one = Draws::new();
        fill(&mut one, request);
        apart.draw_now(&mut one);
        let (a, b) = (Decision::of(batch.group(request)), Decision::of(one.group(0)));
        assert_eq!(a, b, "request {request}");
        refused += usize::from(!a.is_allowed());
    }
    assert!(refused > 50 && refused < 250, "{refused}");
}
