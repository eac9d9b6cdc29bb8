//! Leases: nodes take units in advance, make few store calls, and never exceed the limit together.

use crate::LeasedRedis;
use crate::{TestRequest, connect, connected, limit, limit_of, take};
use ratekeeper::{
    Algorithm, Align, Amount, Consistency, DrawOptions, DrawOutcome, Draws, FailureMode, Leak, Limit, Op,
    PermitId, Scope, Store, StoreFailure, Zone,
};
use ratekeeper_testkit::servers::{RedisServer, TestCluster};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::task::JoinSet;

const LEASED: DrawOptions = DrawOptions { consistency: Consistency::Leased, ..DrawOptions::EXACT };

fn peek<'a>(keys: &'a [(&'a str, Limit)], units: u32) -> TestRequest<'a> {
    TestRequest { op: Op::Peek(Amount::exactly(units)), ..take(keys, units).leased() }
}

/// Runs `tasks` tasks, spread over the nodes, that each draw one hot key `times` times. Returns the units granted.
async fn draw_concurrently(nodes: &[Arc<LeasedRedis>], limit: Limit, tasks: u32, times: u32) -> u32 {
    let granted = Arc::new(AtomicU32::new(0));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (store, granted) = (Arc::clone(&nodes[task as usize % nodes.len()]), Arc::clone(&granted));
        set.spawn(async move {
            for _ in 0..times {
                let (is_granted, _) = take(&[("hot", limit)], 1).leased().check(&*store).await;
                granted.fetch_add(u32::from(is_granted), Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    set.join_all().await;
    granted.load(Relaxed)
}

/// Draws a key until its lease has unspent units. Returns the number of units drawn.
async fn draw_until_leased(store: &LeasedRedis, keys: &[(&str, Limit)]) -> u32 {
    for drawn in 1..5_000 {
        assert!(take(keys, 1).leased().within_ms(5000).check(store).await.0);
        let leases = store.counts().leases;
        if drawn >= 100 && leases.lent > leases.spent + 10 {
            return drawn;
        }
    }
    panic!("no units were lent: {:?}", store.counts());
}

#[tokio::test]
async fn a_busy_key_is_decided_from_its_lease() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1000000/h"))];
    for left in (990_000..1_000_000).rev() {
        let (is_granted, remaining) = take(&keys, 1).leased().check(&store).await;
        // The bucket refills a little meanwhile.
        let expected = left..=left + 30_000;
        assert!(is_granted && expected.contains(&remaining), "{remaining} remaining, expected {expected:?}");
    }
    let counts = store.counts();
    assert!(counts.leases.granted > 9_800, "{counts:?}");
    assert!(counts.requests + counts.leases.renewals < 200, "{counts:?}");
    assert!(counts.leases.spent <= counts.leases.lent, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_together_get_the_whole_limit_and_no_more() {
    let wall = Algorithm::FixedWindow(Align::WallClock(Zone::UTC));
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::LeakyBucket(Leak::Meter), wall, Algorithm::SlidingWindowCounter]
    {
        let server = RedisServer::start();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Arc::new(connected(&server.url()).await));
        }
        let quota = if algorithm == wall || algorithm == Algorithm::SlidingWindowCounter {
            "2000/month"
        } else {
            "20/h burst 2000"
        };
        let limit = limit_of(algorithm, quota);
        let mut granted = draw_concurrently(&nodes, limit, 24, 150).await;
        let leases: Vec<_> = nodes.iter().map(|node| node.counts().leases).collect();
        assert!(granted >= 1_800, "{algorithm:?}: {granted} were granted, {leases:?}");
        // A node whose tasks finished first may have unspent units.
        for node in &nodes {
            node.leave().await;
        }
        // Those that were denied remember it for up to a second, so a new node asks for what was returned.
        let last = connected(&server.url()).await;
        while take(&[("hot", limit)], 1).check(&last).await.0 {
            granted += 1;
        }
        assert!((2_000..=2_001).contains(&granted), "{algorithm:?}: {granted} were granted, {leases:?}");
        assert!(leases.iter().map(|leases| leases.granted).sum::<u64>() > 200, "{algorithm:?}: {leases:?}");
    }
}

#[tokio::test]
async fn unspent_units_are_returned_when_a_node_leaves() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let keys = [("a", limit("20/h burst 10000"))];
    let taken = draw_until_leased(&one, &keys).await;
    let (_, seen) = take(&keys, 0).check(&other).await;
    assert!(seen < 10_000 - taken, "unspent units are not available to other nodes: {seen}");
    one.leave().await;
    let (_, seen) = take(&keys, 0).check(&other).await;
    assert!((10_000 - taken..10_005 - taken).contains(&seen), "unspent units were returned: {seen}");
    assert!(take(&keys, 1).leased().check(&one).await.0, "the node goes on without leases");
    let leases = one.counts().leases;
    assert_eq!(leases.lent, leases.spent + leases.returned + leases.expired, "{leases:?}");
}

/// More keys than fit into the queue to a server.
#[tokio::test]
async fn a_leaving_node_returns_the_leases_of_many_keys() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let names: Vec<String> = (0..12_000).map(|number| format!("client {number}")).collect();
    for _ in 0..6 {
        for names in names.chunks(1_000) {
            let mut draws = Draws::new();
            for name in names {
                take(&[(name, limit("1000/h burst 100000"))], 1).leased().push(&mut draws);
            }
            store.draw(&mut draws).await;
            assert_eq!(draws.failure_in(0..draws.all().len()), None);
        }
    }
    let before = store.counts().leases;
    assert!(before.lent - before.spent > 12_000, "every key has unspent units: {before:?}");
    store.leave().await;
    let after = store.counts().leases;
    assert_eq!(after.lent, after.spent + after.returned, "no unit is lost: {before:?}, {after:?}");
}

#[tokio::test]
async fn several_limits_are_all_or_nothing_whether_leased_or_not() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let (wide, narrow) = (limit("20/h burst 5000"), limit("1/h burst 60"));
    let both = [("a", wide), ("a", narrow)];
    let mut granted = 0;
    for _ in 0..200 {
        granted += u32::from(take(&both, 1).leased().check(&store).await.0);
    }
    assert_eq!(granted, 60, "as many as the narrow limit has");
    // The wide limit was charged for no more than those.
    store.leave().await;
    let (_, left) = take(&both[..1], 0).check(&store).await;
    assert!((4_940..4_943).contains(&left), "{left} are left");
}

/// The server counts this node's lease as used, so the node must count its own unspent units as available.
#[tokio::test]
async fn a_check_counts_its_own_nodes_unspent_units() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h burst 10000"))];
    let drawn = draw_until_leased(&store, &keys).await;
    let leases = store.counts().leases;
    assert!(leases.lent > leases.spent, "{leases:?}");
    let (_, left) = peek(&keys, 0).check(&store).await;
    assert_eq!(left, 10_000 - drawn, "a peek reports what a check on this node would be granted");
    let (is_granted, remaining) = take(&keys, 10_001 - drawn).leased().check(&store).await;
    assert!(!is_granted && remaining == 10_000 - drawn, "one unit too many: {remaining} are left");
    let (is_granted, remaining) = take(&keys, 10_000 - drawn).leased().check(&store).await;
    assert!(is_granted && remaining == 0, "{remaining} are left, {:?}", store.counts().leases);
}

/// The narrow limit is leased, the wide one never is: each request with both limits goes to the server.
#[tokio::test]
async fn requests_with_one_leased_limit_never_charge_the_other_when_denied() {
    let server = RedisServer::start();
    let nodes = [connected(&server.url()).await, connected(&server.url()).await];
    let (narrow, wide) = (limit("1/h burst 3000"), limit("1/h burst 100000"));
    let mut granted = 0;
    for node in &nodes {
        granted += draw_until_leased(node, &[("a", narrow)]).await;
    }
    let mut draws = Draws::new();
    let mut denied_in_a_row = 0;
    for turn in 0.. {
        draws.clear();
        draws.begin_group();
        for (scope, limit, options) in [(0, narrow, LEASED), (1, wide, DrawOptions::EXACT)] {
            draws.push("a".into(), Scope(scope), limit, Op::Take(Amount::exactly(1)), PermitId::default());
            draws.set_options(options);
        }
        nodes[turn % 2].draw(&mut draws).await;
        assert_eq!(draws.failure_in(0..2), None);
        let is_granted = !draws.all().iter().any(ratekeeper::Draw::denies_request);
        granted += u32::from(is_granted);
        denied_in_a_row = if is_granted { 0 } else { denied_in_a_row + 1 };
        if denied_in_a_row == 4 {
            break;
        }
    }
    let leases: Vec<_> = nodes.iter().map(|node| node.counts().leases).collect();
    assert!((3_000..=3_001).contains(&granted), "{granted} were granted, {leases:?}");
    let peeked = take(&[("b", narrow), ("a", wide)], 0).draw_from(&nodes[0]).await;
    let left = peeked.all()[1].status().remaining();
    assert!(left >= 100_000 - granted, "{left}: denied requests take nothing from the wide limit");
}

#[tokio::test]
async fn a_cancelled_request_takes_nothing_from_the_lease() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h burst 10000"))];
    let drawn = draw_until_leased(&store, &keys).await;
    let before = store.counts().leases;
    let mut draws = Draws::new();
    take(&keys, 10_001 - drawn).leased().push(&mut draws);
    {
        let mut drawing = pin!(store.draw(&mut draws));
        let polled = drawing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the draw goes to the server");
    }
    let after = store.counts().leases;
    assert_eq!((after.spent, after.expired), (before.spent, before.expired));
    let (is_granted, _) = take(&keys, 1).leased().check(&store).await;
    assert!(is_granted && store.counts().leases.granted == before.granted + 1, "the lease is kept");
}

#[tokio::test]
async fn after_a_refund_or_reset_the_store_is_asked_again() {
    let server = RedisServer::start();
    for op in [Op::Refund(5), Op::Reset] {
        let store = connected(&server.url()).await;
        let keys = [(if op == Op::Reset { "reset" } else { "refunded" }, limit("1/h burst 40"))];
        let before = store.counts().leases.denied;
        // Until it is denied without a store call.
        while store.counts().leases.denied == before {
            take(&keys, 1).leased().check(&store).await;
        }
        let request = TestRequest { op, ..take(&keys, 0).leased() };
        let (_, left) = request.check(&store).await;
        assert!(left >= 5, "{op:?} left {left}");
        let (is_granted, _) = take(&keys, 1).leased().check(&store).await;
        assert!(is_granted, "{op:?}");
    }
}

#[tokio::test]
async fn unspent_units_are_spent_while_the_server_is_down() {
    let mut server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.store().ready(crate::TEST_TIMEOUT).await);
    let keys = [("a", limit("20/h burst 10000"))];
    draw_until_leased(&store, &keys).await;
    server.kill();
    let leases = store.counts().leases;
    let unspent = leases.lent - leases.spent;
    let mut from_lease = 0;
    loop {
        let draws = take(&keys, 1).leased().on_failure(FailureMode::Closed).draw_from(&store).await;
        match draws.failure_in(0..1) {
            None => from_lease += 1,
            Some(StoreFailure::Unreachable | StoreFailure::Timeout) => break,
            Some(other) => panic!("{other:?}"),
        }
    }
    // Units in flight from the server when it was killed may still have arrived.
    assert!(unspent > 0 && from_lease >= unspent, "{from_lease} of {unspent}");
    let draws = take(&keys, 1).leased().on_failure(FailureMode::Local).draw_from(&store).await;
    assert!(draws.all()[0].is_decided(), "then the failure mode decides");
}

/// While the server is down, a node decides a leased key from the state that came with its grants.
#[tokio::test]
async fn local_decisions_without_the_server_count_lent_units() {
    let mut server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.store().ready(crate::TEST_TIMEOUT).await);
    let keys = [("a", limit("20/h burst 10000"))];
    let mut granted = 0;
    for _ in 0..6_000 {
        granted += u32::from(take(&keys, 1).leased().within_ms(5000).check(&store).await.0);
    }
    let requests = store.counts().requests;
    assert!(granted == 6_000 && requests < 600, "{granted} were granted, {requests} store requests");
    server.kill();
    for _ in 0..12_000 {
        let draws = take(&keys, 1).leased().on_failure(FailureMode::Local).draw_from(&store).await;
        granted += u32::from(draws.all()[0].outcome() == DrawOutcome::Granted(1));
    }
    // Units in flight when the server was killed are lost.
    assert!((7_000..=10_001).contains(&granted), "{granted} were granted, {:?}", store.counts());
}

#[tokio::test]
async fn a_batch_is_decided_from_leases_too() {
    let server = RedisServer::start();
    decides_batches_from_leases(&connected(&server.url()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lends_as_one_server_does() {
    let cluster = TestCluster::start();
    let nodes = [Arc::new(connected(&cluster.url()).await), Arc::new(connected(&cluster.url()).await)];
    decides_batches_from_leases(&nodes[0]).await;
    let keys = limit("20/h burst 2000");
    let mut granted = draw_concurrently(&nodes, keys, 16, 120).await;
    assert!(granted > 1_700, "{granted} were granted");
    // Unspent units of the nodes are not lost.
    for node in &nodes {
        node.leave().await;
    }
    while take(&[("hot", keys)], 1).check(&*nodes[0]).await.0 {
        granted += 1;
    }
    assert!((1_998..=2_001).contains(&granted), "{granted} were granted, {:?}", nodes[0].counts());
}

async fn decides_batches_from_leases(store: &LeasedRedis) {
    let before = store.counts();
    let names: Vec<String> = (0..50).map(|number| format!("client {number}")).collect();
    for _ in 0..40 {
        let mut draws = Draws::new();
        for name in &names {
            take(&[(name, limit("1000/h burst 100000"))], 1).leased().push(&mut draws);
        }
        store.draw(&mut draws).await;
        assert_eq!(draws.failure_in(0..draws.all().len()), None);
    }
    let after = store.counts();
    assert!(after.requests - before.requests < 400, "{before:?}, {after:?}");
    for name in &names {
        let (_, left) = take(&[(name, limit("1000/h burst 100000"))], 0).leased().check(store).await;
        assert!(left <= 99_960, "{name} has {left}");
    }
}

#[tokio::test]
async fn decisions_from_leases_allocate_nothing() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let [wide, wider, widest] = ["1000000/h", "2000000/h", "3000000/h"].map(limit);
    let alone = [("a client", wide)];
    let several = [("another client", wide), ("another client", wider), ("another client", widest)];
    let exhausted = [("an exhausted client", limit("1/h burst 10"))];
    let one_exhausted = [("a third client", wide), ("a third client", limit("1/h burst 10"))];
    let names: Vec<String> = (0..40).map(|number| format!("client {number}")).collect();
    let many: Vec<_> = names.iter().map(|name| [(name.as_str(), wide)]).collect();
    for requests in [vec![&alone[..]], vec![&several], vec![&exhausted], vec![&one_exhausted]] {
        check_allocations(&store, &requests).await;
    }
    check_allocations(&store, &many.iter().map(|keys| &keys[..]).collect::<Vec<_>>()).await;
    let leases = store.counts().leases;
    assert!(leases.granted > 10_000 && leases.denied > 1_000, "{leases:?}");
}

/// Repeats the same requests in one call, and asserts that calls decided without the store allocate nothing.
async fn check_allocations(store: &LeasedRedis, requests: &[&[(&str, Limit)]]) {
    let repeated: Vec<TestRequest<'_>> = requests.iter().map(|keys| take(keys, 1).leased()).collect();
    let (mut draws, mut from_lease) = (Draws::new(), 0);
    for _ in 0..2_000 {
        draws.clear();
        repeated.iter().for_each(|request| request.push(&mut draws));
        let before = store.counts().leases;
        let mut drawing = pin!(store.draw(&mut draws));
        let mut is_ready = false;
        let taken = allocation_counter::measure(|| {
            is_ready = drawing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        });
        if !is_ready {
            drawing.await;
        }
        let after = store.counts().leases;
        if (after.misses, after.renewals) == (before.misses, before.renewals) {
            assert_eq!(taken.count_total, 0, "{:?}", requests[0]);
            from_lease += 1;
        }
        // Let the worker send pending renewals.
        tokio::task::yield_now().await;
    }
    assert!(from_lease > 1_500, "{:?}: {from_lease} calls were decided from leases", requests[0]);
}
