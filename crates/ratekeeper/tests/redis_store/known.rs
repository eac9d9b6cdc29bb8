//! What is told without asking a server.

use crate::{connected, limit, limit_of, take};
use ratekeeper::{
    Algorithm, Align, Amount, DrawOptions, Draws, KeyRef, Leak, Micros, Op, PermitId, Scope, Span, Store,
    Zone,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};
use ratekeeper_testkit::{EngineReply, KeyEngine, Model};

fn calls(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let calls = stats.split(',').find_map(|field| field.strip_prefix("calls=")).unwrap_or("0");
    calls.parse().unwrap()
}

#[tokio::test]
async fn a_key_known_to_be_empty_costs_the_server_nothing() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("2/h")), ("a", limit("100/h"))];
    assert_eq!(take(&keys, 2).told_by(&store).await, (true, 0));
    assert_eq!(take(&keys, 1).told_by(&store).await, (false, 0));
    let before = calls(&server);
    for _ in 0..1000 {
        let said = take(&keys, 1).by(&store).await;
        assert!(said.all()[0].is_refused() && !said.all()[1].is_refused());
        assert_eq!(said.all()[1].reading().remaining(), 98, "what the other limit has left is known too");
        let wait = said.all()[0].reading().retry();
        assert!(
            matches!(wait, Some(ratekeeper::Retry::After(wait)) if wait.get() <= 1_800_000_000),
            "{wait:?}"
        );
    }
    // Where a thousand checks take longer than a second, the server is asked once more.
    assert!(calls(&server) - before <= 2, "{} calls", calls(&server) - before);
    assert!(store.counts().denied_from_memory >= 998, "{:?}", store.counts());
}

#[tokio::test]
async fn a_key_is_asked_for_again_as_soon_as_its_next_unit_is_due() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("20/s burst 1"))];
    let mut admitted = 0;
    let begun = tokio::time::Instant::now();
    while admitted < 10 {
        admitted += u32::from(take(&keys, 1).told_by(&store).await.0);
    }
    let took = begun.elapsed();
    // Nine waits of 50 ms; who polls without pause is never late by more than a call.
    assert!(took.as_millis() >= 450, "{took:?}");
    assert!(store.counts().denied_from_memory > store.counts().requests, "{:?}", store.counts());
}

#[tokio::test]
async fn what_another_node_gives_back_is_seen_within_a_second() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let keys = [("a", limit("1/h"))];
    assert!(take(&keys, 1).told_by(&one).await.0);
    assert!(!take(&keys, 1).told_by(&one).await.0);
    let clear = crate::Asked { act: Op::Clear, ..take(&keys, 1) };
    clear.by(&other).await;
    let begun = tokio::time::Instant::now();
    while !take(&keys, 1).told_by(&one).await.0 {
        assert!(begun.elapsed().as_secs() < 20, "it was never seen");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_the_same_call_gives_back_is_there_for_those_behind_it() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h"))];
    assert!(take(&keys, 1).told_by(&store).await.0);
    assert!(!take(&keys, 1).told_by(&store).await.0);
    let mut draws = ratekeeper::Draws::new();
    crate::Asked { act: Op::Give(1), ..take(&keys, 1) }.push(&mut draws);
    take(&keys, 1).push(&mut draws);
    ratekeeper::Store::draw(&store, &mut draws).await;
    assert!(crate::told(&draws, 1).0, "it had been refused a moment before");
}

/// Whether a server or the memory gave it, each answer is the law's at the time that it carries.
#[tokio::test]
async fn what_is_denied_from_memory_is_what_the_law_says_then() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    for (law, quota) in [
        (Algorithm::TokenBucket, "200/s burst 4"),
        (Algorithm::LeakyBucket(Leak::Meter), "300/s burst 3"),
        (Algorithm::LeakyBucket(Leak::Queue), "150/s burst 5"),
        (Algorithm::FixedWindow(Align::FirstHit), "5 per 20ms"),
        (Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "5 per 20ms"),
        (Algorithm::SlidingWindowCounter, "6 per 20ms"),
    ] {
        let limit = limit_of(law, quota);
        let (mut model, mut draws, before) = (Model::new(&limit), Draws::new(), store.counts());
        let key = format!("{law:?}");
        for turn in 0..500 {
            let act = Op::Take(Amount::exactly(1 + turn % 3));
            draws.clear();
            draws.push(KeyRef::from(&key), Scope(0), limit, act, PermitId::default());
            draws.set_terms(DrawOptions::EXACT);
            store.draw(&mut draws).await;
            assert_eq!(draws.failure(0..1), None);
            let (said, now) = (EngineReply::from(&draws.all()[0]), draws.all()[0].now());
            assert_eq!(said, model.act(now, &limit, act, PermitId::default()), "{limit} at {now:?}");
        }
        let known = store.counts().denied_from_memory - before.denied_from_memory;
        assert!(known > 0, "{limit}: none was denied from memory");
    }
}

/// The one thing that memory can't know: that somebody has set the server's clock forward.
#[tokio::test]
async fn a_server_that_is_set_forward_is_believed_within_a_second() {
    let server = RedisServer::setup(Brand::Redis).clock(0.0).start();
    let store = connected(&server.url()).await;
    let (keys, start) = ([("a", limit("1/h"))], Micros::new(1_700_000_000_000_000));
    server.stop_clock(start);
    assert!(take(&keys, 1).told_by(&store).await.0);
    assert!(!take(&keys, 1).told_by(&store).await.0);
    server.stop_clock(start.plus(Span::HOUR));
    let begun = tokio::time::Instant::now();
    while !take(&keys, 1).told_by(&store).await.0 {
        assert!(begun.elapsed().as_secs() < 20, "it was never believed");
        tokio::task::yield_now().await;
    }
}
