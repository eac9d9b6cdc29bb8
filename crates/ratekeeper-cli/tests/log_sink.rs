//! A log that can't be written: clients are answered, rules are followed, and the server ends when it is asked to.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::process::Stdio;
use support::{PATIENCE, Server, serve, told, within};

const ALICE: &str = r#"{"client_key":"alice"}"#;
/// So slow that no test lives to see a unit come back.
const ONE_A_DAY: &str = "default: {limit: 1/day}";
const DROPPED: &str = "ratekeeper_log_lines_dropped_total";

/// A server that logs every denial to `log`.
fn start(log: impl Into<Stdio>) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, ONE_A_DAY).unwrap();
    let mut command =
        serve(&["--rules", rules.to_str().unwrap(), "--denial-log", "1000000", "--log", "debug"]);
    Server::launch_logging_to(log, folder, &mut command)
}

/// Asks until lines are dropped. A batch of denials is more than a pipe takes, and a few are more than the queue does.
fn flood(server: &Server) {
    let checks = vec![ALICE; 5_000].join(",");
    let batch = format!(r#"{{"checks":[{checks}]}}"#);
    within(PATIENCE, "lines are dropped and counted", || {
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
}

/// Everything works but the log.
fn works(server: &mut Server) {
    let mut client = server.connect();
    for _ in 0..100 {
        assert!(!client.check(ALICE).is_allowed());
    }
    assert_eq!(client.get("/livez").status, 200);
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.connect_admin().get(path).status, 200, "{path}");
    }
    fs::write(server.rules(), "default: {limit: 7/day}").unwrap();
    within(PATIENCE, "rules are followed", || {
        let bob = client.post("/v1/peek", r#"{"client_key":"bob"}"#);
        (bob.number("remaining") == 7).then_some(())
    });
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_log_on_a_full_disk() {
    let mut server = start(File::options().write(true).open("/dev/full").unwrap());
    server.check(ALICE);
    assert!(!server.check(ALICE).is_allowed());
    within(PATIENCE, "the denial's line is dropped and counted", || {
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
    works(&mut server);
}

#[test]
fn a_log_whose_reader_is_gone() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut server = start(writer);
    server.check(ALICE);
    assert!(!server.check(ALICE).is_allowed());
    within(PATIENCE, "the denial's line is dropped and counted", || {
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
    works(&mut server);
}

#[test]
fn a_log_that_nobody_reads() {
    let (unread, writer) = pipe().unwrap();
    let mut server = start(writer);
    flood(&server);
    works(&mut server);
    drop(unread);
}

#[test]
fn a_log_that_is_read_again_tells_how_many_lines_are_missing() {
    let (reader, writer) = pipe().unwrap();
    let server = start(writer);
    flood(&server);
    let dropped = server.metrics().value(DROPPED);
    let missing = await_report(reader);
    assert!(missing >= 1.0 && missing <= server.metrics().value(DROPPED), "{missing} of {dropped} or more");
    assert_eq!(server.check(ALICE).status, 200);
}

/// Reads the log to the line that says how many are missing.
fn await_report(log: PipeReader) -> f64 {
    for line in BufReader::new(log).lines() {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let message = line["message"].as_str().unwrap_or_default();
        if message.starts_with("log lines dropped") {
            assert_eq!(line["level"], "WARN");
            return line["lines"].as_f64().unwrap();
        }
    }
    panic!("the log ended");
}

#[test]
fn a_greeting_that_nobody_reads_keeps_nobody_from_being_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    // The pipe is full before the server starts.
    let (unread, mut writer) = pipe().unwrap();
    writer.write_all(&[b'x'; 64 * 1024]).unwrap();
    // It is told of when signals are caught and the ports are open, right before the greeting.
    let mut command = serve(&["--emergency-limit", "10/s"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(writer).stderr(File::create(&path).unwrap()).spawn().unwrap();
    within(PATIENCE, "it starts", || {
        fs::read_to_string(&path).unwrap().contains("the emergency limit is on").then_some(())
    });
    let terminate = std::process::Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(terminate.unwrap().success());
    let status = within(PATIENCE, "it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(&path).unwrap());
    drop(unread);
}

#[test]
fn a_failure_that_can_not_be_told_is_still_a_failure() {
    for (arguments, code) in [
        (&["--http", "nowhere"][..], 1),
        (&["--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"][..], 1),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = serve(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).status();
        assert_eq!(status.unwrap().code(), Some(code), "{arguments:?}");
    }
    assert_eq!(told(&mut serve(&["--print-config"])).code, Some(0));
}
