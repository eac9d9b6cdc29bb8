//! What holds while a server is away.

use crate::{connect, connected, limit, take};
use std::time::Duration;
use tokio::time::Instant;
use tollgate::redis::RedisStore;
use tollgate::{BreakerState, Failure, FailureMode, StoreHealth, StoreReport};
use tollgate_testkit::servers::{Brand, RedisServer};

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
            assert_eq!(draws.failure(0..1), Some(Failure::Unreachable));
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
    assert_eq!(said.failure(0..1), Some(Failure::Refused));
    assert_eq!(told.servers[0].breaker, BreakerState::Closed, "it is there and is asked");
    assert!(told.is_degraded(), "{told:?}");
    assert!(told.servers[0].trouble.as_ref().is_some_and(|trouble| trouble.starts_with("OOM")), "{told:?}");
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
