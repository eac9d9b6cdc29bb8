//! Floods of keys and of limits against the real binary with little memory: every limit stays in force.

use crate::support::{Client, Server, TIMEOUT, socket, within};
use serde_json::{Value, json};
use std::io::{Read, Write};

/// So slow that no unit is refilled during a test.
const RULES: &str = "
rules:
  - {id: search, match: {path: /search}, limit: 1/day}
  - {id: login, match: {path: /login}, key: ip, limit: 5/day}
";

/// Sends the checks as a batch, and returns how many are allowed.
fn allowed(client: &mut Client, checks: &[Value]) -> usize {
    let answer = client.post("/v1/check/batch", json!({"checks": checks}).to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = &answer.json()["results"];
    results.as_array().unwrap().iter().filter(|result| result["allowed"] == true).count()
}

/// Sends two checks for each made-up client, so that all of them end up denied.
fn flood(client: &mut Client, clients: std::ops::Range<usize>) {
    let check = |index: usize| json!({"client_key": format!("made up {index}"), "endpoint": "/search"});
    for _ in 0..2 {
        allowed(client, &clients.clone().map(check).collect::<Vec<_>>());
    }
}

#[test]
fn a_flood_of_denied_keys_at_the_cap_leaves_every_limit_in_force() {
    let server = Server::with(RULES, &["--max-keys", "5000"]);
    let mut client = server.connect();
    for first in (0..40_000).step_by(5_000) {
        flood(&mut client, first..first + 5_000);
    }
    for address in 0..200 {
        let attempt =
            json!({"client_key": "browser", "endpoint": "/login", "ip": format!("192.0.2.{address}")});
        let mut passed = 0;
        for round in 0..4 {
            passed += allowed(&mut client, &vec![attempt.clone(); 5]);
            let first = 100_000 + (address * 4 + round) * 20;
            flood(&mut client, first..first + 20);
        }
        assert_eq!(passed, 5, "of 20 attempts from 192.0.2.{address}");
    }
    let again =
        (0..1_000).map(|index| json!({"client_key": format!("made up {index}"), "endpoint": "/search"}));
    assert_eq!(allowed(&mut client, &again.collect::<Vec<_>>()), 0, "denied clients stay denied");

    let metrics = server.metrics();
    assert!(metrics.value("ratekeeper_keys") <= 5_000.0);
    assert!(metrics.value("ratekeeper_sketch_decisions_total") > 10_000.0);
    assert!(metrics.value("ratekeeper_evictions_total{cause=\"moved\"}") > 0.0);
    assert_eq!(metrics.value("ratekeeper_uncounted_checks_total"), 0.0);
    let ready = server.connect_admin().get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.json()["memory"].as_str().unwrap().starts_with("full: new keys"), "{}", ready.body);
    within(TIMEOUT, "the full memory is logged", || {
        server.log().contains("memory for counters is full").then_some(())
    });
}

/// Sends `count` pipelined commands and returns the replies, each an array of five integers.
fn send_throttles(stream: &mut std::net::TcpStream, commands: &str, count: usize) -> String {
    stream.write_all(commands.as_bytes()).unwrap();
    let mut replies = Vec::new();
    let mut buffer = [0; 1 << 16];
    while replies.iter().filter(|byte| **byte == b'\n').count() < 6 * count {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection ended");
        replies.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(replies).unwrap()
}

#[test]
fn a_flood_of_limits_leaves_new_rules_and_new_parameter_sets_in_force() {
    let server = Server::with_rules("default: {limit: 1000/h}");
    let address = &server.resp_address;
    let mut resp = socket(address);
    // Each limit has its own key that takes years to drain, so that none expires on its own.
    for first in (0..300_000).step_by(1_000) {
        let sets = first..first + 1_000;
        let calls: String = sets.map(|set| format!("CL.THROTTLE key{set} {set} 1 3600\r\n")).collect();
        let replies = send_throttles(&mut resp, &calls, 1_000);
        assert!(!replies.contains("-ERR"), "{replies}");
    }
    std::fs::write(server.rules(), "default: {limit: 6/h}\n").unwrap();
    let mut client = server.connect();
    within(TIMEOUT, "the new rules are in force", || {
        (client.post("/v1/peek", r#"{"client_key":"alice"}"#).json()["limit"] == 6).then_some(())
    });
    let checks = vec![json!({"client_key": "alice"}); 50];
    assert_eq!(allowed(&mut client, &checks), 6);
    // It is denied until older parameter sets are evicted, and never admitted beyond its limit.
    let mut calls = 0;
    within(TIMEOUT, "the new parameter set gets a slot", || {
        calls += 1;
        let replies =
            send_throttles(&mut resp, &format!("CL.THROTTLE late{calls} 2 1 86400\r\n").repeat(50), 50);
        let allowed = replies.matches("*5\r\n:0\r\n").count();
        assert!(allowed <= 3, "{replies}");
        (allowed == 3).then_some(())
    });

    let metrics = server.metrics();
    assert!(metrics.value("ratekeeper_limits") <= f64::from(1 << 18));
    assert!(metrics.value("ratekeeper_limits_dropped_total") > 100_000.0);
    assert!(metrics.value("ratekeeper_evictions_total{cause=\"limit_dropped\"}") > 100_000.0);
}
