//! Nodes in this process: stores on one Redis, and the runtime thread that does their I/O.

use crate::redis::host::{LeasedRedis, store_at};
use crate::server::process::{GENERATOR, pin};
use anyhow::{Context, Result, ensure};
use ratekeeper::{
    Amount, Consistency, DrawOptions, Draws, FailureMode, KeyRef, Limit, Op, PermitId, Scope, Store,
};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Fails closed, so that a missing reply shows in the figures.
pub(crate) const LEASED: DrawOptions = DrawOptions {
    is_shadow: false,
    consistency: Consistency::Leased,
    on_failure: FailureMode::Closed,
    timeout_ms: None,
};
/// How long nodes may take to see each other's heartbeats.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A runtime with one thread, pinned away from the core of the checks.
pub(crate) fn runtime() -> Result<Runtime> {
    let pinned = || pin(GENERATOR).expect("the machine has a second core");
    Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(pinned)
        .enable_all()
        .build()
        .context("can't start a runtime")
}

/// Connects this many nodes and waits until they have seen each other.
pub(crate) fn connect(runtime: &Runtime, url: &str, nodes: u32) -> Result<Vec<Arc<LeasedRedis>>> {
    let stores =
        (0..nodes).map(|_| Ok(Arc::new(runtime.block_on(store_at(url))?))).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    while stores.iter().any(|store| store.health().map(|report| report.live_nodes) != Some(nodes)) {
        ensure!(begin.elapsed() < DISCOVERY_TIMEOUT, "nodes do not see each other");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(stores)
}

/// Adds a request for one unit.
pub(crate) fn push(draws: &mut Draws, key: &str, limit: Limit, options: DrawOptions) {
    draws.begin_group();
    draws.push(KeyRef::from(key), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId::default());
    draws.set_options(options);
}
