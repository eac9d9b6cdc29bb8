//! Keys on several servers.

use crate::{connected, limit, take};
use tollgate::{Act, Ask, Draws, KeyRef, PermitId, Scope, Store};
use tollgate_testkit::servers::{Cluster, RedisServer};

/// A request whose keys are likely to be on different servers is still all or nothing.
async fn refuses_all_or_nothing(store: &impl Store) {
    let keys: Vec<String> = (0..8).map(|number| format!("client {number}")).collect();
    for round in 0..3 {
        if round == 2 {
            assert!(take(&[("client 5", limit("3/day"))], 1).told_by(store).await.0);
        }
        let mut draws = Draws::new();
        draws.begin();
        for key in &keys {
            let ask = Act::Take(Ask::exactly(1));
            draws.push(KeyRef::from(key), Scope(0), limit("3/day"), ask, PermitId::default());
        }
        store.draw(&mut draws).await;
        assert_eq!(draws.failure(0..8), None);
        let is_refused = draws.all().iter().any(tollgate::Draw::stops);
        assert_eq!(is_refused, round == 2, "{draws:?}");
    }
    // What was granted by some in the last round comes back.
    for key in &keys {
        let keys = [(key.as_str(), limit("3/day"))];
        let begun = tokio::time::Instant::now();
        let look = crate::Asked { act: Act::Look(Ask::exactly(1)), ..take(&keys, 1) };
        let expected = if key == "client 5" { 0 } else { 1 };
        loop {
            let (_, left) = look.told_by(store).await;
            if left == expected {
                break;
            }
            assert!(begun.elapsed() < crate::PATIENCE, "{key} has {left} left");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_request_over_several_shards_is_all_or_nothing() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let addresses: Vec<_> = servers.iter().map(RedisServer::address).collect();
    let store = connected(&format!("redis+sharded://{}", addresses.join(","))).await;
    refuses_all_or_nothing(&store).await;
    assert!(servers.iter().all(|server| !server.info("cmdstat_evalsha").is_empty()), "all have keys");
}

#[tokio::test]
async fn a_request_over_several_slots_is_all_or_nothing() {
    let cluster = Cluster::start();
    let store = connected(&cluster.url()).await;
    refuses_all_or_nothing(&store).await;
}

#[tokio::test]
async fn one_dead_shard_leaves_the_keys_of_others_alone() {
    let mut servers = [RedisServer::start(), RedisServer::start()];
    let addresses: Vec<_> = servers.iter().map(RedisServer::address).collect();
    let store = connected(&format!("redis+sharded://{}", addresses.join(","))).await;
    servers[0].kill();
    let mut failed = 0;
    for number in 0..100 {
        let key = format!("client {number}");
        let keys = [(key.as_str(), limit("3/day"))];
        let said = take(&keys, 1).by(&store).await;
        failed += u32::from(said.failure(0..1).is_some());
    }
    assert!((20..=80).contains(&failed), "{failed} of 100 keys were on the dead shard");
}
