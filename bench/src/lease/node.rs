//! Nodes of this process: stores on one Redis, and the thread that carries what they ask.

use crate::redis::host::{LeasedRedis, store_at};
use crate::server::process::{GENERATOR, pin};
use anyhow::{Context, Result, ensure};
use ratekeeper::{
    Amount, Consistency, DrawOptions, Draws, FailureMode, KeyRef, LendingStore, Limit, Op, PermitId, Scope,
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
/// How long nodes may take to hear of each other.
const MEETING: Duration = Duration::from_secs(10);

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
pub(crate) fn connect(runtime: &Runtime, url: &str, nodes: u32) -> Result<Vec<Arc<LeasedRedis>>> {
    let stores =
        (0..nodes).map(|_| Ok(Arc::new(runtime.block_on(store_at(url))?))).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    while stores.iter().any(|store| store.store().live_nodes() != nodes) {
        ensure!(begin.elapsed() < MEETING, "nodes do not hear of each other");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(stores)
}

/// Adds a request for one unit.
pub(crate) fn push(draws: &mut Draws, key: &str, limit: Limit, terms: DrawOptions) {
    draws.begin_group();
    draws.push(KeyRef::from(key), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId::default());
    draws.set_options(terms);
}
