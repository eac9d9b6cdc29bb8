//! What is told without asking a server.

use crate::{connected, limit, take};
use tollgate_testkit::servers::RedisServer;

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
            matches!(wait, Some(tollgate::Retry::After(wait)) if wait.get() <= 1_800_000_000),
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
    assert!(store.counts().denied_from_memory > store.counts().draws, "{:?}", store.counts());
}

#[tokio::test]
async fn what_another_node_gives_back_is_seen_within_a_second() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let keys = [("a", limit("1/h"))];
    assert!(take(&keys, 1).told_by(&one).await.0);
    assert!(!take(&keys, 1).told_by(&one).await.0);
    let clear = crate::Asked { act: tollgate::Act::Clear, ..take(&keys, 1) };
    clear.by(&other).await;
    let begun = tokio::time::Instant::now();
    while !take(&keys, 1).told_by(&one).await.0 {
        assert!(begun.elapsed().as_secs() < 20, "it was never seen");
        tokio::task::yield_now().await;
    }
}
