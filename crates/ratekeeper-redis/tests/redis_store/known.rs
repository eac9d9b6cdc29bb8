//! Denials from the cache of remote states, without a call to the server.

use crate::{connected, limit, limit_of, take};
use ratekeeper::{
    Algorithm, Align, Amount, DrawOptions, Draws, KeyRef, Leak, Micros, Op, PermitId, Scope, Span, Store,
    Zone,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};
use ratekeeper_testkit::{EngineReply, KeyEngine, Model};

fn evalsha_calls(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let calls = stats.split(',').find_map(|field| field.strip_prefix("calls=")).unwrap_or("0");
    calls.parse().unwrap()
}

#[tokio::test]
async fn a_key_known_to_be_exhausted_is_denied_without_a_call() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("2/h")), ("a", limit("100/h"))];
    assert_eq!(take(&keys, 2).check(&store).await, (true, 0));
    assert_eq!(take(&keys, 1).check(&store).await, (false, 0));
    let before = evalsha_calls(&server);
    for _ in 0..1000 {
        let draws = take(&keys, 1).draw_from(&store).await;
        assert!(draws.all()[0].is_denied() && !draws.all()[1].is_denied());
        assert_eq!(
            draws.all()[1].status().remaining(),
            98,
            "the other limit's remaining units are cached too"
        );
        let wait = draws.all()[0].status().retry();
        assert!(
            matches!(wait, Some(ratekeeper::Retry::After(wait)) if wait.get() <= 1_800_000_000),
            "{wait:?}"
        );
    }
    // If the thousand checks take longer than a second, the server is called once more.
    assert!(evalsha_calls(&server) - before <= 2, "{} calls", evalsha_calls(&server) - before);
    assert!(store.counts().denied_from_memory >= 998, "{:?}", store.counts());
}

#[tokio::test]
async fn the_server_is_called_again_as_soon_as_the_next_unit_is_due() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("20/s burst 1"))];
    let mut admitted = 0;
    let begun = tokio::time::Instant::now();
    while admitted < 10 {
        admitted += u32::from(take(&keys, 1).check(&store).await.0);
    }
    let took = begun.elapsed();
    // Nine waits of 50 ms; a caller that polls continuously is late by at most one call.
    assert!(took.as_millis() >= 450, "{took:?}");
    assert!(store.counts().denied_from_memory > store.counts().requests, "{:?}", store.counts());
}

#[tokio::test]
async fn a_reset_by_another_node_is_seen_within_a_second() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let keys = [("a", limit("1/h"))];
    assert!(take(&keys, 1).check(&one).await.0);
    assert!(!take(&keys, 1).check(&one).await.0);
    let clear = crate::TestRequest { op: Op::Reset, ..take(&keys, 1) };
    clear.draw_from(&other).await;
    let begun = tokio::time::Instant::now();
    while !take(&keys, 1).check(&one).await.0 {
        assert!(begun.elapsed().as_secs() < 20, "the reset was never seen");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_refund_is_available_to_later_requests_of_the_same_call() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h"))];
    assert!(take(&keys, 1).check(&store).await.0);
    assert!(!take(&keys, 1).check(&store).await.0);
    let mut draws = ratekeeper::Draws::new();
    crate::TestRequest { op: Op::Refund(1), ..take(&keys, 1) }.push(&mut draws);
    take(&keys, 1).push(&mut draws);
    ratekeeper::Store::draw(&store, &mut draws).await;
    assert!(crate::group_result(&draws, 1).0, "the refund in the same call was not seen");
}

/// Every decision, from the server or from the cache, is the algorithm's at the time of the decision.
#[tokio::test]
async fn denials_from_memory_match_the_algorithm() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    for (algorithm, quota) in [
        (Algorithm::TokenBucket, "200/s burst 4"),
        (Algorithm::LeakyBucket(Leak::Meter), "300/s burst 3"),
        (Algorithm::LeakyBucket(Leak::Queue), "150/s burst 5"),
        (Algorithm::FixedWindow(Align::FirstHit), "5 per 20ms"),
        (Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "5 per 20ms"),
        (Algorithm::SlidingWindowCounter, "6 per 20ms"),
    ] {
        let limit = limit_of(algorithm, quota);
        let (mut model, mut draws, before) = (Model::new(&limit), Draws::new(), store.counts());
        let key = format!("{algorithm:?}");
        for turn in 0..500 {
            let op = Op::Take(Amount::exactly(1 + turn % 3));
            draws.clear();
            draws.push(KeyRef::from(&key), Scope(0), limit, op, PermitId::default());
            draws.set_options(DrawOptions::EXACT);
            store.draw(&mut draws).await;
            assert_eq!(draws.failure_in(0..1), None);
            let (reply, now) = (EngineReply::from(&draws.all()[0]), draws.all()[0].decided_at());
            assert_eq!(reply, model.apply(now, &limit, op, PermitId::default()), "{limit} at {now:?}");
        }
        let from_memory = store.counts().denied_from_memory - before.denied_from_memory;
        assert!(from_memory > 0, "{limit}: no draw was denied from memory");
    }
}

/// The cache cannot know that the server's clock was set forward.
#[tokio::test]
async fn a_server_clock_set_forward_is_seen_within_a_second() {
    let server = RedisServer::setup(Brand::Redis).clock(0.0).start();
    let store = connected(&server.url()).await;
    let (keys, start) = ([("a", limit("1/h"))], Micros::new(1_700_000_000_000_000));
    server.freeze_clock(start);
    assert!(take(&keys, 1).check(&store).await.0);
    assert!(!take(&keys, 1).check(&store).await.0);
    server.freeze_clock(start.plus(Span::HOUR));
    let begun = tokio::time::Instant::now();
    while !take(&keys, 1).check(&store).await.0 {
        assert!(begun.elapsed().as_secs() < 20, "the new time was never seen");
        tokio::task::yield_now().await;
    }
}
