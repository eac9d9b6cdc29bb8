//! A log that cannot be written: the server still answers clients, reloads rules and shuts down.

use crate::support::{Server, TIMEOUT, run, serve, within};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::process::Stdio;

const ALICE: &str = r#"{"client_key":"alice"}"#;
/// So slow that no unit is refilled during a test.
const ONE_A_DAY: &str = "default: {limit: 1/day}";
const DROPPED: &str = "ratekeeper_log_lines_dropped_total";

/// Starts a server that logs every denial to `log`.
fn start(log: impl Into<Stdio>) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, ONE_A_DAY).unwrap();
    let mut command =
        serve(&["--rules", rules.to_str().unwrap(), "--denial-log", "1000000", "--log", "debug"]);
    Server::launch_logging_to(log, folder, &mut command)
}

/// Sends batches of denials until lines are dropped. One batch overflows the pipe, and a few overflow the queue.
fn flood(server: &Server) {
    let checks = vec![ALICE; 5_000].join(",");
    let batch = format!(r#"{{"checks":[{checks}]}}"#);
    within(TIMEOUT, "lines are dropped and counted", || {
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
}

/// Fails unless everything but the log works.
fn assert_serves(server: &mut Server) {
    let mut client = server.connect();
    for _ in 0..100 {
        assert!(!client.check(ALICE).is_allowed());
    }
    assert_eq!(client.get("/livez").status, 200);
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.connect_admin().get(path).status, 200, "{path}");
    }
    fs::write(server.rules(), "default: {limit: 7/day}").unwrap();
    within(TIMEOUT, "the new rules apply", || {
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
    within(TIMEOUT, "the denial's line is dropped and counted", || {
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
    assert_serves(&mut server);
}

#[test]
fn a_log_whose_reader_is_gone() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut server = start(writer);
    server.check(ALICE);
    assert!(!server.check(ALICE).is_allowed());
    within(TIMEOUT, "the denial's line is dropped and counted", || {
        (server.metrics().value(DROPPED) > 0.0).then_some(())
    });
    assert_serves(&mut server);
}

#[test]
fn an_unread_log() {
    let (unread, writer) = pipe().unwrap();
    let mut server = start(writer);
    flood(&server);
    assert_serves(&mut server);
    drop(unread);
}

#[test]
fn a_log_that_is_read_again_reports_the_number_of_dropped_lines() {
    let (reader, writer) = pipe().unwrap();
    let server = start(writer);
    flood(&server);
    let dropped = server.metrics().value(DROPPED);
    let missing = await_report(reader);
    assert!(missing >= 1.0 && missing <= server.metrics().value(DROPPED), "{missing} of {dropped} or more");
    assert_eq!(server.check(ALICE).status, 200);
}

/// Reads the log up to the line with the number of dropped lines, and returns that number.
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
fn an_unread_banner_does_not_block_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    // The pipe is full before the server starts.
    let (unread, mut writer) = pipe().unwrap();
    writer.write_all(&[b'x'; 64 * 1024]).unwrap();
    // The emergency limit is logged after signal handlers and listeners are set up, right before the banner.
    let mut command = serve(&["--emergency-limit", "10/s"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(writer).stderr(File::create(&path).unwrap()).spawn().unwrap();
    within(TIMEOUT, "the server starts", || {
        fs::read_to_string(&path).unwrap().contains("emergency limit enabled").then_some(())
    });
    let terminate = std::process::Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(terminate.unwrap().success());
    let status = within(TIMEOUT, "the server exits", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(&path).unwrap());
    drop(unread);
}

#[test]
fn a_failure_that_cannot_be_printed_still_has_its_exit_code() {
    for (arguments, code) in [
        (&["--http", "nowhere"][..], 1),
        (&["--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"][..], 1),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = serve(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).status();
        assert_eq!(status.unwrap().code(), Some(code), "{arguments:?}");
    }
    assert_eq!(run(&mut serve(&["--print-config"])).code, Some(0));
}
