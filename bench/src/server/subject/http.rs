//! Servers over HTTP.

use super::{CONNECTIONS, Protocol, ServerConfig, Subject};
use crate::server::client::http::HttpClient;
use crate::server::floor::Kind;
use crate::server::load::Plan;
use crate::server::process::{Process, SERVERS, free_address};
use crate::server::program::{self, Program};
use crate::server::template::KEY;
use anyhow::Result;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;

/// The number of connections for batches, and of checks per batch.
pub(crate) const BATCH_CONNECTIONS: usize = 8;
pub(crate) const BATCH: usize = 1000;

/// The path of batches.
pub(crate) const BATCH_PATH: &str = "/v1/check/batch";

const ALLOWED: &str = r#""allowed":true"#;
const DENIED: &str = r#""allowed":false"#;

/// Ratekeeper. Its rules must allow a million per second and key.
pub(crate) fn ratekeeper(program: &Program, config: ServerConfig<'_>) -> Result<Subject> {
    let (process, address) = config.start(program, Protocol::Http)?;
    let verification = |expected| Plan::single(check("proof", 1_000_000, expected));
    Ok(Subject {
        name: format!("ratekeeper {}", program.version),
        process,
        address,
        plan: checks(),
        verifications: vec![verification(ALLOWED), verification(DENIED)],
    })
}

/// throttlecrab's server, with its default store and clean-up. Each request carries the limit.
pub(crate) fn throttlecrab(program: &Program) -> Result<Subject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--http", "--http-host", "127.0.0.1", "--http-port", &port].map(Into::into);
    let throttle = |key: &str, quantity: u32, expected| {
        let limit = r#""max_burst":1000000,"count_per_period":1000000,"period":1"#;
        HttpClient::post(
            "/throttle",
            &format!(r#"{{"key":"{key}",{limit},"quantity":{quantity}}}"#),
            expected,
        )
    };
    let verification = |expected| Plan::single(throttle("proof", 1_000_000, expected));
    Ok(Subject {
        name: format!("throttlecrab-server {}", program.version),
        process: Process::start_at(address, program, &arguments, SERVERS)?,
        address,
        plan: Plan::new(throttle(KEY, 1, ALLOWED), CONNECTIONS),
        verifications: vec![verification(ALLOWED), verification(DENIED)],
    })
}

/// nginx's `limit_req`. It reads no JSON: the key is in the URL, and the response is a fixed text with the limiter's
/// status.
pub(crate) fn nginx(program: &Program) -> Result<Subject> {
    let address = free_address()?;
    let folder = program::scratch()?;
    let settings = folder.join("nginx.conf");
    fs::write(&settings, nginx_settings(address))?;
    let arguments: [OsString; 6] =
        ["-e".into(), "stderr".into(), "-p".into(), folder.into(), "-c".into(), settings.into()];
    let passed = r#""limit":"PASSED""#;
    let scant = |status, expected| Plan::single(HttpClient::get("/scant?key=proof", status, expected));
    Ok(Subject {
        name: format!("nginx {} limit_req", program.version),
        process: Process::start_at(address, program, &arguments, SERVERS)?,
        address,
        plan: Plan::new(HttpClient::get(&format!("/check?key={KEY}"), 200, passed), CONNECTIONS),
        verifications: vec![scant(200, passed), scant(429, "<title>429")],
    })
}

/// A server that decides nothing.
pub(crate) fn floor(kind: Kind) -> Result<Subject> {
    Subject::floor(kind, checks())
}

/// One check per request, in Ratekeeper's format.
pub(crate) fn checks() -> Plan {
    Plan::new(check(KEY, 1, ALLOWED), CONNECTIONS)
}

/// Many checks per request, in Ratekeeper's format.
pub(crate) fn batches() -> Plan {
    let checks = vec![check_body(KEY, 1); BATCH].join(",");
    Plan::new(
        HttpClient::post(BATCH_PATH, &format!(r#"{{"checks":[{checks}]}}"#), ALLOWED),
        BATCH_CONNECTIONS,
    )
}

/// A check in Ratekeeper's format.
fn check(key: &str, cost: u32, expected: &'static str) -> HttpClient {
    HttpClient::post("/check", &check_body(key, cost), expected)
}

fn check_body(key: &str, cost: u32) -> String {
    format!(r#"{{"client_key":"{key}","endpoint":"/v1/orders","cost":{cost}}}"#)
}

/// One process, no log, persistent connections. The limit allows a burst of one second without delay; otherwise nginx
/// would deny a second request of a key within a millisecond. A bare `return` would respond before the limiter runs;
/// `try_files` responds after it, and that its file does not exist is cached after the first look.
fn nginx_settings(address: SocketAddr) -> String {
    format!(
        r#"daemon off;
master_process off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_body_temp_path nginx-body;
    proxy_temp_path nginx-proxy;
    fastcgi_temp_path nginx-fastcgi;
    uwsgi_temp_path nginx-uwsgi;
    scgi_temp_path nginx-scgi;
    open_file_cache max=16 inactive=1h;
    open_file_cache_errors on;
    open_file_cache_valid 1h;
    limit_req_zone $arg_key zone=plenty:64m rate=1000000r/s;
    limit_req_zone $arg_key zone=scant:1m rate=1r/m;
    limit_req_status 429;
    limit_req_log_level info;
    default_type application/json;
    server {{
        listen {address};
        location = /check {{ limit_req zone=plenty burst=1000000 nodelay; try_files /none @answer; }}
        location = /scant {{ limit_req zone=scant; try_files /none @answer; }}
        location @answer {{ return 200 '{{"allowed":true,"limit":"$limit_req_status"}}'; }}
    }}
}}
"#
    )
}
