//! The lease fast path: requests that are served from leases, and the background work that leases need.
//!
//! A request that leased units don't [cover](crate::lease::Leases::spend_group) goes to the server. It asks there
//! only for the units that are missing here, and carries renewals of its leases. Units that are claimed here
//! meanwhile are put back if the request is abandoned ([`CallClaims`]).

use super::router::Router;
use super::store::RedisStore;
use crate::health::RECENT_FAILURE;
use crate::lease::{
    DetachedRenewal, DrawClaim, DrawRenewal, KeyName, LeaseRenewal, PendingRequest, counts_leased_units,
    is_leased,
};
use crate::memory::PREFETCH_DRAWS;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Clock, Draw, Draws, MAX_DRAWS, Micros, Op};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout_at};

/// Interval of the sweep steps.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Number of steps in which all leases are swept.
const SWEEP_STEPS: usize = 10;
/// How long a stopping node waits for its leases to be returned.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);
/// How many leases are returned at a time: fewer than fit into the queue to a server, and few enough for it to
/// reply in time.
const RETURN_BATCH: usize = 1024;

/// The claims of the groups of one call. Claims that are not resolved when this is dropped are put back, because
/// the request was abandoned.
#[derive(Debug)]
pub(super) struct CallClaims<'a> {
    router: &'a Router,
    claims: Vec<DrawClaim>,
}

impl<'a> CallClaims<'a> {
    pub(super) fn new(router: &'a Router, claims: Vec<DrawClaim>) -> CallClaims<'a> {
        CallClaims { router, claims }
    }

    /// Adds the claims of further groups.
    pub(super) fn extend(&mut self, claims: Vec<DrawClaim>) {
        self.claims.extend(claims);
    }

    /// Resolves the claims of a group after the store's decision or failure. Returns whether units were returned
    /// to the server for it.
    pub(super) fn resolve(&mut self, draws: &mut Draws, group: usize) -> bool {
        if self.claims.is_empty() {
            return false;
        }
        let claims: Vec<_> = self.claims.extract_if(.., |claim| claim.group() == group).collect();
        let mut renewals = Vec::new();
        self.router.leases.resolve_claims(draws, group, &claims, self.router.clock.now(), &mut renewals);
        let has_returned = !renewals.is_empty();
        for renewal in renewals {
            self.router.send_renewal(renewal);
        }
        has_returned
    }
}

impl Drop for CallClaims<'_> {
    fn drop(&mut self) {
        if !self.claims.is_empty() {
            self.router.leases.cancel_claims(&self.claims);
        }
    }
}

impl RedisStore {
    /// Decides groups from leases, starting with the first, and returns how many were decided. Collects the
    /// renewals and claims of the next one.
    ///
    /// The memory that many groups need is prefetched before the first is decided, so that a batch waits for
    /// memory once.
    #[inline]
    pub(super) fn spend_leading_groups(
        &self,
        draws: &mut Draws,
        now: Micros,
        out: &mut PendingRequest,
    ) -> usize {
        match draws.len() {
            1 => usize::from(self.spend_group(draws, 0, now, out)),
            _ => self.spend_batch(draws, now, out),
        }
    }

    fn spend_batch(&self, draws: &mut Draws, now: Micros, out: &mut PendingRequest) -> usize {
        let mut hashes = [KeyHash::NONE; PREFETCH_DRAWS + MAX_DRAWS];
        let mut first = 0;
        loop {
            let (mut end, mut hashed) = (first, 0);
            while end < draws.len()
                && hashed < PREFETCH_DRAWS
                && draws.group(end).iter().any(counts_leased_units)
            {
                hashed += self.memory.hash_group(draws, end, &mut hashes[hashed..]);
                end += 1;
            }
            if end == first {
                return first;
            }
            let mut hashes = &hashes[..hashed];
            self.router.leases.prefetch(hashes);
            for group in first..end {
                let (own, others) = hashes.split_at(draws.group(group).len());
                if !self.spend_hashed(draws, group, own, now, out) {
                    return group;
                }
                hashes = others;
            }
            first = end;
        }
    }

    /// Decides a group from leases, and returns `true` if they suffice. Otherwise collects its renewals and
    /// claims.
    pub(super) fn spend_group(
        &self,
        draws: &mut Draws,
        group: usize,
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        match draws.group(group) {
            [draw] if is_leased(draw) => {
                let hash = self.memory.key_hash(draws.key(draw), draw.scope(), draw.limit());
                self.spend_hashed(draws, group, &[hash], now, out)
            }
            all => {
                all.iter().any(counts_leased_units) && {
                    let mut hashes = [KeyHash::NONE; MAX_DRAWS];
                    let hashed = self.memory.hash_group(draws, group, &mut hashes);
                    self.spend_hashed(draws, group, &hashes[..hashed], now, out)
                }
            }
        }
    }

    #[inline]
    fn spend_hashed(
        &self,
        draws: &mut Draws,
        group: usize,
        hashes: &[KeyHash],
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let leases = &self.router.leases;
        let is_decided = match hashes {
            [hash] if is_leased(&draws.group(group)[0]) => leases.spend_single(draws, group, *hash, now, out),
            hashes => leases.spend_group(draws, group, hashes, now, out),
        };
        if is_decided {
            for DrawRenewal { draw, renewal } in out.renewals.drain(..) {
                self.send_renewal(draws, &draws.group(group)[draw], renewal);
            }
        }
        is_decided
    }

    /// Sends a renewal for the key of a draw that was granted from the lease.
    fn send_renewal(&self, draws: &Draws, draw: &Draw, renewal: LeaseRenewal) {
        let name = self.router.leases.key_name(renewal.hash);
        let name =
            name.unwrap_or_else(|| Arc::new(KeyName { key: draws.key(draw).to_key(), scope: draw.scope() }));
        self.router.send_renewal(DetachedRenewal { renewal, limit: *draw.limit(), name });
    }

    /// Cancels renewals that were not sent.
    pub(super) fn cancel_renewals(&self, renewals: &[DrawRenewal]) {
        for DrawRenewal { renewal, .. } in renewals {
            self.router.leases.cancel_renewal(renewal);
        }
    }

    /// Records a server's decisions about draws that were sent without a renewal.
    pub(super) fn record_decisions(&self, draws: &Draws, group: usize, sent_at: Micros) {
        for draw in draws.group(group).iter().filter(|draw| is_leased(draw)) {
            let hash = self.memory.key_hash(draws.key(draw), draw.scope(), draw.limit());
            self.router.leases.record_decision(
                hash,
                draw.limit(),
                draw.op().amount(),
                draw.result(),
                sent_at,
            );
        }
    }

    /// Records that a server has more units of a key, because some were refunded or the key was reset.
    pub(super) fn record_refunds(&self, draws: &Draws, group: usize) {
        let is_return = |draw: &&Draw| matches!(draw.op(), Op::Refund(_) | Op::Reset);
        for draw in draws.group(group).iter().filter(is_return) {
            self.router.leases.clear_denial(self.memory.key_hash(
                draws.key(draw),
                draw.scope(),
                draw.limit(),
            ));
        }
    }
}

impl Router {
    /// Maintains the leases and measures the time of store outages, for ever. `nodes` returns the number of nodes
    /// that share the store.
    pub(super) async fn maintain_leases(&self, nodes: impl Fn() -> u32) {
        let (mut ticks, mut renewals) = (interval(SWEEP_INTERVAL), Vec::new());
        let mut last_tick = Instant::now();
        let shards = self.leases.shards().div_ceil(SWEEP_STEPS);
        loop {
            ticks.tick().await;
            let before = std::mem::replace(&mut last_tick, Instant::now());
            let is_up = self.servers.is_up();
            self.leases.set_store_down(!is_up);
            if !is_up || self.counters.last_failure().is_some_and(|ago| ago < RECENT_FAILURE) {
                self.counters.add_degraded_time(last_tick.duration_since(before));
            }
            self.leases.set_node_count(nodes());
            self.leases.sweep(shards, self.clock.now(), &mut renewals);
            for renewal in renewals.drain(..) {
                self.send_renewal(renewal);
            }
        }
    }

    /// Returns all leases and stops spending. Waits for the servers' replies, up to a timeout.
    pub(super) async fn return_all_leases(&self) {
        let mut renewals = Vec::new();
        self.leases.drain(self.clock.now(), &mut renewals);
        let (deadline, mut renewals) = (Instant::now() + RETURN_TIMEOUT, renewals.into_iter());
        while renewals.len() > 0 {
            let chunk = renewals.by_ref().take(RETURN_BATCH);
            let replies: Vec<_> = chunk.filter_map(|renewal| self.send_renewal(renewal)).collect();
            for reply in replies {
                // Delivered or lost, there is nothing more to do.
                let _ = timeout_at(deadline, reply.decided).await;
            }
        }
    }
}
