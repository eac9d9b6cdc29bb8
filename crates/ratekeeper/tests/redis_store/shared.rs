//! Several nodes, one answer.

use crate::{PATIENCE, connected, limit, limit_of, take, told};
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
        assert_eq!(take(&keys, 3).told_by(&one).await, (true, 7));
        assert_eq!(take(&keys, 3).told_by(&other).await, (true, 4));
        assert_eq!(take(&keys, 5).told_by(&one).await, (false, 4), "all or nothing");
        assert_eq!(take(&keys, 4).told_by(&other).await, (true, 0));
        let said = take(&keys, 1).by(&one).await;
        assert_eq!(said.all().iter().map(|draw| draw.reading().remaining()).collect::<Vec<_>>(), [0, 90]);
    }
}

#[tokio::test]
async fn every_law_is_shared() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    for law in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Modest),
    ] {
        let keys = [(law.name(), limit_of(law, "3/day"))];
        let keys = match law {
            Algorithm::FixedWindow(Align::FirstHit) => [("first hit", keys[0].1)],
            _ => keys,
        };
        for (store, left) in [(&one, 2), (&other, 1), (&one, 0)] {
            assert_eq!(take(&keys, 1).told_by(store).await, (true, left), "{law:?}");
        }
        assert!(!take(&keys, 1).told_by(&other).await.0, "{law:?}");
        let back = crate::Asked { act: Op::Give(2), ..take(&keys, 1) };
        assert_eq!(back.told_by(&one).await, (true, 2), "{law:?}");
        let look = crate::Asked { act: Op::Look(Amount::exactly(2)), ..take(&keys, 1) };
        assert_eq!(look.told_by(&other).await, (true, 2), "{law:?}");
        let clear = crate::Asked { act: Op::Clear, ..take(&keys, 1) };
        assert_eq!(clear.told_by(&other).await, (true, 3), "{law:?}");
        assert_eq!(look.told_by(&one).await, (true, 3), "{law:?}");
    }
}

#[tokio::test]
async fn a_change_of_quota_keeps_what_is_left() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let (before, after) = ([("a", limit("10/day"))], [("a", limit("100/day"))]);
    assert_eq!(take(&before, 4).told_by(&one).await, (true, 6));
    assert_eq!(take(&after, 1).told_by(&other).await, (true, 5), "six were left");
    assert_eq!(take(&before, 1).told_by(&one).await, (true, 4), "a node with the old rules goes on");
    assert_eq!(take(&after, 1).told_by(&other).await, (true, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_several_nodes_gets_what_there_is_and_no_more() {
    let server = RedisServer::start();
    let stores = [Arc::new(connected(&server.url()).await), Arc::new(connected(&server.url()).await)];
    let mut crowd = tokio::task::JoinSet::new();
    for client in 0..64_usize {
        let store = Arc::clone(&stores[client % 2]);
        crowd.spawn(async move {
            let keys = [("hot", limit("1000/day"))];
            let mut admitted = 0;
            for _ in 0..50 {
                admitted += u32::from(take(&keys, 1).told_by(&*store).await.0);
            }
            admitted
        });
    }
    let admitted: u32 = crowd.join_all().await.into_iter().sum();
    assert_eq!(admitted, 1000);
    let coalesced: u64 = stores.iter().map(|store| store.counts().coalesced).sum();
    assert!(coalesced > 0, "requests for one key travel as one: {:?}", stores[0].counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_places_are_held_at_once_than_there_are() {
    const PLACES: usize = 10;
    let server = RedisServer::start();
    let limit = limit_of(Algorithm::Concurrency, &format!("{PLACES}/min"));
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(Limiter::with_store(limit, connected(&server.url()).await).unwrap());
    }
    // Counted up after a place was given and down before it is given back: never more than are held.
    let (held, most, all) = (Arc::default(), Arc::default(), Arc::default());
    let mut crowd = tokio::task::JoinSet::new();
    for client in 0..64_usize {
        let node = nodes[client % 4].clone();
        let (held, most): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::clone(&held), Arc::clone(&most));
        let all: Arc<AtomicUsize> = Arc::clone(&all);
        crowd.spawn(async move {
            while all.load(Relaxed) < 2000 {
                let Ok(permit) = node.hold("hot").await else { continue };
                all.fetch_add(1, Relaxed);
                most.fetch_max(held.fetch_add(1, SeqCst) + 1, Relaxed);
                // What it is held for.
                tokio::time::sleep(Duration::from_millis(5)).await;
                held.fetch_sub(1, SeqCst);
                drop(permit);
            }
        });
    }
    crowd.join_all().await;
    assert_eq!(most.load(Relaxed), PLACES, "all of them are used, and no more");
    // Those that were given back last are still on their way.
    let is_free = async {
        while nodes[0].peek(KeyedRequest::from("hot").cost(10)).await.is_ok_and(|said| !said.is_allowed()) {}
    };
    tokio::time::timeout(PATIENCE, is_free).await.expect("every place is free again");
}

#[tokio::test]
async fn requests_of_one_call_are_decided_in_order() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("10/day"))];
    let mut draws = Draws::new();
    // What is alike travels as one, but not past what is not.
    for units in [1, 1, 6, 1, 1, 1] {
        take(&keys, units).push(&mut draws);
    }
    store.draw(&mut draws).await;
    let said: Vec<_> = (0..draws.len()).map(|group| told(&draws, group)).collect();
    assert_eq!(said, [(true, 9), (true, 8), (true, 2), (true, 1), (true, 0), (false, 0)]);
}
