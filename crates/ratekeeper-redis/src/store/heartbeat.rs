//! Counts the nodes that share the store.
//!
//! Once a second each node adds itself to a sorted set in the store, scored by the store's clock, removes the nodes
//! that have not done so for five seconds, and reads the number of members. While the store is down, the last count
//! remains in use: a node then needs it to enforce its own share of each limit.

use crate::client::connection::{REPLY_TIMEOUT, command};
use crate::client::server_set::ServerSet;
use ratekeeper_core::StoreFailure;
use redis::{Cmd, Value};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Time between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time without a heartbeat after which a node counts as dead.
const NODE_EXPIRY_MS: &str = "5000";
/// Hash tag of the key, which determines its slot or shard.
const NODES_HASH_TAG: &str = "rk1:nodes";
/// Key of the sorted set of nodes. It can't collide with a client's key, which has a brace after its colon.
const NODES_KEY: &str = "{rk1:nodes}";
/// Sent as text with `EVAL` rather than by digest: one call a second is cheap, and the script never has to be loaded
/// first.
const SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])";

/// Announces this node to the others that share the store, and counts them.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    servers: Arc<ServerSet>,
    node_name: String,
    live_nodes: Arc<AtomicU32>,
    task: AbortHandle,
}

impl Heartbeat {
    /// Starts the heartbeat under a random, unique node name.
    pub(crate) fn start(servers: Arc<ServerSet>) -> Heartbeat {
        let random = RandomState::new();
        let node_name = format!("{:016x}{:016x}", random.hash_one(1), random.hash_one(std::process::id()));
        let live_nodes = Arc::new(AtomicU32::new(1));
        let task =
            tokio::spawn(heartbeat_loop(Arc::clone(&servers), node_name.clone(), Arc::clone(&live_nodes)))
                .abort_handle();
        Heartbeat { servers, node_name, live_nodes, task }
    }

    /// The number of nodes that share the store, this one included, as of the last successful heartbeat.
    pub(crate) fn live_nodes(&self) -> u32 {
        self.live_nodes.load(Relaxed).max(1)
    }

    /// Removes this node from the count before it stops. If the call fails, the entry expires.
    pub(crate) async fn leave(&self) {
        self.task.abort();
        let leave = command(&["ZREM", NODES_KEY, &self.node_name]);
        // On failure the entry expires after five seconds.
        let _ = execute(&self.servers, leave).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn heartbeat_loop(servers: Arc<ServerSet>, name: String, live: Arc<AtomicU32>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let heartbeat = command(&["EVAL", SCRIPT, "1", NODES_KEY, &name, NODE_EXPIRY_MS]);
        // On failure the last count remains. Store failures are reported elsewhere.
        if let Ok(Value::Int(count)) = execute(&servers, heartbeat).await {
            live.store(u32::try_from(count).unwrap_or(u32::MAX), Relaxed);
        }
    }
}

async fn execute(servers: &ServerSet, command: Cmd) -> Result<Value, StoreFailure> {
    let node = servers.route(NODES_HASH_TAG.as_bytes())?.node;
    let mut results = servers.execute(&node, vec![command], Instant::now() + REPLY_TIMEOUT).await;
    results.pop().unwrap_or(Err(StoreFailure::Unreachable))
}
