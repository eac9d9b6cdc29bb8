//! Servers over RESP, with pipelines of any depth. Each command carries the limit.

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

/// Commands per pipeline.
pub(crate) const DEPTH: usize = 64;

/// The beginnings of replies of five integers. In redis-cell's protocol, which Ratekeeper implements, 1 is limited; in
/// throttlecrab's, 1 is allowed.
const ZERO: &str = "*5\r\n:0\r\n";
const ONE: &str = "*5\r\n:1\r\n";

/// A burst of a million, and a million per second.
const PLENTY: &str = "999999 1000000 1";

/// The value of every key in Redis: as long as the state of a limit.
const VALUE: &str = "1700000000000000";
const VALUE_REPLY: &str = "$16\r\n1700000000000000\r\n";

/// A server and its pipelined load.
pub(crate) struct RespSubject {
    /// Its plan sends one command at a time.
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
    let verification = |reply| Command::with_integers("CL.THROTTLE verification 0 1 60", reply);
    Ok(RespSubject::new(name, place, &throttle(PLENTY), &[ZERO, ONE].map(verification)))
}

/// throttlecrab's server, with its default store and clean-up.
pub(crate) fn throttlecrab(program: &Program) -> Result<RespSubject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port].map(Into::into);
    let process = Process::start_at(address, program, &arguments, SERVERS)?;
    let command = Command::with_integers(&format!("THROTTLE {KEY} 1000000 1000000 1"), ONE);
    let verifications =
        [ONE, ZERO].map(|reply| Command::with_integers("THROTTLE verification 10 10 60 10", reply));
    let name = format!("throttlecrab-server {} THROTTLE", program.version);
    Ok(RespSubject::new(name, (process, address), &command, &verifications))
}

/// Redis, which only reads values and limits nothing. All keys exist from the beginning, without persistence.
pub(crate) fn redis(program: &Program) -> Result<RespSubject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let settings = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir"];
    let mut arguments: Vec<OsString> = settings.map(Into::into).to_vec();
    arguments.push(program::scratch()?.into());
    let process = Process::start_at(address, program, &arguments, SERVERS)?;
    fill(address)?;
    let verifications =
        [0, KEYS - 1].map(|number| Command::with_bulk_string(&format!("GET user:{number:06}"), VALUE_REPLY));
    let command = Command::with_bulk_string(&format!("GET {KEY}"), VALUE_REPLY);
    let name = format!("redis-server {} GET", program.version);
    Ok(RespSubject::new(name, (process, address), &command, &verifications))
}

/// Sets all values in Redis, a thousand per command.
fn fill(address: SocketAddr) -> Result<()> {
    for thousand in 0..KEYS / 1000 {
        let pairs = (0..1000).map(|number| format!(" user:{:06} {VALUE}", 1000 * thousand + number));
        let command = Command::with_line(&format!("MSET{}", pairs.collect::<String>()), "+OK\r\n");
        let tally = Load::connect(address, &Plan::single(RespClient::new(&command, 1)), 0)?.send_once()?;
        ensure!(tally.unexpected == 0, "Redis did not accept the values: {:?}", tally.example);
    }
    Ok(())
}

/// A server that decides nothing.
pub(crate) fn floor() -> Result<RespSubject> {
    let [plan, pipelines] = throttles();
    Ok(RespSubject { subject: Subject::floor(Kind::Resp, plan)?, pipelines })
}

/// Ratekeeper's commands.
pub(super) fn throttles() -> [Plan; 2] {
    plans(&throttle(PLENTY))
}

/// Ratekeeper's pipelines, with another limit that denies nothing.
pub(crate) fn pipelines(limit: &str) -> Plan {
    let [_, pipelines] = plans(&throttle(limit));
    pipelines
}

/// A limit in the syntax of redis-cell's clients.
fn throttle(limit: &str) -> Command {
    Command::with_integers(&format!("CL.THROTTLE {KEY} {limit}"), ZERO)
}

/// One command at a time, and pipelines.
fn plans(command: &Command) -> [Plan; 2] {
    [1, DEPTH].map(|depth| Plan::new(RespClient::new(command, depth), CONNECTIONS))
}
