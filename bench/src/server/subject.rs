//! What is measured: a server, what it is asked, and the verification that it limits.
//!
//! Every limiter allows a million a second for each key, so that it must look, count and write for every request and
//! refuses none. Before the race each has to refuse somebody: a server whose limiter is not reached would win.

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

/// How many connections ask for one check at a time.
pub(crate) const CONNECTIONS: usize = 64;

/// How much each key is allowed: more than any run takes.
pub(crate) const PLENTY: &str = "rules:\n  - id: per-key\n    limit: 1000000/s\n";

/// A server under measurement.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    /// What it is asked first of all.
    pub(crate) plan: Plan,
    /// Questions whose answers show that a limiter decides, in this order.
    verifications: Vec<Plan>,
}

impl Subject {
    /// A server that reads and answers as Ratekeeper does, and limits nothing.
    fn floor(kind: Kind, plan: Plan) -> Result<Subject> {
        let program = Program::this()?;
        let arguments = ["floor".into(), kind.argument().into()];
        let (process, address) = Process::start(&program, &arguments, SERVERS)?;
        Ok(Subject { name: format!("floor: {kind}"), process, address, plan, verifications: Vec::new() })
    }

    /// Has it refuse somebody, and then wait for its turn.
    pub(crate) fn verify(&self) -> Result<()> {
        for verification in &self.verifications {
            let load = Load::connect(self.address, verification, 0);
            let tally = load.and_then(Load::send_once).with_context(|| self.name.clone())?;
            ensure!(
                tally.unexpected == 0,
                "{} does not limit as it should: it said {}",
                self.name,
                tally.example.unwrap_or_default(),
            );
        }
        self.process.pause()
    }
}

/// One of Ratekeeper's doors.
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

/// How Ratekeeper is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerConfig<'a> {
    pub(crate) rules: &'static str,
    pub(crate) workers: usize,
    pub(crate) cores: &'static [usize],
    /// Where it keeps its state, if that is not its own memory.
    pub(crate) store: Option<&'a str>,
}

impl ServerConfig<'_> {
    /// A rule for every key, the servers' core, and its state in its own memory.
    pub(crate) const DEFAULT: ServerConfig<'static> =
        ServerConfig { rules: PLENTY, workers: 1, cores: SERVERS, store: None };

    /// Starts it with one door open, and the others shut as far as this version has them.
    fn start(self, program: &Program, door: Protocol) -> Result<(Process, SocketAddr)> {
        let door = door.flag();
        let workers = self.workers.to_string();
        // One for each server: it reads its rules again when they are written again.
        let store = if self.store.is_some() { "-store" } else { "" };
        let file = program::scratch()?.join(format!("ratekeeper{door}-{workers}{store}.yaml"));
        fs::write(&file, self.rules).with_context(|| format!("can't write {}", file.display()))?;
        let mut arguments: Vec<OsString> =
            ["serve", door, "127.0.0.1:0", "--workers", &workers, "--rules"].map(Into::into).to_vec();
        arguments.push(file.into());
        // A store that has little of a core is slow, and not away: an answer that did not come would be seen.
        let patient = |store| ["--store", store, "--store-timeout", "1s", "--on-store-failure", "closed"];
        arguments.extend(self.store.into_iter().flat_map(patient).map(Into::into));
        let help = program::output(Command::new(&program.path).args(["serve", "--help"]))?;
        for other in ["--admin", "--grpc", "--http", "--resp"] {
            if other != door && help.split_whitespace().any(|word| word == other) {
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
    fn every_floor_answers_what_it_is_asked() {
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
