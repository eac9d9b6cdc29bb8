//! One Redis or Valkey server.
//!
//! The guard talks to its server through a socket in the server's own folder and as a user of its own. So it is heard
//! whatever the network, the passwords and the certificates of the test are.

use super::faketime::FakeTime;
use super::network::{Inside, NetworkHost};
use super::port::FreePort;
use super::process::ChildProcess;
use super::program;
use super::resp::{RespClient, RespReply};
use crate::patience::{Must, PATIENCE, fail, within};
use ratekeeper_core::Micros;
use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How the guard calls itself.
const USER: &str = "testkit";
/// How many ports to try; one is enough unless somebody takes it in the wrong moment.
const MOST_TRIES: usize = 8;

/// How long an answer may take of a server that may well be paused.
const GLANCE: Duration = Duration::from_millis(300);

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Brand {
    /// All there are, for tests that try each.
    pub const ALL: [Brand; 2] = [Brand::Redis, Brand::Valkey];

    fn program(self) -> PathBuf {
        match self {
            Brand::Redis => program::find("RATEKEEPER_REDIS_SERVER", "redis-server"),
            Brand::Valkey => program::find("RATEKEEPER_VALKEY_SERVER", "valkey-server"),
        }
    }
}

/// Certificates for a server, as PEM files.
#[derive(Clone, Debug)]
pub struct ServerCertificates {
    /// Who signed the certificates that are trusted.
    pub authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whether a client must show a certificate, too.
    pub asks_clients: bool,
}

/// How a server is to be started.
#[derive(Clone, Debug)]
pub struct RedisSetup {
    brand: Brand,
    lines: Vec<String>,
    password: Option<String>,
    tls: Option<ServerCertificates>,
    clock: Option<f64>,
    place: ServerPlace,
    kind: ServerKind,
}

/// Where on the network a server is.
#[derive(Clone, Debug)]
struct ServerPlace {
    address: String,
    /// None for this machine itself.
    island: Option<Inside>,
}

/// What a server is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerKind {
    Data,
    ClusterNode,
    Sentinel,
}

impl RedisSetup {
    /// A setting, as a line of `redis.conf` has it: `set("maxmemory", "10mb")`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> RedisSetup {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Another user, by its name and rules: `user("app", "on >secret ~* +@all")`.
    #[must_use]
    pub fn user(self, name: &str, rules: &str) -> RedisSetup {
        self.set("user", &format!("{name} {rules}"))
    }

    /// What a client must know that gives no name.
    #[must_use]
    pub fn password(mut self, password: &str) -> RedisSetup {
        self.password = Some(password.to_owned());
        self.set("requirepass", password)
    }

    /// Speaks TLS as well, on a port of its own: [`RedisServer::tls_address`]. The Valkey that tests have was
    /// built without TLS and does not start so.
    #[must_use]
    pub fn tls(mut self, tls: &ServerCertificates) -> RedisSetup {
        self.tls = Some(tls.clone());
        self
    }

    /// Has the server's clock differ from the machine's by so many seconds; [`RedisServer::set_clock`] changes it.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> RedisSetup {
        self.clock = Some(ahead_seconds);
        self
    }

    /// Runs on an island, which can be cut off; the guard is heard by its server all the same.
    #[must_use]
    pub fn on(mut self, island: &NetworkHost) -> RedisSetup {
        self.place =
            ServerPlace { address: island.address().to_owned(), island: Some(island.inside().clone()) };
        self
    }

    /// A node of a cluster that is yet to be made.
    pub(crate) fn cluster_node(mut self) -> RedisSetup {
        self.kind = ServerKind::ClusterNode;
        self.set("cluster-enabled", "yes")
    }

    /// One that watches others.
    pub(crate) fn sentinel(mut self) -> RedisSetup {
        self.kind = ServerKind::Sentinel;
        self
    }

    /// Starts it, and waits until it answers.
    pub fn start(self) -> RedisServer {
        for _ in 0..MOST_TRIES {
            match RedisServer::launch(self.clone()) {
                Ok(server) => return server,
                Err(Unstarted::PortTaken) => {}
                Err(Unstarted::Broken(log)) => fail(&format!("{:?} did not start:\n{log}", self.brand)),
            }
        }
        fail(&format!("{:?} found every port taken, {MOST_TRIES} times", self.brand))
    }
}

/// Why a server is not there.
enum Unstarted {
    PortTaken,
    /// It said this.
    Broken(String),
}

/// A running server, killed when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    // Before the folder, so that the server is gone before its files are.
    process: ChildProcess,
    setup: RedisSetup,
    port: FreePort,
    bus: Option<FreePort>,
    tls: Option<FreePort>,
    clock: Option<FakeTime>,
    folder: TempDir,
}

impl RedisServer {
    /// A Redis as it comes, except that it writes nothing to disk.
    pub fn start() -> RedisServer {
        RedisServer::setup(Brand::Redis).start()
    }

    /// One with settings.
    pub fn setup(brand: Brand) -> RedisSetup {
        let place = ServerPlace { address: "127.0.0.1".to_owned(), island: None };
        RedisSetup {
            brand,
            lines: Vec::new(),
            password: None,
            tls: None,
            clock: None,
            place,
            kind: ServerKind::Data,
        }
    }

    fn launch(setup: RedisSetup) -> Result<RedisServer, Unstarted> {
        let folder = tempfile::tempdir().must("cannot make a folder");
        let port = FreePort::free();
        let bus = (setup.kind == ServerKind::ClusterNode).then(FreePort::free);
        let tls = setup.tls.is_some().then(FreePort::free);
        let clock = setup.clock.map(FakeTime::new);
        let lines = configuration(&setup, folder.path(), &port, bus.as_ref(), tls.as_ref());
        fs::write(folder.path().join("conf"), lines).must("cannot write the server's settings");
        let process = spawn(&setup, folder.path(), clock.as_ref());
        let mut server = RedisServer { process, setup, port, bus, tls, clock, folder };
        server.await_answer()?;
        Ok(server)
    }

    /// Waits until it answers, or ends.
    fn await_answer(&mut self) -> Result<(), Unstarted> {
        within(PATIENCE, "a server answers or ends", || {
            if self.process.ended().is_some() {
                let log = self.process.log();
                let is_taken = log.contains("Address already in use");
                return Some(Err(if is_taken { Unstarted::PortTaken } else { Unstarted::Broken(log) }));
            }
            let answer = self.connect().and_then(|mut connection| connection.ask(&["PING"]));
            matches!(answer, Ok(RespReply::Simple(_))).then_some(Ok(()))
        })?;
        if let Some(clock) = &self.clock {
            clock.tidy(self.id());
        }
        Ok(())
    }

    /// Where it listens: an address and a port.
    pub fn address(&self) -> String {
        format!("{}:{}", self.setup.place.address, self.port())
    }

    /// Where it listens for TLS.
    pub fn tls_address(&self) -> String {
        let port = self.tls.as_ref().must("it was started without TLS").number();
        format!("{}:{port}", self.setup.place.address)
    }

    /// Where it is, as clients are told, with the password if it has one.
    pub fn url(&self) -> String {
        let password = self.setup.password.as_ref().map(|password| format!(":{password}@"));
        format!("redis://{}{}", password.unwrap_or_default(), self.address())
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port through which the nodes of a cluster talk to each other.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().must("it is no node of a cluster").number()
    }

    /// Whose it is.
    pub fn brand(&self) -> Brand {
        self.setup.brand
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A connection that may do anything, whatever the network, the passwords and the users are.
    ///
    /// # Errors
    /// It is not running.
    pub fn connect(&self) -> io::Result<RespClient> {
        self.sign_in(RespClient::unix(&self.folder.path().join("socket"))?)
    }

    fn sign_in(&self, mut connection: RespClient) -> io::Result<RespClient> {
        connection.ask(&["AUTH", USER, "any"])?;
        Ok(connection)
    }

    /// Sends a command, and waits for its answer. A server that is down or paused fails the test; an error it tells is an
    /// answer: see [`RespReply::done`].
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, words: &[A]) -> RespReply {
        match self.try_command(words) {
            Ok(reply) => reply,
            Err(error) => fail(&format!("{} does not answer: {error}\n{}", self.address(), self.log())),
        }
    }

    /// Sends a command, and waits for its answer.
    ///
    /// # Errors
    /// The server is down, or paused for longer than [`PATIENCE`].
    pub fn try_command<A: AsRef<[u8]>>(&self, words: &[A]) -> io::Result<RespReply> {
        self.connect()?.ask(words)
    }

    /// Sends a command, and gives its answer if there is one soon.
    pub fn glance<A: AsRef<[u8]>>(&self, words: &[A]) -> Option<RespReply> {
        let connect = || {
            let connection = RespClient::unix(&self.folder.path().join("socket"))?;
            connection.set_patience(GLANCE)?;
            self.sign_in(connection)
        };
        connect().and_then(|mut connection| connection.ask(words)).ok()
    }

    /// Asks for what may be asked for twice: a server whose role changes ends the connections it has.
    #[track_caller]
    pub(crate) fn look<A: AsRef<[u8]>>(&self, words: &[A]) -> RespReply {
        within(PATIENCE, &format!("{} answers", self.address()), || self.try_command(words).ok())
    }

    /// What it is now: `master` or `slave`.
    #[track_caller]
    pub fn role(&self) -> String {
        self.look(&["ROLE"]).array().first().must("a role has a name").text()
    }

    /// One line of `INFO`.
    #[track_caller]
    pub fn info(&self, name: &str) -> String {
        self.look(&["INFO", "everything"]).field(name).must(&format!("INFO says no {name}"))
    }

    /// Stops it where it is: connections stay open, and new ones are taken by the kernel, but nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills it, without a chance to say goodbye. Its port is kept for it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to end in order, and waits until it has. Its port is kept for it.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// Whether it has not been killed or ended by itself.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Starts it anew on the same port, with what it has saved, killing it first if it runs.
    pub fn restart(&mut self) {
        for _ in 0..MOST_TRIES {
            self.process.kill();
            // What the last one said would look as if this one said it.
            let _ = fs::rename(self.folder.path().join("log"), self.folder.path().join("log.before"));
            let _ = fs::remove_file(self.folder.path().join("socket"));
            self.process = spawn(&self.setup, self.folder.path(), self.clock.as_ref());
            match self.await_answer() {
                Ok(()) => return,
                // Somebody else's connection goes out from this very port, which passes.
                Err(Unstarted::PortTaken) => {}
                Err(Unstarted::Broken(log)) => fail(&format!("{:?} did not come back:\n{log}", self.brand())),
            }
        }
        fail(&format!("somebody else has taken port {}", self.port()))
    }

    /// Has its clock differ from the machine's by so many seconds from now on; only for one that was started with a
    /// [clock](RedisSetup::clock) of its own. Forth and back are both possible.
    pub fn set_clock(&self, ahead_seconds: f64) {
        self.clock.as_ref().must("it was started with the machine's clock").set(ahead_seconds);
    }

    /// Has its clock stand still from now on at this very microsecond, forth or back; only for one that was started with a
    /// [clock](RedisSetup::clock) of its own. What it times by that clock, like how long a client is blocked, lasts until it is set on.
    pub fn stop_clock(&self, at: Micros) {
        self.clock.as_ref().must("it was started with the machine's clock").stop(at);
    }

    /// All that it has logged since it was started.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether somebody listens on its port, which a server that is paused does, too.
    pub fn is_listening(&self) -> bool {
        TcpStream::connect(self.address()).is_ok()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = format!("{:?} at {} said:\n{}", self.brand(), self.address(), self.log());
            // Through the writer and not `eprintln!`, which the test's own capture would need.
            let _ = writeln!(io::stderr(), "{said}");
        }
    }
}

fn spawn(setup: &RedisSetup, folder: &Path, clock: Option<&FakeTime>) -> ChildProcess {
    let program = setup.brand.program();
    let mut command = match (clock, setup.brand) {
        (None, _) => Command::new(&program),
        (Some(clock), Brand::Redis) => clock.command(&program),
        (Some(clock), Brand::Valkey) => clock.command_without_counter(&program),
    };
    if let Some(island) = &setup.place.island {
        command = island.wrap(&command);
    }
    command.arg(folder.join("conf")).current_dir(folder);
    if setup.kind == ServerKind::Sentinel {
        command.arg("--sentinel");
    }
    ChildProcess::start(&command, &folder.join("log"))
}

/// What the server reads when it starts. Later lines win over earlier ones.
fn configuration(
    setup: &RedisSetup,
    folder: &Path,
    port: &FreePort,
    bus: Option<&FreePort>,
    tls: Option<&FreePort>,
) -> String {
    let folder = folder.display();
    let mut lines = vec![
        format!("bind {}", setup.place.address),
        // Who may do what is for the test to say.
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
        // A replica that asks for everything need not wait for others that might.
        lines.push("repl-diskless-sync-delay 0".to_owned());
    }
    lines.extend(bus.map(|bus| format!("cluster-port {}", bus.number())));
    if let (Some(port), Some(tls)) = (tls, &setup.tls) {
        lines.push(format!("tls-port {}", port.number()));
        lines.push(format!("tls-ca-cert-file {}", tls.authority.display()));
        lines.push(format!("tls-cert-file {}", tls.certificate.display()));
        lines.push(format!("tls-key-file {}", tls.key.display()));
        lines.push(format!("tls-auth-clients {}", if tls.asks_clients { "yes" } else { "no" }));
    }
    lines.extend(setup.lines.iter().cloned());
    lines.join("\n") + "\n"
}
