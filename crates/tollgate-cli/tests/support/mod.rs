//! The real binary on a port of its own, and a client that sees every byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// A running `tollgate serve`, killed when the test is done with it.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(args: &[&str]) -> Server {
        let mut child = command(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().split_once(" listens on http://").expect(&line).1.to_owned();
        Server { child, stdout, address }
    }

    pub(crate) fn with_rules(name: &str, text: &str) -> Server {
        Server::start(&["--rules", rules(name, text).to_str().unwrap()])
    }

    pub(crate) fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    /// Asks once, on a connection of its own.
    pub(crate) fn check(&self, body: impl AsRef<[u8]>) -> Answer {
        self.connect().check(body)
    }

    pub(crate) fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for it to end by itself, and gives its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// What it printed behind its first line.
    pub(crate) fn rest_of_greeting(&mut self, lines: usize) -> String {
        (&mut self.stdout).lines().take(lines).map(|line| line.unwrap() + "\n").collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `tollgate serve` on a free port, untouched by the settings of whoever runs the tests.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .env_remove("TOLLGATE_RULES")
        .env("TOLLGATE_HTTP", "127.0.0.1:0")
        .env("TOLLGATE_ADMIN", "off")
        .env_remove("RUST_LOG");
    command.arg("serve").args(args);
    command
}

/// Runs it to its end, which must be a failure, and gives what it said.
pub(crate) fn failure(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = command(args).output().unwrap();
    assert!(!status.success() && stdout.is_empty(), "{status}");
    String::from_utf8(stderr).unwrap()
}

/// Writes a rules file for one test.
pub(crate) fn rules(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("yaml");
    std::fs::write(&path, text).unwrap();
    path
}

/// One connection.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    pub(crate) fn check(&mut self, body: impl AsRef<[u8]>) -> Answer {
        self.send(check(body));
        self.answer()
    }

    /// Reads one answer, and not a byte more.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "the connection ended within {head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length =
            head.split_once("content-length: ").and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// Whether the server has closed the connection and sent nothing more.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap() == 0
    }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// A number of the body, by its field.
    pub(crate) fn number(&self, field: &str) -> u64 {
        let (_, rest) = self.body.split_once(&format!("\"{field}\":")).expect(&self.body);
        rest.split([',', '}']).next().unwrap().parse().expect(&self.body)
    }
}

/// The bytes of a check.
pub(crate) fn check(body: impl AsRef<[u8]>) -> Vec<u8> {
    request("POST", "/check", body)
}

pub(crate) fn request(method: &str, path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
