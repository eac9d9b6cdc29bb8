//! A shared store that is down: the responses on every listener, and the reports of the admin listener.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[allow(dead_code, reason = "other tests use more of it")]
mod support;
#[path = "support/timed_out_store.rs"]
mod timed_out_store;

use ratekeeper_server::{ApiOptions, BoundSocket, RateLimitHeaders, ServerSetup, Token, serve};
use serde_json::json;
use std::future::pending;
use std::net::SocketAddr;
use support::{HttpClient, HttpResponse, field, post};
use timed_out_store::RULES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const TOKEN: &str = "0123456789abcdef";

struct ListenerAddresses {
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
}

async fn bind() -> (SocketAddr, BoundSocket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), BoundSocket { listener, tls: None })
}

async fn start(api: ApiOptions) -> ListenerAddresses {
    let ((http, http_socket), (resp, resp_socket), (admin, admin_socket)) =
        (bind().await, bind().await, bind().await);
    let setup = ServerSetup {
        resp: Some(resp_socket),
        admin: Some((admin_socket, Token::parse(TOKEN).unwrap())),
        api,
        ..ServerSetup::http(http_socket.listener)
    };
    tokio::spawn(serve(timed_out_store::degraded_limiter(RULES), setup, mpsc::channel(1).1, pending()));
    ListenerAddresses { http, resp, admin }
}

async fn send(address: SocketAddr, bytes: &[u8]) -> HttpResponse {
    let mut client = HttpClient::new(TcpStream::connect(address).await.unwrap());
    client.send(bytes).await;
    client.read_response().await.unwrap()
}

async fn check(ports: &ListenerAddresses, path: &str, endpoint: &str) -> HttpResponse {
    let body = json!({"client_key": "alice", "endpoint": endpoint}).to_string();
    send(ports.http, &post(path, body.as_bytes())).await
}

async fn get(address: SocketAddr, path: &str, more: &str) -> HttpResponse {
    send(address, format!("GET {path} HTTP/1.1\r\nHost: test\r\n{more}\r\n").as_bytes()).await
}

#[tokio::test]
async fn failing_open_allows_and_marks_the_response() {
    let ports = start(ApiOptions::default()).await;
    let response = check(&ports, "/check", "/").await;
    assert_eq!(
        response.json(),
        json!({"allowed": true, "remaining": -1, "reset_at": 0, "retry_after": null})
    );
    assert_eq!(field(&response.head, "x-ratelimit-policy"), Some("degraded"));
    assert_eq!(field(&response.head, "x-ratelimit-remaining"), Some("-1"));
    assert_eq!(response.head.matches("x-ratelimit-remaining").count(), 1);
    assert_eq!(field(&response.head, "ratelimit"), None);
    let response = check(&ports, "/v1/check", "/").await;
    let all = json!({
        "allowed": true, "remaining": -1, "reset_at": null, "retry_after": null, "limit": null, "window": null,
        "rule": "default", "reason": "degraded",
    });
    assert_eq!(response.json(), all);
}

#[tokio::test]
async fn failing_closed_denies_with_a_short_retry_after() {
    let ports = start(ApiOptions::default()).await;
    let response = check(&ports, "/v1/check", "/login").await;
    assert_eq!(response.status, 200);
    let all = json!({
        "allowed": false, "remaining": 0, "reset_at": null, "retry_after": 1, "limit": null, "window": null,
        "rule": "login", "reason": "degraded",
    });
    assert_eq!(response.json(), all);
    for (path, status) in [("/v1/check?deny_status=429", 503), ("/v1/check?deny_status=403", 403)] {
        let response = check(&ports, path, "/login").await;
        assert_eq!((response.status, field(&response.head, "retry-after")), (status, Some("1")), "{path}");
        assert_eq!(field(&response.head, "x-ratelimit-policy"), Some("degraded"));
        let error =
            json!({"code": "LIMIT_UNAVAILABLE", "message": "The limit can't be checked at the moment"});
        assert_eq!(response.json(), json!({ "error": error }));
    }
    let headers =
        "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /login\r\nAccept: application/problem+json\r\n";
    let response = get(ports.http, "/v1/forward-auth", headers).await;
    assert_eq!((response.status, &response.json()["status"]), (503, &json!(503)));
    assert_eq!(
        (&response.json()["reason"], field(&response.head, "retry-after")),
        (&json!("degraded"), Some("1"))
    );
    let headers = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\n";
    let response = get(ports.http, "/v1/forward-auth", headers).await;
    assert_eq!((response.status, field(&response.head, "x-ratelimit-policy")), (200, Some("degraded")));
}

#[tokio::test]
async fn local_decisions_report_the_nodes_share() {
    let ports = start(ApiOptions::default()).await;
    let response = check(&ports, "/v1/check?deny_status=429", "/orders").await;
    assert_eq!(response.status, 200);
    let all = json!({
        "allowed": true, "remaining": 0, "reset_at": 1_700_000_060, "retry_after": null, "limit": 1, "window": 60,
        "rule": "orders", "reason": "degraded",
    });
    assert_eq!(response.json(), all);
    for (name, value) in [
        ("x-ratelimit-policy", "degraded"),
        ("x-ratelimit-limit", "1"),
        ("x-ratelimit-remaining", "0"),
        ("ratelimit-policy", "\"orders\";q=1;w=60"),
        ("ratelimit", "\"orders\";r=0;t=60"),
    ] {
        assert_eq!(field(&response.head, name), Some(value), "{name}");
    }
    assert_eq!(response.head.matches("x-ratelimit-remaining").count(), 1);
    let response = check(&ports, "/v1/check?deny_status=429", "/orders").await;
    assert_eq!((response.status, field(&response.head, "retry-after")), (429, Some("60")));
    assert_eq!(response.json()["error"]["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!(response.json()["error"]["message"], "Rate limit of 1 requests per 60 seconds exceeded");
}

#[tokio::test]
async fn disabled_headers_are_not_sent() {
    let fields = RateLimitHeaders { legacy: None, ietf: false, draft_7: false, draft_6: false };
    let ports = start(ApiOptions { headers: fields, ..ApiOptions::default() }).await;
    let response = check(&ports, "/check", "/").await;
    assert!(!response.head.contains("ratelimit"), "{}", response.head);
}

#[tokio::test]
async fn resp_replies_with_five_integers() {
    let ports = start(ApiOptions::default()).await;
    let mut stream = TcpStream::connect(ports.resp).await.unwrap();
    let calls = "RK.CHECK a /\r\nRK.CHECK a /login\r\nRK.CHECK a /orders\r\nRK.CHECK a /orders\r\n\
                 CL.THROTTLE a 15 30 60\r\n";
    stream.write_all(calls.as_bytes()).await.unwrap();
    let expected = ["0 -1 -1 -1 0", "1 0 0 1 0", "0 1 0 -1 60", "1 1 0 60 60", "0 -1 -1 -1 0"];
    let expected: String = expected.map(|line| format!("*5\r\n:{}\r\n", line.replace(' ', "\r\n:"))).concat();
    let mut response = vec![0; expected.len()];
    stream.read_exact(&mut response).await.unwrap();
    assert_eq!(String::from_utf8(response).unwrap(), expected);
}

#[tokio::test]
async fn the_admin_listener_reports_the_store() {
    let ports = start(ApiOptions::default()).await;
    let authorized = format!("Authorization: Bearer {TOKEN}\r\n");
    let response = get(ports.admin, "/readyz", "").await;
    assert_eq!(
        (response.status, &response.json()["ready"], &response.json()["degraded"]),
        (200, &json!(true), &json!(true))
    );
    let store = "degraded: 1 of 2 servers do not answer, so on_store_failure applies to their keys";
    assert_eq!(response.json()["store"], store, "the address is not shown without the token");
    let response = get(ports.admin, "/readyz", &authorized).await;
    let store = response.json()["store"].as_str().unwrap().to_owned();
    assert!(store.starts_with("degraded: no answer from 10.0.0.2:6379 (connection refused), so"), "{store}");

    assert_eq!(get(ports.admin, "/v1/store", "").await.status, 401);
    let response = get(ports.admin, "/v1/store", &authorized).await.json();
    assert_eq!(response["store"], "redis+sharded://me:***@10.0.0.1:6379,10.0.0.2:6379");
    assert_eq!(
        (&response["topology"], &response["degraded"], &response["live_nodes"]),
        (&json!("sharded"), &json!(true), &json!(3))
    );
    let first = &response["servers"][0];
    assert_eq!((&first["breaker"], &first["drift_seconds"]), (&json!("closed"), &json!(-0.25)));
    assert_eq!(
        (&first["eviction_policy"], &first["may_forget_limits"]),
        (&json!("allkeys-lru"), &json!(true))
    );
    let calls = json!({"count": 3, "mean_ms": 0.4, "p50_within_ms": 0.25, "p99_within_ms": 1.0});
    assert_eq!(first["calls"], calls);
    let second = &response["servers"][1];
    assert_eq!((&second["breaker"], &second["trouble"]), (&json!("open"), &json!("connection refused")));
    assert_eq!(
        (&second["calls"]["p99_within_ms"], &second["failures"]["unreachable"]),
        (&json!(null), &json!(7))
    );
    assert_eq!(response["counts"]["denied_from_memory"], 40);
    let response =
        send(ports.admin, b"POST /v1/store HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!((response.status, field(&response.head, "allow")), (405, Some("GET, HEAD")));

    check(&ports, "/check", "/").await;
    let metrics = get(ports.admin, "/metrics", &authorized).await.body;
    for line in [
        "ratekeeper_decisions_total{rule=\"default\",outcome=\"degraded\"} 1",
        "ratekeeper_store_info{topology=\"sharded\"} 1",
        "ratekeeper_store_degraded 1",
        "ratekeeper_live_nodes 3",
        "ratekeeper_store_batches_total 10",
        "ratekeeper_store_requests_total 200",
        "ratekeeper_store_coalesced_total 30",
        "ratekeeper_store_denied_from_memory_total 40",
        "ratekeeper_store_local_decisions_total 50",
        "ratekeeper_store_degraded_seconds_total 2.5",
        "ratekeeper_lease_units_lent_total 60",
        "ratekeeper_lease_units_spent_total 50",
        "ratekeeper_lease_denied_stale_total 2",
        "ratekeeper_store_up{server=\"10.0.0.1:6379\"} 1",
        "ratekeeper_store_up{server=\"10.0.0.2:6379\"} 0",
        "ratekeeper_store_breaker_state{server=\"10.0.0.2:6379\"} 2",
        "ratekeeper_store_may_evict{server=\"10.0.0.1:6379\"} 1",
        "ratekeeper_store_clock_drift_seconds{server=\"10.0.0.1:6379\"} -0.25",
        "ratekeeper_store_failures_total{server=\"10.0.0.1:6379\",kind=\"timeout\"} 3",
        "ratekeeper_store_call_duration_seconds_bucket{server=\"10.0.0.1:6379\",le=\"0.0001\"} 1",
        "ratekeeper_store_call_duration_seconds_count{server=\"10.0.0.1:6379\"} 3",
        "ratekeeper_store_reconnects_total{server=\"10.0.0.1:6379\"} 2",
        "ratekeeper_store_script_loads_total{server=\"10.0.0.1:6379\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(
        !metrics.contains("drift_seconds{server=\"10.0.0.2"),
        "the drift of a server that was never reached is unknown"
    );
}

#[tokio::test]
async fn the_admin_listener_explains_a_request() {
    let ports = start(ApiOptions::default()).await;
    let authorized = format!("Authorization: Bearer {TOKEN}\r\n");
    let explain = async |body: &str, more: &str| {
        let head = format!(
            "POST /v1/explain HTTP/1.1\r\nHost: test\r\n{more}Content-Length: {}\r\n\r\n",
            body.len()
        );
        send(ports.admin, format!("{head}{body}").as_bytes()).await
    };
    let orders = r#"{"client_key":"alice","endpoint":"/orders"}"#;
    assert_eq!(explain(orders, "").await.status, 401);
    // Explaining takes nothing.
    for _ in 0..3 {
        let response = explain(orders, &authorized).await.json();
        assert_eq!(
            (&response["allowed"], &response["reason"]),
            (&json!(true), &json!("degraded")),
            "{response}"
        );
        let limit = &response["limits"][0];
        assert_eq!(
            (&limit["rule"], &limit["limit"]),
            (&json!("orders"), &json!("token_bucket 3/min")),
            "{response}"
        );
        assert_eq!(limit["remaining"], json!(1), "a third of the limit: {response}");
        let lease = &limit["lease"];
        assert_eq!((&lease["unspent"], &lease["ends_in_ms"]), (&json!(1), &json!(20_000.0)), "{response}");
        assert_eq!(
            (&lease["unacknowledged"], &lease["units_per_second"]),
            (&json!(true), &json!(0.5)),
            "{response}"
        );
        let units = ["lent", "spent", "returned", "expired"].map(|what| &lease[format!("units_{what}")]);
        assert_eq!(units, [9, 5, 2, 1].map(|count| json!(count)).each_ref(), "{response}");
        let checks =
            ["checks", "checks_missed", "checks_denied", "checks_denied_stale"].map(|what| &lease[what]);
        assert_eq!(checks, [8, 2, 1, 1].map(|count| json!(count)).each_ref(), "{response}");
        let rules: Vec<_> =
            response["rules"].as_array().unwrap().iter().map(|rule| (&rule["id"], &rule["binds"])).collect();
        let expected = [("login", false), ("orders", true), ("default", false)];
        assert_eq!(
            rules,
            expected
                .map(|(id, binds)| (json!(id), json!(binds)))
                .iter()
                .map(|(id, binds)| (id, binds))
                .collect::<Vec<_>>(),
            "{response}"
        );
    }
    // A limit whose state is unknown has no figures.
    let response = explain(r#"{"client_key":"alice","endpoint":"/login"}"#, &authorized).await.json();
    let remaining = &response["limits"][0]["remaining"];
    assert_eq!((&response["allowed"], remaining), (&json!(false), &json!(null)), "{response}");
    assert_eq!(response["limits"][0].get("lease"), None, "{response}");
    let response = explain("{}", &authorized).await;
    assert_eq!(response.status, 400);
    assert!(
        response.json()["error"]["message"].to_string().contains("the check has no client"),
        "{}",
        response.json()
    );
    let response = get(ports.admin, "/v1/explain", &authorized).await;
    assert_eq!((response.status, field(&response.head, "allow")), (405, Some("POST")));
}
