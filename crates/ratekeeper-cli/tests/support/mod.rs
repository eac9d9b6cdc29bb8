//! What tests of the real binary share: a server on ports of its own, clients that see every byte, and patience.

#![allow(
    dead_code,
    unused_imports,
    reason = "each file of tests is a program of its own, and uses some of this"
)]

mod certificates;
mod client;
mod folder;
mod http2;
mod metrics;
mod server;

pub(crate) use certificates::Certificates;
pub(crate) use client::{Answer, Client, check, request, socket};
pub(crate) use folder::{Folder, said};
pub(crate) use http2::Http2;
pub(crate) use metrics::Metrics;
pub(crate) use server::{Server, failure, serve};

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `ratekeeper`, untouched by the settings of whoever runs the tests.
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

/// How a command ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Told {
    /// What it printed, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect(&self.stdout)
    }
}

/// Runs a command to its end.
pub(crate) fn told(command: &mut Command) -> Told {
    of_output(command.stdin(Stdio::null()).output().unwrap())
}

/// Runs a command to its end, with something to read.
pub(crate) fn told_with_input(command: &mut Command, input: impl AsRef<[u8]>) -> Told {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Small enough for the pipe, so nobody waits for somebody who waits.
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    of_output(child.wait_with_output().unwrap())
}

fn of_output(Output { status, stdout, stderr }: Output) -> Told {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Told { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// How long something may take that takes no time at all on a machine that does nothing else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer, for at most so long.
#[expect(clippy::disallowed_methods, reason = "how long something real takes is what is tested")]
#[track_caller]
pub(crate) fn within<T>(patience: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
