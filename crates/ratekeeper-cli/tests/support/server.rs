//! A running `ratekeeper serve`.

use super::client::{Answer, Client};
use super::metrics::Metrics;
use super::{PATIENCE, Told, ratekeeper, told, within};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A running `ratekeeper serve` on ports of its own, killed when the test is done with it.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
    /// What it said when it started.
    pub(crate) greeting: String,
    /// Where it listens; empty if it does not.
    pub(crate) address: String,
    /// Where its admin port is; empty if it has none.
    pub(crate) admin_address: String,
    /// Where it speaks gRPC and RESP; empty if it does not.
    pub(crate) grpc_address: String,
    pub(crate) resp_address: String,
    has_plain_resp: bool,
    /// What opens the admin port, if that was made at the start.
    pub(crate) token: String,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts it with these rules.
    pub(crate) fn with_rules(rules: &str) -> Server {
        Server::with(rules, &[])
    }

    /// Starts it with these rules and arguments.
    pub(crate) fn with(rules: &str, arguments: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        fs::write(&path, rules).unwrap();
        Server::start_in(folder, &[&["--rules", path.to_str().unwrap()], arguments].concat())
    }

    /// Starts it, and keeps the folder for as long as it runs.
    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Server {
        Server::launch(folder, &mut serve(arguments))
    }

    /// Starts it by a command of one's own, and keeps the folder for as long as it runs.
    pub(crate) fn launch(folder: TempDir, command: &mut Command) -> Server {
        let log = File::create(folder.path().join("log")).unwrap();
        Server::launch_logging_to(log, folder, command)
    }

    /// Starts it with this for its stderr.
    pub(crate) fn launch_logging_to(log: impl Into<Stdio>, folder: TempDir, command: &mut Command) -> Server {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server {
            child,
            folder,
            greeting: String::new(),
            address: String::new(),
            admin_address: String::new(),
            grpc_address: String::new(),
            resp_address: String::new(),
            has_plain_resp: false,
            token: String::new(),
        };
        server.read_greeting(&mut stdout);
        server
    }

    /// Reads what it says when it starts, to the last line.
    fn read_greeting(&mut self, stdout: &mut BufReader<ChildStdout>) {
        let mut behind = None;
        while behind != Some(0) {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it ended after {:?}", self.greeting);
            self.greeting.push_str(&line);
            let line = line.trim_end();
            let address = line.split_once("://").map(|(_, rest)| rest.split(' ').next().unwrap().to_owned());
            if line.starts_with("admin: ") {
                self.admin_address = address.unwrap();
            } else if line.starts_with("gRPC and Envoy RLS: ") {
                self.grpc_address = address.unwrap();
            } else if line.starts_with("RESP: ") {
                self.has_plain_resp = line.contains(" redis://");
                self.resp_address = address.unwrap();
            } else if line.contains(" listens on ") {
                self.address = address.unwrap();
            } else if let Some((_, token)) = line.split_once("not shown again: ") {
                self.token = token.to_owned();
            }
            behind = match behind {
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

    /// Where its rules are, if it was started with some.
    pub(crate) fn rules(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Asks once, on a connection of its own.
    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.connect().post(path, body)
    }

    /// Checks once, on a connection of its own.
    pub(crate) fn check(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/check", body)
    }

    /// What `/v1/check` answers, on a connection of its own.
    pub(crate) fn decide(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/v1/check", body)
    }

    pub(crate) fn connect_admin(&self) -> Client {
        Client::connect(&self.admin_address)
    }

    /// Asks the admin port, with the token.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        self.connect_admin().ask(method, path, &[("Authorization", &bearer)], body)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let answer = self.admin("GET", "/metrics", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::read(&answer.body)
    }

    /// All that it has logged so far. Lines are written a moment after what they tell of, and all of them before it ends.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until it has logged this text.
    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) {
        within(PATIENCE, text, || self.log().contains(text).then_some(()));
    }

    /// Waits for as many lines as these, which are JSON, of those that are asked for.
    #[track_caller]
    pub(crate) fn await_lines(
        &self,
        count: usize,
        is_one: impl Fn(&serde_json::Value) -> bool,
    ) -> Vec<serde_json::Value> {
        within(PATIENCE, "lines are logged", || {
            let lines: Vec<_> = self.log_lines().into_iter().filter(&is_one).collect();
            (lines.len() >= count).then_some(lines)
        })
    }

    /// All that it has logged, line by line, as JSON.
    pub(crate) fn log_lines(&self) -> Vec<serde_json::Value> {
        let log = self.log();
        // The last line may still be on its way.
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

    /// Waits for it to end by itself, and gives its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        within(PATIENCE, "it ends", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the server said:\n{}{}", self.greeting, self.log());
        }
    }
}

/// `ratekeeper serve` on free ports, untouched by the settings of whoever runs the tests.
pub(crate) fn serve(arguments: &[&str]) -> Command {
    let mut command = ratekeeper(&["serve"]);
    command.env("RATEKEEPER_HTTP", "127.0.0.1:0").env("RATEKEEPER_ADMIN", "127.0.0.1:0");
    command.env("RATEKEEPER_GRPC", "127.0.0.1:0").env("RATEKEEPER_RESP", "127.0.0.1:0").args(arguments);
    // As many as any machine has files for, so that no log tells of that.
    command.env("RATEKEEPER_MAX_CONNECTIONS", "200");
    command
}

/// Runs it to its end, which must be a failure before it has begun, and gives what it said.
#[track_caller]
pub(crate) fn failure(arguments: &[&str]) -> String {
    let Told { code, stdout, stderr } = told(&mut serve(arguments));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr
}
