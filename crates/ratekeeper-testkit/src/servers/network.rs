//! A virtual network whose hosts can be disconnected from each other.
//!
//! The switch and every host are network namespaces, each held open by one child process. A veth pair connects each
//! host, and the machine itself, to the bridge in the switch's namespace. Disabling a host's bridge port silently drops
//! its traffic in both directions, as a broken cable does: no reset and no refused connection. Two hosts can also be
//! isolated from each other alone. When the child processes end, the kernel removes namespaces and veth pairs, so a
//! killed test leaves nothing behind.
//!
//! It needs root's rights, and the programs `bridge`, `ip`, `nsenter` and `unshare`.

use super::process::{ChildProcess, copy_env_and_dir};
use super::program;
use crate::wait::{TEST_TIMEOUT, try_wait_for};
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// How many random subnets to try.
const MAX_ATTEMPTS: u64 = 64;

/// A bridge in its own namespace, connected to the machine.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    /// The first three octets of every address.
    prefix: String,
    hosts: u8,
}

/// A host on the network, with its own address.
#[derive(Debug)]
pub struct NetworkHost {
    namespace: Namespace,
    address: String,
    port: String,
    switch: NamespaceHandle,
}

impl Network {
    /// Creates a network.
    ///
    /// # Errors
    /// If the machine does not allow it; the message says what is missing.
    pub fn new() -> Result<Network, String> {
        for name in ["bridge", "ip", "nsenter", "unshare"] {
            if program::on_path(name).is_none() {
                return Err(format!("networks need the program {name}: install iproute2 and util-linux"));
            }
        }
        let switch = Namespace::new()?;
        switch.handle.ip("link add name switch type bridge")?;
        switch.handle.ip("link set switch up")?;
        let random = RandomState::new();
        let (prefix, number) = (0..MAX_ATTEMPTS)
            .map(|attempt| random.hash_one(attempt))
            // 198.18.0.0/15 is reserved for network tests (RFC 2544).
            .map(|chosen| (format!("198.{}.{}", 18 + chosen % 2, chosen / 2 % 256), chosen % 512))
            .find(|(prefix, _)| is_unused(prefix))
            .ok_or("all subnets for tests are in use")?;
        let link = format!("ratekeeper{number}");
        ip(&format!("link add {link} type veth peer name p0 netns {}", switch.handle.pid))?;
        ip(&format!("addr add {prefix}.1/24 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        switch.handle.attach_port("p0")?;
        Ok(Network { switch, prefix, hosts: 0 })
    }

    /// The machine's address on the network.
    pub fn address(&self) -> String {
        format!("{}.1", self.prefix)
    }

    /// Adds a host.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn add_host(&mut self) -> Result<NetworkHost, String> {
        let number = self.hosts.checked_add(2).filter(|number| *number < 255).ok_or("the network is full")?;
        self.hosts += 1;
        let namespace = Namespace::new()?;
        let (address, port) = (format!("{}.{number}", self.prefix), format!("p{number}"));
        let (inside, switch) = (&namespace.handle, &self.switch.handle);
        switch.ip(&format!("link add {port} type veth peer name eth0 netns {}", inside.pid))?;
        inside.ip(&format!("addr add {address}/24 dev eth0"))?;
        inside.ip("link set lo up")?;
        inside.ip("link set eth0 up")?;
        switch.attach_port(&port)?;
        let switch = switch.clone();
        Ok(NetworkHost { namespace, address, port, switch })
    }
}

impl NetworkHost {
    /// The address, without a port. All ports belong to the host.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A command that runs on this host.
    pub fn wrap(&self, command: &Command) -> Command {
        self.namespace.handle.wrap(command)
    }

    /// The namespace of its programs.
    pub(crate) fn namespace_handle(&self) -> &NamespaceHandle {
        &self.namespace.handle
    }

    /// Disconnects the host: what it sends and what is sent to it is lost.
    ///
    /// # Errors
    /// If `bridge` fails.
    pub fn disconnect(&self) -> Result<(), String> {
        self.switch.set_port(&self.port, "state", "0")
    }

    /// Reconnects the host.
    ///
    /// # Errors
    /// If `bridge` fails.
    pub fn reconnect(&self) -> Result<(), String> {
        self.switch.set_port(&self.port, "state", "3")
    }

    /// Isolates two hosts from each other: what they send each other is lost, and all other traffic passes. Any two
    /// hosts that were isolated from others are also isolated from each other.
    ///
    /// # Errors
    /// If `bridge` fails.
    pub fn isolate_from(&self, other: &NetworkHost) -> Result<(), String> {
        self.set_isolated(other, "on")
    }

    /// Ends the isolation of two hosts.
    ///
    /// # Errors
    /// If `bridge` fails.
    pub fn end_isolation_from(&self, other: &NetworkHost) -> Result<(), String> {
        self.set_isolated(other, "off")
    }

    /// Sets the bridge's `isolated` flag on both ports: isolated ports do not forward to each other.
    fn set_isolated(&self, other: &NetworkHost, state: &str) -> Result<(), String> {
        self.switch.set_port(&self.port, "isolated", state)?;
        self.switch.set_port(&other.port, "isolated", state)
    }
}

/// A network namespace, open while its child process runs.
#[derive(Debug)]
struct Namespace {
    handle: NamespaceHandle,
    _process: ChildProcess,
    _folder: TempDir,
}

impl Namespace {
    fn new() -> Result<Namespace, String> {
        let folder =
            tempfile::tempdir().map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let mut process = ChildProcess::start(&command, &folder.path().join("log"));
        let inside = NamespaceHandle { pid: process.pid() };
        let is_ready = try_wait_for(TEST_TIMEOUT, || match process.exit_status() {
            Some(_) => Some(false),
            None => inside.is_separate().then_some(true),
        });
        match is_ready {
            Some(true) => Ok(Namespace { handle: inside, _process: process, _folder: folder }),
            _ => Err(format!(
                "cannot create a network namespace, which needs root's rights: {}",
                process.log().trim()
            )),
        }
    }
}

/// A reference to a namespace, by the process that holds it open.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceHandle {
    pid: u32,
}

impl NamespaceHandle {
    /// A command that runs in this namespace.
    pub(crate) fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("nsenter");
        wrapped.arg(format!("--net={}", self.file().display())).arg("--");
        wrapped.arg(command.get_program()).args(command.get_args());
        copy_env_and_dir(command, &mut wrapped);
        wrapped
    }

    fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid))
    }

    /// Whether the process has entered its new namespace.
    fn is_separate(&self) -> bool {
        let ours = fs::read_link("/proc/self/ns/net");
        fs::read_link(self.file()).is_ok_and(|its| ours.is_ok_and(|ours| ours != its))
    }

    /// Runs `ip` in the namespace.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        run(&mut self.wrap(Command::new("ip").args(arguments.split(' ')))).map(drop)
    }

    /// Attaches one end of a veth pair to the bridge in this namespace.
    fn attach_port(&self, port: &str) -> Result<(), String> {
        self.ip(&format!("link set {port} master switch"))?;
        self.ip(&format!("link set {port} up"))
    }

    /// Sets an attribute of a bridge port. State 3 forwards everything, state 0 nothing.
    fn set_port(&self, port: &str, what: &str, value: &str) -> Result<(), String> {
        let mut command = Command::new("bridge");
        run(&mut self.wrap(command.args(["link", "set", "dev", port, what, value]))).map(drop)
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    run(Command::new("ip").args(arguments.split(' '))).map(drop)
}

fn is_unused(prefix: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["-4", "route", "show", &format!("{prefix}.0/24")]);
    run(&mut command).is_ok_and(|routes| routes.is_empty())
}

/// Runs a command to its end, and returns its standard output.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
