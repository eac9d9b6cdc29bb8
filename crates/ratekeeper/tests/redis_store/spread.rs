//! Keys on several servers.

use crate::{connected, limit, take};
use ratekeeper::redis::RedisStore;
use ratekeeper::{
    Amount, DrawOptions, Draws, KeyRef, Limit, Op, PermitId, Scope, Store, StoreFailure, StoreHealth,
};
use ratekeeper_testkit::servers::{Brand, RedisServer, TestCluster};

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
            let ask = Op::Take(Amount::exactly(1));
            draws.push(KeyRef::from(key), Scope(0), limit("3/day"), ask, PermitId::default());
            draws.set_terms(DrawOptions::EXACT);
        }
        store.draw(&mut draws).await;
        assert_eq!(draws.failure(0..8), None);
        let is_refused = draws.all().iter().any(ratekeeper::Draw::stops);
        assert_eq!(is_refused, round == 2, "{draws:?}");
    }
    // What was granted by some in the last round comes back.
    for key in &keys {
        let keys = [(key.as_str(), limit("3/day"))];
        let begun = tokio::time::Instant::now();
        let look = crate::Asked { act: Op::Look(Amount::exactly(1)), ..take(&keys, 1) };
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
    let is_used =
        |server: &&RedisServer| server.command(&["INFO", "commandstats"]).field("cmdstat_evalsha").is_some();
    // Where eight keys are depends on the ports; that all are on one server happens once in two thousand times.
    assert!(servers.iter().filter(is_used).count() > 1, "the keys are on several");
}

#[tokio::test]
async fn a_request_over_several_slots_is_all_or_nothing() {
    let cluster = TestCluster::start();
    let store = connected(&cluster.url()).await;
    refuses_all_or_nothing(&store).await;
}

/// As many as a batch over HTTP may have, in as many slots as there are, beside somebody who asks for one.
#[tokio::test]
async fn a_batch_of_ten_thousand_is_decided_and_holds_nobody_up() {
    let cluster = TestCluster::start();
    let store = connected(&cluster.url()).await;
    let names: Vec<String> = (0..10_000).map(|number| format!("client {number}")).collect();
    let mut draws = Draws::new();
    for name in &names {
        take(&[(name, limit("3/day"))], 1).push(&mut draws);
    }
    let keys = [("alice", limit("3/day"))];
    let alone = take(&keys, 1);
    let ((), beside) = tokio::join!(store.draw(&mut draws), alone.by(&store));
    assert_eq!(beside.failure(0..1), None);
    let failed = (0..draws.len()).filter(|group| draws.group_failure(*group).is_some()).count();
    assert_eq!(failed, 0);
    assert!(draws.all().iter().all(|draw| draw.reading().remaining() == 2));
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

/// Asks for one unit of each client's limits, in one call, and gives what was left of each one's first; or why it is not
/// known.
async fn take_each(store: &RedisStore, clients: &[(&str, &[Limit])]) -> Vec<Result<u32, StoreFailure>> {
    let mut draws = Draws::new();
    for (client, limits) in clients {
        draws.begin();
        for (scope, limit) in (0..).zip(*limits) {
            let ask = Op::Take(Amount::exactly(1));
            draws.push(KeyRef::from(*client), Scope(scope), *limit, ask, PermitId::default());
            draws.set_terms(DrawOptions::EXACT);
        }
    }
    store.draw(&mut draws).await;
    let told = |group| match draws.group_failure(group) {
        None => Ok(crate::told(&draws, group).1),
        Some(failure) => Err(failure),
    };
    (0..draws.len()).map(told).collect()
}

/// A command of several keys is refused while some of them have gone to another server and some have not. Of requests
/// that travel together that must not refuse more than those which ask for several keys themselves.
#[tokio::test]
async fn requests_of_a_slot_that_moves_do_not_stand_in_each_others_way() {
    let mut cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    let added = cluster.add_node();
    let store = connected(&cluster.url()).await;
    let one = [limit("9/day")];
    let two = [limit("9/day"), limit("99/day")];
    // Two clients of one slot, found by trying.
    let first = "client 0".to_owned();
    let slot = cluster.slot("client%200");
    let is_near = |name: &String| cluster.slot(name.replace(' ', "%20")) == slot;
    let second = (1..1_000_000).map(|number| format!("client {number}")).find(is_near).unwrap();
    let clients: [(&str, &[Limit]); 2] = [(&first, &one), (&second, &one)];
    assert_eq!(take_each(&store, &clients[..1]).await, [Ok(8)]);

    // What the first has used is where it was; the second has used nothing yet, which is nowhere.
    let from = cluster.begin_move(slot, added);
    assert_eq!(take_each(&store, &clients).await, [Ok(7), Ok(8)]);
    assert_eq!(take_each(&store, &clients).await, [Ok(6), Ok(7)]);
    // Whoever needs two keys at once and has neither is not helped by that.
    let third = (0..).map(|number| format!("third {number}")).find(is_near).unwrap();
    let [known, unknown] = [(first.as_str(), &one[..]), (third.as_str(), &two[..])];
    assert_eq!(take_each(&store, &[known, unknown]).await, [Ok(5), Err(StoreFailure::Unreachable)]);
    cluster.move_keys(slot, from, added);
    cluster.end_move(slot, from, added);
    assert_eq!(take_each(&store, &[known, unknown, clients[1]]).await, [Ok(4), Ok(8), Ok(6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_nobody_has_are_told_of() {
    let cluster = TestCluster::setup(Brand::Redis)
        .without_replicas()
        .set("cluster-require-full-coverage", "no")
        .start();
    let store = connected(&cluster.url()).await;
    assert!(!store.health().unwrap().is_degraded());
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", "7"]).done();
    }
    let begun = tokio::time::Instant::now();
    let told = loop {
        let told = store.health().unwrap();
        if told.uncovered_slots > 0 {
            break told;
        }
        assert!(begun.elapsed() < crate::PATIENCE, "{told:?}");
        tokio::task::yield_now().await;
    };
    assert_eq!((told.uncovered_slots, told.away().count()), (1, 0));
    assert!(told.is_degraded(), "all servers are there, but not for all keys");
}
