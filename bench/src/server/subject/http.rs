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

/// How many connections ask for many checks at a time, and for how many.
pub(crate) const BATCH_CONNECTIONS: usize = 8;
pub(crate) const BATCH: usize = 1000;

/// The address of checks by the batch.
pub(crate) const BATCH_PATH: &str = "/v1/check/batch";

const ALLOWED: &str = r#""allowed":true"#;
const REFUSED: &str = r#""allowed":false"#;

/// Ratekeeper. Its rules must allow each key a million a second.
pub(crate) fn ratekeeper(program: &Program, config: ServerConfig<'_>) -> Result<Subject> {
    let (process, address) = config.start(program, Protocol::Http)?;
    let verification = |says| Plan::single(check("proof", 1_000_000, says));
    Ok(Subject {
        name: format!("ratekeeper {}", program.version),
        process,
        address,
        plan: checks(),
        verifications: vec![verification(ALLOWED), verification(REFUSED)],
    })
}

/// throttlecrab's server, with the store and the clean-up it chooses by itself. The limit comes with each request.
pub(crate) fn throttlecrab(program: &Program) -> Result<Subject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--http", "--http-host", "127.0.0.1", "--http-port", &port].map(Into::into);
    let throttle = |key: &str, quantity: u32, says| {
        let limit = r#""max_burst":1000000,"count_per_period":1000000,"period":1"#;
        HttpClient::post("/throttle", &format!(r#"{{"key":"{key}",{limit},"quantity":{quantity}}}"#), says)
    };
    let verification = |says| Plan::single(throttle("proof", 1_000_000, says));
    Ok(Subject {
        name: format!("throttlecrab-server {}", program.version),
        process: Process::start_at(address, program, &arguments, SERVERS)?,
        address,
        plan: Plan::new(throttle(KEY, 1, ALLOWED), CONNECTIONS),
        verifications: vec![verification(ALLOWED), verification(REFUSED)],
    })
}

/// nginx's `limit_req`. It reads no JSON: the key is in the address, and the reply is a fixed text that tells what the
/// limiter said.
pub(crate) fn nginx(program: &Program) -> Result<Subject> {
    let address = free_address()?;
    let folder = program::scratch()?;
    let settings = folder.join("nginx.conf");
    fs::write(&settings, nginx_settings(address))?;
    let arguments: [OsString; 6] =
        ["-e".into(), "stderr".into(), "-p".into(), folder.into(), "-c".into(), settings.into()];
    let passed = r#""limit":"PASSED""#;
    let scant = |status, says| Plan::single(HttpClient::get("/scant?key=proof", status, says));
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

/// One check in each request, as Ratekeeper reads it.
pub(crate) fn checks() -> Plan {
    Plan::new(check(KEY, 1, ALLOWED), CONNECTIONS)
}

/// Many checks in one request, as Ratekeeper reads them.
pub(crate) fn batches() -> Plan {
    let checks = vec![check_body(KEY, 1); BATCH].join(",");
    Plan::new(
        HttpClient::post(BATCH_PATH, &format!(r#"{{"checks":[{checks}]}}"#), ALLOWED),
        BATCH_CONNECTIONS,
    )
}

/// A check as Ratekeeper reads it.
fn check(key: &str, cost: u32, says: &'static str) -> HttpClient {
    HttpClient::post("/check", &check_body(key, cost), says)
}

fn check_body(key: &str, cost: u32) -> String {
    format!(r#"{{"client_key":"{key}","endpoint":"/v1/orders","cost":{cost}}}"#)
}

/// One process, no log, connections that last. The limit allows a burst of a second, and delays nobody: without, nginx
/// refuses whoever comes twice within a millisecond. A bare `return` would answer before the limiter is asked; behind
/// `try_files` it answers after, and the file that is not there is looked for once and then remembered.
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
