//! Claims: leased units that are set aside for a request while the store decides the rest of it.
//!
//! A request goes to the store if one of its limits has too few leased units here. The store is then asked only
//! for the missing units: units leased to this node count as used at the store, which would otherwise deny them
//! to the very node that holds them. The units held here are claimed meanwhile. They are neither spent nor
//! available to other requests, and are reported to the store as kept. They are spent if the store grants the
//! rest, and put back otherwise.
//!
//! A claimed unit was granted by the store, and leaves the lease before its deadline. So the limit holds whatever
//! the store decides, and however long that takes.

use super::cold_fields::StoreSupply;
use super::entry::EntryGuard;
use super::{DetachedRenewal, Leases, SpendReceipt};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Limit, Micros, State};

/// Units that are set aside. Each claim is [spent](Leases::commit) or [put back](Leases::release) once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) hash: KeyHash,
    pub(crate) units: u32,
    /// The lease of the units. `None` if they have already been reported as spent.
    pub(super) lease_id: Option<u32>,
}

/// Why a claim is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReason {
    /// The store gave no reply.
    NoReply,
    /// Another limit of the request denied it.
    DeniedByOther,
    /// The store had too few units under the same limit.
    Denied,
}

impl Leases {
    /// Claims up to `units` units for a request that goes to the store anyway. `None` if there are no units to
    /// claim.
    pub(super) fn claim(&self, hash: KeyHash, limit: &Limit, units: u32, now: Micros) -> Option<Claim> {
        let mut shard = self.table.lock(hash);
        let now = shard.clock.read_stale(now);
        let index = shard.find(hash)?;
        let mut entry = shard.entry(index)?;
        if self.limits.holds(entry.hot.limit_slot, limit) {
            entry.claim(limit, hash, units, now)
        } else {
            None
        }
    }

    /// Turns a spend of a moment ago into a claim, for a request that has to go to the store after all.
    pub(super) fn claim_spent(&self, hash: KeyHash, units: u32, receipt: SpendReceipt) -> Claim {
        let mut shard = self.table.lock(hash);
        shard.counters.uncount_spend(units);
        let found = shard.find(hash);
        match found.and_then(|index| shard.entry(index)) {
            Some(mut entry) => entry.claim_spent(hash, units, receipt),
            None => Claim { hash, units, lease_id: None },
        }
    }

    /// Spends a claim. Returns the key's state as far as it is known, with the store's time of that state.
    pub(crate) fn commit(&self, claim: &Claim, limit: &Limit, now: Micros) -> Option<(Micros, State)> {
        let mut shard = self.table.lock(claim.hash);
        let now = shard.clock.read_stale(now);
        let found = shard.find(claim.hash);
        let Some(mut entry) = found.and_then(|index| shard.entry(index)) else {
            shard.counters.spent += u64::from(claim.units);
            return None;
        };
        entry.commit(claim);
        if self.limits.holds(entry.hot.limit_slot, limit) { entry.known_state(limit, now) } else { None }
    }

    /// Puts a claim back. Returns the key's state, like [`Leases::commit`].
    ///
    /// If the store had too few units, there are too few here as well. They are returned to the store, so that
    /// enough units are in one place: the renewal is pushed to `out`.
    pub(crate) fn release(
        &self,
        claim: &Claim,
        limit: &Limit,
        reason: ReleaseReason,
        now: Micros,
        out: &mut Vec<DetachedRenewal>,
    ) -> Option<(Micros, State)> {
        let mut shard = self.table.lock(claim.hash);
        let now = shard.clock.read_stale(now);
        let found = shard.find(claim.hash);
        let Some(mut entry) = found.and_then(|index| shard.entry(index)) else {
            shard.counters.expired += u64::from(claim.units);
            return None;
        };
        entry.release(claim);
        if !self.limits.holds(entry.hot.limit_slot, limit) {
            return None;
        }
        let known = entry.known_state(limit, now);
        match reason {
            ReleaseReason::NoReply => {}
            ReleaseReason::DeniedByOther => entry.cancel_draw(claim.units),
            ReleaseReason::Denied => out.extend(entry.return_insufficient(limit, claim.hash, now)),
        }
        known
    }

    /// Puts back a claim of an abandoned request.
    pub(super) fn cancel_claim(&self, claim: &Claim) {
        let mut shard = self.table.lock(claim.hash);
        let found = shard.find(claim.hash);
        if let Some(mut entry) = found.and_then(|index| shard.entry(index)) {
            return entry.release(claim);
        }
        shard.counters.expired += u64::from(claim.units);
    }

    /// Unspent units of a key.
    pub(super) fn unspent(&self, hash: KeyHash, limit: &Limit, now: Micros) -> u32 {
        let mut shard = self.table.lock(hash);
        let now = shard.clock.read_stale(now);
        let found = shard.find(hash);
        let entry = found.and_then(|index| shard.entry(index));
        entry
            .filter(|entry| self.limits.holds(entry.hot.limit_slot, limit))
            .map_or(0, |entry| entry.unspent(now))
    }

    /// Stops denying draws of a key without asking the store, because units were refunded there or the key was
    /// reset.
    pub(crate) fn clear_denial(&self, hash: KeyHash) {
        let mut shard = self.table.lock(hash);
        let found = shard.find(hash);
        if let Some(mut entry) = found.and_then(|index| shard.entry(index)) {
            entry.clear_denial();
        }
    }
}

impl EntryGuard<'_> {
    /// Claims up to `units` units. A request that can never be granted claims nothing: the store denies it.
    pub(super) fn claim(&mut self, limit: &Limit, hash: KeyHash, units: u32, now: Micros) -> Option<Claim> {
        let can_be_granted = units <= limit.capacity();
        let units = self.unspent(now).min(units);
        if units == 0 || !can_be_granted {
            return None;
        }
        self.hot.unspent -= units;
        self.cold.claimed += units;
        Some(Claim { hash, units, lease_id: Some(self.cold.lease_id) })
    }

    /// Turns a spend of a moment ago into a claim.
    pub(super) fn claim_spent(&mut self, hash: KeyHash, units: u32, receipt: SpendReceipt) -> Claim {
        let is_reported = self.hot.serial != receipt.0;
        if is_reported {
            return Claim { hash, units, lease_id: None };
        }
        self.hot.unreported = self.hot.unreported.saturating_sub(units);
        self.cold.claimed += units;
        Claim { hash, units, lease_id: Some(self.cold.lease_id) }
    }

    /// Spends a claim.
    pub(super) fn commit(&mut self, claim: &Claim) {
        self.counters.spent += u64::from(claim.units);
        if claim.lease_id == Some(self.cold.lease_id) {
            self.cold.claimed = self.cold.claimed.saturating_sub(claim.units);
            self.hot.unreported = self.hot.unreported.saturating_add(claim.units);
        }
    }

    /// Puts back a claim of a request that was denied. If the lease has ended, the units expire.
    pub(super) fn release(&mut self, claim: &Claim) {
        if claim.lease_id == Some(self.cold.lease_id) {
            self.cold.claimed = self.cold.claimed.saturating_sub(claim.units);
            self.hot.unspent = self.hot.unspent.saturating_add(claim.units);
        } else {
            self.count_expired(claim.units);
        }
    }

    /// Returns the units of this lease, because both this node and the store have too few for a request. The
    /// store then has that many more than it said.
    pub(super) fn return_insufficient(
        &mut self,
        limit: &Limit,
        hash: KeyHash,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        let renewal = self.return_units(limit, hash, now)?;
        if let StoreSupply::Exhausted(backoff) = &mut self.cold.supply {
            backoff.allowed = backoff.allowed.saturating_add(renewal.renewal.report.returned);
        }
        Some(renewal)
    }
}
