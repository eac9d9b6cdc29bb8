//! What is measured: a server, what it is asked, and the proof that it limits.
//!
//! Every limiter allows a million a second for each key, so that it must look, count and write for every request and
//! refuses none. Before the race each has to refuse somebody: a server whose limiter is not reached would win.

use super::floor::Kind;
use super::load::Plan;
use super::process::{Process, free_address};
use super::program::{self, Program};
use super::reply::exchange;
use super::request::Request;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Command;
use std::{env, fs};

/// How many connections ask for one check at a time.
pub(crate) const CONNECTIONS: usize = 64;
/// How many connections ask for many checks at a time, and for how many.
pub(crate) const BATCH_CONNECTIONS: usize = 8;
pub(crate) const BATCH: usize = 1000;

const ALLOWED: &str = r#""allowed":true"#;
const REFUSED: &str = r#""allowed":false"#;

/// The address of checks by the batch.
pub(crate) const BATCH_PATH: &str = "/v1/check/batch";

/// A server under measurement.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) plan: Plan,
    proofs: Vec<Proof>,
}

/// A request whose reply shows that a limiter decides.
struct Proof {
    request: Request,
    status: u16,
    says: &'static str,
}

impl Subject {
    /// Tollgate over HTTP, under `rules`. Of these, the tightest must allow each key a million a second.
    pub(crate) fn tollgate(program: &Program, name: &str, rules: &str) -> Result<Subject> {
        let file = program::scratch()?.join(format!("{name}.yaml"));
        fs::write(&file, rules).with_context(|| format!("can't write {}", file.display()))?;
        let mut arguments: Vec<OsString> =
            ["serve", "--http", "127.0.0.1:0", "--rules"].map(Into::into).to_vec();
        arguments.push(file.into());
        // Other doors stay shut, as far as this version has them.
        let help = program::output(Command::new(&program.path).args(["serve", "--help"]))?;
        for door in ["--admin", "--grpc", "--resp"] {
            if help.split_whitespace().any(|word| word == door) {
                arguments.extend([door, "off"].map(Into::into));
            }
        }
        let (process, address) = Process::start(&program.path, &arguments)?;
        let proof = |says| Proof::new(check("proof", 1_000_000), 200, says);
        Ok(Subject {
            name: format!("{name} {}", program.version),
            process,
            address,
            plan: Plan::new(check("user:######", 1), ALLOWED, CONNECTIONS),
            proofs: vec![proof(ALLOWED), proof(REFUSED)],
        })
    }

    /// throttlecrab's server over HTTP, with the store and the clean-up it chooses by itself. The limit comes with each
    /// request.
    pub(crate) fn throttlecrab(program: &Program) -> Result<Subject> {
        let address = free_address()?;
        let port = address.port().to_string();
        let arguments = ["--http", "--http-host", "127.0.0.1", "--http-port", &port].map(Into::into);
        let throttle = |key: &str, quantity: u32| {
            let limit = r#""max_burst":1000000,"count_per_period":1000000,"period":1"#;
            Request::post("/throttle", &format!(r#"{{"key":"{key}",{limit},"quantity":{quantity}}}"#))
        };
        let proof = |says| Proof::new(throttle("proof", 1_000_000), 200, says);
        Ok(Subject {
            name: format!("throttlecrab-server {}", program.version),
            process: Process::start_at(address, &program.path, &arguments)?,
            address,
            plan: Plan::new(throttle("user:######", 1), ALLOWED, CONNECTIONS),
            proofs: vec![proof(ALLOWED), proof(REFUSED)],
        })
    }

    /// nginx's `limit_req`. It reads no JSON: the key is in the address, and the reply is a fixed text that tells what
    /// the limiter said.
    pub(crate) fn nginx(program: &Program) -> Result<Subject> {
        let address = free_address()?;
        let folder = program::scratch()?;
        let settings = folder.join("nginx.conf");
        fs::write(&settings, nginx_settings(address))?;
        let arguments: [OsString; 6] =
            ["-e".into(), "stderr".into(), "-p".into(), folder.into(), "-c".into(), settings.into()];
        let scant = |status, says| Proof::new(Request::get("/scant?key=proof"), status, says);
        Ok(Subject {
            name: format!("nginx {} limit_req", program.version),
            process: Process::start_at(address, &program.path, &arguments)?,
            address,
            plan: Plan::new(Request::get("/check?key=user:######"), r#""limit":"PASSED""#, CONNECTIONS),
            proofs: vec![scant(200, "PASSED"), scant(429, "")],
        })
    }

    /// A server that reads and answers as Tollgate does, and limits nothing.
    pub(crate) fn floor(kind: Kind) -> Result<Subject> {
        let program = env::current_exe().context("this program can't be found again")?;
        let (process, address) = Process::start(&program, &["floor".into(), kind.argument().into()])?;
        let plan = Plan::new(check("user:######", 1), ALLOWED, CONNECTIONS);
        Ok(Subject { name: format!("floor: {kind}"), process, address, plan, proofs: Vec::new() })
    }

    /// Has it refuse somebody.
    pub(crate) fn prove(&self) -> Result<()> {
        for proof in &self.proofs {
            let (status, body) = exchange(self.address, &proof.request).with_context(|| self.name.clone())?;
            ensure!(
                status == proof.status && body.contains(proof.says),
                "{} does not limit as it should: instead of {} and {:?}, it said {status} {body}",
                self.name,
                proof.status,
                proof.says,
            );
        }
        Ok(())
    }
}

impl Proof {
    fn new(request: Request, status: u16, says: &'static str) -> Proof {
        Proof { request, status, says }
    }
}

/// A check as Tollgate reads it.
fn check(key: &str, cost: u32) -> Request {
    Request::post("/check", &check_body(key, cost))
}

fn check_body(key: &str, cost: u32) -> String {
    format!(r#"{{"client_key":"{key}","endpoint":"/v1/orders","cost":{cost}}}"#)
}

/// Many checks in one request, as Tollgate reads them.
pub(crate) fn batches() -> Plan {
    let checks = vec![check_body("user:######", 1); BATCH].join(",");
    let request = Request::post(BATCH_PATH, &format!(r#"{{"checks":[{checks}]}}"#));
    Plan::new(request, ALLOWED, BATCH_CONNECTIONS)
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
