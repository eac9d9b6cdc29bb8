//! Keys spread over several servers: shards and cluster slots.

use crate::LeasedRedis;
use crate::{connected, limit, take};
use ratekeeper::{Amount, DrawOptions, Draws, KeyRef, Limit, Op, PermitId, Scope, Store, StoreFailure};
use ratekeeper_testkit::servers::{Brand, RedisServer, TestCluster};

/// Asserts that a request whose keys are likely on different servers is all or nothing.
async fn assert_all_or_nothing(store: &impl Store) {
    let keys: Vec<String> = (0..8).map(|number| format!("client {number}")).collect();
    for round in 0..3 {
        if round == 2 {
            assert!(take(&[("client 5", limit("3/day"))], 1).check(store).await.0);
        }
        let mut draws = Draws::new();
        draws.begin_group();
        for key in &keys {
            let op = Op::Take(Amount::exactly(1));
            draws.push(KeyRef::from(key), Scope(0), limit("3/day"), op, PermitId::default());
            draws.set_options(DrawOptions::EXACT);
        }
        store.draw(&mut draws).await;
        assert_eq!(draws.failure_in(0..8), None);
        let is_denied = draws.all().iter().any(ratekeeper::Draw::denies_request);
        assert_eq!(is_denied, round == 2, "{draws:?}");
    }
    // Units granted by some servers in the last round are returned.
    for key in &keys {
        let keys = [(key.as_str(), limit("3/day"))];
        let begun = tokio::time::Instant::now();
        let peek = crate::TestRequest { op: Op::Peek(Amount::exactly(1)), ..take(&keys, 1) };
        let expected = if key == "client 5" { 0 } else { 1 };
        loop {
            let (_, left) = peek.check(store).await;
            if left == expected {
                break;
            }
            assert!(begun.elapsed() < crate::TEST_TIMEOUT, "{key} has {left} left");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_request_over_several_shards_is_all_or_nothing() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let addresses: Vec<_> = servers.iter().map(RedisServer::address).collect();
    let store = connected(&format!("redis+sharded://{}", addresses.join(","))).await;
    assert_all_or_nothing(&store).await;
    let is_used =
        |server: &&RedisServer| server.command(&["INFO", "commandstats"]).field("cmdstat_evalsha").is_some();
    // The placement of eight keys depends on the ports; all land on one server once in two thousand runs.
    assert!(servers.iter().filter(is_used).count() > 1, "the keys are on several servers");
}

#[tokio::test]
async fn a_request_over_several_slots_is_all_or_nothing() {
    let cluster = TestCluster::start();
    let store = connected(&cluster.url()).await;
    assert_all_or_nothing(&store).await;
}

/// The largest batch that HTTP accepts, spread over many slots, next to a single request.
#[tokio::test]
async fn a_batch_of_ten_thousand_is_decided_without_blocking_other_requests() {
    let cluster = TestCluster::start();
    let store = connected(&cluster.url()).await;
    let names: Vec<String> = (0..10_000).map(|number| format!("client {number}")).collect();
    let mut draws = Draws::new();
    for name in &names {
        take(&[(name, limit("3/day"))], 1).push(&mut draws);
    }
    let keys = [("alice", limit("3/day"))];
    let alone = take(&keys, 1);
    let ((), beside) = tokio::join!(store.draw(&mut draws), alone.draw_from(&store));
    assert_eq!(beside.failure_in(0..1), None);
    let failed = (0..draws.len()).filter(|group| draws.group_failure(*group).is_some()).count();
    assert_eq!(failed, 0);
    assert!(draws.all().iter().all(|draw| draw.status().remaining() == 2));
}

#[tokio::test]
async fn a_dead_shard_affects_only_its_own_keys() {
    let mut servers = [RedisServer::start(), RedisServer::start()];
    let addresses: Vec<_> = servers.iter().map(RedisServer::address).collect();
    let store = connected(&format!("redis+sharded://{}", addresses.join(","))).await;
    servers[0].kill();
    let mut failed = 0;
    for number in 0..100 {
        let key = format!("client {number}");
        let keys = [(key.as_str(), limit("3/day"))];
        let draws = take(&keys, 1).draw_from(&store).await;
        failed += u32::from(draws.failure_in(0..1).is_some());
    }
    assert!((20..=80).contains(&failed), "{failed} of 100 keys were on the dead shard");
}

/// Takes one unit of each client's limits, in one call. Returns the remaining units of each client's first limit, or
/// its failure.
async fn take_each(store: &LeasedRedis, clients: &[(&str, &[Limit])]) -> Vec<Result<u32, StoreFailure>> {
    let mut draws = Draws::new();
    for (client, limits) in clients {
        draws.begin_group();
        for (scope, limit) in (0..).zip(*limits) {
            let op = Op::Take(Amount::exactly(1));
            draws.push(KeyRef::from(*client), Scope(scope), *limit, op, PermitId::default());
            draws.set_options(DrawOptions::EXACT);
        }
    }
    store.draw(&mut draws).await;
    let remaining = |group| match draws.group_failure(group) {
        None => Ok(crate::group_result(&draws, group).1),
        Some(failure) => Err(failure),
    };
    (0..draws.len()).map(remaining).collect()
}

/// While a slot migrates, a server rejects commands with several keys if only some have moved. Among requests sent in
/// one script call, this must fail only those that themselves need several keys.
#[tokio::test]
async fn requests_in_a_migrating_slot_do_not_fail_each_other() {
    let mut cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    let added = cluster.add_node();
    let store = connected(&cluster.url()).await;
    let one = [limit("9/day")];
    let two = [limit("9/day"), limit("99/day")];
    // Two clients in one slot, found by search.
    let first = "client 0".to_owned();
    let slot = cluster.slot("client%200");
    let is_in_slot = |name: &String| cluster.slot(name.replace(' ', "%20")) == slot;
    let second = (1..1_000_000).map(|number| format!("client {number}")).find(is_in_slot).unwrap();
    let clients: [(&str, &[Limit]); 2] = [(&first, &one), (&second, &one)];
    assert_eq!(take_each(&store, &clients[..1]).await, [Ok(8)]);

    // The first client's state is still on the old node; the second has no state on either node.
    let from = cluster.begin_move(slot, added);
    assert_eq!(take_each(&store, &clients).await, [Ok(7), Ok(8)]);
    assert_eq!(take_each(&store, &clients).await, [Ok(6), Ok(7)]);
    // A request that needs two keys, neither of which exists yet, still fails.
    let third = (0..).map(|number| format!("third {number}")).find(is_in_slot).unwrap();
    let [known, unknown] = [(first.as_str(), &one[..]), (third.as_str(), &two[..])];
    assert_eq!(take_each(&store, &[known, unknown]).await, [Ok(5), Err(StoreFailure::Unreachable)]);
    cluster.move_keys(slot, from, added);
    cluster.end_move(slot, from, added);
    assert_eq!(take_each(&store, &[known, unknown, clients[1]]).await, [Ok(4), Ok(8), Ok(6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn uncovered_slots_are_reported() {
    let cluster = TestCluster::setup(Brand::Redis)
        .without_replicas()
        .set("cluster-require-full-coverage", "no")
        .start();
    let store = connected(&cluster.url()).await;
    assert!(!store.health().unwrap().is_degraded());
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", "7"]).expect_ok();
    }
    let begun = tokio::time::Instant::now();
    let report = loop {
        let report = store.health().unwrap();
        if report.uncovered_slots > 0 {
            break report;
        }
        assert!(begun.elapsed() < crate::TEST_TIMEOUT, "{report:?}");
        tokio::task::yield_now().await;
    };
    assert_eq!((report.uncovered_slots, report.unavailable_servers().count()), (1, 0));
    assert!(report.is_degraded(), "all servers are up, but some slots have no owner");
}
