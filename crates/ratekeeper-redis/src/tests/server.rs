//! A single server: deadlines, kills, pauses, lost scripts and lost connections.

use super::{
    AMPLE_TIMEOUT, SCRIPT, add, connect, connect_with, connected, eventually, only_node, take, until_phase,
    until_success, wall_clock,
};
use crate::client::node::NodePhase;
use crate::client::node::ServerSetOptions;
use ratekeeper::{BreakerState, StoreFailure};
use ratekeeper_testkit::servers::{Brand, ChaosProxy, DroppedDirection, LinkFaults, RedisServer};
use redis::{Value, cmd};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn each_command_has_its_own_result() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).start();
        let server_set = connected(&server.url()).await;
        server.command(&["SET", "text", "no number"]).expect_ok();
        let commands = vec![add("a", 1), add("text", 1), add("b", 7), add("a", 2)];
        let results =
            server_set.execute(&only_node(&server_set), commands, Instant::now() + AMPLE_TIMEOUT).await;
        assert_eq!(
            results,
            [Ok(Value::Int(1)), Err(StoreFailure::StoreError), Ok(Value::Int(7)), Ok(Value::Int(3))]
        );
        let (node, counts) = (only_node(&server_set), only_node(&server_set).counts());
        assert_eq!((counts.calls, counts.commands, counts.failures.error), (1, 4, 1));
        assert_eq!(counts.latency.count(), 1);
        // An error reply to one command does not affect the server's health.
        assert_eq!((node.phase(), node.breaker()), (NodePhase::Up, BreakerState::Closed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_info_is_read() {
    let server =
        RedisServer::setup(Brand::Valkey).set("maxmemory", "100mb").set("maxmemory-policy", "allkeys-lru");
    let server = server.start();
    let server_set = connected(&server.url()).await;
    let facts = eventually("the server's INFO is read", async {
        loop {
            if let Some(facts) = only_node(&server_set).info() {
                return facts;
            }
            tokio::task::yield_now().await;
        }
    });
    let facts = facts.await;
    assert_eq!((facts.kind.as_str(), facts.role.as_str(), facts.replicas), ("valkey", "master", 0));
    assert_eq!(facts.version, server.info("valkey_version"));
    assert!(facts.may_evict());
    assert!(server.command(&["CLIENT", "LIST"]).text().contains("name=ratekeeper"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_fails_fast_and_is_used_again_after_a_restart() {
    let mut server = RedisServer::start();
    let server_set = connected(&server.url()).await;
    let node = only_node(&server_set);
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    server.kill();
    until_phase(&node, NodePhase::Down).await;
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Unreachable));
    }
    assert!(began.elapsed() < AMPLE_TIMEOUT, "{:?} for a hundred calls", began.elapsed());
    assert_ne!(node.breaker(), BreakerState::Closed);
    assert!(node.failure().map(|failure| failure.message).is_some());
    server.restart();
    until_phase(&node, NodePhase::Up).await;
    // The restarted server lost the script, which was reloaded before calls were admitted.
    let loads = node.counts().script_loads;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    assert_eq!((node.counts().script_loads, node.failure().map(|failure| failure.message)), (loads, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_down_at_startup_is_connected_later() {
    let mut server = RedisServer::start();
    server.kill();
    let server_set = connect(&server.url());
    assert!(!server_set.wait_until_ready(AMPLE_TIMEOUT).await);
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Unreachable));
    server.restart();
    assert_eq!(until_success(&server_set, "a").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_costs_few_calls_their_deadline_and_none_more() {
    let server = RedisServer::start();
    let server_set = Arc::new(connected(&server.url()).await);
    let node = only_node(&server_set);
    server.pause();
    let timeout = Duration::from_millis(100);
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let server_set = Arc::clone(&server_set);
        calls.spawn(async move {
            let began = Instant::now();
            (take(&server_set, "a", timeout).await, began.elapsed())
        });
    }
    for (result, took) in calls.join_all().await {
        assert!(matches!(result, Err(StoreFailure::Timeout | StoreFailure::Unreachable)), "{result:?}");
        // Ten times the deadline, to allow for a busy machine.
        assert!(took < 10 * timeout, "{took:?}");
    }
    // Those failures opened the breaker: from now on calls fail at once.
    until_phase(&node, NodePhase::Down).await;
    let timeouts = node.counts().failures.timeout;
    for _ in 0..100 {
        assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Unreachable));
    }
    assert_eq!((node.counts().failures.timeout, (node.open_connections(), node.load())), (timeouts, (0, 0)));
    server.resume();
    until_phase(&node, NodePhase::Up).await;
    assert!(take(&server_set, "a", AMPLE_TIMEOUT).await.is_ok());
    assert_eq!((node.open_connections(), node.load()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_detected_without_calls() {
    let server = RedisServer::start();
    let server_set = connected(&server.url()).await;
    server.pause();
    until_phase(&only_node(&server_set), NodePhase::Down).await;
    server.resume();
    until_phase(&only_node(&server_set), NodePhase::Up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_script_is_loaded_once_for_all_concurrent_calls() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).start();
        let server_set = Arc::new(connected(&server.url()).await);
        let node = only_node(&server_set);
        for round in 1..=3 {
            let loads = node.counts().script_loads;
            server.command(&["SCRIPT", "FLUSH"]).expect_ok();
            let mut calls = JoinSet::new();
            for _ in 0..50 {
                let server_set = Arc::clone(&server_set);
                calls.spawn(async move { take(&server_set, "a", AMPLE_TIMEOUT).await.unwrap() });
            }
            let mut numbers = calls.join_all().await;
            numbers.sort_unstable();
            let first = (round - 1) * 50;
            assert_eq!(numbers, (first + 1..=first + 50).collect::<Vec<_>>());
            assert_eq!(node.counts().script_loads, loads + 1, "{}", server.info("cmdstat_script|load"));
        }
        // Only the command that did not run is resent.
        server.command(&["SCRIPT", "FLUSH"]).expect_ok();
        let mut plain = cmd("INCRBY");
        plain.arg("a").arg(1);
        let results =
            server_set.execute(&node, vec![plain, add("a", 1)], Instant::now() + AMPLE_TIMEOUT).await;
        assert_eq!(results, [Ok(Value::Int(151)), Ok(Value::Int(152))]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_are_replaced_before_the_next_call() {
    let server = RedisServer::start();
    let server_set = connected(&server.url()).await;
    let node = only_node(&server_set);
    for round in 1..=5 {
        let connects = node.counts().connects;
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect_ok();
        eventually("both connections are replaced", async {
            while node.counts().connects < connects + 2 || node.open_connections() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // No call was in flight, so none failed.
        assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(round));
    }
    assert_eq!((node.phase(), node.counts().failures.unreachable), (NodePhase::Up, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_lost_reply_is_not_retried() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let server_set = connected(&format!("redis://{}", proxy.address())).await;
    proxy.set_faults(LinkFaults { dropped: DroppedDirection::Replies, ..LinkFaults::NONE });
    assert_eq!(take(&server_set, "a", Duration::from_millis(200)).await, Err(StoreFailure::Timeout));
    proxy.set_faults(LinkFaults::NONE);
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_connections_are_replaced() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let server_set = connected(&format!("redis://{}", proxy.address())).await;
    let (node, connects) = (only_node(&server_set), only_node(&server_set).counts().connects);
    proxy.set_faults(LinkFaults { dropped: DroppedDirection::Both, ..LinkFaults::NONE });
    let timeout = Duration::from_millis(100);
    while node.phase() == NodePhase::Up {
        assert!(take(&server_set, "a", timeout).await.is_err());
    }
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Unreachable));
    proxy.set_faults(LinkFaults::NONE);
    until_phase(&node, NodePhase::Up).await;
    assert!(node.counts().connects > connects);
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_is_called_again_only_once_it_is_fast() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let server_set = connected(&format!("redis://{}", proxy.address())).await;
    let node = only_node(&server_set);
    proxy.set_faults(LinkFaults { latency: Duration::from_millis(100), ..LinkFaults::NONE });
    while node.phase() == NodePhase::Up {
        assert!(take(&server_set, "a", Duration::from_millis(50)).await.is_err());
    }
    // It is probed several times, and connects each time, but is too slow.
    let connects = node.counts().connects;
    eventually("it is probed again", async {
        while node.counts().connects < connects + 6 {
            assert_eq!(node.phase(), NodePhase::Down);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(node.failure().map(|failure| failure.message).as_deref(), Some("no reply within 50 ms"));
    proxy.set_faults(LinkFaults::NONE);
    until_phase(&node, NodePhase::Up).await;
    assert!(take(&server_set, "a", AMPLE_TIMEOUT).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_past_its_deadline_is_not_sent() {
    let server = RedisServer::start();
    let server_set = connected(&server.url()).await;
    for _ in 0..100 {
        assert_eq!(take(&server_set, "a", Duration::ZERO).await, Err(StoreFailure::Timeout));
    }
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    assert_eq!(
        (only_node(&server_set).phase(), only_node(&server_set).counts().failures.timeout),
        (NodePhase::Up, 100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_under_load_charge_no_unit_twice() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let server_set = Arc::new(connected(&format!("redis://{}", proxy.address())).await);
    proxy.set_faults(LinkFaults { reset_requests: 0.02, reset_replies: 0.02, ..LinkFaults::NONE });
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let server_set = Arc::clone(&server_set);
        clients.spawn(async move {
            let (mut charged, mut unacked) = (0, 0);
            for _ in 0..200 {
                match take(&server_set, "a", AMPLE_TIMEOUT).await {
                    Ok(_) => charged += 1,
                    Err(StoreFailure::Unreachable | StoreFailure::Timeout) => {
                        unacked += 1;
                        // With the breaker open, calls fail at once; without a sleep the loop would end first.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (charged, unacked)
        });
    }
    let counts = clients.join_all().await;
    let (charged, unacked) = counts
        .into_iter()
        .fold((0, 0), |(all, others), (charged, unacked)| (all + charged, others + unacked));
    let found = server.command(&["GET", "a"]).integer();
    assert!((charged..=charged + unacked).contains(&found), "{charged} <= {found} <= {charged} + {unacked}");
    assert!(charged > 0 && unacked > 0, "{charged} calls succeeded, {unacked} failed");
    proxy.set_faults(LinkFaults::NONE);
    until_success(&server_set, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_in_flight_limit_fail_as_busy() {
    let server = RedisServer::start();
    let server_set = connect_with(&server.url(), |options| ServerSetOptions { max_in_flight: 10, ..options });
    let server_set = Arc::new(server_set);
    assert!(server_set.wait_until_ready(AMPLE_TIMEOUT).await);
    server.pause();
    let node = only_node(&server_set);
    let waiting = {
        let (server_set, node) = (Arc::clone(&server_set), Arc::clone(&node));
        let commands = (0..10).map(|_| add("a", 1)).collect();
        tokio::spawn(async move {
            server_set.execute(&node, commands, Instant::now() + Duration::from_millis(400)).await
        })
    };
    eventually("ten are in flight", async {
        while node.load() < 10 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Busy));
    assert_eq!(waiting.await.unwrap(), vec![Err(StoreFailure::Timeout); 10]);
    assert_eq!((node.counts().failures.busy, node.load()), (1, 0));
    server.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_reported_and_not_written_to() {
    let master = RedisServer::start();
    let replica =
        RedisServer::setup(Brand::Redis).set("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    let server_set = connect(&replica.url());
    assert!(!server_set.wait_until_ready(AMPLE_TIMEOUT).await);
    assert!(only_node(&server_set).failure().map(|failure| failure.message).unwrap().contains("replica"));
    replica.command(&["REPLICAOF", "NO", "ONE"]).expect_ok();
    until_phase(&only_node(&server_set), NodePhase::Up).await;
    // A master that becomes a replica while in use is abandoned at its first error reply.
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).expect_ok();
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Err(StoreFailure::Unreachable));
    until_phase(&only_node(&server_set), NodePhase::Down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_offset_is_measured_and_bounded() {
    let server = RedisServer::setup(Brand::Redis).clock(7.0).start();
    let clock = Arc::new(wall_clock());
    let wall = Arc::clone(&clock);
    let server_set = connect_with(&server.url(), |options| ServerSetOptions { clock: wall, ..options });
    assert!(server_set.wait_until_ready(AMPLE_TIMEOUT).await);
    let node = only_node(&server_set);
    let drift = node.drift_micros().unwrap();
    assert!((6_000_000..8_500_000).contains(&drift), "{drift}");
    let time = server.command(&["TIME"]);
    let micros = time.array()[0].integer() * 1_000_000 + time.array()[1].integer();
    let ceiling = node.clock_ceiling(Instant::now()).unwrap();
    assert!(ceiling.get() >= u64::try_from(micros).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_digest_matches() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SCRIPT", "LOAD", SCRIPT]).text(), super::DIGEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_sockets_are_supported() {
    let server = RedisServer::setup(Brand::Redis).user("default", "on nopass ~* +@all").start();
    let socket = server.folder().join("socket");
    let server_set = connected(&format!("redis+unix://{}?db=3", socket.display())).await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    assert!(server.info("db3").starts_with("keys=1"));
}
