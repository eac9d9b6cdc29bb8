//! Servers that answer with errors: the report names the cause and the remedy, calls fail fast, and the store recovers
//! without intervention once the cause is fixed.

use crate::LeasedRedis;
use crate::{TEST_TIMEOUT, connect, limit, limit_of, take};
use ratekeeper::{Algorithm, BreakerState, LogSize, ServerReport, Store, StoreErrorCause, StoreFailure};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels, TestCluster};
use std::time::Duration;
use tokio::time::Instant;

/// The ACL rules from the docs, without user name and password.
fn documented_acl() -> String {
    let docs = include_str!("../../../../docs/stores.md");
    let line = docs.lines().find_map(|line| line.strip_prefix("user ratekeeper ")).unwrap();
    line.replace("on >PASSWORD ", "")
}

fn server_report(store: &LeasedRedis) -> ServerReport {
    store.health().unwrap().servers.remove(0)
}

/// Waits until the report on the store's only server satisfies `is_so`.
async fn until_report(
    store: &LeasedRedis,
    what: &str,
    is_so: impl Fn(&ServerReport) -> bool,
) -> ServerReport {
    let begun = Instant::now();
    loop {
        let server = server_report(store);
        if is_so(&server) {
            return server;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "never {what}: {server:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_failing(store: &LeasedRedis, cause: StoreErrorCause, advice: &str) {
    let what = format!("failing with {cause:?}");
    let is_open = |server: &ServerReport| server.breaker != BreakerState::Closed;
    let server = until_report(store, &what, |server| server.cause == Some(cause) && is_open(server)).await;
    assert!(server.errors.of(cause) > 0, "{server:?}");
    let error = server.problem.unwrap();
    assert!(error.contains(advice), "{error:?} lacks {advice:?}");
    assert!(!error.contains("s3cret"), "{error}");
    // The breaker is open, so calls fail fast.
    let draws = take(&[("a", limit("10/h"))], 1).draw_from(store).await;
    assert_eq!(draws.failure_in(0..1), Some(StoreFailure::Unreachable));
}

async fn until_healthy(store: &LeasedRedis) {
    let is_healthy =
        |server: &ServerReport| server.breaker == BreakerState::Closed && server.problem.is_none();
    // The next draw may go to any server of a Cluster.
    until_report(store, "healthy", |_| store.health().unwrap().servers.iter().all(is_healthy)).await;
    let draws = take(&[("a", limit("1000/h"))], 1).draw_from(store).await;
    assert_eq!(draws.failure_in(0..1), None);
}

/// A store whose server answers with errors from the start.
async fn connect_failing(url: &str, cause: StoreErrorCause, advice: &str) -> LeasedRedis {
    let store = connect(url, Duration::from_secs(5));
    assert!(!store.store().ready(Duration::from_secs(2)).await, "{url}");
    until_failing(&store, cause, advice).await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_wrong_password_is_reported_and_recovers() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).password("s3cret").start();
        let address = server.address();
        let without = connect_failing(
            &format!("redis://{address}"),
            StoreErrorCause::Password,
            "put it into the URL, redis://USER",
        )
        .await;
        let url = format!("redis://:wr0ng@{address}");
        let wrong =
            connect_failing(&url, StoreErrorCause::Password, "authentication failed for user default").await;
        server.command(&["CONFIG", "SET", "requirepass", "wr0ng"]).expect_ok();
        until_healthy(&wrong).await;
        server.command(&["CONFIG", "SET", "requirepass", ""]).expect_ok();
        until_healthy(&without).await;
        // A password is set at run time: existing connections still work, new ones do not.
        server.command(&["CONFIG", "SET", "requirepass", "s3cret"]).expect_ok();
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_ok();
        until_failing(&without, StoreErrorCause::Password, "password required").await;
        server.command(&["CONFIG", "SET", "requirepass", ""]).expect_ok();
        until_healthy(&without).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_is_reported_and_recovers() {
    for brand in Brand::ALL {
        let rules = documented_acl();
        let server = RedisServer::setup(brand).user("gate", &format!("on >s3cret {rules}")).start();
        let url = format!("redis://gate:s3cret@{}", server.address());
        let set = |rules: &[&str]| server.command(&[&["ACL", "SETUSER", "gate"], rules].concat()).expect_ok();
        set(&["-evalsha"]);
        let store = connect_failing(&url, StoreErrorCause::Permission, "ACL SETUSER gate +evalsha").await;
        set(&["+evalsha"]);
        until_healthy(&store).await;
        // Permissions for commands and keys that the script needs, revoked at run time.
        for (without, with, advice) in [
            (
                vec!["-psetex", "-zadd"],
                vec!["+psetex", "+zadd"],
                "may not run PSETEX, ZADD: run ACL SETUSER gate +psetex +zadd on the server",
            ),
            (vec!["-evalsha"], vec!["+evalsha"], "ACL SETUSER gate +evalsha"),
            (
                vec!["resetkeys", "~app:*"],
                vec!["resetkeys", "~rk1:*", "~{rk1:nodes}"],
                "ACL SETUSER gate ~rk1:*",
            ),
        ] {
            set(&without);
            until_failing(&store, StoreErrorCause::Permission, advice).await;
            set(&with);
            until_healthy(&store).await;
        }
        // Without a command that only some algorithms need, the others work.
        set(&["-lrange"]);
        let lacks =
            |server: &ServerReport| server.problem.as_ref().is_some_and(|error| error.contains("LRANGE"));
        let report = until_report(&store, "reporting that LRANGE is missing", lacks).await;
        assert_eq!((report.breaker, report.accepts_writes), (BreakerState::Closed, true), "{report:?}");
        assert!(take(&[("a", limit("1000/h"))], 1).check(&store).await.0);
        let log = [("b", limit_of(Algorithm::SlidingWindowLog(LogSize::Standard), "5/h"))];
        assert_eq!(take(&log, 1).draw_from(&store).await.failure_in(0..1), Some(StoreFailure::StoreError));
        set(&["+lrange"]);
        until_healthy(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_abandoned_and_used_once_promoted() {
    let (master, server) = (RedisServer::start(), RedisServer::start());
    let store = connect(&server.url(), Duration::from_secs(5));
    until_healthy(&store).await;
    server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).expect_ok();
    until_failing(&store, StoreErrorCause::Replica, "name its master").await;
    server.command(&["REPLICAOF", "NO", "ONE"]).expect_ok();
    until_healthy(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_for_the_wrong_topology_is_reported() {
    let topology = StoreErrorCause::Topology;
    for brand in Brand::ALL {
        let lone = RedisServer::setup(brand).start();
        let address = lone.address();
        let advice = "not a Cluster (cluster_enabled:0): write redis:// instead of redis+cluster://";
        connect_failing(&format!("redis+cluster://{address}"), topology, advice).await;
        connect_failing(
            &format!("redis+sentinel://{address}/main"),
            topology,
            "the server is not a Sentinel",
        )
        .await;
    }
    let cluster = TestCluster::start();
    let node = cluster.nodes()[0].address();
    connect_failing(&format!("redis://{node}"), topology, "write redis+cluster:// instead of redis://").await;
    let sentinels = Sentinels::start();
    let sentinel = &sentinels.addresses()[0];
    connect_failing(&format!("redis://{sentinel}"), topology, "write redis+sentinel:// instead of redis://")
        .await;
    connect_failing(&format!("redis+sentinel://{sentinel}/nobody"), topology, "unknown master nobody").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_requires_a_password_is_reported() {
    let cluster = TestCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", "s3cret"]).expect_ok();
    }
    let store =
        connect_failing(&cluster.url(), StoreErrorCause::Password, "redis+cluster://USER:PASSWORD@HOST")
            .await;
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", ""]).expect_ok();
    }
    until_healthy(&store).await;
}

/// A server that rejects writes (out of memory, too few replicas) still decides draws that write nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_rejects_writes_still_decides_draws_without_writes() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).set("maxmemory-policy", "noeviction").start();
        let store = connect(&server.url(), Duration::from_secs(5));
        until_healthy(&store).await;
        let spent = [("spent", limit("2/h"))];
        assert_eq!(take(&spent, 2).check(&store).await, (true, 0));
        for (name, on, off, cause, advice) in [
            ("maxmemory", "1", "0", StoreErrorCause::OutOfMemory, "raise maxmemory"),
            ("min-replicas-to-write", "1", "0", StoreErrorCause::Replicas, "min-replicas-to-write"),
        ] {
            server.command(&["CONFIG", "SET", name, on]).expect_ok();
            let report =
                until_report(&store, "reporting the cause", |server| server.cause == Some(cause)).await;
            assert_eq!((report.breaker, report.accepts_writes), (BreakerState::Closed, false), "{report:?}");
            assert!(report.problem.as_ref().is_some_and(|error| error.contains(advice)), "{report:?}");
            assert!(store.health().unwrap().is_degraded());
            // All in one call: a draw that must be written, one that is denied, and one that takes nothing.
            let mut draws = ratekeeper::Draws::new();
            let both = [("fresh", limit("9/h")), ("spent", limit("2/h"))];
            take(&[("new", limit("9/h"))], 1).push(&mut draws);
            take(&spent, 1).push(&mut draws);
            take(&both[..1], 0).push(&mut draws);
            ratekeeper::Store::draw(&store, &mut draws).await;
            let failures = [0, 1, 2].map(|group| draws.group_failure(group));
            assert_eq!(failures, [Some(StoreFailure::StoreError), None, None], "{cause:?}");
            assert!(draws.group(1)[0].denies_request() && !draws.group(2)[0].denies_request());
            server.command(&["CONFIG", "SET", name, off]).expect_ok();
            until_healthy(&store).await;
        }
        assert_eq!(
            take(&[("new", limit("9/h"))], 0).check(&store).await,
            (true, 9),
            "no write was left incomplete"
        );
    }
}
