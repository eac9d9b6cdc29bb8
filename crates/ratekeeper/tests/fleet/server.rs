//! One server: deadlines, kills, pauses, lost scripts and lost connections.

use super::{
    AMPLE, SCRIPT, add, connect, connect_with, connected, eventually, only, take, until, until_answered,
    wall_clock,
};
use ratekeeper::BreakerState;
use ratekeeper::StoreFailure;
use ratekeeper::redis::NodePhase;
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
        let fleet = connected(&server.url()).await;
        server.command(&["SET", "text", "no number"]).done();
        let commands = vec![add("a", 1), add("text", 1), add("b", 7), add("a", 2)];
        let results = fleet.ask(&only(&fleet), commands, Instant::now() + AMPLE).await;
        assert_eq!(
            results,
            [Ok(Value::Int(1)), Err(StoreFailure::Refused), Ok(Value::Int(7)), Ok(Value::Int(3))]
        );
        let (node, counts) = (only(&fleet), only(&fleet).counts());
        assert_eq!((counts.calls, counts.commands, counts.failures.refused), (1, 4, 1));
        assert_eq!(counts.latency.count(), 1);
        // What one command is refused for says nothing against the server.
        assert_eq!((node.phase(), node.breaker()), (NodePhase::Up, BreakerState::Closed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_says_what_it_is() {
    let server =
        RedisServer::setup(Brand::Valkey).set("maxmemory", "100mb").set("maxmemory-policy", "allkeys-lru");
    let server = server.start();
    let fleet = connected(&server.url()).await;
    let facts = eventually("it is asked about itself", async {
        loop {
            if let Some(facts) = only(&fleet).facts() {
                return facts;
            }
            tokio::task::yield_now().await;
        }
    });
    let facts = facts.await;
    assert_eq!((facts.kind.as_str(), facts.role.as_str(), facts.replicas), ("valkey", "master", 0));
    assert_eq!(facts.version, server.info("valkey_version"));
    assert!(facts.can_drop_limits());
    assert!(server.command(&["CLIENT", "LIST"]).text().contains("name=ratekeeper"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_fails_at_once_and_is_found_when_it_is_back() {
    let mut server = RedisServer::start();
    let fleet = connected(&server.url()).await;
    let node = only(&fleet);
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    server.kill();
    until(&node, NodePhase::Down).await;
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Unreachable));
    }
    assert!(began.elapsed() < AMPLE, "{:?} for a hundred", began.elapsed());
    assert_ne!(node.breaker(), BreakerState::Closed);
    assert!(node.trouble().is_some());
    server.restart();
    until(&node, NodePhase::Up).await;
    // It has forgotten the script, which was there again before calls were let in.
    let loads = node.counts().script_loads;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    assert_eq!((node.counts().script_loads, node.trouble()), (loads, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_at_the_start_is_found_later() {
    let mut server = RedisServer::start();
    server.kill();
    let fleet = connect(&server.url());
    assert!(!fleet.ready(AMPLE).await);
    assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Unreachable));
    server.restart();
    assert_eq!(until_answered(&fleet, "a").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_costs_no_call_more_than_its_deadline_and_few_calls_that() {
    let server = RedisServer::start();
    let fleet = Arc::new(connected(&server.url()).await);
    let node = only(&fleet);
    server.pause();
    let patience = Duration::from_millis(100);
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let fleet = Arc::clone(&fleet);
        calls.spawn(async move {
            let began = Instant::now();
            (take(&fleet, "a", patience).await, began.elapsed())
        });
    }
    for (result, took) in calls.join_all().await {
        assert!(matches!(result, Err(StoreFailure::Timeout | StoreFailure::Unreachable)), "{result:?}");
        // Ten times what it should be, on a machine that has much to do.
        assert!(took < 10 * patience, "{took:?}");
    }
    // Those were failures enough: from now on nobody waits.
    until(&node, NodePhase::Down).await;
    let timeouts = node.counts().failures.timeout;
    for _ in 0..100 {
        assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Unreachable));
    }
    assert_eq!((node.counts().failures.timeout, node.load()), (timeouts, (0, 0)));
    server.resume();
    until(&node, NodePhase::Up).await;
    assert!(take(&fleet, "a", AMPLE).await.is_ok());
    assert_eq!(node.load(), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_is_noticed_though_nobody_calls() {
    let server = RedisServer::start();
    let fleet = connected(&server.url()).await;
    server.pause();
    until(&only(&fleet), NodePhase::Down).await;
    server.resume();
    until(&only(&fleet), NodePhase::Up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_script_is_loaded_once_for_all_who_miss_it() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).start();
        let fleet = Arc::new(connected(&server.url()).await);
        let node = only(&fleet);
        for round in 1..=3 {
            let loads = node.counts().script_loads;
            server.command(&["SCRIPT", "FLUSH"]).done();
            let mut calls = JoinSet::new();
            for _ in 0..50 {
                let fleet = Arc::clone(&fleet);
                calls.spawn(async move { take(&fleet, "a", AMPLE).await.unwrap() });
            }
            let mut numbers = calls.join_all().await;
            numbers.sort_unstable();
            let first = (round - 1) * 50;
            assert_eq!(numbers, (first + 1..=first + 50).collect::<Vec<_>>());
            assert_eq!(node.counts().script_loads, loads + 1, "{}", server.info("cmdstat_script|load"));
        }
        // What did not run is sent again, and nothing else is.
        server.command(&["SCRIPT", "FLUSH"]).done();
        let mut plain = cmd("INCRBY");
        plain.arg("a").arg(1);
        let results = fleet.ask(&node, vec![plain, add("a", 1)], Instant::now() + AMPLE).await;
        assert_eq!(results, [Ok(Value::Int(151)), Ok(Value::Int(152))]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_are_replaced_before_the_next_call() {
    let server = RedisServer::start();
    let fleet = connected(&server.url()).await;
    let node = only(&fleet);
    for round in 1..=5 {
        let connects = node.counts().connects;
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).done();
        eventually("both connections are replaced", async {
            while node.counts().connects < connects + 2 || node.load().0 < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // Nobody had called, so nobody was told.
        assert_eq!(take(&fleet, "a", AMPLE).await, Ok(round));
    }
    assert_eq!((node.phase(), node.counts().failures.unreachable), (NodePhase::Up, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_lost_is_not_asked_for_again() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let fleet = connected(&format!("redis://{}", proxy.address())).await;
    proxy.set_weather(LinkFaults { swallows: DroppedDirection::Replies, ..LinkFaults::FINE });
    assert_eq!(take(&fleet, "a", Duration::from_millis(200)).await, Err(StoreFailure::Timeout));
    proxy.set_weather(LinkFaults::FINE);
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_lead_nowhere_are_given_up() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let fleet = connected(&format!("redis://{}", proxy.address())).await;
    let (node, connects) = (only(&fleet), only(&fleet).counts().connects);
    proxy.set_weather(LinkFaults { swallows: DroppedDirection::Everything, ..LinkFaults::FINE });
    let patience = Duration::from_millis(100);
    while node.phase() == NodePhase::Up {
        assert!(take(&fleet, "a", patience).await.is_err());
    }
    assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Unreachable));
    proxy.set_weather(LinkFaults::FINE);
    until(&node, NodePhase::Up).await;
    assert!(node.counts().connects > connects);
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_slow_is_called_when_it_is_quick_and_no_sooner() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let fleet = connected(&format!("redis://{}", proxy.address())).await;
    let node = only(&fleet);
    proxy.set_weather(LinkFaults { latency: Duration::from_millis(100), ..LinkFaults::FINE });
    while node.phase() == NodePhase::Up {
        assert!(take(&fleet, "a", Duration::from_millis(50)).await.is_err());
    }
    // Several times it is tried, and found there.
    let connects = node.counts().connects;
    eventually("it is tried again", async {
        while node.counts().connects < connects + 6 {
            assert_eq!(node.phase(), NodePhase::Down);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(node.trouble().as_deref(), Some("it doesn't answer within 50 ms"));
    proxy.set_weather(LinkFaults::FINE);
    until(&node, NodePhase::Up).await;
    assert!(take(&fleet, "a", AMPLE).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_time_is_over_is_not_sent() {
    let server = RedisServer::start();
    let fleet = connected(&server.url()).await;
    for _ in 0..100 {
        assert_eq!(take(&fleet, "a", Duration::ZERO).await, Err(StoreFailure::Timeout));
    }
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    assert_eq!((only(&fleet).phase(), only(&fleet).counts().failures.timeout), (NodePhase::Up, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_under_load_charge_nobody_twice() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let fleet = Arc::new(connected(&format!("redis://{}", proxy.address())).await);
    proxy.set_weather(LinkFaults { reset_requests: 0.02, reset_replies: 0.02, ..LinkFaults::FINE });
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let fleet = Arc::clone(&fleet);
        clients.spawn(async move {
            let (mut charged, mut unsure) = (0, 0);
            for _ in 0..200 {
                match take(&fleet, "a", AMPLE).await {
                    Ok(_) => charged += 1,
                    Err(StoreFailure::Unreachable | StoreFailure::Timeout) => {
                        unsure += 1;
                        // A server that seems away fails at once, and two hundred times that says nothing.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (charged, unsure)
        });
    }
    let counts = clients.join_all().await;
    let (charged, unsure) =
        counts.into_iter().fold((0, 0), |(all, others), (charged, unsure)| (all + charged, others + unsure));
    let found = server.command(&["GET", "a"]).integer();
    assert!((charged..=charged + unsure).contains(&found), "{charged} <= {found} <= {charged} + {unsure}");
    assert!(charged > 0 && unsure > 0, "{charged} were answered, {unsure} not");
    proxy.set_weather(LinkFaults::FINE);
    until_answered(&fleet, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_at_once_is_turned_away() {
    let server = RedisServer::start();
    let fleet = connect_with(&server.url(), |options| ratekeeper::redis::ServerSetOptions {
        in_flight: 10,
        ..options
    });
    let fleet = Arc::new(fleet);
    assert!(fleet.ready(AMPLE).await);
    server.pause();
    let node = only(&fleet);
    let waiting = {
        let (fleet, node) = (Arc::clone(&fleet), Arc::clone(&node));
        let commands = (0..10).map(|_| add("a", 1)).collect();
        tokio::spawn(
            async move { fleet.ask(&node, commands, Instant::now() + Duration::from_millis(400)).await },
        )
    };
    eventually("ten are in flight", async {
        while node.load().1 < 10 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Busy));
    assert_eq!(waiting.await.unwrap(), vec![Err(StoreFailure::Timeout); 10]);
    assert_eq!((node.counts().failures.busy, node.load().1), (1, 0));
    server.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_not_written_to_and_says_so() {
    let master = RedisServer::start();
    let replica =
        RedisServer::setup(Brand::Redis).set("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    let fleet = connect(&replica.url());
    assert!(!fleet.ready(AMPLE).await);
    assert!(only(&fleet).trouble().unwrap().contains("replica"));
    replica.command(&["REPLICAOF", "NO", "ONE"]).done();
    until(&only(&fleet), NodePhase::Up).await;
    // A master that becomes one under our hands is left at the first word.
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).done();
    assert_eq!(take(&fleet, "a", AMPLE).await, Err(StoreFailure::Unreachable));
    until(&only(&fleet), NodePhase::Down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_differs_is_known_and_bounded() {
    let server = RedisServer::setup(Brand::Redis).clock(7.0).start();
    let clock = Arc::new(wall_clock());
    let wall = Arc::clone(&clock);
    let fleet =
        connect_with(&server.url(), |options| ratekeeper::redis::ServerSetOptions { clock: wall, ..options });
    assert!(fleet.ready(AMPLE).await);
    let node = only(&fleet);
    let drift = node.drift_micros().unwrap();
    assert!((6_000_000..8_500_000).contains(&drift), "{drift}");
    let time = server.command(&["TIME"]);
    let micros = time.array()[0].integer() * 1_000_000 + time.array()[1].integer();
    let ceiling = node.clock_ceiling(Instant::now()).unwrap();
    assert!(ceiling.get() >= u64::try_from(micros).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_has_the_digest_that_commands_call_it_by() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SCRIPT", "LOAD", SCRIPT]).text(), super::DIGEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_a_server_too() {
    let server = RedisServer::setup(Brand::Redis).user("default", "on nopass ~* +@all").start();
    let socket = server.folder().join("socket");
    let fleet = connected(&format!("redis+unix://{}?db=3", socket.display())).await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    assert!(server.info("db3").starts_with("keys=1"));
}
