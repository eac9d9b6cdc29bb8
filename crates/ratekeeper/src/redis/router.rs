//! The way to the servers: for each key, the lane to the server that has it.

use super::batcher::{Batcher, PendingReply};
use super::counters::StoreCounters;
use super::node::{NodePhase, RedisNode};
use super::server_set::ServerSet;
use super::stored_key;
use crate::clock::SystemClock;
use crate::lease::{DetachedRenewal, Leases};
use parking_lot::RwLock;
use ratekeeper_core::{KeyRef, Limit, Scope, StoreFailure};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The way to all servers.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) fleet: Arc<ServerSet>,
    /// What this node was lent.
    pub(super) leases: Arc<Leases>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) tally: Arc<StoreCounters>,
    /// How long somebody waits for an answer who does not say.
    pub(super) patience: Duration,
    /// Whether keys are spread over several servers.
    pub(super) is_spread: bool,
    /// Where everything runs that nobody waits for.
    runtime: Handle,
    /// One for each server that was asked yet.
    lanes: RwLock<Vec<Arc<Batcher>>>,
}

impl Router {
    /// Its couriers will run on the tokio runtime that this is called on.
    pub(super) fn new(
        fleet: Arc<ServerSet>,
        leases: Leases,
        clock: Arc<SystemClock>,
        patience: Duration,
    ) -> Router {
        Router {
            is_spread: fleet.is_spread(),
            fleet,
            leases: Arc::new(leases),
            clock,
            tally: Arc::default(),
            patience,
            runtime: Handle::current(),
            lanes: RwLock::default(),
        }
    }

    /// Where a key is: its lane and slot.
    pub(super) fn place(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
    ) -> Result<(Arc<Batcher>, u16), StoreFailure> {
        let mut name = Vec::new();
        let tag = match self.is_spread {
            false => &[][..],
            true => {
                stored_key::write(key, scope, limit.family(), &mut name);
                stored_key::tag(&name)
            }
        };
        let route = self.fleet.route(tag)?;
        // Who is known to be away is not asked: that would fail too, only later.
        match route.node.phase() {
            NodePhase::Down | NodePhase::Retired => Err(StoreFailure::Unreachable),
            _ => Ok((self.lane(&route.node), route.slot)),
        }
    }

    /// Sends an order by itself. Who waits for the ticket waits for it to be settled; nothing, if it could not be sent.
    pub(super) fn send(&self, errand: DetachedRenewal) -> Option<PendingReply> {
        let DetachedRenewal { name, limit, .. } = &errand;
        match self.place(name.key.borrow(), name.scope, limit) {
            Ok((lane, slot)) => lane.order(errand, slot, Instant::now() + self.patience).ok(),
            Err(_) => {
                self.leases.settle_unsent(&errand.order);
                None
            }
        }
    }

    /// The lane to a server.
    fn lane(&self, node: &Arc<RedisNode>) -> Arc<Batcher> {
        let find = |lanes: &[Arc<Batcher>]| lanes.iter().find(|lane| Arc::ptr_eq(lane.node(), node)).cloned();
        if let Some(lane) = find(&self.lanes.read()) {
            return lane;
        }
        let known = self.fleet.nodes();
        let mut lanes = self.lanes.write();
        if let Some(lane) = find(&lanes) {
            return lane;
        }
        lanes.retain(|lane| {
            let is_known = known.iter().any(|node| Arc::ptr_eq(lane.node(), node));
            if !is_known {
                lane.close();
            }
            is_known
        });
        let lane = Batcher::start(self, Arc::clone(node), self.runtime.clone());
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// Ends all lanes: what waits is still carried.
    pub(super) fn close(&self) {
        for lane in &*self.lanes.read() {
            lane.close();
        }
    }
}
