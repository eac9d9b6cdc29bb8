//! The subject of a benchmark: a server, its load, and the verification that it limits.
//!
//! Every limiter allows a million per second and key, so that it must look up, count and write for every request and
//! denies none. Before the benchmark, each has to deny a request: a server that never calls its limiter would win.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;

use super::floor::Kind;
use super::load::{Load, Plan};
use super::process::{Process, SERVERS};
use super::program::{self, Program};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

/// The number of connections for single checks.
pub(crate) const CONNECTIONS: usize = 64;

/// The limit of each key: more than any run takes.
pub(crate) const PLENTY: &str = "rules:\n  - id: per-key\n    limit: 1000000/s\n";

/// A server under measurement.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    /// Its main load.
    pub(crate) plan: Plan,
    /// Requests whose responses, in this order, show that a limiter decides.
    verifications: Vec<Plan>,
}

impl Subject {
    /// A lower bound: a server that reads and answers like Ratekeeper, and limits nothing.
    fn floor(kind: Kind, plan: Plan) -> Result<Subject> {
        let program = Program::this()?;
        let arguments = ["floor".into(), kind.argument().into()];
        let (process, address) = Process::start(&program, &arguments, SERVERS)?;
        Ok(Subject { name: format!("floor: {kind}"), process, address, plan, verifications: Vec::new() })
    }

    /// Makes the server deny a request, and then stops it until it is measured.
    pub(crate) fn verify(&self) -> Result<()> {
        for verification in &self.verifications {
            let load = Load::connect(self.address, verification, 0);
            let tally = load.and_then(Load::send_once).with_context(|| self.name.clone())?;
            ensure!(
                tally.unexpected == 0,
                "{} does not limit as it should: it replied {}",
                self.name,
                tally.example.unwrap_or_default(),
            );
        }
        self.process.pause()
    }
}

/// A protocol of Ratekeeper's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Resp,
    Grpc,
}

impl Protocol {
    fn flag(self) -> &'static str {
        match self {
            Protocol::Http => "--http",
            Protocol::Resp => "--resp",
            Protocol::Grpc => "--grpc",
        }
    }
}

/// How Ratekeeper's server is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerConfig<'a> {
    pub(crate) rules: &'static str,
    pub(crate) workers: usize,
    pub(crate) cores: &'static [usize],
    /// The URL of its store, unless that is its own memory.
    pub(crate) store: Option<&'a str>,
}

impl ServerConfig<'_> {
    /// One rule for every key, on the servers' core, with the memory store.
    pub(crate) const DEFAULT: ServerConfig<'static> =
        ServerConfig { rules: PLENTY, workers: 1, cores: SERVERS, store: None };

    /// Starts a server that listens with one protocol; all others are off, as far as this version has them.
    fn start(self, program: &Program, protocol: Protocol) -> Result<(Process, SocketAddr)> {
        let flag = protocol.flag();
        let workers = self.workers.to_string();
        // One file per server: a running server reloads its rules when the file is written.
        let store = if self.store.is_some() { "-store" } else { "" };
        let file = program::scratch()?.join(format!("ratekeeper{flag}-{workers}{store}.yaml"));
        fs::write(&file, self.rules).with_context(|| format!("can't write {}", file.display()))?;
        let mut arguments: Vec<OsString> =
            ["serve", flag, "127.0.0.1:0", "--workers", &workers, "--rules"].map(Into::into).to_vec();
        arguments.push(file.into());
        // With little CPU time, a store is slow but available. Failing closed makes a missing reply visible.
        let store_options =
            |store| ["--store", store, "--store-timeout", "1s", "--on-store-failure", "closed"];
        arguments.extend(self.store.into_iter().flat_map(store_options).map(Into::into));
        let help = program::output(Command::new(&program.path).args(["serve", "--help"]))?;
        for other in ["--admin", "--grpc", "--http", "--resp"] {
            if other != flag && help.split_whitespace().any(|word| word == other) {
                arguments.extend([other, "off"].map(Into::into));
            }
        }
        Process::start(program, &arguments, self.cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::floor;
    use std::time::Duration;

    #[test]
    fn every_lower_bound_answers_its_load() {
        let [commands, pipelines] = resp::throttles();
        for (kind, plan) in [
            (Kind::Hyper, http::checks()),
            (Kind::Hyper, http::batches()),
            (Kind::ByHand, http::checks()),
            (Kind::ByHand, http::batches()),
            (Kind::Resp, commands),
            (Kind::Resp, pipelines),
            (Kind::Grpc, grpc::calls()),
            (Kind::Grpc, grpc::streams()),
        ] {
            let mut load = Load::connect(floor::start(kind).unwrap(), &plan, 1).unwrap();
            let mut answers = 0;
            while answers < 2 * plan.connections as u64 {
                answers += load.run_for(Duration::from_millis(10)).unwrap().answers;
            }
            let tally = load.finish().unwrap();
            assert_eq!(tally.unexpected, 0, "{kind}, {} checks at once: {tally:?}", plan.checks());
        }
    }
}
