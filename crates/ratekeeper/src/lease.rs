//! Leases: units that the store has granted to this node ahead of time, which it spends without a store round
//! trip.
//!
//! See `ALGORITHMS.md`, *Leases*, for the protocol and its proof. This module is the node's side of it: it spends
//! leased units until the lease's deadline, measures the demand for each key, decides when to renew a lease and
//! how many units to request, and returns units that lie idle. It does no I/O and never waits. A [`LeaseRenewal`]
//! describes what to send, and its sender reports the result exactly once.
//!
//! This module enforces the rules that the limit depends on, whatever its callers do:
//!
//! - A unit can be spent only after the store has granted it ([`Leases::apply_reply`]).
//! - Each unit is reported to the store once: as spent, kept or returned. Every renewal carries a serial number,
//!   which changes with each renewal and each reply. Input with an outdated serial number is ignored.
//! - A renewal without a reply makes the lease *unacknowledged*: it may be spent until its deadline and is never
//!   reported again.
//! - The deadline counts from before the renewal was sent, on a [clock](table::MonotonicClock) that never goes
//!   back.
//!
//! All times are readings of this node's clock and are passed in, except those documented as the store's.

mod claim;
mod cold_fields;
mod counters;
mod demand;
mod entry;
mod estimate;
mod group;
mod hot;
mod leased;
mod lending;
mod parameters;
mod policy;
mod table;
#[cfg(test)]
mod tests;
mod window;

use crate::health::{KeyLease, LeaseCounts};
use crate::memory::key_hash::KeyHash;
use crate::memory::limit_table::LimitTable;
use crate::memory::sweep_rounds::SweepRounds;
pub(crate) use claim::Claim;
use entry::EntryGuard;
pub(crate) use group::{DrawClaim, DrawRenewal, PendingRequest, counts_leased_units, is_leased};
use hot::HotFields;
pub use leased::{LeaseOptions, Leased};
pub use lending::{DrawDecision, LeaseRequests, LendOutcome, LendRequest, LendingStore, RenewalOwner};
pub use parameters::LeasePolicy;
use ratekeeper_core::{
    Amount, DrawResult, Key, KeyRef, LeaseGrant, LeaseReport, LeaseRequest, Limit, Micros, Scope, State,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use table::{LeaseShardGuard, LeaseTable};

/// The longest key that is stored with its lease. A longer key can be leased too, but its idle units expire
/// instead of being returned, because a return needs the key.
const MAX_STORED_KEY_BYTES: usize = 512;

/// All leases of this node, in bounded memory.
#[derive(Debug)]
pub(crate) struct Leases {
    table: LeaseTable,
    limits: LimitTable,
    node_count: AtomicU32,
    /// Whether the store is down. Draws sent to it then fail fast, so the miss limit is not applied.
    is_store_down: AtomicBool,
    sweep_rounds: SweepRounds,
}

/// Identifies a key under a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseKey<'a> {
    /// Hash of the key, the scope and the limit's algorithm family.
    pub(crate) hash: KeyHash,
    pub(crate) key: KeyRef<'a>,
    pub(crate) scope: Scope,
}

/// What to do with a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpendOutcome {
    /// The draw is granted from the lease.
    Spent(SpentUnits),
    /// A lease miss: the store has to decide the draw, less the units that are claimed here.
    Miss {
        /// A renewal to send along with the draw.
        renewal: Option<LeaseRenewal>,
        /// Units that are set aside for the draw.
        claim: Option<Claim>,
    },
    /// The draw is denied without asking the store: it had too few units left a moment ago, or it is asked too
    /// often for this key.
    Denied(DrawResult),
}

impl SpendOutcome {
    /// A miss without a renewal or a claim.
    pub(crate) const MISS: SpendOutcome = SpendOutcome::Miss { renewal: None, claim: None };
}

/// Units that were spent from a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpentUnits {
    /// The result for the client, at the store's time.
    pub(crate) result: DrawResult,
    /// Identifies the lease and its last report, for [`Leases::undo_spend`].
    pub(crate) receipt: SpendReceipt,
    /// A renewal to send in the background, so that the lease does not run out.
    pub(crate) renewal: Option<LeaseRenewal>,
}

/// The serial number of the lease when units were spent from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpendReceipt(u32);

/// A report about a key's lease, and a request for more units. The caller passes it to exactly one of
/// [`Leases::apply_reply`], [`Leases::mark_unacked`] and [`Leases::cancel_renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRenewal {
    pub(crate) hash: KeyHash,
    pub(crate) report: LeaseReport,
    pub(crate) request: LeaseRequest,
    /// When the renewal was created, which is before it is sent.
    created_at: Micros,
    serial: u32,
}

impl LeaseRenewal {
    /// When the renewal was created, which is before it is sent.
    pub(crate) fn created_at(&self) -> Micros {
        self.created_at
    }
}

/// A renewal that is sent on its own, without a draw that names its key.
#[derive(Clone, Debug)]
pub(crate) struct DetachedRenewal {
    pub(crate) renewal: LeaseRenewal,
    pub(crate) limit: Limit,
    pub(crate) name: Arc<KeyName>,
}

/// A key and its scope, as the store needs them.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyName {
    /// The key.
    pub key: Key,
    /// Its scope.
    pub scope: Scope,
}

/// The store's reply to a lease request.
#[derive(Clone, Copy, Debug)]
pub struct LeaseReply {
    /// What was granted.
    pub grant: LeaseGrant,
    /// The key's state after the renewal, with all leased units counted as taken. `None` if the store did not
    /// send it.
    pub state: Option<State>,
    /// The store's time when it replied.
    pub store_time: Micros,
}

impl Leases {
    /// Creates a table for at least `max_keys` keys, rounded up to whole shards.
    pub(crate) fn new(max_keys: usize, policy: LeasePolicy) -> Leases {
        let table = LeaseTable::new(max_keys, policy);
        Leases {
            sweep_rounds: SweepRounds::new(table.shards()),
            table,
            limits: LimitTable::new(),
            node_count: AtomicU32::new(1),
            is_store_down: AtomicBool::new(false),
        }
    }

    /// Sets the number of nodes. A node requests only its share of what it could use alone.
    pub(crate) fn set_node_count(&self, nodes: u32) {
        self.node_count.store(nodes.max(1), Relaxed);
    }

    /// Sets whether the store is down.
    pub(crate) fn set_store_down(&self, is_down: bool) {
        self.is_store_down.store(is_down, Relaxed);
    }

    /// Loads the cache lines that draws with these hashes need, so that a batch waits for memory once.
    #[inline]
    pub(crate) fn prefetch(&self, hashes: &[KeyHash]) {
        self.table.prefetch(hashes);
    }

    /// Spends leased units, or says that the store has to decide.
    #[inline]
    pub(crate) fn spend(
        &self,
        lease_key: &LeaseKey<'_>,
        limit: &Limit,
        units: u32,
        now: Micros,
    ) -> SpendOutcome {
        let mut shard = self.table.lock(lease_key.hash);
        let now = shard.clock.read(now);
        let found = shard.find(lease_key.hash).and_then(|index| Some((index, shard.packed_hot(index)?)));
        let Some((index, packed)) = found else {
            return self.on_first_draw(&mut shard, lease_key, limit, units, now);
        };
        let mut hot = HotFields::read(packed);
        // One comparison checks that there are enough units and that no renewal is due.
        let is_fast_path = units <= hot.unspent.saturating_sub(hot.renew_below) && now < hot.deadline;
        if is_fast_path && self.limits.holds(hot.limit_slot, limit) {
            let result = hot.spend(limit, units, now);
            hot.write_spent(packed);
            shard.counters.count_spend(units);
            return SpendOutcome::Spent(SpentUnits {
                result,
                receipt: SpendReceipt(hot.serial),
                renewal: None,
            });
        }
        self.spend_slow(&mut shard, index, lease_key, limit, units, now)
    }

    /// Undoes a spend of a moment ago, for a request that another limit denied. If the lease was reported or
    /// renewed in between, the units expire.
    pub(crate) fn undo_spend(&self, hash: KeyHash, units: u32, receipt: SpendReceipt) {
        let mut shard = self.table.lock(hash);
        shard.counters.uncount_spend(units);
        let found = shard.find(hash);
        if let Some(mut entry) = found.and_then(|index| shard.entry(index)) {
            entry.cancel_draw(units);
            if entry.hot.serial == receipt.0 {
                entry.undo_spend(units);
            } else {
                entry.count_expired(units);
            }
            return;
        }
        shard.counters.expired += u64::from(units);
    }

    /// Returns the name of the key with this hash. `None` if it is unknown.
    pub(crate) fn key_name(&self, hash: KeyHash) -> Option<Arc<KeyName>> {
        let mut shard = self.table.lock(hash);
        let index = shard.find(hash)?;
        shard.entry(index)?.cold.name.clone()
    }

    /// Applies the store's reply to a renewal. If this node is [draining](Leases::drain), returns a renewal that
    /// returns all units.
    pub(crate) fn apply_reply(
        &self,
        renewal: &LeaseRenewal,
        reply: LeaseReply,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        let mut shard = self.table.lock(renewal.hash);
        let now = shard.clock.read_stale(now);
        shard.counters.lent += u64::from(reply.grant.units);
        let is_closed = shard.is_closed;
        let Some((mut entry, limit)) = self.pending_entry(&mut shard, renewal) else {
            shard.counters.expired += u64::from(reply.grant.units);
            return None;
        };
        entry.apply_reply(&limit, renewal, &reply, now);
        if !is_closed {
            return None;
        }
        let return_renewal = entry.return_units(&limit, renewal.hash, now);
        entry.close();
        return_renewal
    }

    /// Records that a renewal got no reply. The store may or may not have applied it, so the lease becomes
    /// unacknowledged.
    pub(crate) fn mark_unacked(&self, renewal: &LeaseRenewal) {
        let mut shard = self.table.lock(renewal.hash);
        if let Some((mut entry, _)) = self.pending_entry(&mut shard, renewal) {
            entry.count_expired(renewal.report.returned);
            entry.mark_unacked();
        }
    }

    /// Cancels a renewal that was not sent: the lease is as if the renewal had not been created. On a
    /// [draining](Leases::drain) node the units expire, because no other renewal will return them.
    pub(crate) fn cancel_renewal(&self, renewal: &LeaseRenewal) {
        let mut shard = self.table.lock(renewal.hash);
        let is_closed = shard.is_closed;
        if let Some((mut entry, _)) = self.pending_entry(&mut shard, renewal) {
            entry.cancel_renewal(renewal);
            if is_closed {
                entry.expire();
            }
        }
    }

    /// Records the store's decision about a draw. Call it before [`Leases::apply_reply`] for a renewal that was
    /// sent with the draw. `sent_at` is a time before the draw was sent.
    pub(crate) fn record_decision(
        &self,
        hash: KeyHash,
        limit: &Limit,
        amount: Amount,
        result: &DrawResult,
        sent_at: Micros,
    ) {
        let mut shard = self.table.lock(hash);
        let sent_at = shard.clock.convert_past(sent_at);
        let Some(mut entry) = shard.find(hash).and_then(|index| shard.entry(index)) else { return };
        if self.limits.holds(entry.hot.limit_slot, limit) {
            entry.record_decision(limit, amount, result, sent_at);
        }
    }

    /// Sweeps the next `shards` shards: removes entries that hold nothing, and collects renewals that return idle
    /// units or extend leases.
    pub(crate) fn sweep(&self, shards: usize, now: Micros, out: &mut Vec<DetachedRenewal>) {
        let nodes = self.node_count.load(Relaxed);
        let visit = |next: usize| {
            let mut shard = self.table.lock_shard(next);
            let now = shard.clock.read_stale(now);
            for index in 0..shard.slots() {
                let Some(hash) = shard.key_hash(index) else { continue };
                let Some(mut entry) = shard.entry(index) else { continue };
                match self.limits.limit(entry.hot.limit_slot) {
                    Some(limit) => out.extend(entry.sweep(&limit, hash, nodes, now)),
                    None => entry.expire(),
                }
                let (limit_slot, is_removable) = (entry.hot.limit_slot, entry.is_removable(now));
                drop(entry);
                if is_removable {
                    shard.remove(index);
                } else {
                    self.limits.mark(limit_slot);
                }
            }
        };
        self.sweep_rounds.advance(shards, visit, || self.limits.end_cycle());
    }

    /// The number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.table.shards()
    }

    /// Stops spending, and collects renewals that return all units. Units of a renewal in flight are returned
    /// when its reply is [applied](Leases::apply_reply).
    pub(crate) fn drain(&self, now: Micros, out: &mut Vec<DetachedRenewal>) {
        for next in 0..self.table.shards() {
            let mut shard = self.table.lock_shard(next);
            let now = shard.clock.read_stale(now);
            shard.is_closed = true;
            for index in 0..shard.slots() {
                let Some(hash) = shard.key_hash(index) else { continue };
                let Some(mut entry) = shard.entry(index) else { continue };
                let limit = self.limits.limit(entry.hot.limit_slot);
                out.extend(limit.and_then(|limit| entry.return_units(&limit, hash, now)));
                entry.close();
            }
        }
    }

    /// Takes the state that the store last sent for a key under this limit, for a decision without the store.
    /// Returns `None` until the store sends a newer one: after the first call, the local decision has the more
    /// recent state.
    pub(crate) fn take_new_state(&self, hash: KeyHash, limit: &Limit) -> Option<State> {
        let mut shard = self.table.lock(hash);
        let index = shard.find(hash)?;
        let mut entry = shard.entry(index)?;
        if self.limits.holds(entry.hot.limit_slot, limit) { entry.take_new_state() } else { None }
    }

    /// Describes the lease of a key under this limit. Returns `None` if the key has no entry.
    pub(crate) fn describe(&self, hash: KeyHash, limit: &Limit, now: Micros) -> Option<KeyLease> {
        let mut shard = self.table.lock(hash);
        let now = shard.clock.read_stale(now);
        let index = shard.find(hash)?;
        let entry = shard.entry(index)?;
        self.limits.holds(entry.hot.limit_slot, limit).then(|| entry.describe(now))
    }

    /// Sums the counters of all shards. Locks each shard in turn, so it is for metrics, not for the request path.
    pub(crate) fn counts(&self) -> LeaseCounts {
        let mut counts = LeaseCounts { max_keys: self.table.capacity(), ..LeaseCounts::default() };
        for shard in (0..self.table.shards()).map(|shard| self.table.lock_shard(shard)) {
            counts.add_shard(&shard.counters, shard.entry_count());
        }
        counts
    }

    /// Handles the first draw of a key: creates an entry if there is a free slot. The store decides the draw.
    /// Nothing is leased yet, because most keys may never be drawn again.
    #[cold]
    fn on_first_draw(
        &self,
        shard: &mut LeaseShardGuard<'_>,
        lease_key: &LeaseKey<'_>,
        limit: &Limit,
        units: u32,
        now: Micros,
    ) -> SpendOutcome {
        let may_lease = units > 0 && !shard.is_closed && limit.is_leasable();
        if may_lease
            && let Some(limit_slot) = self.limits.intern(lease_key.scope, limit, now)
            && let Some(mut entry) = shard.insert(lease_key.hash, now)
        {
            entry.reset(limit_slot, now);
            entry.count_draw(units);
            entry.count_miss();
            return SpendOutcome::MISS;
        }
        shard.counters.misses += 1;
        shard.counters.table_full += u64::from(may_lease);
        SpendOutcome::MISS
    }

    /// The slow path: too few units, a renewal is due, the lease is over, or the limit has changed.
    #[inline(never)]
    fn spend_slow(
        &self,
        shard: &mut LeaseShardGuard<'_>,
        index: usize,
        lease_key: &LeaseKey<'_>,
        limit: &Limit,
        units: u32,
        now: Micros,
    ) -> SpendOutcome {
        let is_closed = shard.is_closed;
        let Some(mut entry) = shard.entry(index) else { return SpendOutcome::MISS };
        if !self.limits.holds(entry.hot.limit_slot, limit) {
            entry.expire();
            match self.limits.intern(lease_key.scope, limit, now) {
                Some(limit_slot) => entry.reset(limit_slot, now),
                None => {
                    entry.counters.misses += 1;
                    drop(entry);
                    shard.remove(index);
                    return SpendOutcome::MISS;
                }
            }
        }
        if is_closed || units == 0 {
            entry.count_miss();
            return SpendOutcome::MISS;
        }
        if self.is_store_down.load(Relaxed) {
            entry.reset_misses();
        }
        entry.spend(limit, lease_key, units, self.node_count.load(Relaxed), now)
    }

    /// Returns the entry that a renewal belongs to, with its limit. `None` if the entry no longer waits for this
    /// renewal.
    fn pending_entry<'a>(
        &self,
        shard: &'a mut LeaseShardGuard<'_>,
        renewal: &LeaseRenewal,
    ) -> Option<(EntryGuard<'a>, Limit)> {
        let index = shard.find(renewal.hash)?;
        let entry = shard.entry(index)?;
        if !entry.cold.is_renewing() || entry.hot.serial != renewal.serial {
            return None;
        }
        let limit = self.limits.limit(entry.hot.limit_slot)?;
        Some((entry, limit))
    }
}
