//! Servers over RESP. Each is asked with a pipeline of any depth; the limit comes with each command.

use super::{CONNECTIONS, Protocol, ServerConfig, Subject};
use crate::server::client::resp::{Command, RespClient};
use crate::server::floor::Kind;
use crate::server::load::{Load, Plan};
use crate::server::process::{Process, SERVERS, free_address};
use crate::server::program::{self, Program};
use crate::server::template::{KEY, KEYS};
use anyhow::{Result, ensure};
use std::ffi::OsString;
use std::net::SocketAddr;

/// How many commands are sent at once, where many are.
pub(crate) const DEPTH: usize = 64;

/// How replies of five numbers begin. To redis-cell, which Ratekeeper is like, 1 is limited; to throttlecrab, allowed.
const ZERO: &str = "*5\r\n:0\r\n";
const ONE: &str = "*5\r\n:1\r\n";

/// A burst of a million, and as many a second.
const PLENTY: &str = "999999 1000000 1";

/// What every key holds in Redis: as long as the state of a limit would be.
const VALUE: &str = "1700000000000000";
const VALUE_REPLY: &str = "$16\r\n1700000000000000\r\n";

/// A server, and what it is asked by the pipeline.
pub(crate) struct RespSubject {
    /// Its plan asks with one command at a time.
    pub(crate) subject: Subject,
    pub(crate) pipelines: Plan,
}

impl RespSubject {
    fn new(
        name: String,
        (process, address): (Process, SocketAddr),
        command: &Command,
        verifications: &[Command],
    ) -> RespSubject {
        let verifications =
            verifications.iter().map(|verification| Plan::single(RespClient::new(verification, 1))).collect();
        let [plan, pipelines] = plans(command);
        RespSubject { subject: Subject { name, process, address, plan, verifications }, pipelines }
    }
}

/// Ratekeeper.
pub(crate) fn ratekeeper(program: &Program, config: ServerConfig<'_>) -> Result<RespSubject> {
    let place = config.start(program, Protocol::Resp)?;
    let name = format!("ratekeeper {} CL.THROTTLE", program.version);
    let verification = |reply| Command::five("CL.THROTTLE verification 0 1 60", reply);
    Ok(RespSubject::new(name, place, &throttle(PLENTY), &[ZERO, ONE].map(verification)))
}

/// throttlecrab's server, with the store and the clean-up it chooses by itself.
pub(crate) fn throttlecrab(program: &Program) -> Result<RespSubject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port].map(Into::into);
    let process = Process::start_at(address, program, &arguments, SERVERS)?;
    let command = Command::five(&format!("THROTTLE {KEY} 1000000 1000000 1"), ONE);
    let verifications = [ONE, ZERO].map(|reply| Command::five("THROTTLE verification 10 10 60 10", reply));
    let name = format!("throttlecrab-server {} THROTTLE", program.version);
    Ok(RespSubject::new(name, (process, address), &command, &verifications))
}

/// Redis, which is asked for a value under each key and limits nothing. It has all keys from the beginning, and keeps
/// nothing on a disk.
pub(crate) fn redis(program: &Program) -> Result<RespSubject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let settings = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir"];
    let mut arguments: Vec<OsString> = settings.map(Into::into).to_vec();
    arguments.push(program::scratch()?.into());
    let process = Process::start_at(address, program, &arguments, SERVERS)?;
    fill(address)?;
    let verifications =
        [0, KEYS - 1].map(|number| Command::text(&format!("GET user:{number:06}"), VALUE_REPLY));
    let command = Command::text(&format!("GET {KEY}"), VALUE_REPLY);
    let name = format!("redis-server {} GET", program.version);
    Ok(RespSubject::new(name, (process, address), &command, &verifications))
}

/// Gives Redis a value under each key, a thousand at a time.
fn fill(address: SocketAddr) -> Result<()> {
    for thousand in 0..KEYS / 1000 {
        let pairs = (0..1000).map(|number| format!(" user:{:06} {VALUE}", 1000 * thousand + number));
        let command = Command::word(&format!("MSET{}", pairs.collect::<String>()), "+OK\r\n");
        let tally = Load::connect(address, &Plan::single(RespClient::new(&command, 1)), 0)?.send_once()?;
        ensure!(tally.unexpected == 0, "Redis does not take its values: {:?}", tally.example);
    }
    Ok(())
}

/// A server that decides nothing.
pub(crate) fn floor() -> Result<RespSubject> {
    let [plan, pipelines] = throttles();
    Ok(RespSubject { subject: Subject::floor(Kind::Resp, plan)?, pipelines })
}

/// What Ratekeeper is asked.
pub(super) fn throttles() -> [Plan; 2] {
    plans(&throttle(PLENTY))
}

/// What Ratekeeper is asked by the pipeline, with another limit that refuses nobody.
pub(crate) fn pipelines(limit: &str) -> Plan {
    let [_, pipelines] = plans(&throttle(limit));
    pipelines
}

/// A limit as redis-cell's clients word it.
fn throttle(limit: &str) -> Command {
    Command::five(&format!("CL.THROTTLE {KEY} {limit}"), ZERO)
}

/// One command at a time, and many.
fn plans(command: &Command) -> [Plan; 2] {
    [1, DEPTH].map(|depth| Plan::new(RespClient::new(command, depth), CONNECTIONS))
}
