//! Decisions while a server is down.

use crate::LeasedRedis;
use crate::{connect, connected, limit, limit_of, take};
use ratekeeper::{
    Algorithm, BreakerState, Draws, FailureMode, LendingStore, Limiter, PermitId, Scope, Store, StoreFailure,
    StoreReport,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_paused_server_costs_no_more_than_the_deadline_and_the_failure_mode_decides() {
    let server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.store().ready(crate::TEST_TIMEOUT).await);
    let keys = [("a", limit("10/h"))];
    assert_eq!(take(&keys, 4).within_ms(1000).check(&store).await, (true, 6));
    server.pause();
    let begun = Instant::now();
    let draws = take(&keys, 1).on_failure(FailureMode::Open).draw_from(&store).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert!(draws.failure_in(0..1).is_some() && !draws.all()[0].is_decided());
    let draws = take(&keys, 1).on_failure(FailureMode::Closed).draw_from(&store).await;
    assert!(draws.failure_in(0..1).is_some() && !draws.all()[0].is_decided());
    let draws = take(&keys, 1).on_failure(FailureMode::Local).draw_from(&store).await;
    assert!(draws.failure_in(0..1).is_some() && draws.all()[0].is_decided());
    assert_eq!(draws.all()[0].status().remaining(), 5, "it continues from the last known state");
    server.resume();
    let begun = Instant::now();
    loop {
        let draws = take(&keys, 1).on_failure(FailureMode::Open).draw_from(&store).await;
        if draws.failure_in(0..1).is_none() {
            break;
        }
        assert!(
            begun.elapsed() < crate::TEST_TIMEOUT,
            "the store never recovered: {:?}",
            store.store().health()
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_that_was_never_up_is_not_waited_for() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.store().ready(Duration::from_secs(1)).await;
    let keys = [("a", limit("3/h"))];
    take(&keys, 1).on_failure(FailureMode::Open).draw_from(&store).await;
    take(&keys, 1).on_failure(FailureMode::Closed).draw_from(&store).await;
    assert_eq!(store.counts().decided_locally, 0, "nothing was decided locally");
    let allowed: Vec<_> = {
        let mut allowed = Vec::new();
        for _ in 0..4 {
            let draws = take(&keys, 1).draw_from(&store).await;
            assert_eq!(draws.failure_in(0..1), Some(StoreFailure::Unreachable));
            allowed.push(!draws.all()[0].denies_request());
        }
        allowed
    };
    assert_eq!(allowed, [true, true, true, false], "a single node has the whole limit");
    assert_eq!(store.counts().decided_locally, 4);
}

#[tokio::test]
async fn local_draws_need_no_server() {
    let mut server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("2/h"))];
    server.kill();
    for expected in [true, true, false] {
        let draws = take(&keys, 1).local().draw_from(&store).await;
        assert_eq!((draws.failure_in(0..1), !draws.all()[0].denies_request()), (None, expected));
    }
}

#[tokio::test]
async fn local_draws_are_charged_once_while_the_server_is_down() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.store().ready(Duration::from_secs(1)).await;
    let (local, remote) = ([("a", limit("5/h"))], [("b", limit("100/h"))]);
    let both = |mode| {
        let mut draws = Draws::new();
        take(&local, 1).local().push(&mut draws);
        let (own, other) = (draws.all()[0].options(), take(&remote, 1).on_failure(mode));
        draws.clear();
        draws.begin_group();
        for (keys, options) in [(&local, own), (&remote, other.options)] {
            draws.push(keys[0].0.into(), Scope(0), keys[0].1, other.op, PermitId::default());
            draws.set_options(options);
        }
        draws
    };
    for left in [4, 3, 2] {
        let mut draws = both(FailureMode::Local);
        store.draw(&mut draws).await;
        assert_eq!((draws.all()[0].denies_request(), draws.all()[0].status().remaining()), (false, left));
    }
    // A request denied because the other rule fails closed is not charged locally.
    store.draw(&mut both(FailureMode::Closed)).await;
    assert_eq!(take(&local, 1).local().check(&store).await, (true, 1));
}

#[tokio::test]
async fn a_limiter_enforces_its_share_while_the_server_is_down() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.store().ready(Duration::from_secs(1)).await;
    let limiter = Limiter::with_store("2/h", store).unwrap();
    for expected in [true, true, false] {
        assert_eq!(limiter.check("a").await.unwrap().is_allowed(), expected);
    }
    assert_eq!(limiter.refund("a").await.unwrap_err(), StoreFailure::Unreachable, "a refund needs the store");
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.store().ready(Duration::from_secs(1)).await;
    let permits = Limiter::with_store(limit_of(Algorithm::Concurrency, "1/min"), store).unwrap();
    let held = permits.take_permit("b").await.unwrap();
    assert!(permits.take_permit("b").await.is_err(), "the only permit is taken");
    drop(held);
    assert!(permits.take_permit("b").await.is_ok(), "it is free again");
}

#[tokio::test]
async fn the_shortest_deadline_of_a_request_applies() {
    let server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.store().ready(crate::TEST_TIMEOUT).await);
    server.pause();
    let keys = [("a", limit("10/h")), ("a", limit("100/day"))];
    let mut draws = Draws::new();
    take(&keys, 1).push(&mut draws);
    let longer = take(&keys, 1).within_ms(60_000).options;
    draws.set_options(longer);
    let begun = Instant::now();
    store.draw(&mut draws).await;
    assert!(
        draws.failure_in(0..2).is_some() && begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn draws_may_come_from_short_lived_threads_and_runtimes() {
    let server = RedisServer::start();
    let store = Arc::new(connected(&server.url()).await);
    let (limit, permit) = (limit_of(Algorithm::Concurrency, "1/min"), PermitId(7));
    let shared = Arc::clone(&store);
    // The first call to the server comes from a thread without a runtime.
    let released = thread::spawn(move || shared.release("a".into(), Scope(0), &limit, permit));
    released.join().expect("a permit can be dropped on any thread");
    let shared = Arc::clone(&store);
    let other = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(take(&[("b", crate::limit("5/h"))], 1).check(&*shared))
    });
    assert_eq!(tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap(), (true, 4));
    assert_eq!(take(&[("b", crate::limit("5/h"))], 1).check(&*store).await, (true, 3));
}

fn report(store: &LeasedRedis) -> StoreReport {
    store.health().unwrap()
}

#[tokio::test]
async fn a_server_error_is_reported_only_while_it_lasts() {
    let server = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1000/h"))];
    take(&keys, 1).check(&store).await;
    assert!(!report(&store).is_degraded());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).expect_ok();
    let draws = take(&keys, 1).draw_from(&store).await;
    let failing = report(&store);
    assert_eq!(draws.failure_in(0..1), Some(StoreFailure::StoreError));
    assert_eq!(failing.servers[0].breaker, BreakerState::Closed, "the server is up and is called");
    assert!(failing.is_degraded(), "{failing:?}");
    assert!(failing.servers[0].problem.as_ref().is_some_and(|error| error.contains("(OOM")), "{failing:?}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).expect_ok();
    let begun = Instant::now();
    while report(&store).is_degraded() || report(&store).servers[0].problem.is_some() {
        assert!(begun.elapsed() < crate::TEST_TIMEOUT, "the error is never cleared: {:?}", report(&store));
        take(&keys, 1).check(&store).await;
    }
}

#[tokio::test]
async fn the_reconnect_counter_is_exact_and_monotonic() {
    let mut server = RedisServer::start();
    let store = connected(&server.url()).await;
    assert_eq!(report(&store).servers[0].reconnects, 0);
    server.kill();
    let begun = Instant::now();
    while store.store().is_up() {
        assert!(begun.elapsed() < crate::TEST_TIMEOUT, "the outage is never noticed");
        tokio::task::yield_now().await;
    }
    assert_eq!(report(&store).servers[0].reconnects, 0, "none was made yet");
    server.restart();
    let mut most = 0;
    while !store.store().is_up() {
        assert!(begun.elapsed() < crate::TEST_TIMEOUT, "the server is never reconnected");
        let reconnects = report(&store).servers[0].reconnects;
        assert!(reconnects >= most, "{reconnects} after {most}");
        most = reconnects;
        tokio::task::yield_now().await;
    }
    assert!(report(&store).servers[0].reconnects >= 2, "one per connection");
}
