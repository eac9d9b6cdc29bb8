//! A Ratekeeper of its own process: one node of several that share a store.

use super::faketime::FakeTime;
use super::footprint::Footprint;
use super::network::{Inside, NetworkHost};
use super::port::FreePort;
use super::process::ChildProcess;
use super::resp::connect;
use crate::patience::{Must, PATIENCE, fail, within};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use tempfile::TempDir;

/// A running `ratekeeper serve` on ports of its own, killed when this is dropped.
///
/// The ports are kept for it while it is down.
#[derive(Debug)]
pub struct ServerNode {
    // Before the folder, so that the server is gone before its files are.
    process: ChildProcess,
    setup: NodeSetup,
    ports: NodePorts,
    clock: Option<FakeTime>,
    folder: TempDir,
}

/// How a node is to be started.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    program: PathBuf,
    arguments: Vec<String>,
    clock: Option<f64>,
    /// The address of its ports.
    address: String,
    /// None for this machine itself.
    island: Option<Inside>,
    /// Where its log goes instead of a file of its own.
    log_sink: Option<PathBuf>,
}

impl NodeSetup {
    /// More arguments after `serve`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> NodeSetup {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Has the node's clock differ from the machine's by so many seconds; [`ServerNode::set_clock`] changes it.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> NodeSetup {
        self.clock = Some(ahead_seconds);
        self
    }

    /// Runs on an island, at its address.
    #[must_use]
    pub fn on(mut self, island: &NetworkHost) -> NodeSetup {
        self.address = island.address().to_owned();
        self.island = Some(island.inside().clone());
        self
    }

    /// Has its log go to a device or a named pipe, from which [`ServerNode::log`] reads nothing.
    #[must_use]
    pub fn log_to(mut self, sink: &Path) -> NodeSetup {
        self.log_sink = Some(sink.to_owned());
        self
    }

    /// Starts it, and waits until it has greeted. Settings of whoever runs the tests don't count.
    pub fn start(self) -> ServerNode {
        let folder = tempfile::tempdir().must("cannot make a folder");
        let ports = NodePorts {
            http: FreePort::free(),
            grpc: FreePort::free(),
            resp: FreePort::free(),
            admin: FreePort::free(),
        };
        let clock = self.clock.map(FakeTime::new);
        let process = spawn(&self, &ports, clock.as_ref(), folder.path());
        let mut node = ServerNode { process, setup: self, ports, clock, folder };
        node.await_greeting();
        node
    }

    fn place(&self, port: &FreePort) -> String {
        format!("{}:{}", self.address, port.number())
    }
}

#[derive(Debug)]
struct NodePorts {
    http: FreePort,
    grpc: FreePort,
    resp: FreePort,
    admin: FreePort,
}

impl ServerNode {
    /// Starts the program with these arguments after `serve`, and waits until it has greeted. Settings of whoever runs the
    /// tests don't count.
    pub fn start(program: &Path, arguments: &[&str]) -> ServerNode {
        ServerNode::setup(program).arguments(arguments).start()
    }

    /// One with settings of its own.
    pub fn setup(program: &Path) -> NodeSetup {
        NodeSetup {
            program: program.to_owned(),
            arguments: Vec::new(),
            clock: None,
            address: "127.0.0.1".to_owned(),
            island: None,
            log_sink: None,
        }
    }

    /// Starts so many at once, all with the same arguments.
    pub fn start_many(count: usize, program: &Path, arguments: &[&str]) -> Vec<ServerNode> {
        (0..count).map(|_| ServerNode::start(program, arguments)).collect()
    }

    /// Where it speaks HTTP: an address and a port.
    pub fn http(&self) -> String {
        self.setup.place(&self.ports.http)
    }

    /// Where it speaks gRPC.
    pub fn grpc(&self) -> String {
        self.setup.place(&self.ports.grpc)
    }

    /// Where it speaks RESP.
    pub fn resp(&self) -> String {
        self.setup.place(&self.ports.resp)
    }

    /// Its admin port.
    pub fn admin(&self) -> String {
        self.setup.place(&self.ports.admin)
    }

    /// What opens the admin port, if that was made at the start.
    pub fn token(&self) -> Option<String> {
        let greeting = self.greeting();
        greeting
            .lines()
            .find_map(|line| line.split_once("not shown again: "))
            .map(|(_, token)| token.to_owned())
    }

    /// What its HTTP port says to JSON that is posted to this path: the body of the answer.
    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        exchange(&self.http(), &head, body)
    }

    /// What its admin port says to a `GET` of this path, with the token that was made at the start.
    #[track_caller]
    pub fn told(&self, path: &str) -> String {
        let token = self.token().unwrap_or_default();
        exchange(&self.admin(), &format!("GET {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n"), "")
    }

    /// One of its metrics, by its name and labels as they are written: `ratekeeper_store_up{server="127.0.0.1:6379"}`.
    #[track_caller]
    pub fn metric(&self, name: &str) -> Option<f64> {
        let told = self.told("/metrics");
        told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// What it has taken of the machine.
    #[track_caller]
    pub fn footprint(&self) -> Footprint {
        Footprint::of(self.id())
    }

    /// Has its clock differ from the machine's by so many seconds from now on; only for one that was started with a
    /// [clock](NodeSetup::clock) of its own.
    pub fn set_clock(&self, ahead_seconds: f64) {
        self.clock.as_ref().must("it was started with the machine's clock").set(ahead_seconds);
    }

    /// What it printed when it started.
    pub fn greeting(&self) -> String {
        fs::read_to_string(self.folder.path().join("greeting")).unwrap_or_default()
    }

    /// All that it has logged since it was first started.
    pub fn log(&self) -> String {
        if self.setup.log_sink.is_some() { String::new() } else { self.process.log() }
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops it where it is, its connections open and unanswered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Sends it a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills it, without a chance to say goodbye.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to end in order, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.stop()
    }

    /// Starts it anew on the same ports, killing it first if it runs.
    pub fn restart(&mut self) {
        self.process.kill();
        let _ = fs::remove_file(self.folder.path().join("greeting"));
        self.process = spawn(&self.setup, &self.ports, self.clock.as_ref(), self.folder.path());
        self.await_greeting();
    }

    fn await_greeting(&mut self) {
        within(PATIENCE, "a node greets", || {
            if let Some(status) = self.process.ended() {
                fail(&format!("a node ended with {status}:\n{}{}", self.greeting(), self.log()));
            }
            // It prints this when all its ports are open.
            self.greeting().lines().any(|line| line == "try it:").then_some(())
        });
        if let Some(clock) = &self.clock {
            clock.tidy(self.id());
        }
    }
}

impl Drop for ServerNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = format!("the node at {} said:\n{}{}", self.http(), self.greeting(), self.log());
            // Through the writer and not `eprintln!`, which only programs may use.
            let _ = writeln!(io::stderr(), "{said}");
        }
    }
}

/// Sends a request over a connection of its own, and gives the body of the answer.
#[track_caller]
fn exchange(address: &str, head: &str, body: &str) -> String {
    let ask = || {
        let mut stream = connect(address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{head}Host: test\r\nConnection: close\r\n\r\n{body}").as_bytes())?;
        let mut told = String::new();
        stream.read_to_string(&mut told)?;
        io::Result::Ok(told)
    };
    let told = ask().must("a node does not answer");
    told.split_once("\r\n\r\n").must("an answer has a head and a body").1.to_owned()
}

fn spawn(setup: &NodeSetup, ports: &NodePorts, clock: Option<&FakeTime>, folder: &Path) -> ChildProcess {
    let program = &setup.program;
    let mut command = clock.map_or_else(|| Command::new(program), |clock| clock.command(program));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RATEKEEPER_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").current_dir(folder).arg("serve");
    let places =
        [("HTTP", &ports.http), ("GRPC", &ports.grpc), ("RESP", &ports.resp), ("ADMIN", &ports.admin)];
    for (name, port) in places {
        command.env(format!("RATEKEEPER_{name}"), setup.place(port));
    }
    command.args(&setup.arguments);
    if let Some(island) = &setup.island {
        command = island.wrap(&command);
    }
    let log = setup.log_sink.clone().unwrap_or_else(|| folder.join("log"));
    ChildProcess::start_apart(&command, &folder.join("greeting"), &log)
}
