//! One Redis or Valkey server.
//!
//! The guard talks to its server over a Unix socket in the server's folder and as its own user, so it gets through
//! whatever network, passwords and certificates the test configures.

use super::faketime::FakeTime;
use super::network::{NamespaceHandle, NetworkHost};
use super::port::ReservedPort;
use super::process::ChildProcess;
use super::program;
use super::resp::{RespClient, RespReply};
use crate::wait::{OrFail, TEST_TIMEOUT, fail, wait_for};
use ratekeeper_core::Micros;
use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The guard's user name.
const USER: &str = "testkit";
/// How many ports to try; one is enough unless another process takes it at the wrong moment.
const MAX_ATTEMPTS: usize = 8;

/// The timeout for the answer of a server that may be paused.
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);

/// The server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Brand {
    /// All of them, for tests that run with each.
    pub const ALL: [Brand; 2] = [Brand::Redis, Brand::Valkey];

    fn program(self) -> PathBuf {
        match self {
            Brand::Redis => program::find_program("RATEKEEPER_REDIS_SERVER", "redis-server"),
            Brand::Valkey => program::find_program("RATEKEEPER_VALKEY_SERVER", "valkey-server"),
        }
    }
}

/// Certificates for a server, as PEM files.
#[derive(Clone, Debug)]
pub struct ServerCertificates {
    /// The CA certificate.
    pub ca: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// Whether clients must present a certificate, too.
    pub requires_client_certificate: bool,
}

/// The settings of a server to start.
#[derive(Clone, Debug)]
pub struct RedisSetup {
    brand: Brand,
    config: Vec<String>,
    password: Option<String>,
    tls: Option<ServerCertificates>,
    clock_offset: Option<f64>,
    location: ServerLocation,
    kind: ServerKind,
}

/// The network address of a server.
#[derive(Clone, Debug)]
struct ServerLocation {
    address: String,
    /// `None` for this machine's own network.
    namespace: Option<NamespaceHandle>,
}

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerKind {
    Data,
    ClusterNode,
    Sentinel,
}

impl RedisSetup {
    /// A `redis.conf` setting: `set("maxmemory", "10mb")`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> RedisSetup {
        self.config.push(format!("{name} {value}"));
        self
    }

    /// An ACL user, by name and rules: `user("app", "on >secret ~* +@all")`.
    #[must_use]
    pub fn user(self, name: &str, rules: &str) -> RedisSetup {
        self.set("user", &format!("{name} {rules}"))
    }

    /// The password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> RedisSetup {
        self.password = Some(password.to_owned());
        self.set("requirepass", password)
    }

    /// Also listens for TLS, on another port: [`RedisServer::tls_address`]. The Valkey that tests use is built without
    /// TLS and does not start with this.
    #[must_use]
    pub fn tls(mut self, tls: &ServerCertificates) -> RedisSetup {
        self.tls = Some(tls.clone());
        self
    }

    /// The offset of the server's clock from the machine's, in seconds; [`RedisServer::set_clock`] changes it.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> RedisSetup {
        self.clock_offset = Some(ahead_seconds);
        self
    }

    /// Runs on a host of a virtual network, which can be disconnected; the guard still reaches its server.
    #[must_use]
    pub fn on_host(mut self, host: &NetworkHost) -> RedisSetup {
        self.location = ServerLocation {
            address: host.address().to_owned(),
            namespace: Some(host.namespace_handle().clone()),
        };
        self
    }

    /// A node of a cluster that is formed later.
    pub(crate) fn cluster_node(mut self) -> RedisSetup {
        self.kind = ServerKind::ClusterNode;
        self.set("cluster-enabled", "yes")
    }

    /// A Sentinel.
    pub(crate) fn sentinel(mut self) -> RedisSetup {
        self.kind = ServerKind::Sentinel;
        self
    }

    /// Starts the server, and waits until it answers.
    pub fn start(self) -> RedisServer {
        for _ in 0..MAX_ATTEMPTS {
            match RedisServer::launch(self.clone()) {
                Ok(server) => return server,
                Err(StartError::PortTaken) => {}
                Err(StartError::Exited(log)) => fail(&format!("{:?} did not start:\n{log}", self.brand)),
            }
        }
        fail(&format!("{:?} found every port in use, {MAX_ATTEMPTS} times", self.brand))
    }
}

/// Why a server did not start.
enum StartError {
    PortTaken,
    /// It exited with this log.
    Exited(String),
}

/// A running server, killed when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    // Declared before the folder, so that the server ends before its files are removed.
    process: ChildProcess,
    setup: RedisSetup,
    port: ReservedPort,
    bus: Option<ReservedPort>,
    tls: Option<ReservedPort>,
    clock: Option<FakeTime>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a Redis with default settings, except that it writes nothing to disk.
    pub fn start() -> RedisServer {
        RedisServer::setup(Brand::Redis).start()
    }

    /// Settings for a server, to be changed before it starts.
    pub fn setup(brand: Brand) -> RedisSetup {
        let place = ServerLocation { address: "127.0.0.1".to_owned(), namespace: None };
        RedisSetup {
            brand,
            config: Vec::new(),
            password: None,
            tls: None,
            clock_offset: None,
            location: place,
            kind: ServerKind::Data,
        }
    }

    fn launch(setup: RedisSetup) -> Result<RedisServer, StartError> {
        let folder = tempfile::tempdir().or_fail("cannot create a temporary folder");
        let port = ReservedPort::reserve();
        let bus = (setup.kind == ServerKind::ClusterNode).then(ReservedPort::reserve);
        let tls = setup.tls.is_some().then(ReservedPort::reserve);
        let clock = setup.clock_offset.map(FakeTime::new);
        let lines = configuration(&setup, folder.path(), &port, bus.as_ref(), tls.as_ref());
        fs::write(folder.path().join("conf"), lines).or_fail("cannot write the server's configuration");
        let process = spawn(&setup, folder.path(), clock.as_ref());
        let mut server = RedisServer { process, setup, port, bus, tls, clock, folder };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Waits until the server answers, or exits.
    fn wait_until_ready(&mut self) -> Result<(), StartError> {
        wait_for(TEST_TIMEOUT, "a server answers or exits", || {
            if self.process.exit_status().is_some() {
                let log = self.process.log();
                let is_taken = log.contains("Address already in use");
                return Some(Err(if is_taken { StartError::PortTaken } else { StartError::Exited(log) }));
            }
            let answer = self.connect().and_then(|mut connection| connection.call(&["PING"]));
            matches!(answer, Ok(RespReply::Simple(_))).then_some(Ok(()))
        })?;
        if let Some(clock) = &self.clock {
            clock.remove_shared_memory(self.pid());
        }
        Ok(())
    }

    /// The listening address, as `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.setup.location.address, self.port())
    }

    /// The address of the TLS listener.
    pub fn tls_address(&self) -> String {
        let port = self.tls.as_ref().or_fail("the server was started without TLS").number();
        format!("{}:{port}", self.setup.location.address)
    }

    /// The store URL, with the password if it has one.
    pub fn url(&self) -> String {
        let password = self.setup.password.as_ref().map(|password| format!(":{password}@"));
        format!("redis://{}{}", password.unwrap_or_default(), self.address())
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The cluster bus port.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().or_fail("the server is not a cluster node").number()
    }

    /// The server program.
    pub fn brand(&self) -> Brand {
        self.setup.brand
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// A connection with all rights, whatever the network, passwords and users of the test are.
    ///
    /// # Errors
    /// If the server is not running.
    pub fn connect(&self) -> io::Result<RespClient> {
        self.authenticate(RespClient::connect_unix(&self.folder.path().join("socket"))?)
    }

    fn authenticate(&self, mut connection: RespClient) -> io::Result<RespClient> {
        connection.call(&["AUTH", USER, "any"])?;
        Ok(connection)
    }

    /// Sends a command, and returns the reply. Fails the test if the server is down or paused; an error reply is
    /// returned: see [`RespReply::expect_ok`].
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, words: &[A]) -> RespReply {
        match self.try_command(words) {
            Ok(reply) => reply,
            Err(error) => fail(&format!("{} does not answer: {error}\n{}", self.address(), self.log())),
        }
    }

    /// Sends a command, and returns the reply.
    ///
    /// # Errors
    /// If the server is down, or paused for longer than [`TEST_TIMEOUT`](crate::TEST_TIMEOUT).
    pub fn try_command<A: AsRef<[u8]>>(&self, words: &[A]) -> io::Result<RespReply> {
        self.connect()?.call(words)
    }

    /// Sends a command with a short timeout. Returns `None` if there is no reply.
    pub fn probe<A: AsRef<[u8]>>(&self, words: &[A]) -> Option<RespReply> {
        let connect = || {
            let connection = RespClient::connect_unix(&self.folder.path().join("socket"))?;
            connection.set_timeout(PROBE_TIMEOUT)?;
            self.authenticate(connection)
        };
        connect().and_then(|mut connection| connection.call(words)).ok()
    }

    /// Sends an idempotent command until it is answered: a server whose role changes closes its connections.
    #[track_caller]
    pub(crate) fn command_with_retry<A: AsRef<[u8]>>(&self, words: &[A]) -> RespReply {
        wait_for(TEST_TIMEOUT, &format!("{} answers", self.address()), || self.try_command(words).ok())
    }

    /// The current role: `master` or `slave`.
    #[track_caller]
    pub fn role(&self) -> String {
        self.command_with_retry(&["ROLE"]).array().first().or_fail("ROLE replied without a name").text()
    }

    /// One field of `INFO`.
    #[track_caller]
    pub fn info(&self, name: &str) -> String {
        self.command_with_retry(&["INFO", "everything"]).field(name).or_fail(&format!("INFO has no {name}"))
    }

    /// Stops the process with SIGSTOP: connections stay open and the kernel accepts new ones, but there are no replies.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the process with SIGKILL. Its port stays reserved.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM, and waits until the server has shut down. Its port stays reserved.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        self.process.exit_status().is_none()
    }

    /// Restarts the server on the same port, with its persisted data, killing it first if it runs.
    pub fn restart(&mut self) {
        for _ in 0..MAX_ATTEMPTS {
            self.process.kill();
            // Otherwise the old process's log would be taken for the new one's.
            let _ = fs::rename(self.folder.path().join("log"), self.folder.path().join("log.before"));
            let _ = fs::remove_file(self.folder.path().join("socket"));
            self.process = spawn(&self.setup, self.folder.path(), self.clock.as_ref());
            match self.wait_until_ready() {
                Ok(()) => return,
                // An outgoing connection of another process uses this very port, which passes.
                Err(StartError::PortTaken) => {}
                Err(StartError::Exited(log)) => fail(&format!("{:?} did not restart:\n{log}", self.brand())),
            }
        }
        fail(&format!("another process has taken port {}", self.port()))
    }

    /// Sets the offset of its clock from the machine's, in seconds, forwards or backwards. Fails unless it was started
    /// with a [clock](RedisSetup::clock).
    pub fn set_clock(&self, ahead_seconds: f64) {
        self.clock.as_ref().or_fail("the server was started without a fake clock").set_offset(ahead_seconds);
    }

    /// Freezes its clock at this microsecond, forwards or backwards. Fails unless it was started with a
    /// [clock](RedisSetup::clock). What the server times by that clock, like a blocked client's timeout, does not end
    /// until the clock is set again.
    pub fn freeze_clock(&self, at: Micros) {
        self.clock.as_ref().or_fail("the server was started without a fake clock").freeze(at);
    }

    /// Everything it has logged since it was started.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether its port accepts connections, as that of a paused server does, too.
    pub fn is_listening(&self) -> bool {
        TcpStream::connect(self.address()).is_ok()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = format!("log of {:?} at {}:\n{}", self.brand(), self.address(), self.log());
            // Not `eprintln!`, which the lints allow in programs only.
            let _ = writeln!(io::stderr(), "{output}");
        }
    }
}

fn spawn(setup: &RedisSetup, folder: &Path, clock: Option<&FakeTime>) -> ChildProcess {
    let program = setup.brand.program();
    let mut command = match (clock, setup.brand) {
        (None, _) => Command::new(&program),
        (Some(clock), Brand::Redis) => clock.command(&program),
        (Some(clock), Brand::Valkey) => clock.command_without_tsc(&program),
    };
    if let Some(namespace) = &setup.location.namespace {
        command = namespace.wrap(&command);
    }
    command.arg(folder.join("conf")).current_dir(folder);
    if setup.kind == ServerKind::Sentinel {
        command.arg("--sentinel");
    }
    ChildProcess::start(&command, &folder.join("log"))
}

/// The server's configuration file. Later lines override earlier ones.
fn configuration(
    setup: &RedisSetup,
    folder: &Path,
    port: &ReservedPort,
    bus: Option<&ReservedPort>,
    tls: Option<&ReservedPort>,
) -> String {
    let folder = folder.display();
    let mut lines = vec![
        format!("bind {}", setup.location.address),
        // Access control is up to the test.
        "protected-mode no".to_owned(),
        format!("port {}", port.number()),
        format!("unixsocket {folder}/socket"),
        format!("dir {folder}"),
        format!("user {USER} on nopass ~* &* +@all"),
    ];
    if setup.kind != ServerKind::Sentinel {
        lines.push("save \"\"".to_owned());
        lines.push("appendonly no".to_owned());
        lines.push("enable-debug-command yes".to_owned());
        // A full resync starts at once instead of waiting for other replicas.
        lines.push("repl-diskless-sync-delay 0".to_owned());
    }
    lines.extend(bus.map(|bus| format!("cluster-port {}", bus.number())));
    if let (Some(port), Some(tls)) = (tls, &setup.tls) {
        lines.push(format!("tls-port {}", port.number()));
        lines.push(format!("tls-ca-cert-file {}", tls.ca.display()));
        lines.push(format!("tls-cert-file {}", tls.certificate.display()));
        lines.push(format!("tls-key-file {}", tls.key.display()));
        lines
            .push(format!("tls-auth-clients {}", if tls.requires_client_certificate { "yes" } else { "no" }));
    }
    lines.extend(setup.config.iter().cloned());
    lines.join("\n") + "\n"
}
