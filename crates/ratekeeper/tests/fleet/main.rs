//! The servers of a store, real ones: however they stand together and whatever happens to them, calls end by their
//! deadline, nothing runs twice, and all is well again by itself.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod cluster;
mod login;
mod news;
mod sentinel;
mod server;
mod sharded;

use ratekeeper::redis::{NodePhase, RedisNode, ServerSet, ServerSetOptions, StoreUrl};
use ratekeeper::{ManualClock, Micros, StoreFailure};
use redis::{Cmd, Value, cmd};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Stands for the script that decides draws.
const SCRIPT: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
/// What servers know it by.
const DIGEST: &str = "8cd00688c05c46bde4a2e60658ef20a2e5c0b248";
/// A deadline that only a machine with too much to do comes near.
const AMPLE: Duration = Duration::from_secs(5);
/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(url: &str) -> ServerSet {
    connect_with(url, |options| options)
}

fn connect_with(url: &str, change: impl FnOnce(ServerSetOptions) -> ServerSetOptions) -> ServerSet {
    let url: StoreUrl = url.parse().unwrap();
    let StoreUrl::Redis(url) = url else { panic!("{url} is no server") };
    ServerSet::connect(&url, change(ServerSetOptions::new(SCRIPT))).unwrap()
}

/// A fleet whose servers are all there.
async fn connected(url: &str) -> ServerSet {
    let fleet = connect(url);
    assert!(fleet.ready(PATIENCE).await, "{:?}", fleet.describe());
    fleet
}

/// The script's call: adds to a key.
fn add(key: &str, units: u32) -> Cmd {
    let mut command = cmd("EVALSHA");
    command.arg(DIGEST).arg(1).arg(key).arg(units);
    command
}

/// Adds one to a key, whose tag is the key itself.
async fn take(fleet: &ServerSet, key: &str, patience: Duration) -> Result<i64, StoreFailure> {
    let node = fleet.route(key.as_bytes())?.node;
    let mut results = fleet.ask(&node, vec![add(key, 1)], Instant::now() + patience).await;
    assert_eq!(results.len(), 1);
    results.remove(0).map(|value| number(&value))
}

fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} is no number"),
    }
}

/// Waits for something that has to come true.
async fn eventually<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

async fn until(node: &RedisNode, phase: NodePhase) {
    let mut phases = node.phases();
    let reached =
        eventually(&format!("{node:?} becomes {phase:?}"), phases.wait_for(|is| *is == phase)).await;
    drop(reached.unwrap());
}

/// Tries again and again until a call is answered, and gives the answer.
async fn until_answered(fleet: &ServerSet, key: &str) -> i64 {
    let tries = async {
        loop {
            match take(fleet, key, Duration::from_millis(200)).await {
                Ok(number) => return number,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    eventually("a call is answered", tries).await
}

/// The only server.
fn only(fleet: &ServerSet) -> Arc<RedisNode> {
    let mut nodes = fleet.nodes();
    assert_eq!(nodes.len(), 1);
    nodes.remove(0)
}

fn wall_clock() -> ManualClock {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap();
    ManualClock::new(Micros::new(u64::try_from(since_epoch.as_micros()).unwrap()))
}
