//! Several nodes that share one state.

use crate::{TEST_TIMEOUT, connected, group_result, limit, limit_of, take};
use ratekeeper::{Algorithm, Align, Amount, Draws, KeyedRequest, Leak, Limiter, LogSize, Op, Store, Zone};
use ratekeeper_testkit::servers::{Brand, RedisServer};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

#[tokio::test]
async fn nodes_draw_from_the_same_limits() {
    for brand in [Brand::Redis, Brand::Valkey] {
        let server = RedisServer::setup(brand).start();
        let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
        let keys = [("a", limit("10/h")), ("a", limit("100/h"))];
        assert_eq!(take(&keys, 3).check(&one).await, (true, 7));
        assert_eq!(take(&keys, 3).check(&other).await, (true, 4));
        assert_eq!(take(&keys, 5).check(&one).await, (false, 4), "all or nothing");
        assert_eq!(take(&keys, 4).check(&other).await, (true, 0));
        let draws = take(&keys, 1).draw_from(&one).await;
        assert_eq!(draws.all().iter().map(|draw| draw.status().remaining()).collect::<Vec<_>>(), [0, 90]);
    }
}

#[tokio::test]
async fn every_algorithm_is_shared() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Standard),
    ] {
        let keys = [(algorithm.name(), limit_of(algorithm, "3/day"))];
        let keys = match algorithm {
            Algorithm::FixedWindow(Align::FirstHit) => [("first hit", keys[0].1)],
            _ => keys,
        };
        for (store, left) in [(&one, 2), (&other, 1), (&one, 0)] {
            assert_eq!(take(&keys, 1).check(store).await, (true, left), "{algorithm:?}");
        }
        assert!(!take(&keys, 1).check(&other).await.0, "{algorithm:?}");
        let refund = crate::TestRequest { op: Op::Refund(2), ..take(&keys, 1) };
        assert_eq!(refund.check(&one).await, (true, 2), "{algorithm:?}");
        let peek = crate::TestRequest { op: Op::Peek(Amount::exactly(2)), ..take(&keys, 1) };
        assert_eq!(peek.check(&other).await, (true, 2), "{algorithm:?}");
        let reset = crate::TestRequest { op: Op::Reset, ..take(&keys, 1) };
        assert_eq!(reset.check(&other).await, (true, 3), "{algorithm:?}");
        assert_eq!(peek.check(&one).await, (true, 3), "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_change_of_quota_keeps_the_remaining_units() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let (before, after) = ([("a", limit("10/day"))], [("a", limit("100/day"))]);
    assert_eq!(take(&before, 4).check(&one).await, (true, 6));
    assert_eq!(take(&after, 1).check(&other).await, (true, 5), "six were left");
    assert_eq!(take(&before, 1).check(&one).await, (true, 4), "a node with the old rules goes on");
    assert_eq!(take(&after, 1).check(&other).await, (true, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_several_nodes_get_the_whole_limit_and_no_more() {
    let server = RedisServer::start();
    let stores = [Arc::new(connected(&server.url()).await), Arc::new(connected(&server.url()).await)];
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..64_usize {
        let store = Arc::clone(&stores[client % 2]);
        clients.spawn(async move {
            let keys = [("hot", limit("1000/day"))];
            let mut admitted = 0;
            for _ in 0..50 {
                admitted += u32::from(take(&keys, 1).check(&*store).await.0);
            }
            admitted
        });
    }
    let admitted: u32 = clients.join_all().await.into_iter().sum();
    assert_eq!(admitted, 1000);
    let coalesced: u64 = stores.iter().map(|store| store.counts().coalesced).sum();
    assert!(coalesced > 0, "equal requests are sent once: {:?}", stores[0].counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_permits_are_held_than_the_limit_allows() {
    const PERMITS: usize = 10;
    let server = RedisServer::start();
    let limit = limit_of(Algorithm::Concurrency, &format!("{PERMITS}/min"));
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(Limiter::with_store(limit, connected(&server.url()).await).unwrap());
    }
    // Incremented after a permit is granted and decremented before its release: never more than are held.
    let (held, most, all) = (Arc::default(), Arc::default(), Arc::default());
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..64_usize {
        let node = nodes[client % 4].clone();
        let (held, most): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::clone(&held), Arc::clone(&most));
        let all: Arc<AtomicUsize> = Arc::clone(&all);
        clients.spawn(async move {
            while all.load(Relaxed) < 2000 {
                let Ok(permit) = node.take_permit("hot").await else { continue };
                all.fetch_add(1, Relaxed);
                most.fetch_max(held.fetch_add(1, SeqCst) + 1, Relaxed);
                // Hold the permit for a while.
                tokio::time::sleep(Duration::from_millis(5)).await;
                held.fetch_sub(1, SeqCst);
                drop(permit);
            }
        });
    }
    clients.join_all().await;
    assert_eq!(most.load(Relaxed), PERMITS, "all permits are used, and no more");
    // The last releases are still in flight.
    let is_free = async {
        while nodes[0]
            .peek(KeyedRequest::from("hot").cost(10))
            .await
            .is_ok_and(|decision| !decision.is_allowed())
        {}
    };
    tokio::time::timeout(TEST_TIMEOUT, is_free).await.expect("every permit is released");
}

#[tokio::test]
async fn requests_of_one_call_are_decided_in_order() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("10/day"))];
    let mut draws = Draws::new();
    // Equal requests are coalesced, but never reordered past a different one.
    for units in [1, 1, 6, 1, 1, 1] {
        take(&keys, units).push(&mut draws);
    }
    store.draw(&mut draws).await;
    let decisions: Vec<_> = (0..draws.len()).map(|group| group_result(&draws, group)).collect();
    assert_eq!(decisions, [(true, 9), (true, 8), (true, 2), (true, 1), (true, 0), (false, 0)]);
}
