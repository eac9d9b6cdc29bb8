//! The log cannot be written during an outage and recovery.

use super::node_group::{NodeGroup, SMALL_LIMIT};
use super::report::{DegradedAnswers, TrialReport};
use super::start_stop::assert_stops_within;
use super::trial::Trial;
use ratekeeper_testkit::servers::RedisServer;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest time a stop may take: a node waits one second for its log to drain.
const STOP_TIMEOUT: Duration = Duration::from_millis(2500);

#[test]
fn a_log_on_a_full_disk() {
    run(Path::new("/dev/full"), |report| assert_lines_dropped(&report.group));
}

#[test]
fn an_unread_log() {
    let folder = tempfile::tempdir().unwrap();
    let sink = folder.path().join("log");
    assert!(Command::new("mkfifo").arg(&sink).status().unwrap().success());
    // Also open for reading, so that opening the FIFO for writing does not block.
    let unread = File::options().read(true).write(true).open(&sink).unwrap();
    run(&sink, |_| ());
    drop(unread);
}

/// Runs an outage with nodes that log every denial to `sink`: all the usual assertions hold, and the nodes stop in
/// time.
fn run(sink: &Path, check: impl Fn(&TrialReport)) {
    let mut redis = RedisServer::start();
    let store = redis.url();
    let group = NodeGroup::start_with_denial_log(2, |_, setup| {
        let arguments = ["--store", &store, "--denial-log", "1000000", "--log", "debug"];
        setup.arguments(&arguments).log_to(sink)
    });
    group.await_discovery();
    let mut trial = Trial::with_nodes(group);
    trial.inject(|| redis.kill());
    trial.await_degraded();
    let result = trial.group.exhaust_small_limit("meanwhile");
    assert_eq!(
        (result.allowed, result.degraded),
        (SMALL_LIMIT, result.requests),
        "the two shares add up to the limit"
    );
    trial.run_for(Duration::from_secs(2));
    trial.restore(|| redis.restart());
    trial.await_exact();
    let mut report = trial.end();
    report.assert_all(DegradedAnswers::All);
    check(&report);
    assert_stops_within(&mut report.group, STOP_TIMEOUT);
}

fn assert_lines_dropped(group: &NodeGroup) {
    for node in &group.nodes {
        let dropped = node.metric("ratekeeper_log_lines_dropped_total");
        assert!(dropped.is_some_and(|dropped| dropped > 0.0), "{dropped:?}");
    }
}
