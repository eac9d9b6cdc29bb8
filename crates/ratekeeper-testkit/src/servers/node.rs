//! A Ratekeeper server in its own process: one of several nodes that share a store.

use super::faketime::FakeTime;
use super::footprint::Footprint;
use super::network::{NamespaceHandle, NetworkHost};
use super::port::ReservedPort;
use super::process::ChildProcess;
use super::resp::connect;
use crate::wait::{OrFail, TEST_TIMEOUT, fail, wait_for};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use tempfile::TempDir;

/// A running `ratekeeper serve` on reserved ports, killed when this is dropped.
///
/// The ports stay reserved while it is down.
#[derive(Debug)]
pub struct ServerNode {
    // Declared before the folder, so that the server ends before its files are removed.
    process: ChildProcess,
    setup: NodeSetup,
    ports: NodePorts,
    clock: Option<FakeTime>,
    folder: TempDir,
}

/// The settings of a node to start.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    program: PathBuf,
    arguments: Vec<String>,
    clock_offset: Option<f64>,
    /// The address of its listeners.
    address: String,
    /// `None` for this machine's own network.
    namespace: Option<NamespaceHandle>,
    /// The log file or device; `None` for a file in its folder.
    log_sink: Option<PathBuf>,
}

impl NodeSetup {
    /// More arguments after `serve`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> NodeSetup {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// The offset of the node's clock from the machine's, in seconds; [`ServerNode::set_clock`] changes it.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> NodeSetup {
        self.clock_offset = Some(ahead_seconds);
        self
    }

    /// Runs on a host of a virtual network, at its address.
    #[must_use]
    pub fn on_host(mut self, host: &NetworkHost) -> NodeSetup {
        self.address = host.address().to_owned();
        self.namespace = Some(host.namespace_handle().clone());
        self
    }

    /// Sends its log to a device or a named pipe; [`ServerNode::log`] is then empty.
    #[must_use]
    pub fn log_to(mut self, sink: &Path) -> NodeSetup {
        self.log_sink = Some(sink.to_owned());
        self
    }

    /// Starts the node, and waits until it has printed its banner. `RATEKEEPER_*` variables of the test run are
    /// ignored.
    pub fn start(self) -> ServerNode {
        let folder = tempfile::tempdir().or_fail("cannot create a temporary folder");
        let ports = NodePorts {
            http: ReservedPort::reserve(),
            grpc: ReservedPort::reserve(),
            resp: ReservedPort::reserve(),
            admin: ReservedPort::reserve(),
        };
        let clock = self.clock_offset.map(FakeTime::new);
        let process = spawn(&self, &ports, clock.as_ref(), folder.path());
        let mut node = ServerNode { process, setup: self, ports, clock, folder };
        node.wait_for_banner();
        node
    }

    fn address_of(&self, port: &ReservedPort) -> String {
        format!("{}:{}", self.address, port.number())
    }
}

#[derive(Debug)]
struct NodePorts {
    http: ReservedPort,
    grpc: ReservedPort,
    resp: ReservedPort,
    admin: ReservedPort,
}

impl ServerNode {
    /// Starts the program with these arguments after `serve`, and waits until it has printed its banner. `RATEKEEPER_*`
    /// variables of the test run are ignored.
    pub fn start(program: &Path, arguments: &[&str]) -> ServerNode {
        ServerNode::setup(program).arguments(arguments).start()
    }

    /// Settings for a node, to be changed before it starts.
    pub fn setup(program: &Path) -> NodeSetup {
        NodeSetup {
            program: program.to_owned(),
            arguments: Vec::new(),
            clock_offset: None,
            address: "127.0.0.1".to_owned(),
            namespace: None,
            log_sink: None,
        }
    }

    /// Starts `count` nodes with the same arguments.
    pub fn start_many(count: usize, program: &Path, arguments: &[&str]) -> Vec<ServerNode> {
        (0..count).map(|_| ServerNode::start(program, arguments)).collect()
    }

    /// The address of the HTTP listener, as `host:port`.
    pub fn http(&self) -> String {
        self.setup.address_of(&self.ports.http)
    }

    /// The address of the gRPC listener.
    pub fn grpc(&self) -> String {
        self.setup.address_of(&self.ports.grpc)
    }

    /// The address of the RESP listener.
    pub fn resp(&self) -> String {
        self.setup.address_of(&self.ports.resp)
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> String {
        self.setup.address_of(&self.ports.admin)
    }

    /// The admin token generated at start, or `None`.
    pub fn admin_token(&self) -> Option<String> {
        let banner = self.banner();
        banner
            .lines()
            .find_map(|line| line.split_once("not shown again: "))
            .map(|(_, token)| token.to_owned())
    }

    /// Posts JSON to this path of the HTTP listener, and returns the body of the answer.
    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        http_exchange(&self.http(), &head, body)
    }

    /// Gets a path of the admin listener with the token generated at start, and returns the body of the answer.
    #[track_caller]
    pub fn admin_get(&self, path: &str) -> String {
        let token = self.admin_token().unwrap_or_default();
        http_exchange(&self.admin(), &format!("GET {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n"), "")
    }

    /// The value of a metric, by name and labels as written: `ratekeeper_store_up{server="127.0.0.1:6379"}`. `None` if
    /// absent.
    #[track_caller]
    pub fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.admin_get("/metrics");
        metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The resources that it uses.
    #[track_caller]
    pub fn footprint(&self) -> Footprint {
        Footprint::of(self.pid())
    }

    /// Sets the offset of its clock from the machine's, in seconds. Fails unless it was started with a
    /// [clock](NodeSetup::clock).
    pub fn set_clock(&self, ahead_seconds: f64) {
        self.clock.as_ref().or_fail("the node was started without a fake clock").set_offset(ahead_seconds);
    }

    /// The banner: its standard output at start.
    pub fn banner(&self) -> String {
        fs::read_to_string(self.folder.path().join("banner")).unwrap_or_default()
    }

    /// Everything it has logged since its first start.
    pub fn log(&self) -> String {
        if self.setup.log_sink.is_some() { String::new() } else { self.process.log() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the process with SIGSTOP, its connections open and unanswered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Sends it a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM, and waits until the node has shut down.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.stop()
    }

    /// Restarts the node on the same ports, killing it first if it runs.
    pub fn restart(&mut self) {
        self.process.kill();
        let _ = fs::remove_file(self.folder.path().join("banner"));
        self.process = spawn(&self.setup, &self.ports, self.clock.as_ref(), self.folder.path());
        self.wait_for_banner();
    }

    fn wait_for_banner(&mut self) {
        wait_for(TEST_TIMEOUT, "a node prints its banner", || {
            if let Some(status) = self.process.exit_status() {
                fail(&format!("a node exited with {status}:\n{}{}", self.banner(), self.log()));
            }
            // The line is printed when all listeners are open.
            self.banner().lines().any(|line| line == "try it:").then_some(())
        });
        if let Some(clock) = &self.clock {
            clock.remove_shared_memory(self.pid());
        }
    }
}

impl Drop for ServerNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = format!("output of the node at {}:\n{}{}", self.http(), self.banner(), self.log());
            // Not `eprintln!`, which the lints allow in programs only.
            let _ = writeln!(io::stderr(), "{output}");
        }
    }
}

/// Sends a request over a new connection, and returns the body of the answer.
#[track_caller]
fn http_exchange(address: &str, head: &str, body: &str) -> String {
    let send = || {
        let mut stream = connect(address, TEST_TIMEOUT)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.write_all(format!("{head}Host: test\r\nConnection: close\r\n\r\n{body}").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        io::Result::Ok(answer)
    };
    let answer = send().or_fail("a node does not answer");
    answer.split_once("\r\n\r\n").or_fail("the answer has no end of head").1.to_owned()
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
    let listeners =
        [("HTTP", &ports.http), ("GRPC", &ports.grpc), ("RESP", &ports.resp), ("ADMIN", &ports.admin)];
    for (name, port) in listeners {
        command.env(format!("RATEKEEPER_{name}"), setup.address_of(port));
    }
    command.args(&setup.arguments);
    if let Some(namespace) = &setup.namespace {
        command = namespace.wrap(&command);
    }
    let log = setup.log_sink.clone().unwrap_or_else(|| folder.join("log"));
    ChildProcess::start_with_stdout(&command, &folder.join("banner"), &log)
}
