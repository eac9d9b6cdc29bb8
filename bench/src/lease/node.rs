//! Nodes of this process: stores on one Redis, and the thread that carries what they ask.

use crate::redis::host::store_at;
use crate::server::process::{GENERATOR, pin};
use anyhow::{Context, Result, ensure};
use ratekeeper::redis::RedisStore;
use ratekeeper::{
    Amount, Consistency, DrawOptions, Draws, FailureMode, KeyRef, Leased, LendingStore, Limit, Op, PermitId, Scope,
    SystemClock,
};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// A store that gives no answer must not go unnoticed.
pub(crate) const LEASED: DrawOptions = DrawOptions {
    is_shadow: false,
    consistency: Consistency::Leased,
    on_failure: FailureMode::Closed,
    timeout_ms: None,
};
/// How many keys a node leases units of, at most.
const MAX_KEYS: usize = 1 << 18;
/// How long nodes may take to hear of each other.
const MEETING: Duration = Duration::from_secs(10);

/// A node: a store that answers from leased units where it can, and asks Redis where it must.
pub(crate) type LeasedNode = Leased<RedisStore, Arc<SystemClock>>;

/// A thread of its own, which leaves the checks' core alone.
pub(crate) fn runtime() -> Result<Runtime> {
    let pinned = || pin(GENERATOR).expect("the machine has a second core");
    Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(pinned)
        .enable_all()
        .build()
        .context("no runtime")
}

/// So many nodes that know of each other.
pub(crate) fn connect(runtime: &Runtime, url: &str, nodes: u32) -> Result<Vec<Arc<LeasedNode>>> {
    let node = async || {
        let store = store_at(url).await?;
        Ok(Arc::new(Leased::new(store, Arc::new(SystemClock::new()), MAX_KEYS)))
    };
    let all = (0..nodes).map(|_| runtime.block_on(node())).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    while all.iter().any(|node| node.store().live_nodes() != nodes) {
        ensure!(begin.elapsed() < MEETING, "nodes do not hear of each other");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(all)
}

/// Adds a request for one unit.
pub(crate) fn push(draws: &mut Draws, key: &str, limit: Limit, terms: DrawOptions) {
    draws.begin_group();
    draws.push(KeyRef::from(key), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId::default());
    draws.set_options(terms);
}
