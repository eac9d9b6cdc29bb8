//! Servers that are there and refuse: what is wrong is told apart and named, calls fail at once, and all is well again by
//! itself once it is put right.

use crate::{PATIENCE, connect, limit, limit_of, take};
use ratekeeper::redis::RedisStore;
use ratekeeper::{
    Algorithm, BreakerState, LogSize, ServerReport, StoreErrorCause, StoreFailure, StoreHealth,
};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels, TestCluster};
use std::time::Duration;
use tokio::time::Instant;

/// All rights that the docs name, without the user's name and password.
fn rights() -> String {
    let docs = include_str!("../../../../docs/stores.md");
    let line = docs.lines().find_map(|line| line.strip_prefix("user ratekeeper ")).unwrap();
    line.replace("on >PASSWORD ", "")
}

fn server_of(store: &RedisStore) -> ServerReport {
    store.health().unwrap().servers.remove(0)
}

/// Waits until what a store tells of its only server is so.
async fn until(store: &RedisStore, what: &str, is_so: impl Fn(&ServerReport) -> bool) -> ServerReport {
    let begun = Instant::now();
    loop {
        let server = server_of(store);
        if is_so(&server) {
            return server;
        }
        assert!(begun.elapsed() < PATIENCE, "not {what}: {server:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_refused(store: &RedisStore, cause: StoreErrorCause, advice: &str) {
    let what = format!("refused for {cause:?}");
    let is_open = |server: &ServerReport| server.breaker != BreakerState::Closed;
    let server = until(store, &what, |server| server.cause == Some(cause) && is_open(server)).await;
    assert!(server.errors.of(cause) > 0, "{server:?}");
    let trouble = server.trouble.unwrap();
    assert!(trouble.contains(advice), "{trouble:?} lacks {advice:?}");
    assert!(!trouble.contains("s3cret"), "{trouble}");
    // Nobody waits for it.
    let said = take(&[("a", limit("10/h"))], 1).by(store).await;
    assert_eq!(said.failure(0..1), Some(StoreFailure::Unreachable));
}

async fn until_well(store: &RedisStore) {
    until(store, "well", |server| server.breaker == BreakerState::Closed && server.trouble.is_none()).await;
    let said = take(&[("a", limit("1000/h"))], 1).by(store).await;
    assert_eq!(said.failure(0..1), None);
}

/// A server that refuses from the start.
async fn refuses(url: &str, cause: StoreErrorCause, advice: &str) -> RedisStore {
    let store = connect(url, Duration::from_secs(5));
    assert!(!store.ready(Duration::from_secs(2)).await, "{url}");
    until_refused(&store, cause, advice).await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_missing_or_wrong_is_named_and_found_when_it_is_right() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).password("s3cret").start();
        let address = server.address();
        let without = refuses(
            &format!("redis://{address}"),
            StoreErrorCause::Password,
            "put it into the URL, redis://USER",
        )
        .await;
        let url = format!("redis://:wr0ng@{address}");
        let wrong = refuses(&url, StoreErrorCause::Password, "does not accept the user default").await;
        server.command(&["CONFIG", "SET", "requirepass", "wr0ng"]).done();
        until_well(&wrong).await;
        server.command(&["CONFIG", "SET", "requirepass", ""]).done();
        until_well(&without).await;
        // A password comes while it runs: connections that were made before still work, those made since do not.
        server.command(&["CONFIG", "SET", "requirepass", "s3cret"]).done();
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).done();
        until_refused(&without, StoreErrorCause::Password, "wants a password").await;
        server.command(&["CONFIG", "SET", "requirepass", ""]).done();
        until_well(&without).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_is_named_and_found_when_it_is_given() {
    for brand in Brand::ALL {
        let rules = rights();
        let server = RedisServer::setup(brand).user("gate", &format!("on >s3cret {rules}")).start();
        let url = format!("redis://gate:s3cret@{}", server.address());
        let set = |rules: &[&str]| server.command(&[&["ACL", "SETUSER", "gate"], rules].concat()).done();
        set(&["-evalsha"]);
        let store = refuses(&url, StoreErrorCause::Permission, "ACL SETUSER gate +evalsha").await;
        set(&["+evalsha"]);
        until_well(&store).await;
        // What a script may not do, and which keys, while it runs.
        for (without, with, advice) in [
            (
                vec!["-psetex", "-zadd"],
                vec!["+psetex", "+zadd"],
                "may not run PSETEX, ZADD: on the server, ACL SETUSER gate +psetex +zadd",
            ),
            (vec!["-evalsha"], vec!["+evalsha"], "ACL SETUSER gate +evalsha"),
            (
                vec!["resetkeys", "~app:*"],
                vec!["resetkeys", "~rk1:*", "~{rk1:nodes}"],
                "ACL SETUSER gate ~rk1:*",
            ),
        ] {
            set(&without);
            until_refused(&store, StoreErrorCause::Permission, advice).await;
            set(&with);
            until_well(&store).await;
        }
        // Without what only some laws need, others work.
        set(&["-lrange"]);
        let lacks =
            |server: &ServerReport| server.trouble.as_ref().is_some_and(|words| words.contains("LRANGE"));
        let told = until(&store, "told that LRANGE is missing", lacks).await;
        assert_eq!((told.breaker, told.takes_writes), (BreakerState::Closed, true), "{told:?}");
        assert!(take(&[("a", limit("1000/h"))], 1).told_by(&store).await.0);
        let log = [("b", limit_of(Algorithm::SlidingWindowLog(LogSize::Modest), "5/h"))];
        assert_eq!(take(&log, 1).by(&store).await.failure(0..1), Some(StoreFailure::Refused));
        set(&["+lrange"]);
        until_well(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_left_and_used_once_it_is_a_master() {
    let (master, server) = (RedisServer::start(), RedisServer::start());
    let store = connect(&server.url(), Duration::from_secs(5));
    until_well(&store).await;
    server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).done();
    until_refused(&store, StoreErrorCause::Replica, "name its master").await;
    server.command(&["REPLICAOF", "NO", "ONE"]).done();
    until_well(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_of_another_topology_is_named() {
    let topology = StoreErrorCause::Topology;
    for brand in Brand::ALL {
        let lone = RedisServer::setup(brand).start();
        let address = lone.address();
        let advice = "not a Cluster (cluster_enabled:0): write redis:// instead of redis+cluster://";
        refuses(&format!("redis+cluster://{address}"), topology, advice).await;
        refuses(&format!("redis+sentinel://{address}/main"), topology, "it is no Sentinel").await;
    }
    let cluster = TestCluster::start();
    let node = cluster.nodes()[0].address();
    refuses(&format!("redis://{node}"), topology, "write redis+cluster:// instead of redis://").await;
    let sentinels = Sentinels::start();
    let sentinel = &sentinels.addresses()[0];
    refuses(&format!("redis://{sentinel}"), topology, "write redis+sentinel:// instead of redis://").await;
    refuses(&format!("redis+sentinel://{sentinel}/nobody"), topology, "knows no master called nobody").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_wants_a_password_says_so() {
    let cluster = TestCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", "s3cret"]).done();
    }
    let store =
        refuses(&cluster.url(), StoreErrorCause::Password, "redis+cluster://USER:PASSWORD@HOST").await;
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", ""]).done();
    }
    until_well(&store).await;
}

/// Without memory, without a disk, without replicas: it still answers those for whom nothing is written, beside others.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_answers_those_who_need_none() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).set("maxmemory-policy", "noeviction").start();
        let store = connect(&server.url(), Duration::from_secs(5));
        until_well(&store).await;
        let spent = [("spent", limit("2/h"))];
        assert_eq!(take(&spent, 2).told_by(&store).await, (true, 0));
        for (name, on, off, cause, advice) in [
            ("maxmemory", "1", "0", StoreErrorCause::OutOfMemory, "raise maxmemory"),
            ("min-replicas-to-write", "1", "0", StoreErrorCause::Replicas, "min-replicas-to-write"),
        ] {
            server.command(&["CONFIG", "SET", name, on]).done();
            let told = until(&store, "told", |server| server.cause == Some(cause)).await;
            assert_eq!((told.breaker, told.takes_writes), (BreakerState::Closed, false), "{told:?}");
            assert!(told.trouble.as_ref().is_some_and(|words| words.contains(advice)), "{told:?}");
            assert!(store.health().unwrap().is_degraded());
            // All in one call: a draw that must be written, one that is denied, and a request of two of which one is denied.
            let mut draws = ratekeeper::Draws::new();
            let both = [("fresh", limit("9/h")), ("spent", limit("2/h"))];
            take(&[("new", limit("9/h"))], 1).push(&mut draws);
            take(&spent, 1).push(&mut draws);
            take(&both[..1], 0).push(&mut draws);
            ratekeeper::Store::draw(&store, &mut draws).await;
            let failures = [0, 1, 2].map(|group| draws.group_failure(group));
            assert_eq!(failures, [Some(StoreFailure::Refused), None, None], "{cause:?}");
            assert!(draws.group(1)[0].stops() && !draws.group(2)[0].stops());
            server.command(&["CONFIG", "SET", name, off]).done();
            until_well(&store).await;
        }
        assert_eq!(
            take(&[("new", limit("9/h"))], 0).told_by(&store).await,
            (true, 9),
            "nothing was left half done"
        );
    }
}
