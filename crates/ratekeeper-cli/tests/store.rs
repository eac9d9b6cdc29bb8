//! A shared store, as whoever starts and watches a server sees it.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use ratekeeper_testkit::servers::{Brand, RedisServer, TestCluster};
use serde_json::json;
use support::{PATIENCE, Server, within};

const RULES: &str = "default: {limit: 5/day}";
const ALICE: &str = r#"{"client_key":"alice"}"#;

fn node(url: &str) -> Server {
    Server::with(RULES, &["--store", url])
}

/// The line that says what the store is.
fn store_line(server: &Server) -> String {
    server.greeting.lines().find(|line| line.contains("store")).unwrap_or(&server.greeting).to_owned()
}

#[test]
fn the_greeting_says_what_was_found_and_what_it_may_do() {
    let redis = RedisServer::start();
    let line = store_line(&node(&redis.url()));
    let version = redis.info("redis_version");
    assert!(
        line.contains(&format!("redis {version}, standalone, noeviction; it has 50ms to answer")),
        "{line}"
    );
    assert!(!line.contains("MAY DROP"), "{line}");

    let forgetful =
        RedisServer::setup(Brand::Valkey).set("maxmemory", "64mb").set("maxmemory-policy", "allkeys-lru");
    let forgetful = forgetful.start();
    let server = node(&forgetful.url());
    let line = store_line(&server);
    assert!(line.contains("valkey 9") && line.contains("allkeys-lru MAY DROP LIMITS"), "{line}");
    server.await_log("set maxmemory-policy to noeviction");

    let cluster = TestCluster::start();
    let line = store_line(&node(&cluster.url()));
    assert!(line.contains("cluster of 3 servers"), "{line}");
}

#[test]
fn a_store_that_is_away_at_the_start_is_said_and_found_later() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    redis.kill();
    let server = node(&url);
    let line = store_line(&server);
    assert!(line.contains("NOT THERE YET (") && line.contains("refused"), "{line}");
    assert!(line.contains("), so local holds"), "{line}");
    let ready = || server.connect_admin().get("/readyz");
    let degraded = ready();
    assert_eq!((degraded.status, &degraded.json()["degraded"]), (200, &json!(true)));
    let answer = server.check(ALICE);
    assert_eq!((answer.status, answer.field("x-ratelimit-policy")), (200, Some("degraded")));

    redis.restart();
    within(PATIENCE, "the store is found", || (ready().json()["degraded"] != json!(true)).then_some(()));
    assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), None);
}

#[test]
fn the_greeting_says_which_servers_are_away_and_why() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let line = store_line(&node(&format!("redis://:wrong@{}", redis.address())));
    assert!(line.contains("NOT THERE YET (") && line.contains("does not accept the user default"), "{line}");

    let [there, mut gone] = [RedisServer::start(), RedisServer::start()];
    let address = gone.address();
    gone.kill();
    let line = store_line(&node(&format!("redis+sharded://{},{address}", there.address())));
    let said = format!("1 of 2 servers NOT THERE YET, {address} (");
    assert!(line.contains(&said) && line.contains("so for their keys local holds"), "{line}");
    assert!(!line.contains(&format!("{} (", there.address())), "{line}");
}

#[test]
fn the_greeting_says_what_to_write_instead() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let lone = RedisServer::start();
    for (url, advice) in [
        (format!("redis://{}", redis.address()), "put it into the URL, redis://USER:PASSWORD@HOST"),
        (format!("rediss://{}", lone.address()), "write redis:// instead of rediss://"),
        (format!("redis+cluster://{}", lone.address()), "write redis:// instead of redis+cluster://"),
        (format!("redis+sentinel://{}/main", lone.address()), "it is no Sentinel"),
    ] {
        let server = node(&url);
        let line = store_line(&server);
        assert!(line.contains(advice), "{line}");
        let said = server.admin("GET", "/readyz", "").json();
        assert!(said["store"].as_str().is_some_and(|words| words.contains(advice)), "{said}");
        let told = server.admin("GET", "/v1/store", "").json();
        assert_eq!(told["servers"][0]["breaker"], json!("open"), "{told}");
        assert!(told["servers"][0]["trouble"].as_str().is_some_and(|words| words.contains(advice)), "{told}");
        assert!(server.log().contains(advice), "{}", server.log());
    }
}

#[test]
fn requests_that_a_server_refuses_are_told_of_though_it_is_there() {
    let redis = RedisServer::setup(Brand::Redis).set("maxmemory-policy", "noeviction").start();
    let server = node(&redis.url());
    assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), None);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).done();
    within(PATIENCE, "the node says that it goes without the store", || {
        assert_eq!(server.check(ALICE).field("x-ratelimit-policy"), Some("degraded"));
        let said = server.admin("GET", "/readyz", "").json();
        let words = said["store"].as_str().unwrap().to_owned();
        (said["degraded"] == json!(true) && words.contains("(OOM")).then_some(())
    });
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).done();
    within(PATIENCE, "the node says that it is over", || {
        let said = server.admin("GET", "/readyz", "").json();
        (said["degraded"] == json!(false) && said["store"] == json!("answers")).then_some(())
    });
}

#[test]
fn the_admin_port_tells_of_the_store_and_never_its_password() {
    let redis = RedisServer::setup(Brand::Redis).password("open-sesame").start();
    let url = format!("redis://:open-sesame@{}", redis.address());
    let (one, other) = (node(&url), node(&url));
    for (server, remaining) in [(&one, "4"), (&other, "3"), (&one, "2")] {
        assert_eq!(server.check(ALICE).field("x-ratelimit-remaining"), Some(remaining));
    }
    // Each counts the other once both have been heard of.
    let told = within(PATIENCE, "two nodes are known", || {
        let told = one.admin("GET", "/v1/store", "").json();
        (told["live_nodes"] == json!(2)).then_some(told)
    });
    let server = &told["servers"][0];
    assert_eq!((&told["topology"], &server["breaker"]), (&json!("standalone"), &json!("closed")), "{told}");
    assert_eq!(
        (&server["script_loaded"], &server["eviction_policy"]),
        (&json!(true), &json!("noeviction")),
        "{told}"
    );
    assert!(server["calls"]["count"].as_u64().unwrap() >= 2, "{told}");
    let all = format!("{told}{}{}{}", one.greeting, one.log(), one.admin("GET", "/metrics", "").body);
    assert!(!all.contains("sesame"), "{all}");
}

#[test]
fn what_a_node_has_in_hand_is_told_key_by_key_and_spent_while_the_store_is_away() {
    let mut redis = RedisServer::start();
    let rules = "default: {limit: 20/h burst 10000}\nconsistency: leased\non_store_failure: closed\nstore_timeout: 1s";
    let server = Server::with(rules, &["--store", &redis.url()]);
    for _ in 0..100 {
        assert_eq!(server.check(ALICE).json()["allowed"], json!(true));
    }
    let lease = || {
        let said = server.admin("POST", "/v1/explain", ALICE).json();
        assert_eq!(said["limits"][0]["rule"], "default", "{said}");
        said["limits"][0]["lease"].clone()
    };
    let (before, number) = (lease(), |lease: &serde_json::Value, what: &str| lease[what].as_u64().unwrap());
    let units = |lease: &serde_json::Value| {
        ["units_spent", "units_returned", "units_forfeited", "in_hand"]
            .map(|what| number(lease, what))
            .iter()
            .sum::<u64>()
    };
    assert_eq!(number(&before, "units_lent"), units(&before), "{before}");
    assert_eq!(number(&before, "checks"), 100, "{before}");
    assert!(number(&before, "checks_asked") < 20 && number(&before, "in_hand") > 0, "{before}");
    assert_eq!(before["mute"], json!(false), "{before}");

    redis.kill();
    let from_hand = (0..).take_while(|_| server.check(ALICE).json()["allowed"] == json!(true)).count();
    assert!(from_hand as u64 >= number(&before, "in_hand"), "{from_hand} of {before}");
    let after = lease();
    assert_eq!(number(&after, "in_hand"), 0, "{after}");
    assert_eq!(number(&after, "units_lent"), units(&after), "{after}");
    within(PATIENCE, "the time without the store is counted", || {
        let told = server.admin("GET", "/v1/store", "").json();
        (told["counts"]["degraded_seconds"].as_f64().unwrap() > 0.0).then_some(())
    });
}
