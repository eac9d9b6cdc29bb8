//! The server is up and answers every call with an error.

use super::report::{DegradedAnswers, StoreData};
use super::trial::Trial;
use ratekeeper_testkit::servers::{RedisServer, ServerNode};
use std::time::Duration;

/// Fails unless the node reports its only server as down, with this cause and advice and without the password.
#[track_caller]
fn assert_reports(node: &ServerNode, redis: &RedisServer, cause: &str, advice: &str) {
    let server = redis.address();
    assert_eq!(node.metric(&format!(r#"ratekeeper_store_up{{server="{server}"}}"#)), Some(0.0));
    let errors = format!(r#"ratekeeper_store_errors_total{{server="{server}",cause="{cause}"}}"#);
    assert!(node.metric(&errors).is_some_and(|count| count > 0.0), "{errors}");
    let store = node.admin_get("/v1/store");
    let ready = node.admin_get("/readyz");
    assert!(store.contains(&format!(r#""cause":"{cause}""#)) && store.contains(advice), "{store}");
    assert!(ready.contains(advice), "{ready}");
    assert!(!store.contains("s3cret") && !ready.contains("s3cret"), "{store} {ready}");
}

/// Runs an outage in which the server's users are changed under load, and changed back.
#[track_caller]
fn check_store_error(deny: impl Fn(&RedisServer), allow: impl Fn(&RedisServer), cause: &str, advice: &str) {
    let redis = RedisServer::start();
    let mut trial = Trial::begin(2, &redis.url());
    trial.inject(|| deny(&redis));
    trial.await_degraded();
    trial.run_for(Duration::from_secs(2));
    for node in &trial.group.nodes {
        assert_reports(node, &redis, cause, advice);
    }
    trial.restore(|| allow(&redis));
    trial.await_exact();
    let report = trial.end();
    report.assert_all(DegradedAnswers::Some);
    report.assert_logged_once();
    for log in &report.logs {
        let lines = log.lines().join("\n");
        assert!(lines.contains(advice) && !lines.contains("s3cret"), "{lines}");
    }
    report.assert_no_double_charge(StoreData::Kept, |_| true);
}

#[test]
fn a_password_is_set_while_nodes_run() {
    let set = |redis: &RedisServer, password: &str| {
        redis.command(&["CONFIG", "SET", "requirepass", password]).expect_ok();
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_ok();
    };
    check_store_error(
        |redis| set(redis, "s3cret"),
        |redis| set(redis, ""),
        "password",
        "put it into the URL",
    );
}

#[test]
fn a_permission_is_revoked_while_nodes_run() {
    let set = |redis: &RedisServer, permission: &str| {
        redis.command(&["ACL", "SETUSER", "default", permission]).expect_ok();
    };
    check_store_error(
        |redis| set(redis, "-evalsha"),
        |redis| set(redis, "+evalsha"),
        "permission",
        "ACL SETUSER default +evalsha",
    );
}
