//! The log can't be written while the store is away and back again.

use super::account::{Account, Extent};
use super::alone::stops_soon;
use super::fleet::{FEW, Fleet};
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::servers::RedisServer;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long a stop may take: the log is waited for, for a second.
const SOON: Duration = Duration::from_millis(2500);

#[test]
fn a_log_on_a_full_disk() {
    despite_stalls(|| run(Path::new("/dev/full"), |account| assert_lines_dropped(&account.fleet)));
}

#[test]
fn a_log_that_nobody_reads() {
    despite_stalls(|| {
        let folder = tempfile::tempdir().unwrap();
        let sink = folder.path().join("log");
        assert!(Command::new("mkfifo").arg(&sink).status().unwrap().success());
        // Open for reading, too, so that writers find somebody at the other end.
        let unread = File::options().read(true).write(true).open(&sink).unwrap();
        run(&sink, |_| ());
        drop(unread);
    });
}

/// Nodes that log every denial to `sink` are held to what all others are, and stop when they are asked to.
fn run(sink: &Path, look: impl Fn(&Account)) {
    let mut redis = RedisServer::start();
    let store = redis.url();
    let fleet = Fleet::start_logging(2, |_, setup| {
        let arguments = ["--store", &store, "--denial-log", "1000000", "--log", "debug"];
        setup.arguments(&arguments).log_to(sink)
    });
    fleet.await_each_other();
    let mut trial = Trial::with(fleet);
    trial.lose(|| redis.kill());
    trial.await_degraded();
    let few = trial.fleet.ask_for_few("meanwhile");
    assert_eq!((few.allowed, few.degraded), (FEW, few.asked), "two halves are a whole");
    trial.go_on(Duration::from_secs(2));
    trial.restore(|| redis.restart());
    trial.await_exact();
    let mut account = trial.end();
    account.hold_to(Extent::All);
    look(&account);
    stops_soon(&mut account.fleet, SOON);
}

fn assert_lines_dropped(fleet: &Fleet) {
    for node in &fleet.nodes {
        let dropped = node.metric("ratekeeper_log_lines_dropped_total");
        assert!(dropped.is_some_and(|dropped| dropped > 0.0), "{dropped:?}");
    }
}
