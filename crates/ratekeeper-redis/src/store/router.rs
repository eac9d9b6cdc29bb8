//! Routes each key to the batcher of its server.

use crate::batch::queue::{Batcher, cancel};
use crate::batch::stored_key;
use crate::batch::worker::Workers;
use crate::client::node::{NodePhase, RedisNode};
use parking_lot::RwLock;
use ratekeeper::{LendRequest, RenewalOwner};
use ratekeeper_core::{KeyRef, StoreFailure};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The batchers of all servers.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) workers: Arc<Workers>,
    /// The timeout of draws without their own.
    pub(super) timeout: Duration,
    /// Whether keys are spread over several servers.
    pub(super) is_spread: bool,
    /// One for each server that has been used.
    batchers: RwLock<Vec<Arc<Batcher>>>,
}

impl Router {
    pub(super) fn new(workers: Workers, timeout: Duration) -> Router {
        Router {
            is_spread: workers.servers.is_distributed(),
            workers: Arc::new(workers),
            timeout,
            batchers: RwLock::default(),
        }
    }

    /// The batcher and the Cluster slot of a key.
    pub(super) fn route(&self, key: KeyRef<'_>) -> Result<(Arc<Batcher>, u16), StoreFailure> {
        let hash_tag = if self.is_spread { stored_key::hash_tag(key) } else { Vec::new() };
        let route = self.workers.servers.route(&hash_tag)?;
        // A server that is known to be down is not asked: that would fail too, only later.
        match route.node.phase() {
            NodePhase::Down | NodePhase::Retired => Err(StoreFailure::Unreachable),
            _ => Ok((self.batcher(&route.node), route.slot)),
        }
    }

    /// Sends a lease request on its own.
    pub(super) fn send_renewal(&self, mut request: LendRequest) {
        let route = match request.owner() {
            RenewalOwner::Key(name, _) => self.route(name.key.borrow()),
            RenewalOwner::Draw { .. } => Err(StoreFailure::StoreError),
        };
        match route {
            Ok((batcher, slot)) => batcher.submit_renewal(request, slot, Instant::now() + self.timeout),
            Err(_) => cancel(&mut request),
        }
    }

    /// The batcher of a server.
    fn batcher(&self, node: &Arc<RedisNode>) -> Arc<Batcher> {
        let find = |batchers: &[Arc<Batcher>]| {
            batchers.iter().find(|batcher| Arc::ptr_eq(batcher.node(), node)).cloned()
        };
        if let Some(batcher) = find(&self.batchers.read()) {
            return batcher;
        }
        let known = self.workers.servers.nodes();
        let mut batchers = self.batchers.write();
        if let Some(batcher) = find(&batchers) {
            return batcher;
        }
        batchers.retain(|batcher| {
            let is_known = known.iter().any(|node| Arc::ptr_eq(batcher.node(), node));
            if !is_known {
                batcher.close();
            }
            is_known
        });
        let batcher = self.workers.start(node);
        batchers.push(Arc::clone(&batcher));
        batcher
    }

    /// Closes all batchers. Queued batches are still sent.
    pub(super) fn close(&self) {
        for batcher in &*self.batchers.read() {
            batcher.close();
        }
    }
}
