//! A cache of the states that a shared store returned.
//!
//! A shared store is reached over a network. The states in its replies are cached for two purposes. First, to deny a
//! request locally: other nodes can only have taken more since, so units that did not fit then and have not refilled by
//! now don't fit, whatever the other nodes did. Second, to continue from the last known state while the store is
//! unreachable.
//!
//! Where units are leased to nodes, the store reports its state as if they were used. That is correct at that moment,
//! but used units refill from then on, while leased units refill only once they were spent or have expired. So a
//! request that this cache denies would be denied by the store too, unless a node returns leased units. That is no
//! different from any other refund, and a denial from this cache applies only briefly.
//!
//! The cached states and their times are those of the shared store. This process's clock is read only for draws that
//! stay on this node.

use super::decide::DrawTarget;
use super::entry::TableEntry;
use super::key_hash::KeyHash;
use super::shard::SlotPosition;
use super::{Capacity, CapacityError, MemoryStore};
use crate::clock::SystemClock;
use ratekeeper_core::{
    Clock, Draw, DrawOutcome, Draws, FailureMode, KeyRef, LeasedState, Limit, MAX_DRAWS, Micros, Op, Scope,
    State,
};

/// A cache of the states that a shared store returned, and the states of draws that stay on this node. For stores that
/// are reached over a network.
///
/// It denies requests that the shared store would deny too, decides the draws that their rule keeps on this node, and
/// takes over while the shared store is unreachable.
#[derive(Debug)]
pub struct RemoteCache<C = SystemClock> {
    memory: MemoryStore<C>,
}

impl<C: Clock> RemoteCache<C> {
    /// Creates a cache. `clock` is that of draws that stay on this node.
    ///
    /// # Errors
    /// If `capacity` is too small for a single key, or the table can't be allocated.
    pub fn new(clock: C, capacity: Capacity) -> Result<RemoteCache<C>, CapacityError> {
        MemoryStore::with(clock, capacity).map(|memory| RemoteCache { memory })
    }

    /// The store that holds the states.
    pub fn memory(&self) -> &MemoryStore<C> {
        &self.memory
    }

    /// Caches the states that the store returned for a group. Draws with local consistency are in the table already.
    ///
    /// Replies may arrive out of order. An older state has fewer units taken, so it denies nothing that the newer one
    /// would not.
    pub fn cache_replies(&self, draws: &Draws, group: usize) {
        for draw in draws.group(group).iter().filter(|draw| !draw.is_local()) {
            if let Some(state) = draw.result().state() {
                self.cache_state(draws, draw, state, draw.decided_at(), draw.is_denied());
            }
        }
    }

    /// Caches the state of a draw's key that the store returned at its time `now` or before.
    fn cache_state(&self, draws: &Draws, draw: &Draw, state: State, now: Micros, is_denied: bool) {
        let (scope, limit) = (draw.scope(), draw.limit());
        let key_hash = self.memory.key_hash(draws.key(draw), scope, limit);
        let shard = self.memory.table.lock(self.memory.table.shard_of(key_hash));
        let position = shard.find(key_hash.fingerprint);
        if limit.is_expired(state, now) {
            if let SlotPosition::Found(slot) = position {
                shard.remove(slot);
            }
            return;
        }
        let Some(limit_slot) = self.memory.limit_table.intern(scope, limit, now) else { return };
        match position {
            SlotPosition::Found(slot) => shard.set_entry(slot, TableEntry { state, limit_slot, is_denied }),
            SlotPosition::InsertAt(slot) => {
                // The store has this state anyway, so it is not worth moving another one to the sketch.
                let target = DrawTarget { key_hash, scope, limit, on_failure: FailureMode::Local };
                self.memory.insert_state(&shard, slot, &target, state, false, now);
            }
        }
    }

    /// Denies a group if the states of all its keys are cached and one of its limits can't have refilled enough.
    /// Otherwise decides nothing and returns `false`.
    ///
    /// `now` must not be earlier than the store's time of the cached states.
    pub fn deny_from_cache(&self, draws: &mut Draws, group: usize, now: Micros) -> bool {
        let mut results = [None; MAX_DRAWS];
        let mut is_denied = false;
        for (draw, result) in draws.group(group).iter().zip(&mut results) {
            let Op::Take(amount) = draw.op() else { return false };
            let Some(known) = self.cached_state(draws.key(draw), draw.scope(), draw.limit()) else {
                return false;
            };
            // The store's clock was set back since. The store rebases the state, and its new time is not known here.
            let leased = LeasedState { state: Some(known), ..LeasedState::default() };
            if draw.limit().rebase(leased, now).is_some() {
                return false;
            }
            let peeked = self.memory.peek(draw.limit(), Some(known), amount, now);
            is_denied |= !draw.is_shadow() && peeked.is_denied();
            *result = Some(peeked);
        }
        if is_denied {
            // Every draw of the group has a result.
            for (draw, result) in draws.group_mut(group).iter_mut().zip(results.into_iter().flatten()) {
                draw.decide_with(|_, _, _| result);
            }
        }
        is_denied
    }

    /// Decides the draws of a group that stay on this node, all or nothing among them.
    pub fn decide_local(&self, draws: &mut Draws, group: usize) {
        let now = self.memory.clock.now();
        self.decide(draws, group, |_| now, Draw::is_local);
    }

    /// Decides a group that the store did not answer, if the failure modes of its draws allow it: from the cached
    /// states, by one of `nodes` [shares](Limit::share) of each limit. Returns whether a share was used.
    ///
    /// `store_time` is the store's time as far as it is known. `newer_state` returns the state of a key that the store
    /// returned, but not with a draw.
    pub fn decide_failed(
        &self,
        draws: &mut Draws,
        group: usize,
        nodes: u32,
        store_time: Micros,
        newer_state: impl Fn(KeyRef<'_>, Scope, &Limit) -> Option<State>,
    ) -> bool {
        let is_closed = |draw: &Draw| {
            !draw.is_shadow() && !draw.is_local() && draw.options().on_failure == FailureMode::Closed
        };
        if draws.group(group).iter().any(is_closed) {
            return false;
        }
        for draw in draws.group(group).iter().filter(|draw| !draw.is_local()) {
            if let Some(state) = newer_state(draws.key(draw), draw.scope(), draw.limit()) {
                self.cache_state(draws, draw, state, store_time, false);
            }
        }
        let uses_share = |draw: &Draw| !draw.is_local() && draw.options().on_failure == FailureMode::Local;
        let mut has_share = false;
        for draw in draws.group_mut(group).iter_mut().filter(|draw| uses_share(draw)) {
            draw.use_share(nodes);
            has_share = true;
        }
        let here = self.memory.clock.now();
        let now = |draw: &Draw| if draw.is_local() { here } else { store_time };
        self.decide(draws, group, now, |draw| draw.is_local() || uses_share(draw));
        has_share
    }

    /// Decides the draws of a group for which `is_included` is true, all or nothing among them, from the cached
    /// states, each at the time that `now` returns for it.
    fn decide(
        &self,
        draws: &mut Draws,
        group: usize,
        now: impl Fn(&Draw) -> Micros,
        is_included: impl Fn(&Draw) -> bool,
    ) {
        let mut key_hashes = [KeyHash::NONE; MAX_DRAWS];
        let count = self.memory.hash_group(draws, group, &mut key_hashes);
        // A draw that could not be counted is part of a group that has failed already.
        self.memory.apply_all(draws.group_mut(group), &key_hashes[..count], now, is_included);
    }

    /// Revokes all grants of a group that was denied elsewhere. Units that this node granted are refunded; the caller
    /// refunds those that the store granted.
    pub fn revoke(&self, draws: &mut Draws, group: usize) {
        let mut refunds = Draws::new();
        for draw in draws.group(group).iter().filter(|draw| draw.is_local()) {
            if let DrawOutcome::Granted(units @ 1..) = draw.outcome() {
                refunds.push(draws.key(draw), draw.scope(), *draw.limit(), Op::Refund(units), draw.permit());
            }
        }
        self.memory.draw_now(&mut refunds);
        for draw in draws.group_mut(group) {
            if let DrawOutcome::Granted(units) = draw.outcome() {
                draw.revoke(units);
            }
        }
    }

    /// The cached state of a key, if this very limit wrote it.
    fn cached_state(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<State> {
        if limit.uses_list_state() {
            return None;
        }
        let key_hash = self.memory.key_hash(key, scope, limit);
        let shard = self.memory.table.lock(self.memory.table.shard_of(key_hash));
        let SlotPosition::Found(slot) = shard.find(key_hash.fingerprint) else { return None };
        let entry = shard.entry(slot);
        self.memory.limit_table.holds(entry.limit_slot, limit).then_some(entry.state)
    }
}

impl<C: Clock> MemoryStore<C> {
    /// The hash of a key under a limit.
    #[inline]
    fn key_hash(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> KeyHash {
        self.key_hasher.key_hash(key, limit).in_scope(scope)
    }
}
