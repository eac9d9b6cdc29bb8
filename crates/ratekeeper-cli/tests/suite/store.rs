//! A shared store as an operator sees it: banner, health, admin API and log.

use crate::support::{Server, TIMEOUT, within};
use ratekeeper_testkit::servers::{Brand, RedisServer, TestCluster};
use serde_json::json;

const RULES: &str = "default: {limit: 5/day}";
const ALICE: &str = r#"{"client_key":"alice"}"#;

fn node(url: &str) -> Server {
    Server::with(RULES, &["--store", url])
}

/// The banner line about the store.
fn store_line(server: &Server) -> String {
    server.banner.lines().find(|line| line.contains("store")).unwrap_or(&server.banner).to_owned()
}

#[test]
fn the_banner_shows_the_store_and_its_eviction_policy() {
    let redis = RedisServer::start();
    let line = store_line(&node(&redis.url()));
    let version = redis.info("redis_version");
    assert!(line.contains(&format!("redis {version}, standalone, noeviction; timeout 50ms")), "{line}");
    assert!(!line.contains("may evict"), "{line}");

    let evicting =
        RedisServer::setup(Brand::Valkey).set("maxmemory", "64mb").set("maxmemory-policy", "allkeys-lru");
    let evicting = evicting.start();
    let server = node(&evicting.url());
    let line = store_line(&server);
    assert!(line.contains("valkey 9") && line.contains("allkeys-lru (may evict limits"), "{line}");
    server.await_log("set maxmemory-policy to noeviction");

    let cluster = TestCluster::start();
    let line = store_line(&node(&cluster.url()));
    assert!(line.contains("cluster of 3 servers"), "{line}");
}

#[test]
fn a_store_that_is_down_at_start_is_reported_and_connected_later() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    redis.kill();
    let server = node(&url);
    let line = store_line(&server);
    assert!(line.contains("unreachable (") && line.contains("refused"), "{line}");
    assert!(line.contains("); on_store_failure=local applies"), "{line}");
    let ready = || server.connect_admin().get("/readyz");
    let degraded = ready();
    assert_eq!((degraded.status, &degraded.json()["degraded"]), (200, &json!(true)));
    let answer = server.check(ALICE);
    assert_eq!((answer.status, answer.field("x-ratelimit-policy")), (200, Some("degraded")));

    redis.restart();
    within(TIMEOUT, "the node connects to the store", || {
        (ready().json()["degraded"] != json!(true)).then_some(())
    });
    assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), None);
}

#[test]
fn the_banner_lists_unreachable_servers_with_the_cause() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let line = store_line(&node(&format!("redis://:wrong@{}", redis.address())));
    assert!(
        line.contains("unreachable (") && line.contains("authentication failed for user default"),
        "{line}"
    );

    let [up, mut down] = [RedisServer::start(), RedisServer::start()];
    let address = down.address();
    down.kill();
    let line = store_line(&node(&format!("redis+sharded://{},{address}", up.address())));
    let expected = format!("1 of 2 servers unreachable: {address} (");
    assert!(
        line.contains(&expected) && line.contains("on_store_failure=local applies to their keys"),
        "{line}"
    );
    assert!(!line.contains(&format!("{} (", up.address())), "{line}");
}

#[test]
fn the_banner_suggests_a_working_url() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let lone = RedisServer::start();
    for (url, advice) in [
        (format!("redis://{}", redis.address()), "put it into the URL, redis://USER:PASSWORD@HOST"),
        (format!("rediss://{}", lone.address()), "write redis:// instead of rediss://"),
        (format!("redis+cluster://{}", lone.address()), "write redis:// instead of redis+cluster://"),
        (format!("redis+sentinel://{}/main", lone.address()), "the server is not a Sentinel"),
    ] {
        let server = node(&url);
        let line = store_line(&server);
        assert!(line.contains(advice), "{line}");
        let readiness = server.admin("GET", "/readyz", "").json();
        assert!(readiness["store"].as_str().is_some_and(|words| words.contains(advice)), "{readiness}");
        let status = server.admin("GET", "/v1/store", "").json();
        assert_eq!(status["servers"][0]["breaker"], json!("open"), "{status}");
        assert!(
            status["servers"][0]["trouble"].as_str().is_some_and(|words| words.contains(advice)),
            "{status}"
        );
        assert!(server.log().contains(advice), "{}", server.log());
    }
}

#[test]
fn store_errors_of_a_connected_server_are_reported() {
    let redis = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
    let server = node(&redis.url());
    assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), None);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).expect_ok();
    within(TIMEOUT, "the node reports that it is degraded", || {
        assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), Some("degraded"));
        let readiness = server.admin("GET", "/readyz", "").json();
        let words = readiness["store"].as_str().unwrap().to_owned();
        (readiness["degraded"] == json!(true) && words.contains("(OOM")).then_some(())
    });
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).expect_ok();
    within(TIMEOUT, "the node reports that it has recovered", || {
        let readiness = server.admin("GET", "/readyz", "").json();
        (readiness["degraded"] == json!(false) && readiness["store"] == json!("up")).then_some(())
    });
}

#[test]
fn the_admin_api_describes_the_store_without_its_password() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let url = format!("redis://:open-sesame@{}", redis.address());
    let (one, other) = (node(&url), node(&url));
    for (server, remaining) in [(&one, "4"), (&other, "3"), (&one, "2")] {
        assert_eq!(server.check(ALICE).field("x-ratelimit-remaining"), Some(remaining));
    }
    // Each node counts the other after both have sent a heartbeat.
    let status = within(TIMEOUT, "two nodes are live", || {
        let status = one.admin("GET", "/v1/store", "").json();
        (status["live_nodes"] == json!(2)).then_some(status)
    });
    let server = &status["servers"][0];
    assert_eq!(
        (&status["topology"], &server["breaker"]),
        (&json!("standalone"), &json!("closed")),
        "{status}"
    );
    assert_eq!(
        (&server["script_loaded"], &server["eviction_policy"]),
        (&json!(true), &json!("noeviction")),
        "{status}"
    );
    assert!(server["calls"]["count"].as_u64().unwrap() >= 2, "{status}");
    let all = format!("{status}{}{}{}", one.banner, one.log(), one.admin("GET", "/metrics", "").body);
    assert!(!all.contains("sesame"), "{all}");
}

#[test]
fn unspent_lease_units_are_shown_per_key_and_spent_while_the_store_is_down() {
    let mut redis = RedisServer::start();
    let rules = "default: {limit: 20/h burst 10000}\nconsistency: leased\non_store_failure: closed\nstore_timeout: 1s";
    let server = Server::with(rules, &["--store", &redis.url()]);
    for _ in 0..100 {
        assert_eq!(server.check(ALICE).json()["allowed"], json!(true));
    }
    let lease = || {
        let explained = server.admin("POST", "/v1/explain", ALICE).json();
        assert_eq!(explained["limits"][0]["rule"], "default", "{explained}");
        explained["limits"][0]["lease"].clone()
    };
    let (before, number) = (lease(), |lease: &serde_json::Value, what: &str| lease[what].as_u64().unwrap());
    let units = |lease: &serde_json::Value| {
        ["units_spent", "units_returned", "units_expired", "unspent"]
            .map(|what| number(lease, what))
            .iter()
            .sum::<u64>()
    };
    assert_eq!(number(&before, "units_lent"), units(&before), "{before}");
    assert_eq!(number(&before, "checks"), 100, "{before}");
    assert!(number(&before, "checks_missed") < 20 && number(&before, "unspent") > 0, "{before}");
    assert_eq!(before["unacknowledged"], json!(false), "{before}");

    redis.kill();
    let spent = (0..).take_while(|_| server.check(ALICE).json()["allowed"] == json!(true)).count();
    assert!(spent as u64 >= number(&before, "unspent"), "{spent} of {before}");
    let after = lease();
    assert_eq!(number(&after, "unspent"), 0, "{after}");
    assert_eq!(number(&after, "units_lent"), units(&after), "{after}");
    within(TIMEOUT, "the degraded time is counted", || {
        let status = server.admin("GET", "/v1/store", "").json();
        (status["counts"]["degraded_seconds"].as_f64().unwrap() > 0.0).then_some(())
    });
}
