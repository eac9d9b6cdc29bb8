//! The way to the servers: for each key, the lane to the server that has it.

use super::fleet::Fleet;
use super::lane::{Lane, Ticket};
use super::node::{Node, Phase};
use super::stored_key;
use super::tally::Tally;
use crate::clock::SystemClock;
use crate::lease::{Errand, Leases};
use parking_lot::RwLock;
use ratekeeper_core::{Failure, KeyRef, Limit, Scope};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The way to all servers.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) fleet: Arc<Fleet>,
    /// What this node was lent.
    pub(super) leases: Arc<Leases>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) tally: Arc<Tally>,
    /// How long somebody waits for an answer who does not say.
    pub(super) patience: Duration,
    /// Whether keys are spread over several servers.
    pub(super) is_spread: bool,
    /// Where everything runs that nobody waits for.
    runtime: Handle,
    /// One for each server that was asked yet.
    lanes: RwLock<Vec<Arc<Lane>>>,
}

impl Post {
    /// Its couriers will run on the tokio runtime that this is called on.
    pub(super) fn new(
        fleet: Arc<Fleet>,
        leases: Leases,
        clock: Arc<SystemClock>,
        patience: Duration,
    ) -> Post {
        Post {
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
    ) -> Result<(Arc<Lane>, u16), Failure> {
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
            Phase::Down | Phase::Retired => Err(Failure::Unreachable),
            _ => Ok((self.lane(&route.node), route.slot)),
        }
    }

    /// Sends an order by itself. Who waits for the ticket waits for it to be settled; nothing, if it could not be sent.
    pub(super) fn send(&self, errand: Errand) -> Option<Ticket> {
        let Errand { name, limit, .. } = &errand;
        match self.place(name.key.borrow(), name.scope, limit) {
            Ok((lane, slot)) => lane.order(errand, slot, Instant::now() + self.patience).ok(),
            Err(_) => {
                self.leases.settle_unsent(&errand.order);
                None
            }
        }
    }

    /// The lane to a server.
    fn lane(&self, node: &Arc<Node>) -> Arc<Lane> {
        let find = |lanes: &[Arc<Lane>]| lanes.iter().find(|lane| Arc::ptr_eq(lane.node(), node)).cloned();
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
        let lane = Lane::start(self, Arc::clone(node), self.runtime.clone());
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
