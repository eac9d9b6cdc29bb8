//! A network of its own, in which machines can be cut off from each other.
//!
//! A switch and every island are network namespaces, each held open by one process of ours, with a cable from each island to
//! the switch and one from the machine itself. Closing an island's port at the switch loses what is sent in both directions
//! without a word, as a broken cable does: no reset and no refusal. Two islands can also be parted from each other alone. When
//! the processes end the kernel takes namespaces and cables away, so nothing is left behind by a test that was killed.
//!
//! It takes root's rights, and `bridge`, `ip`, `nsenter` and `unshare`.

use super::process::{ChildProcess, copy_settings};
use super::program;
use crate::patience::{PATIENCE, try_within};
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// How many networks to try before all are taken.
const MOST_TRIES: u64 = 64;

/// A switch, and a cable from the machine to it.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    /// The first three numbers of every address.
    prefix: String,
    islands: u8,
}

/// A machine on the network, with an address of its own.
#[derive(Debug)]
pub struct NetworkHost {
    namespace: Namespace,
    address: String,
    port: String,
    switch: Inside,
}

impl Network {
    /// Lays a network.
    ///
    /// # Errors
    /// The machine does not allow it: it says what is missing.
    pub fn new() -> Result<Network, String> {
        for name in ["bridge", "ip", "nsenter", "unshare"] {
            if program::on_path(name).is_none() {
                return Err(format!("networks need the program {name}: install iproute2 and util-linux"));
            }
        }
        let switch = Namespace::new()?;
        switch.inside.ip("link add name switch type bridge")?;
        switch.inside.ip("link set switch up")?;
        let random = RandomState::new();
        let (prefix, number) = (0..MOST_TRIES)
            .map(|attempt| random.hash_one(attempt))
            // The two nets of addresses that are set aside for trying out networks.
            .map(|chosen| (format!("198.{}.{}", 18 + chosen % 2, chosen / 2 % 256), chosen % 512))
            .find(|(prefix, _)| is_unused(prefix))
            .ok_or("all networks for tests are taken")?;
        let cable = format!("ratekeeper{number}");
        ip(&format!("link add {cable} type veth peer name p0 netns {}", switch.inside.id))?;
        ip(&format!("addr add {prefix}.1/24 dev {cable}"))?;
        ip(&format!("link set {cable} up"))?;
        switch.inside.plug_in("p0")?;
        Ok(Network { switch, prefix, islands: 0 })
    }

    /// The machine's own address on the network.
    pub fn address(&self) -> String {
        format!("{}.1", self.prefix)
    }

    /// Another machine.
    ///
    /// # Errors
    /// The system refuses.
    pub fn island(&mut self) -> Result<NetworkHost, String> {
        let number =
            self.islands.checked_add(2).filter(|number| *number < 255).ok_or("the network is full")?;
        self.islands += 1;
        let namespace = Namespace::new()?;
        let (address, port) = (format!("{}.{number}", self.prefix), format!("p{number}"));
        let (inside, switch) = (&namespace.inside, &self.switch.inside);
        switch.ip(&format!("link add {port} type veth peer name eth0 netns {}", inside.id))?;
        inside.ip(&format!("addr add {address}/24 dev eth0"))?;
        inside.ip("link set lo up")?;
        inside.ip("link set eth0 up")?;
        switch.plug_in(&port)?;
        let switch = switch.clone();
        Ok(NetworkHost { namespace, address, port, switch })
    }
}

impl NetworkHost {
    /// Its address, without a port. All ports are its own.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A command, to be run on this island.
    pub fn wrap(&self, command: &Command) -> Command {
        self.namespace.inside.wrap(command)
    }

    /// From where its programs see the network.
    pub(crate) fn inside(&self) -> &Inside {
        &self.namespace.inside
    }

    /// Cuts it off: what is sent to it and what it sends is lost.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut(&self) -> Result<(), String> {
        self.switch.set_port(&self.port, "state", "0")
    }

    /// Joins it to the others again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn join(&self) -> Result<(), String> {
        self.switch.set_port(&self.port, "state", "3")
    }

    /// Parts it from another island: what they send each other is lost, and all else arrives. So it is between any two
    /// islands that were parted from others.
    ///
    /// # Errors
    /// The system refuses.
    pub fn part_from(&self, other: &NetworkHost) -> Result<(), String> {
        self.set_isolated(other, "on")
    }

    /// Has the two reach each other again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn meet(&self, other: &NetworkHost) -> Result<(), String> {
        self.set_isolated(other, "off")
    }

    /// A port of the switch that is isolated passes nothing to others that are.
    fn set_isolated(&self, other: &NetworkHost, state: &str) -> Result<(), String> {
        self.switch.set_port(&self.port, "isolated", state)?;
        self.switch.set_port(&other.port, "isolated", state)
    }
}

/// A network namespace, for as long as a process of ours is in it.
#[derive(Debug)]
struct Namespace {
    inside: Inside,
    _process: ChildProcess,
    _folder: TempDir,
}

impl Namespace {
    fn new() -> Result<Namespace, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let mut process = ChildProcess::start(&command, &folder.path().join("log"));
        let inside = Inside { id: process.id() };
        let is_ready = try_within(PATIENCE, || match process.ended() {
            Some(_) => Some(false),
            None => inside.is_apart().then_some(true),
        });
        match is_ready {
            Some(true) => Ok(Namespace { inside, _process: process, _folder: folder }),
            _ => Err(format!(
                "cannot make a network of our own, which takes root's rights: {}",
                process.log().trim()
            )),
        }
    }
}

/// The way into a namespace: the process that holds it.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    id: u32,
}

impl Inside {
    /// A command, to be run in this namespace.
    pub(crate) fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("nsenter");
        wrapped.arg(format!("--net={}", self.file().display())).arg("--");
        wrapped.arg(command.get_program()).args(command.get_args());
        copy_settings(command, &mut wrapped);
        wrapped
    }

    fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.id))
    }

    /// Whether the process has left the namespace in which it was started.
    fn is_apart(&self) -> bool {
        let ours = fs::read_link("/proc/self/ns/net");
        fs::read_link(self.file()).is_ok_and(|its| ours.is_ok_and(|ours| ours != its))
    }

    /// Runs `ip` in it.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        perform(&mut self.wrap(Command::new("ip").args(arguments.split(' ')))).map(drop)
    }

    /// Has a cable's end be a port of the switch that is in this namespace.
    fn plug_in(&self, port: &str) -> Result<(), String> {
        self.ip(&format!("link set {port} master switch"))?;
        self.ip(&format!("link set {port} up"))
    }

    /// Changes what a port of the switch passes: in the state 3 everything, in the state 0 nothing.
    fn set_port(&self, port: &str, what: &str, value: &str) -> Result<(), String> {
        let mut command = Command::new("bridge");
        perform(&mut self.wrap(command.args(["link", "set", "dev", port, what, value]))).map(drop)
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    perform(Command::new("ip").args(arguments.split(' '))).map(drop)
}

fn is_unused(prefix: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["-4", "route", "show", &format!("{prefix}.0/24")]);
    perform(&mut command).is_ok_and(|told| told.is_empty())
}

/// Runs a command to its end, and gives what it said.
fn perform(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
