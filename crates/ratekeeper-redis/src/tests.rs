//! `ServerSet` against real servers in every topology: whatever fails, calls end by their deadline, no command runs
//! twice, and the client recovers without intervention.

mod cluster;
mod heartbeat;
mod login;
mod sentinel;
mod server;
mod sharded;
#[cfg(feature = "tls")]
mod tls;

use crate::client::node::{NodePhase, RedisNode};
use crate::client::url::StoreUrl;
use crate::client::{node::ServerSetOptions, server_set::ServerSet};
use ratekeeper::{ManualClock, Micros, StoreFailure, SystemClock};
use redis::{Cmd, Value, cmd};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A stand-in for the script that decides draws.
const SCRIPT: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
/// The SHA1 digest of `SCRIPT`.
const DIGEST: &str = "8cd00688c05c46bde4a2e60658ef20a2e5c0b248";
/// A deadline that only an overloaded machine could miss.
const AMPLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound on every wait in these tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn connect(url: &str) -> ServerSet {
    connect_with(url, |options| options)
}

fn connect_with(url: &str, change: impl FnOnce(ServerSetOptions) -> ServerSetOptions) -> ServerSet {
    let url: StoreUrl = url.parse().unwrap();
    let StoreUrl::Redis(url) = url else { panic!("{url} is not a Redis URL") };
    ServerSet::connect(&url, change(ServerSetOptions::new(SCRIPT, Arc::new(SystemClock::new())))).unwrap()
}

/// Connects, and waits until all servers are up.
async fn connected(url: &str) -> ServerSet {
    let server_set = connect(url);
    assert!(server_set.wait_until_ready(TEST_TIMEOUT).await, "{:?}", server_set.report());
    server_set
}

/// An `EVALSHA` call of `SCRIPT`, which adds `units` to a key.
fn add(key: &str, units: u32) -> Cmd {
    let mut command = cmd("EVALSHA");
    command.arg(DIGEST).arg(1).arg(key).arg(units);
    command
}

/// Adds one to a key. The key itself selects the server.
async fn take(server_set: &ServerSet, key: &str, timeout: Duration) -> Result<i64, StoreFailure> {
    let node = server_set.route(key.as_bytes())?.node;
    let mut results = server_set.execute(&node, vec![add(key, 1)], Instant::now() + timeout).await;
    assert_eq!(results.len(), 1);
    results.remove(0).map(|value| integer(&value))
}

fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} is not an integer"),
    }
}

/// Waits for `future`, and panics if it takes too long.
async fn eventually<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(TEST_TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("timed out after {TEST_TIMEOUT:?}: {what}"),
    }
}

async fn until_phase(node: &RedisNode, phase: NodePhase) {
    let mut phases = node.phase_changes();
    let reached =
        eventually(&format!("{node:?} becomes {phase:?}"), phases.wait_for(|is| *is == phase)).await;
    drop(reached.unwrap());
}

/// Retries until a call succeeds, and returns its result.
async fn until_success(server_set: &ServerSet, key: &str) -> i64 {
    let tries = async {
        loop {
            match take(server_set, key, Duration::from_millis(200)).await {
                Ok(number) => return number,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    eventually("a call succeeds", tries).await
}

/// The only server of the set.
fn only_node(server_set: &ServerSet) -> Arc<RedisNode> {
    let mut nodes = server_set.nodes();
    assert_eq!(nodes.len(), 1);
    nodes.remove(0)
}

fn wall_clock() -> ManualClock {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap();
    ManualClock::new(Micros::new(u64::try_from(since_epoch.as_micros()).unwrap()))
}
