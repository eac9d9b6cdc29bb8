//! The server's life cycle: settings, listeners, log, and shutdown.

use crate::support::{Client, Server, TIMEOUT, failure, ratekeeper, request, run, within};
use serde_json::json;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// So slow that no unit is refilled during a test.
const TEN_A_DAY: &str = "default: {limit: 10/day}";

/// A client with a request in flight: the server is waiting for the body.
fn start_request(server: &Server) -> Client {
    let mut client = server.connect();
    client.send("POST /check HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 22\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    client
}

/// Waits until the server reports that it is draining.
fn await_draining(server: &Server) {
    within(TIMEOUT, "the server is no longer ready", || {
        let ready = server.connect_admin().get("/readyz");
        (ready.status == 503).then(|| assert_eq!(ready.json()["draining"], true))
    });
}

#[test]
fn a_signal_stops_the_server_despite_idle_connections() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::with_rules(TEN_A_DAY);
        let (mut used, mut fresh, mut admin) = (server.connect(), server.connect(), server.connect_admin());
        assert_eq!(used.check(ALICE).status, 200);
        assert_eq!(admin.get("/livez").status, 200);
        server.signal(signal);
        assert!(used.has_ended() && fresh.has_ended() && admin.has_ended());
        assert_eq!(server.exit_code(), Some(0), "{signal}");
    }
}

#[test]
fn a_request_in_flight_is_finished_while_the_admin_listener_reports_draining() {
    let mut server = Server::with_rules(TEN_A_DAY);
    let (mut idle, mut begun) = (server.connect(), start_request(&server));
    assert_eq!(server.connect_admin().get("/readyz").status, 200);
    server.terminate();
    assert!(idle.has_ended());
    assert!(TcpStream::connect(&server.address).is_err(), "new connections are not accepted");
    await_draining(&server);
    assert_eq!(
        server.connect_admin().get("/readyz").body,
        r#"{"ready":false,"draining":true,"rules":"in force"}"#
    );
    assert_eq!(
        server.connect_admin().get("/livez").status,
        200,
        "a draining server is live, so it is not restarted"
    );
    within(TIMEOUT, "one connection is left", || {
        (server.metrics().value("ratekeeper_connections{listener=\"http\"}") == 1.0).then_some(())
    });
    begun.send(ALICE);
    assert_eq!(begun.answer().number("remaining"), 9);
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(0));
}

#[expect(clippy::disallowed_methods, reason = "the test measures elapsed time")]
#[test]
fn shutdown_waits_for_the_drain_delay() {
    let delay = Duration::from_millis(300);
    let mut server = Server::with(TEN_A_DAY, &["--drain-delay", "300ms"]);
    let begun = Instant::now();
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    assert!(begun.elapsed() >= delay);
}

#[test]
fn a_second_signal_stops_the_server_at_once() {
    let mut server = Server::with(TEN_A_DAY, &["--drain-delay", "1h"]);
    let mut begun = start_request(&server);
    server.terminate();
    await_draining(&server);
    assert_eq!(server.check(ALICE).number("remaining"), 9, "connections are still accepted");
    server.terminate();
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(1));
    assert!(
        server.log().ends_with("error: stopped by a second signal before requests in flight were finished\n"),
        "{}",
        server.log()
    );

    let mut server = Server::with_rules(TEN_A_DAY);
    let (mut idle, mut begun) = (server.connect(), self::start_request(&server));
    server.terminate();
    assert!(idle.has_ended());
    server.terminate();
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(1));
}

#[test]
fn unfinished_requests_are_closed_at_the_drain_timeout() {
    let mut server = Server::with(TEN_A_DAY, &["--drain-timeout", "100ms"]);
    let mut begun = start_request(&server);
    server.terminate();
    assert!(begun.has_ended());
    assert_eq!(server.exit_code(), Some(0));
    let cut = server.log_lines().into_iter().find(|line| line["level"] == "WARN").unwrap();
    assert_eq!(cut["message"], "drain timeout: closing connections with unfinished requests");
    assert_eq!(cut["open"], 1);
}

#[test]
fn a_connection_above_the_limit_waits_until_another_closes() {
    let server = Server::with(TEN_A_DAY, &["--max-connections", "2"]);
    let (mut first, mut second) = (server.connect(), server.connect());
    assert!(first.check(ALICE).is_allowed() && second.check(ALICE).is_allowed());
    let mut third = crate::support::socket(&server.address);
    third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    std::io::Write::write_all(&mut third, &request("GET", "/livez", &[], "")).unwrap();
    let error = third.read(&mut [0]).unwrap_err().kind();
    assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error), "{error}");
    drop(first);
    third.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(Client::over(third).answer().status, 200);
    // The admin listener has its own connection limit.
    assert_eq!(server.connect_admin().get("/livez").status, 200);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("rules.yaml"), TEN_A_DAY).unwrap();
    let config = format!(
        "rules: {}\ndeny_status: 403\nheaders: [draft-6]\nmax_batch: 1\nadmin: off\n",
        path("rules.yaml")
    );
    fs::write(path("ratekeeper.yaml"), config).unwrap();
    let (config, copy) = (path("ratekeeper.yaml"), path("copy.yaml"));
    let set = |arguments: &[&str]| {
        let mut command = ratekeeper(&["serve", "--config", &config, "--max-batch", "3"]);
        command.args(arguments).env("RATEKEEPER_DENY_STATUS", "429").env("RATEKEEPER_MAX_BATCH", "2");
        command.env("RATEKEEPER_HTTP", "127.0.0.1:0").env("RATEKEEPER_API_TOKEN", "a-token-of-some-length");
        command
    };
    let printed = run(&mut set(&["--print-config"]));
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    for line in [
        &format!("rules: {}  # {config}:1", path("rules.yaml")),
        "deny_status: 429  # RATEKEEPER_DENY_STATUS",
        &format!("headers: [draft-6]  # {config}:3"),
        "max_batch: 3  # --max-batch",
        &format!("admin: off  # {config}:5"),
        "http: 127.0.0.1:0  # RATEKEEPER_HTTP",
        "# api_token: (hidden)  # RATEKEEPER_API_TOKEN",
        "drain_timeout: 10s  # default",
    ] {
        assert!(printed.stdout.lines().any(|found| found == line), "{line} is not in\n{}", printed.stdout);
    }
    assert!(!printed.stdout.contains("a-token-of-some-length"));
    fs::write(&copy, &printed.stdout).unwrap();

    // The printed config is a config file with the same settings, except for secrets.
    let from_copy = ratekeeper(&["serve", "--config", &copy]);
    for (mut command, token) in [(set(&[]), "Bearer a-token-of-some-length"), (from_copy, "none")] {
        let server = Server::launch(tempfile::tempdir().unwrap(), &mut command);
        assert_eq!(server.admin_address, "");
        let mut client = server.connect();
        let mut send =
            |path: &str, body: &str| client.request("POST", path, &[("Authorization", token)], body);
        let allowed = send("/check", r#"{"client_key":"alice","cost":10}"#);
        assert_eq!(
            (allowed.status, allowed.field("ratelimit-limit"), allowed.field("x-ratelimit-limit")),
            (200, Some("10"), None)
        );
        assert_eq!(send("/check", ALICE).status, 429);
        let batch = |count: usize| format!(r#"{{"checks":[{}]}}"#, vec![ALICE; count].join(","));
        assert_eq!(
            (send("/v1/check/batch", &batch(3)).status, send("/v1/check/batch", &batch(4)).status),
            (200, 400)
        );
    }
}

#[test]
fn a_port_in_use_is_reported_with_a_remedy() {
    let server = Server::with_rules(TEN_A_DAY);
    let message = failure(&["--http", &server.address]);
    let taken =
        format!("error: cannot listen on {}: another process uses this port: stop it, or", server.address);
    assert!(
        message.starts_with(&taken) && message.contains("like --http 127.0.0.1:8090: Address already in use"),
        "{message}"
    );
    let message = failure(&["--admin", &server.address]);
    assert!(
        message.starts_with(&taken)
            && message.contains("like --admin 127.0.0.1:9091: Address already in use"),
        "{message}"
    );
    let message = failure(&["--http", "nowhere"]);
    assert!(
        message
            .starts_with("error: cannot listen on nowhere: write an address and a port, like 127.0.0.1:8080"),
        "{message}"
    );
    let message = failure(&["--http", "192.0.2.1:0"]);
    assert!(
        message.contains("this machine has no such address: use 127.0.0.1, or 0.0.0.0 for all interfaces"),
        "{message}"
    );
}

#[test]
fn any_listener_can_be_off_but_not_all() {
    let server = Server::start(&["--admin", "off"]);
    assert!(!server.banner.contains("admin") && server.token.is_empty(), "{}", server.banner);
    assert_eq!(server.connect().get("/livez").status, 200);

    let server = Server::start(&["--http", "off"]);
    assert!(server.banner.lines().next().unwrap().ends_with(" started"), "{}", server.banner);
    assert!(!server.banner.contains("/check"), "{}", server.banner);
    assert_eq!(server.metrics().value("ratekeeper_connections{listener=\"admin\"}"), 1.0);

    let message = failure(&["--http", "off", "--admin", "off", "--grpc", "off", "--resp", "off"]);
    assert!(
        message.starts_with("error: http, grpc, resp and admin are all off: enable at least one listener"),
        "{message}"
    );
}

#[test]
fn a_public_api_without_a_token_is_warned_about() {
    let server = Server::start(&["--http", "0.0.0.0:0"]);
    let warned = server.await_lines(1, |line| line["level"] == "WARN").remove(0);
    let message = warned["message"].as_str().unwrap();
    assert!(message.contains("requires no token: restrict access to it, or set api_token_file"), "{message}");
    let port = server.address.rsplit(':').next().unwrap();
    assert!(server.banner.contains(&format!("http://127.0.0.1:{port}/check")), "{}", server.banner);
}

#[test]
fn a_denial_is_logged_with_its_details_and_a_truncated_key() {
    let server = Server::with_rules(&format!("{TEN_A_DAY}\nblacklist: ['*@evil.example']"));
    let key = "sk_prod_0123456789abcdef";
    let body =
        |cost: u32| json!({"client_key": key, "endpoint": "/orders?page=2", "ip": "10.0.0.1", "cost": cost});
    for cost in [10, 3, 11] {
        server.decide(body(cost).to_string());
    }
    server.decide(r#"{"client_key":"mallory@evil.example"}"#);
    let batch = json!({"checks": [{"client_key": "bob"}, {"client_key": "carol", "cost": 11, "method": "GET"}, {"client_key": "bob", "cost": 12}]});
    server.post("/v1/check/batch", batch.to_string());
    // A peek is not logged as a denial.
    assert!(!server.post("/v1/peek", body(1).to_string()).is_allowed());
    let denied = server.await_lines(5, |line| line["message"] == "denied");
    let first = &denied[0];
    assert_eq!(
        (&first["key"], &first["endpoint"], &first["ip"], &first["cost"], &first["level"]),
        (&json!("sk_p…"), &json!("/orders"), &json!("10.0.0.1"), &json!(3), &json!("INFO"))
    );
    assert_eq!(
        (&first["rule"], &first["limit"], &first["reason"]),
        (&json!("default"), &json!("token_bucket 10/day"), &json!("limit"))
    );
    assert!((25_000_000..=25_920_000).contains(&first["retry_after_ms"].as_u64().unwrap()), "{first}");
    assert!(first["timestamp"].as_str().unwrap().ends_with('Z'), "{first}");
    assert_eq!((&denied[1]["cost"], &denied[1]["retry_after_ms"]), (&json!(11), &json!(null)));
    assert_eq!((&denied[2]["key"], &denied[2]["reason"]), (&json!("mall…"), &json!("deny_list")));
    let logged: Vec<_> = denied[3..]
        .iter()
        .map(|line| (line["key"].as_str().unwrap(), line["cost"].as_u64().unwrap()))
        .collect();
    assert_eq!(logged, [("c…", 11), ("b…", 12)]);
    assert!(!server.log().contains("sk_prod") && !server.log().contains("page"), "{}", server.log());
}

#[test]
fn denials_above_the_log_limit_are_only_counted() {
    let server = Server::with(&format!("{TEN_A_DAY}\nblacklist: [foe]"), &["--denial-log", "5"]);
    let flood = 3000;
    let checks = vec![r#"{"client_key":"foe"}"#; flood].join(",");
    assert_eq!(server.post("/v1/check/batch", format!(r#"{{"checks":[{checks}]}}"#)).status, 200);
    let (lines, more) = within(TIMEOUT, "the number of unlogged denials is logged", || {
        let log = server.log_lines();
        let lines = log.iter().filter(|line| line["message"] == "denied").count();
        let more: u64 = log.iter().filter_map(|line| line["more"].as_u64()).sum();
        (more > 0 && lines + usize::try_from(more).unwrap() == flood).then_some((lines, more))
    });
    // The flood may span more than one second.
    assert!((5..flood / 10).contains(&lines), "{lines}");
    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_denials_unlogged_total"), more as f64);
    assert_eq!(metrics.decisions("(deny_list)", "denied"), flood as f64);
    server.await_log("further denials were not logged");

    let mut silent = Server::with(
        "default: {limit: 1/day}",
        &["--denial-log", "0", "--log", "info,ratekeeper::serve=off"],
    );
    assert!(silent.check(ALICE).is_allowed() && !silent.check(ALICE).is_allowed());
    silent.terminate();
    assert_eq!(silent.exit_code(), Some(0));
    assert_eq!(silent.log(), "");
}

#[test]
fn the_log_can_be_plain_text_and_filtered_by_level() {
    let server = Server::with(TEN_A_DAY, &["--log-format", "text"]);
    server.decide(r#"{"client_key":"alice","endpoint":"/a\nb\u001b[2J","cost":11}"#);
    server.await_log("ratekeeper::denied");
    let log = server.log();
    assert!(
        log.contains(" INFO ratekeeper::denied: denied key=\"a…\" endpoint=\"/a\\nb\\u{1b}[2J\" cost=11"),
        "{log}"
    );
    assert_eq!(log.lines().count(), 1, "{log}");
    let mut server = Server::with(TEN_A_DAY, &["--log", "warn"]);
    server.decide(r#"{"client_key":"alice","cost":11}"#);
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    assert_eq!(server.log(), "");
}

#[test]
fn check_exit_codes_match_the_decisions_of_a_real_server() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "a-token-of-some-length").unwrap();
    let token = token.to_str().unwrap();
    let rules = "
rules: [{id: orders, match: {path: '/orders/{id}', method: POST, tier: pro, attributes: {region: eu}}, limit: 2/day}]
default: {limit: 10/day}
whitelist: [friend]
blacklist: [10.0.0.0/8]
";
    for status in ["200", "429", "403"] {
        let server = Server::with(rules, &["--deny-status", status, "--api-token-file", token]);
        let url = format!("http://{}", server.address);
        let check = |arguments: &[&str]| {
            run(ratekeeper(&["check", "--server", &url, "--api-token-file", token]).args(arguments))
        };
        let assert_output = |arguments: &[&str], code: i32, begin: &str, end: &str| {
            let output = check(arguments);
            assert_eq!((output.code, output.stderr.as_str()), (Some(code), ""), "{arguments:?}: {output:?}");
            assert!(
                output.stdout.starts_with(begin) && output.stdout.ends_with(end),
                "{arguments:?}: {output:?}"
            );
        };
        assert_output(&["alice"], 0, "allowed: alice, 9 remaining, resets at ", ", rule default, limit 10\n");
        assert_output(&["alice", "--cost", "9", "--peek"], 0, "would be allowed: alice, 9 remaining, ", "\n");
        assert_output(&["alice", "--cost", "9"], 0, "allowed: alice, 0 remaining, ", "\n");
        assert_output(&["alice"], 1, "denied: alice, retry in 86", ", rule default, limit 10\n");
        assert_output(&["alice", "--peek"], 1, "would be denied: alice, retry in 86", "\n");
        assert_output(&["alice", "--cost", "11"], 1, "denied: alice, never allowed, 0 remaining, ", "\n");
        assert_output(&["friend", "--cost", "1000"], 0, "allowed: friend\n", "\n");
        assert_output(&["bob", "--ip", "10.1.2.3"], 1, "denied: bob, never allowed, 0 remaining\n", "\n");
        let order = [
            "bob",
            "--endpoint",
            "/orders/7",
            "--method",
            "POST",
            "--tier",
            "pro",
            "--attribute",
            "region=eu",
        ];
        assert_output(&order, 0, "allowed: bob, 1 remaining, ", ", rule orders, limit 2\n");
        let json = check(&[&order[..], &["--json"]].concat()).json();
        assert_eq!(
            (&json["allowed"], &json["remaining"], &json["rule"]),
            (&json!(true), &json!(0), &json!("orders"))
        );

        let output = run(&mut ratekeeper(&["check", "alice", "--server", &url]));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
        assert!(
            output
                .stderr
                .contains("the server requires a token: pass a file that contains it with --api-token-file"),
            "{output:?}"
        );
        let long = "x".repeat(5000);
        let output = check(&[&long]);
        assert!(
            output.code == Some(2)
                && output.stderr.contains("expected client_key to be a string of 1 to 4096 bytes"),
            "{output:?}"
        );
    }
}
