//! How many nodes share the store.
//!
//! Once a second each node writes itself into a sorted set in the store, by the store's clock, drops those that have
//! not done so for five seconds, and reads how many are left. While the store is away, the last count stands: that is
//! when a node needs it, to enforce its share of each limit by itself.

use super::server_set::ServerSet;
use ::redis::{Cmd, Value, cmd};
use ratekeeper_core::StoreFailure;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a node shows that it lives.
const BEAT: Duration = Duration::from_secs(1);
/// How long the store may take for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// After how long without a sign a node is taken for dead.
const LAPSE_MILLIS: u64 = 5_000;
/// What the key's slot is found by.
const TAG: &str = "rk1:nodes";
/// The set of nodes. No client's key looks like it, since those have a brace behind their colon.
const KEY: &str = "{rk1:nodes}";
/// Text rather than a digest: once a second is too seldom to care, and no server has to know it before.
const SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])";

/// Shows the other nodes that this one lives, and counts them.
#[derive(Debug)]
pub struct Heartbeat {
    fleet: Arc<ServerSet>,
    name: String,
    live: Arc<AtomicU32>,
    task: AbortHandle,
}

impl Heartbeat {
    /// Begins to show that this node lives, under a name that no other node has.
    pub fn start(fleet: Arc<ServerSet>) -> Heartbeat {
        let random = RandomState::new();
        let name = format!("{:016x}{:016x}", random.hash_one(1), random.hash_one(std::process::id()));
        let live = Arc::new(AtomicU32::new(1));
        let task = tokio::spawn(beat(Arc::clone(&fleet), name.clone(), Arc::clone(&live))).abort_handle();
        Heartbeat { fleet, name, live, task }
    }

    /// How many nodes share the store, this one among them: as of late, or as of when the store was last there.
    pub fn live(&self) -> u32 {
        self.live.load(Relaxed).max(1)
    }

    /// Takes this node out of the count, for it is about to stop. If the store does not hear it, it lapses by itself.
    pub async fn leave(&self) {
        self.task.abort();
        let mut leave = cmd("ZREM");
        leave.arg(KEY).arg(&self.name);
        // Nothing is left to be done about a failure.
        let _ = ask(&self.fleet, leave).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn beat(fleet: Arc<ServerSet>, name: String, live: Arc<AtomicU32>) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        let mut sign = cmd("EVAL");
        sign.arg(SCRIPT).arg(1).arg(KEY).arg(&name).arg(LAPSE_MILLIS);
        // Whatever else it is, the store's state is told of elsewhere, and the last count stands.
        if let Ok(Value::Int(count)) = ask(&fleet, sign).await {
            live.store(u32::try_from(count).unwrap_or(u32::MAX), Relaxed);
        }
    }
}

async fn ask(fleet: &ServerSet, command: Cmd) -> Result<Value, StoreFailure> {
    let node = fleet.route(TAG.as_bytes())?.node;
    let mut results = fleet.ask(&node, vec![command], Instant::now() + PATIENCE).await;
    results.pop().unwrap_or(Err(StoreFailure::Unreachable))
}
