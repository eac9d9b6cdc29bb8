//! The server is there and refuses everything.

use super::account::{Extent, Kept};
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use std::time::Duration;

/// What a node says of its only server.
#[track_caller]
fn must_tell(node: &ServerNode, redis: &RedisServer, cause: &str, advice: &str) {
    let server = redis.address();
    assert_eq!(node.metric(&format!(r#"ratekeeper_store_up{{server="{server}"}}"#)), Some(0.0));
    let errors = format!(r#"ratekeeper_store_errors_total{{server="{server}",cause="{cause}"}}"#);
    assert!(node.metric(&errors).is_some_and(|count| count > 0.0), "{errors}");
    let store = node.told("/v1/store");
    let ready = node.told("/readyz");
    assert!(store.contains(&format!(r#""cause":"{cause}""#)) && store.contains(advice), "{store}");
    assert!(ready.contains(advice), "{ready}");
    assert!(!store.contains("s3cret") && !ready.contains("s3cret"), "{store} {ready}");
}

/// A server whose users are changed under load, and changed back.
#[track_caller]
fn refuse(refuse: impl Fn(&RedisServer), allow: impl Fn(&RedisServer), cause: &str, advice: &str) {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut trial = Trial::begin(2, &redis.url());
        trial.lose(|| refuse(&redis));
        trial.await_degraded();
        trial.go_on(Duration::from_secs(2));
        for node in &trial.fleet.nodes {
            must_tell(node, &redis, cause, advice);
        }
        trial.restore(|| allow(&redis));
        trial.await_exact();
        let account = trial.end();
        account.hold_to(Extent::Some);
        account.is_told_once();
        for log in &account.logs {
            let lines = log.lines().join("\n");
            assert!(lines.contains(advice) && !lines.contains("s3cret"), "{lines}");
        }
        account.nobody_is_charged_twice(Kept::Everything, |_| true);
    });
}

#[test]
fn a_password_is_set_while_nodes_run() {
    let set = |redis: &RedisServer, password: &str| {
        redis.command(&["CONFIG", "SET", "requirepass", password]).done();
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).done();
    };
    refuse(|redis| set(redis, "s3cret"), |redis| set(redis, ""), "password", "put it into the URL");
}

#[test]
fn a_right_is_taken_away_while_nodes_run() {
    let set = |redis: &RedisServer, right: &str| {
        redis.command(&["ACL", "SETUSER", "default", right]).done();
    };
    refuse(
        |redis| set(redis, "-evalsha"),
        |redis| set(redis, "+evalsha"),
        "permission",
        "ACL SETUSER default +evalsha",
    );
}
