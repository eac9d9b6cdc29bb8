//! A Tollgate of its own process: one node of several that share a store.

use super::port::Port;
use super::process::Process;
use crate::patience::{Must, PATIENCE, fail, within};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use tempfile::TempDir;

/// A running `tollgate serve` on ports of its own, killed when this is dropped.
///
/// The ports are kept for it while it is down.
#[derive(Debug)]
pub struct Node {
    // Before the folder, so that the server is gone before its files are.
    process: Process,
    program: PathBuf,
    arguments: Vec<String>,
    ports: Ports,
    folder: TempDir,
}

#[derive(Debug)]
struct Ports {
    http: Port,
    grpc: Port,
    resp: Port,
    admin: Port,
}

impl Node {
    /// Starts the program with these arguments after `serve`, and waits until it has greeted. Settings of whoever runs the
    /// tests don't count.
    pub fn start(program: &Path, arguments: &[&str]) -> Node {
        let folder = tempfile::tempdir().must("cannot make a folder");
        let ports = Ports { http: Port::free(), grpc: Port::free(), resp: Port::free(), admin: Port::free() };
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = spawn(program, &arguments, &ports, folder.path());
        let mut node = Node { process, program: program.to_owned(), arguments, ports, folder };
        node.await_greeting();
        node
    }

    /// Starts so many at once, all with the same arguments.
    pub fn start_many(count: usize, program: &Path, arguments: &[&str]) -> Vec<Node> {
        (0..count).map(|_| Node::start(program, arguments)).collect()
    }

    /// Where it speaks HTTP: an address and a port.
    pub fn http(&self) -> String {
        address(&self.ports.http)
    }

    /// Where it speaks gRPC.
    pub fn grpc(&self) -> String {
        address(&self.ports.grpc)
    }

    /// Where it speaks RESP.
    pub fn resp(&self) -> String {
        address(&self.ports.resp)
    }

    /// Its admin port.
    pub fn admin(&self) -> String {
        address(&self.ports.admin)
    }

    /// What opens the admin port, if that was made at the start.
    pub fn token(&self) -> Option<String> {
        let greeting = self.greeting();
        greeting
            .lines()
            .find_map(|line| line.split_once("not shown again: "))
            .map(|(_, token)| token.to_owned())
    }

    /// What it printed when it started.
    pub fn greeting(&self) -> String {
        fs::read_to_string(self.folder.path().join("greeting")).unwrap_or_default()
    }

    /// All that it has logged since it was first started.
    pub fn log(&self) -> String {
        self.process.log()
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
        self.process = spawn(&self.program, &self.arguments, &self.ports, self.folder.path());
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
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = format!("the node at {} said:\n{}{}", self.http(), self.greeting(), self.log());
            // Through the writer and not `eprintln!`, which only programs may use.
            let _ = writeln!(io::stderr(), "{said}");
        }
    }
}

fn address(port: &Port) -> String {
    format!("127.0.0.1:{}", port.number())
}

fn spawn(program: &Path, arguments: &[String], ports: &Ports, folder: &Path) -> Process {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").current_dir(folder).arg("serve");
    let places =
        [("HTTP", &ports.http), ("GRPC", &ports.grpc), ("RESP", &ports.resp), ("ADMIN", &ports.admin)];
    for (name, port) in places {
        command.env(format!("TOLLGATE_{name}"), address(port));
    }
    Process::start_apart(command.args(arguments), &folder.join("greeting"), &folder.join("log"))
}
