//! Units that nodes take ahead: few questions, and never more than the limit.

use crate::{Asked, connect, connected, limit, limit_of, take};
use ratekeeper::redis::RedisStore;
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

fn look<'a>(keys: &'a [(&'a str, Limit)], units: u32) -> Asked<'a> {
    Asked { act: Op::Look(Amount::exactly(units)), ..take(keys, units).leased() }
}

/// How many units tasks of several nodes get of a key that all of them want, each asking so often.
async fn hammer(nodes: &[Arc<RedisStore>], limit: Limit, tasks: u32, times: u32) -> u32 {
    let granted = Arc::new(AtomicU32::new(0));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (store, granted) = (Arc::clone(&nodes[task as usize % nodes.len()]), Arc::clone(&granted));
        set.spawn(async move {
            for _ in 0..times {
                let (is_granted, _) = take(&[("hot", limit)], 1).leased().told_by(&*store).await;
                granted.fetch_add(u32::from(is_granted), Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    set.join_all().await;
    granted.load(Relaxed)
}

/// Draws a key until units are in hand, and says how many were drawn.
async fn draw_until_some_is_in_hand(store: &RedisStore, keys: &[(&str, Limit)]) -> u32 {
    for drawn in 1..5_000 {
        assert!(take(keys, 1).leased().within(5000).told_by(store).await.0);
        let leases = store.counts().leases;
        if drawn >= 100 && leases.lent > leases.spent + 10 {
            return drawn;
        }
    }
    panic!("nothing is lent: {:?}", store.counts());
}

#[tokio::test]
async fn a_busy_key_is_answered_from_hand() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1000000/h"))];
    for left in (990_000..1_000_000).rev() {
        let (is_granted, told) = take(&keys, 1).leased().told_by(&store).await;
        // A few come back meanwhile.
        assert!(is_granted && told >= left && told <= left + 30_000, "{told} of {left}");
    }
    let counts = store.counts();
    assert!(counts.leases.granted > 9_800, "{counts:?}");
    assert!(counts.requests + counts.leases.refills < 200, "{counts:?}");
    assert!(counts.leases.spent <= counts.leases.lent, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_together_what_there_is_and_no_more() {
    let wall = Algorithm::FixedWindow(Align::Wall(Zone::UTC));
    for law in
        [Algorithm::TokenBucket, Algorithm::LeakyBucket(Leak::Meter), wall, Algorithm::SlidingWindowCounter]
    {
        let server = RedisServer::start();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Arc::new(connected(&server.url()).await));
        }
        let quota = if law == wall || law == Algorithm::SlidingWindowCounter {
            "2000/month"
        } else {
            "20/h burst 2000"
        };
        let limit = limit_of(law, quota);
        let mut granted = hammer(&nodes, limit, 24, 150).await;
        let leases: Vec<_> = nodes.iter().map(|node| node.counts().leases).collect();
        assert!(granted >= 1_800, "{law:?}: {granted} were granted, {leases:?}");
        // A node whose tasks were done first may have units left.
        for node in &nodes {
            node.leave().await;
        }
        // Those that were denied remember it for up to a second, so a new node asks for what was returned.
        let last = connected(&server.url()).await;
        while take(&[("hot", limit)], 1).told_by(&last).await.0 {
            granted += 1;
        }
        assert!((2_000..=2_001).contains(&granted), "{law:?}: {granted} were granted, {leases:?}");
        assert!(leases.iter().map(|leases| leases.granted).sum::<u64>() > 200, "{law:?}: {leases:?}");
    }
}

#[tokio::test]
async fn what_a_node_has_left_is_given_back_when_it_leaves() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let keys = [("a", limit("20/h burst 10000"))];
    let taken = draw_until_some_is_in_hand(&one, &keys).await;
    let (_, seen) = take(&keys, 0).told_by(&other).await;
    assert!(seen < 10_000 - taken, "what is in hand is missing elsewhere: {seen}");
    one.leave().await;
    let (_, seen) = take(&keys, 0).told_by(&other).await;
    assert!((10_000 - taken..10_005 - taken).contains(&seen), "what was not spent is there: {seen}");
    assert!(take(&keys, 1).leased().told_by(&one).await.0, "and the node goes on, one by one");
    let leases = one.counts().leases;
    assert_eq!(leases.lent, leases.spent + leases.returned + leases.forfeited, "{leases:?}");
}

/// More keys than there is room for on the way to a server.
#[tokio::test]
async fn a_node_that_leaves_gives_back_what_it_has_of_very_many_keys() {
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
            assert_eq!(draws.failure(0..draws.all().len()), None);
        }
    }
    let before = store.counts().leases;
    assert!(before.lent - before.spent > 12_000, "something is in hand of each: {before:?}");
    store.leave().await;
    let after = store.counts().leases;
    assert_eq!(after.lent, after.spent + after.returned, "nothing is lost: {before:?}, {after:?}");
}

#[tokio::test]
async fn several_limits_are_all_or_nothing_whether_leased_or_not() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let (wide, narrow) = (limit("20/h burst 5000"), limit("1/h burst 60"));
    let both = [("a", wide), ("a", narrow)];
    let mut granted = 0;
    for _ in 0..200 {
        granted += u32::from(take(&both, 1).leased().told_by(&store).await.0);
    }
    assert_eq!(granted, 60, "as many as the narrow one has");
    // The wide one has lost no more than those.
    store.leave().await;
    let (_, left) = take(&both[..1], 0).told_by(&store).await;
    assert!((4_940..4_943).contains(&left), "{left} are left");
}

/// What this node was lent counts as used at the server, and must not be missed by the node that has it.
#[tokio::test]
async fn a_check_counts_what_its_own_node_holds() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h burst 10000"))];
    let drawn = draw_until_some_is_in_hand(&store, &keys).await;
    let leases = store.counts().leases;
    assert!(leases.lent > leases.spent, "{leases:?}");
    let (_, left) = look(&keys, 0).told_by(&store).await;
    assert_eq!(left, 10_000 - drawn, "a peek says what a check would be granted here");
    let (is_granted, told) = take(&keys, 10_001 - drawn).leased().told_by(&store).await;
    assert!(!is_granted && told == 10_000 - drawn, "one unit too many: {told} are left");
    let (is_granted, told) = take(&keys, 10_000 - drawn).leased().told_by(&store).await;
    assert!(is_granted && told == 0, "{told} are left, {:?}", store.counts().leases);
}

/// The narrow limit is leased, the wide one never is: each request of both goes to the server.
#[tokio::test]
async fn several_limits_of_which_one_is_asked_for_leave_nothing_of_the_other() {
    let server = RedisServer::start();
    let nodes = [connected(&server.url()).await, connected(&server.url()).await];
    let (narrow, wide) = (limit("1/h burst 3000"), limit("1/h burst 100000"));
    let mut granted = 0;
    for node in &nodes {
        granted += draw_until_some_is_in_hand(node, &[("a", narrow)]).await;
    }
    let mut draws = Draws::new();
    let mut denied_in_a_row = 0;
    for turn in 0.. {
        draws.clear();
        draws.begin();
        for (scope, limit, terms) in [(0, narrow, LEASED), (1, wide, DrawOptions::EXACT)] {
            draws.push("a".into(), Scope(scope), limit, Op::Take(Amount::exactly(1)), PermitId::default());
            draws.set_terms(terms);
        }
        nodes[turn % 2].draw(&mut draws).await;
        assert_eq!(draws.failure(0..2), None);
        let is_granted = !draws.all().iter().any(ratekeeper::Draw::stops);
        granted += u32::from(is_granted);
        denied_in_a_row = if is_granted { 0 } else { denied_in_a_row + 1 };
        if denied_in_a_row == 4 {
            break;
        }
    }
    let leases: Vec<_> = nodes.iter().map(|node| node.counts().leases).collect();
    assert!((3_000..=3_001).contains(&granted), "{granted} were granted, {leases:?}");
    let looked = take(&[("b", narrow), ("a", wide)], 0).by(&nodes[0]).await;
    let left = looked.all()[1].reading().remaining();
    assert!(left >= 100_000 - granted, "{left}: who was denied took nothing of the wide one");
}

#[tokio::test]
async fn a_request_that_is_given_up_takes_nothing_of_what_is_here() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let keys = [("a", limit("1/h burst 10000"))];
    let drawn = draw_until_some_is_in_hand(&store, &keys).await;
    let before = store.counts().leases;
    let mut draws = Draws::new();
    take(&keys, 10_001 - drawn).leased().push(&mut draws);
    {
        let mut drawing = pin!(store.draw(&mut draws));
        let polled = drawing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it goes to the server");
    }
    let after = store.counts().leases;
    assert_eq!((after.spent, after.forfeited), (before.spent, before.forfeited));
    let (is_granted, _) = take(&keys, 1).leased().told_by(&store).await;
    assert!(is_granted && store.counts().leases.granted == before.granted + 1, "it is still here");
}

#[tokio::test]
async fn after_a_refund_or_a_reset_nobody_is_denied_without_asking() {
    let server = RedisServer::start();
    for act in [Op::Give(5), Op::Clear] {
        let store = connected(&server.url()).await;
        let keys = [(if act == Op::Clear { "reset" } else { "refunded" }, limit("1/h burst 40"))];
        let before = store.counts().leases.refused;
        // Until it is denied without asking.
        while store.counts().leases.refused == before {
            take(&keys, 1).leased().told_by(&store).await;
        }
        let asked = Asked { act, ..take(&keys, 0).leased() };
        let (_, left) = asked.told_by(&store).await;
        assert!(left >= 5, "{act:?} left {left}");
        let (is_granted, _) = take(&keys, 1).leased().told_by(&store).await;
        assert!(is_granted, "{act:?}");
    }
}

#[tokio::test]
async fn what_is_in_hand_is_spent_while_the_server_is_away() {
    let mut server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.ready(crate::PATIENCE).await);
    let keys = [("a", limit("20/h burst 10000"))];
    draw_until_some_is_in_hand(&store, &keys).await;
    server.kill();
    let leases = store.counts().leases;
    let in_hand = leases.lent - leases.spent;
    let mut from_hand = 0;
    loop {
        let said = take(&keys, 1).leased().on_failure(FailureMode::Closed).by(&store).await;
        match said.failure(0..1) {
            None => from_hand += 1,
            Some(StoreFailure::Unreachable | StoreFailure::Timeout) => break,
            Some(other) => panic!("{other:?}"),
        }
    }
    // What was on its way from the server when it was killed may still have come.
    assert!(in_hand > 0 && from_hand >= in_hand, "{from_hand} of {in_hand}");
    let said = take(&keys, 1).leased().on_failure(FailureMode::Local).by(&store).await;
    assert!(said.all()[0].is_decided(), "then the rule says what holds");
}

/// What a node knows of a leased key it knows from what it was lent.
#[tokio::test]
async fn who_goes_on_without_the_server_counts_what_was_lent() {
    let mut server = RedisServer::start();
    let store = connect(&server.url(), Duration::from_millis(50));
    assert!(store.ready(crate::PATIENCE).await);
    let keys = [("a", limit("20/h burst 10000"))];
    let mut granted = 0;
    for _ in 0..6_000 {
        granted += u32::from(take(&keys, 1).leased().within(5000).told_by(&store).await.0);
    }
    let asked = store.counts().requests;
    assert!(granted == 6_000 && asked < 600, "{granted} were granted, {asked} asked for");
    server.kill();
    for _ in 0..12_000 {
        let said = take(&keys, 1).leased().on_failure(FailureMode::Local).by(&store).await;
        granted += u32::from(said.all()[0].answer() == DrawOutcome::Granted(1));
    }
    // What was on its way when the server was killed is lost.
    assert!((7_000..=10_001).contains(&granted), "{granted} were granted, {:?}", store.counts());
}

#[tokio::test]
async fn a_batch_is_answered_from_hand_too() {
    let server = RedisServer::start();
    answers_a_batch_from_hand(&connected(&server.url()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lends_as_one_server_does() {
    let cluster = TestCluster::start();
    let nodes = [Arc::new(connected(&cluster.url()).await), Arc::new(connected(&cluster.url()).await)];
    answers_a_batch_from_hand(&nodes[0]).await;
    let keys = limit("20/h burst 2000");
    let mut granted = hammer(&nodes, keys, 16, 120).await;
    assert!(granted > 1_700, "{granted} were granted");
    // What is in some node's hand is not lost.
    for node in &nodes {
        node.leave().await;
    }
    while take(&[("hot", keys)], 1).told_by(&*nodes[0]).await.0 {
        granted += 1;
    }
    assert!((1_998..=2_001).contains(&granted), "{granted} were granted, {:?}", nodes[0].counts());
}

async fn answers_a_batch_from_hand(store: &RedisStore) {
    let before = store.counts();
    let names: Vec<String> = (0..50).map(|number| format!("client {number}")).collect();
    for _ in 0..40 {
        let mut draws = Draws::new();
        for name in &names {
            take(&[(name, limit("1000/h burst 100000"))], 1).leased().push(&mut draws);
        }
        store.draw(&mut draws).await;
        assert_eq!(draws.failure(0..draws.all().len()), None);
    }
    let after = store.counts();
    assert!(after.requests - before.requests < 400, "{before:?}, {after:?}");
    for name in &names {
        let (_, left) = take(&[(name, limit("1000/h burst 100000"))], 0).leased().told_by(store).await;
        assert!(left <= 99_960, "{name} has {left}");
    }
}

#[tokio::test]
async fn what_is_answered_from_hand_allocates_nothing() {
    let server = RedisServer::start();
    let store = connected(&server.url()).await;
    let [wide, wider, widest] = ["1000000/h", "2000000/h", "3000000/h"].map(limit);
    let alone = [("a client", wide)];
    let several = [("another client", wide), ("another client", wider), ("another client", widest)];
    let empty = [("an empty one", limit("1/h burst 10"))];
    let one_empty = [("a third client", wide), ("a third client", limit("1/h burst 10"))];
    let names: Vec<String> = (0..40).map(|number| format!("client {number}")).collect();
    let many: Vec<_> = names.iter().map(|name| [(name.as_str(), wide)]).collect();
    for requests in [vec![&alone[..]], vec![&several], vec![&empty], vec![&one_empty]] {
        check_allocations(&store, &requests).await;
    }
    check_allocations(&store, &many.iter().map(|keys| &keys[..]).collect::<Vec<_>>()).await;
    let leases = store.counts().leases;
    assert!(leases.granted > 10_000 && leases.refused > 1_000, "{leases:?}");
}

/// Makes the same requests again and again, in one call, and sees that those take no memory that ask the store nothing.
async fn check_allocations(store: &RedisStore, requests: &[&[(&str, Limit)]]) {
    let asked: Vec<Asked<'_>> = requests.iter().map(|keys| take(keys, 1).leased()).collect();
    let (mut draws, mut from_hand) = (Draws::new(), 0);
    for _ in 0..2_000 {
        draws.clear();
        asked.iter().for_each(|asked| asked.push(&mut draws));
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
        if (after.asked, after.refills) == (before.asked, before.refills) {
            assert_eq!(taken.count_total, 0, "{:?}", requests[0]);
            from_hand += 1;
        }
        // What was ordered is carried meanwhile.
        tokio::task::yield_now().await;
    }
    assert!(from_hand > 1_500, "{:?} were answered from hand {from_hand} times", requests[0]);
}
