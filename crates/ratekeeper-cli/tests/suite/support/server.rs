//! A running `ratekeeper serve`.

use super::client::{Answer, Client};
use super::metrics::Metrics;
use super::{CommandOutput, TIMEOUT, ratekeeper, run, within};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A running `ratekeeper serve` on free ports, killed on drop.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
    /// The start-up banner.
    pub(crate) banner: String,
    /// The HTTP address; empty if the listener is off.
    pub(crate) address: String,
    /// The admin address; empty if the listener is off.
    pub(crate) admin_address: String,
    /// The gRPC and RESP addresses; empty if the listener is off.
    pub(crate) grpc_address: String,
    pub(crate) resp_address: String,
    has_plain_resp: bool,
    /// The admin token; empty unless the server generated it.
    pub(crate) token: String,
}

impl Server {
    /// Starts the server and waits for its banner.
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts the server with these rules.
    pub(crate) fn with_rules(rules: &str) -> Server {
        Server::with(rules, &[])
    }

    /// Starts the server with these rules and arguments.
    pub(crate) fn with(rules: &str, arguments: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        fs::write(&path, rules).unwrap();
        Server::start_in(folder, &[&["--rules", path.to_str().unwrap()], arguments].concat())
    }

    /// Starts the server, and keeps the folder for as long as it runs.
    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Server {
        Server::launch(folder, &mut serve(arguments))
    }

    /// Starts the server with this command, and keeps the folder for as long as it runs.
    pub(crate) fn launch(folder: TempDir, command: &mut Command) -> Server {
        let log = File::create(folder.path().join("log")).unwrap();
        Server::launch_logging_to(log, folder, command)
    }

    /// Like [`Server::launch`], with `log` as standard error.
    pub(crate) fn launch_logging_to(log: impl Into<Stdio>, folder: TempDir, command: &mut Command) -> Server {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server {
            child,
            folder,
            banner: String::new(),
            address: String::new(),
            admin_address: String::new(),
            grpc_address: String::new(),
            resp_address: String::new(),
            has_plain_resp: false,
            token: String::new(),
        };
        server.read_banner(&mut stdout);
        server
    }

    /// Reads the banner to its last line.
    fn read_banner(&mut self, stdout: &mut BufReader<ChildStdout>) {
        let mut lines_left = None;
        while lines_left != Some(0) {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the server exited after {:?}", self.banner);
            self.banner.push_str(&line);
            let line = line.trim_end();
            let address = line.split_once("://").map(|(_, rest)| rest.split(' ').next().unwrap().to_owned());
            if line.starts_with("admin: ") {
                self.admin_address = address.unwrap();
            } else if line.starts_with("gRPC and Envoy RLS: ") {
                self.grpc_address = address.unwrap();
            } else if line.starts_with("RESP: ") {
                self.has_plain_resp = line.contains(" redis://");
                self.resp_address = address.unwrap();
            } else if line.contains(" listening on ") {
                self.address = address.unwrap();
            } else if let Some((_, token)) = line.split_once("not shown again: ") {
                self.token = token.to_owned();
            }
            lines_left = match lines_left {
                Some(lines) => Some(lines - 1),
                None if line == "try it:" => {
                    let of_http = if self.address.is_empty() { 0 } else { 2 };
                    let of_admin = usize::from(!self.admin_address.is_empty());
                    Some(of_http + of_admin + usize::from(self.has_plain_resp))
                }
                None => None,
            };
        }
    }

    /// The path of the rule file that [`Server::with`] writes.
    pub(crate) fn rules(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Sends one request on a new connection.
    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.connect().post(path, body)
    }

    /// Sends one `/check` request on a new connection.
    pub(crate) fn check(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/check", body)
    }

    /// Sends one `/v1/check` request on a new connection.
    pub(crate) fn decide(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/v1/check", body)
    }

    pub(crate) fn connect_admin(&self) -> Client {
        Client::connect(&self.admin_address)
    }

    /// Sends a request with the token to the admin listener.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        self.connect_admin().request(method, path, &[("Authorization", &bearer)], body)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let answer = self.admin("GET", "/metrics", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::read(&answer.body)
    }

    /// The log so far. Lines are written shortly after the event they describe, and all of them before the server
    /// exits.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until the log contains this text.
    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) {
        within(TIMEOUT, text, || self.log().contains(text).then_some(()));
    }

    /// Waits until at least `count` JSON log lines satisfy `matches`, and returns all that do.
    #[track_caller]
    pub(crate) fn await_lines(
        &self,
        count: usize,
        matches: impl Fn(&serde_json::Value) -> bool,
    ) -> Vec<serde_json::Value> {
        within(TIMEOUT, "lines are logged", || {
            let lines: Vec<_> = self.log_lines().into_iter().filter(&matches).collect();
            (lines.len() >= count).then_some(lines)
        })
    }

    /// The complete log lines so far, parsed as JSON.
    pub(crate) fn log_lines(&self) -> Vec<serde_json::Value> {
        let log = self.log();
        // The last line may be incomplete.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        assert!(kill.args(["-s", name, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Waits for the server to exit, and returns its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        within(TIMEOUT, "the server exits", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "server output:\n{}{}", self.banner, self.log());
        }
    }
}

/// A `ratekeeper serve` command on free ports, without the `RATEKEEPER_*` variables of the test environment.
pub(crate) fn serve(arguments: &[&str]) -> Command {
    let mut command = ratekeeper(&["serve"]);
    command.env("RATEKEEPER_HTTP", "127.0.0.1:0").env("RATEKEEPER_ADMIN", "127.0.0.1:0");
    command.env("RATEKEEPER_GRPC", "127.0.0.1:0").env("RATEKEEPER_RESP", "127.0.0.1:0").args(arguments);
    // Few enough for any open-file limit, so that no warning about it is logged.
    command.env("RATEKEEPER_MAX_CONNECTIONS", "200");
    command
}

/// Runs `ratekeeper serve`, which must fail before it starts, and returns its standard error.
#[track_caller]
pub(crate) fn failure(arguments: &[&str]) -> String {
    let CommandOutput { code, stdout, stderr } = run(&mut serve(arguments));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr
}
