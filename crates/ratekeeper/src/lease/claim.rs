//! Units of a lease that are set aside for a request while the store decides the rest of it.
//!
//! A request goes to the store if one of its limits has too few units here. Then the store is asked for what is missing
//! only: units that this node was lent count as used there, and would be denied to the very node that has them. What is
//! here is claimed meanwhile. It is neither spent nor free for others, is reported to the store as kept, and is spent if
//! the store grants the rest, or else put back.
//!
//! A unit that is claimed was paid for, and leaves the lease before its deadline. So the limit holds whatever the store
//! says, and however long that takes.

use super::entry::EntryGuard;
use super::{DetachedRenewal, Leases, SpendReceipt};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Limit, Micros, State};

/// Units that are set aside. Each is [spent](Leases::commit) or [put back](Leases::release), once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) tag: KeyHash,
    pub(crate) units: u32,
    /// The lease that they are of; `None` if they have been reported as spent.
    pub(super) lease: Option<u32>,
}

/// Why a claim is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReason {
    /// The store gave no answer.
    Unanswered,
    /// Another limit of the request denied it.
    DeniedByOther,
    /// The store had too little of the same limit.
    Denied,
}

impl Leases {
    /// Claims what there is of so many units, for a request that goes to the store in any case.
    pub(super) fn claim(&self, tag: KeyHash, limit: &Limit, units: u32, now: Micros) -> Option<Claim> {
        let mut shard = self.table.lock(tag);
        let now = shard.clock.about(now);
        let index = shard.find(tag)?;
        let mut slot = shard.slot(index)?;
        if self.book.holds(slot.hot.page, limit) { slot.claim(limit, tag, units, now) } else { None }
    }

    /// Claims what was spent a moment ago, for a request that goes to the store after all.
    pub(super) fn claim_spent(&self, tag: KeyHash, units: u32, receipt: SpendReceipt) -> Claim {
        let mut shard = self.table.lock(tag);
        shard.tally.put_back(units);
        let found = shard.find(tag);
        match found.and_then(|index| shard.slot(index)) {
            Some(mut slot) => slot.claim_spent(tag, units, receipt),
            None => Claim { tag, units, lease: None },
        }
    }

    /// Spends what was claimed. Gives the key's state as far as it is known then, and the store's time that goes with it.
    pub(crate) fn commit(&self, claim: &Claim, limit: &Limit, now: Micros) -> Option<(Micros, State)> {
        let mut shard = self.table.lock(claim.tag);
        let now = shard.clock.about(now);
        let found = shard.find(claim.tag);
        let Some(mut slot) = found.and_then(|index| shard.slot(index)) else {
            shard.tally.spent += u64::from(claim.units);
            return None;
        };
        slot.commit(claim);
        if self.book.holds(slot.hot.page, limit) { slot.known_state(limit, now) } else { None }
    }

    /// Puts back what was claimed. Gives the key's state, like [`Leases::commit`].
    ///
    /// If the store had too little, what is here is too little as well. It is given back, so that there is enough in one place:
    /// the order goes to `out`.
    pub(crate) fn release(
        &self,
        claim: &Claim,
        limit: &Limit,
        why: ReleaseReason,
        now: Micros,
        out: &mut Vec<DetachedRenewal>,
    ) -> Option<(Micros, State)> {
        let mut shard = self.table.lock(claim.tag);
        let now = shard.clock.about(now);
        let found = shard.find(claim.tag);
        let Some(mut slot) = found.and_then(|index| shard.slot(index)) else {
            shard.tally.forfeited += u64::from(claim.units);
            return None;
        };
        slot.release(claim);
        if !self.book.holds(slot.hot.page, limit) {
            return None;
        }
        let known = slot.known_state(limit, now);
        match why {
            ReleaseReason::Unanswered => {}
            ReleaseReason::DeniedByOther => slot.forget_draw(claim.units),
            ReleaseReason::Denied => out.extend(slot.give_back_in_vain(limit, claim.tag, now)),
        }
        known
    }

    /// Puts back what was claimed for a request of which nothing is known any more.
    pub(super) fn put_back_claim(&self, claim: &Claim) {
        let mut shard = self.table.lock(claim.tag);
        let found = shard.find(claim.tag);
        if let Some(mut slot) = found.and_then(|index| shard.slot(index)) {
            return slot.release(claim);
        }
        shard.tally.forfeited += u64::from(claim.units);
    }

    /// How many units of a key may be spent here.
    pub(super) fn unspent(&self, tag: KeyHash, limit: &Limit, now: Micros) -> u32 {
        let mut shard = self.table.lock(tag);
        let now = shard.clock.about(now);
        let found = shard.find(tag);
        let slot = found.and_then(|index| shard.slot(index));
        slot.filter(|slot| self.book.holds(slot.hot.page, limit)).map_or(0, |slot| slot.unspent(now))
    }

    /// Has a key asked for again at once, because units were given back to the store, or the key was reset there.
    pub(crate) fn resume(&self, tag: KeyHash) {
        let mut shard = self.table.lock(tag);
        let found = shard.find(tag);
        if let Some(mut slot) = found.and_then(|index| shard.slot(index)) {
            slot.resume();
        }
    }
}

impl EntryGuard<'_> {
    /// Sets aside what there is of so many units, for a request of which the store decides the rest. A request that can never
    /// be granted is the store's alone, which says so.
    pub(super) fn claim(&mut self, limit: &Limit, tag: KeyHash, units: u32, now: Micros) -> Option<Claim> {
        let can_be_granted = units <= limit.capacity();
        let units = self.unspent(now).min(units);
        if units == 0 || !can_be_granted {
            return None;
        }
        self.hot.hand -= units;
        self.cold.claimed += units;
        Some(Claim { tag, units, lease: Some(self.cold.lease) })
    }

    /// Sets aside what was spent a moment ago: its request has to wait for the store after all.
    pub(super) fn claim_spent(&mut self, tag: KeyHash, units: u32, receipt: SpendReceipt) -> Claim {
        let is_known_as_spent = self.hot.serial != receipt.0;
        if is_known_as_spent {
            return Claim { tag, units, lease: None };
        }
        self.hot.spent = self.hot.spent.saturating_sub(units);
        self.cold.claimed += units;
        Claim { tag, units, lease: Some(self.cold.lease) }
    }

    /// Spends what was claimed.
    pub(super) fn commit(&mut self, claim: &Claim) {
        self.tally.spent += u64::from(claim.units);
        if claim.lease == Some(self.cold.lease) {
            self.cold.claimed = self.cold.claimed.saturating_sub(claim.units);
            self.hot.spent = self.hot.spent.saturating_add(claim.units);
        }
    }

    /// Puts back what was claimed, for a request that was denied. If the lease is over, it is forfeited.
    pub(super) fn release(&mut self, claim: &Claim) {
        if claim.lease == Some(self.cold.lease) {
            self.cold.claimed = self.cold.claimed.saturating_sub(claim.units);
            self.hot.hand = self.hot.hand.saturating_add(claim.units);
        } else {
            self.lose(claim.units);
        }
    }

    /// Gives back what is too little here, since the store had too little as well. With it the store has so much more than it
    /// said.
    pub(super) fn give_back_in_vain(
        &mut self,
        limit: &Limit,
        tag: KeyHash,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        let errand = self.give_back(limit, tag, now)?;
        self.cold.paused_left = self.cold.paused_left.saturating_add(errand.order.report.back);
        Some(errand)
    }
}
