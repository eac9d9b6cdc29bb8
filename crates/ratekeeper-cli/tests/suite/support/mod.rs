//! Helpers for tests of the real binary: a server on free ports, raw HTTP clients, and waiting with a timeout.

mod certificates;
mod client;
mod folder;
mod http2;
mod metrics;
mod server;

pub(crate) use certificates::Certificates;
pub(crate) use client::{Answer, Client, check, request, socket};
pub(crate) use folder::{Folder, assert_output};
pub(crate) use http2::Http2;
pub(crate) use server::{Server, failure, serve};

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A `ratekeeper` command without the `RATEKEEPER_*` variables of the test environment.
pub(crate) fn ratekeeper(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RATEKEEPER_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").args(arguments);
    command
}

/// A command's exit code and output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    /// The standard output, parsed as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect(&self.stdout)
    }
}

/// Runs a command until it exits.
pub(crate) fn run(command: &mut Command) -> CommandOutput {
    command_output(command.stdin(Stdio::null()).output().unwrap())
}

/// Runs a command with standard input until it exits.
pub(crate) fn run_with_input(command: &mut Command, input: impl AsRef<[u8]>) -> CommandOutput {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The input fits into the pipe buffer, so writing it before reading the output cannot deadlock.
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    command_output(child.wait_with_output().unwrap())
}

fn command_output(Output { status, stdout, stderr }: Output) -> CommandOutput {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The timeout for steps that are immediate on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Calls `poll` until it returns a value, and fails after `timeout`.
#[expect(clippy::disallowed_methods, reason = "the helper waits in real time")]
#[track_caller]
pub(crate) fn within<T>(timeout: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(started.elapsed() < timeout, "{what}: not within {timeout:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
