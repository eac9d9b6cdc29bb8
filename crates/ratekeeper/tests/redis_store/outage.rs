//! What holds while a server is away.

use crate::{connect, connected, limit, limit_of, take};
use ratekeeper::redis::RedisStore;
use ratekeeper::{
    Algorithm, BreakerState, Draws, FailureMode, Limiter, PermitId, Scope, Store, StoreFailure, StoreHealth,
    StoreReport,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_paused_server_costs_no_more_than_the_deadline_and_the_terms_decide() {
    let server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.ready(crate::PATIENCE).await);
    let keys = [("a", limit("10/h"))];
    assert_eq!(take(&keys, 4).within(1000).told_by(&store).await, (true, 6));
    server.pause();
    let begun = Instant::now();
    let said = take(&keys, 1).on_failure(FailureMode::Open).by(&store).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert!(said.failure(0..1).is_some() && !said.all()[0].is_decided());
    let said = take(&keys, 1).on_failure(FailureMode::Closed).by(&store).await;
    assert!(said.failure(0..1).is_some() && !said.all()[0].is_decided());
    let said = take(&keys, 1).on_failure(FailureMode::Local).by(&store).await;
    assert!(said.failure(0..1).is_some() && said.all()[0].is_decided());
    assert_eq!(said.all()[0].reading().remaining(), 5, "it goes on from what was known");
    server.resume();
    let begun = Instant::now();
    loop {
        let said = take(&keys, 1).on_failure(FailureMode::Open).by(&store).await;
        if said.failure(0..1).is_none() {
            break;
        }
        assert!(begun.elapsed() < crate::PATIENCE, "it never recovered: {:?}", store.describe());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_that_was_never_there_is_not_waited_for() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.ready(Duration::from_secs(1)).await;
    let keys = [("a", limit("3/h"))];
    take(&keys, 1).on_failure(FailureMode::Open).by(&store).await;
    take(&keys, 1).on_failure(FailureMode::Closed).by(&store).await;
    assert_eq!(store.counts().local, 0, "nothing was decided here");
    let said: Vec<_> = {
        let mut said = Vec::new();
        for _ in 0..4 {
            let draws = take(&keys, 1).by(&store).await;
            assert_eq!(draws.failure(0..1), Some(StoreFailure::Unreachable));
            said.push(!draws.all()[0].stops());
        }
        said
    };
    assert_eq!(said, [true, true, true, false], "the only node there is has the whole limit");
    assert_eq!(store.counts().local, 4);
}

#[tokio::test]
async fn draws_that_stay_here_need_no_server() {
    let mut server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("2/h"))];
    server.kill();
    for expected in [true, true, false] {
        let said = take(&keys, 1).stays_here().by(&store).await;
        assert_eq!((said.failure(0..1), !said.all()[0].stops()), (None, expected));
    }
}

#[tokio::test]
async fn draws_that_stay_here_are_charged_once_while_the_server_of_others_is_away() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.ready(Duration::from_secs(1)).await;
    let (here, there) = ([("a", limit("5/h"))], [("b", limit("100/h"))]);
    let both = |mode| {
        let mut draws = Draws::new();
        take(&here, 1).stays_here().push(&mut draws);
        let (own, other) = (draws.all()[0].terms(), take(&there, 1).on_failure(mode));
        draws.clear();
        draws.begin();
        for (keys, terms) in [(&here, own), (&there, other.terms)] {
            draws.push(keys[0].0.into(), Scope(0), keys[0].1, other.act, PermitId::default());
            draws.set_terms(terms);
        }
        draws
    };
    for left in [4, 3, 2] {
        let mut draws = both(FailureMode::Local);
        store.draw(&mut draws).await;
        assert_eq!((draws.all()[0].stops(), draws.all()[0].reading().remaining()), (false, left));
    }
    // Who is refused because the other rule fails closed pays nothing here.
    store.draw(&mut both(FailureMode::Closed)).await;
    assert_eq!(take(&here, 1).stays_here().told_by(&store).await, (true, 1));
}

#[tokio::test]
async fn a_limiter_enforces_its_share_while_the_server_is_away() {
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.ready(Duration::from_secs(1)).await;
    let limiter = Limiter::with_store("2/h", store).unwrap();
    for expected in [true, true, false] {
        assert_eq!(limiter.check("a").await.unwrap().is_allowed(), expected);
    }
    assert_eq!(
        limiter.refund("a").await.unwrap_err(),
        StoreFailure::Unreachable,
        "the store has not heard of it"
    );
    let store = connect("redis://127.0.0.1:1", Duration::from_millis(50));
    store.ready(Duration::from_secs(1)).await;
    let places = Limiter::with_store(limit_of(Algorithm::Concurrency, "1/min"), store).unwrap();
    let held = places.hold("b").await.unwrap();
    assert!(places.hold("b").await.is_err(), "the only place is taken");
    drop(held);
    assert!(places.hold("b").await.is_ok(), "and free again");
}

#[tokio::test]
async fn the_least_patient_draw_ends_the_wait() {
    let server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.ready(crate::PATIENCE).await);
    server.pause();
    let keys = [("a", limit("10/h")), ("a", limit("100/day"))];
    let mut draws = Draws::new();
    take(&keys, 1).push(&mut draws);
    let patient = take(&keys, 1).within(60_000).terms;
    draws.set_terms(patient);
    let begun = Instant::now();
    store.draw(&mut draws).await;
    assert!(
        draws.failure(0..2).is_some() && begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn draws_may_come_from_threads_and_runtimes_that_end() {
    let server = RedisServer::start();
    let store = Arc::new(connected(&server.url()).await);
    let (limit, permit) = (limit_of(Algorithm::Concurrency, "1/min"), PermitId(7));
    let shared = Arc::clone(&store);
    // It is the first that is asked of the server, and no runtime is near.
    let released = thread::spawn(move || shared.release("a".into(), Scope(0), &limit, permit));
    released.join().expect("it does not matter where a permit is dropped");
    let shared = Arc::clone(&store);
    let other = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(take(&[("b", crate::limit("5/h"))], 1).told_by(&*shared))
    });
    assert_eq!(tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap(), (true, 4));
    assert_eq!(take(&[("b", crate::limit("5/h"))], 1).told_by(&*store).await, (true, 3));
}

fn report(store: &RedisStore) -> StoreReport {
    store.health().unwrap()
}

#[tokio::test]
async fn a_server_that_refuses_is_told_of_while_it_does_and_no_longer() {
    let server = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1000/h"))];
    take(&keys, 1).told_by(&store).await;
    assert!(!report(&store).is_degraded());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).done();
    let said = take(&keys, 1).by(&store).await;
    let told = report(&store);
    assert_eq!(said.failure(0..1), Some(StoreFailure::Refused));
    assert_eq!(told.servers[0].breaker, BreakerState::Closed, "it is there and is asked");
    assert!(told.is_degraded(), "{told:?}");
    assert!(told.servers[0].trouble.as_ref().is_some_and(|trouble| trouble.contains("(OOM")), "{told:?}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).done();
    let begun = Instant::now();
    while report(&store).is_degraded() || report(&store).servers[0].trouble.is_some() {
        assert!(begun.elapsed() < crate::PATIENCE, "it is never told that it is over: {:?}", report(&store));
        take(&keys, 1).told_by(&store).await;
    }
}

#[tokio::test]
async fn reconnects_are_counted_as_they_are_made_and_never_fall() {
    let mut server = RedisServer::start();
    let store = connected(&server.url()).await;
    assert_eq!(report(&store).servers[0].reconnects, 0);
    server.kill();
    let begun = Instant::now();
    while store.is_up() {
        assert!(begun.elapsed() < crate::PATIENCE, "it is never missed");
        tokio::task::yield_now().await;
    }
    assert_eq!(report(&store).servers[0].reconnects, 0, "none was made yet");
    server.restart();
    let mut most = 0;
    while !store.is_up() {
        assert!(begun.elapsed() < crate::PATIENCE, "it is never found");
        let reconnects = report(&store).servers[0].reconnects;
        assert!(reconnects >= most, "{reconnects} after {most}");
        most = reconnects;
        tokio::task::yield_now().await;
    }
    assert!(report(&store).servers[0].reconnects >= 2, "one for each of its connections");
}
