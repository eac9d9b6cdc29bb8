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
//! The cached states and their times are those of the shared store: this process's clock is not consulted.

use super::MemoryStore;
use super::decide::DrawTarget;
use super::entry::TableEntry;
use super::key_hash::KeyHash;
use super::shard::SlotPosition;
use ratekeeper_core::{
    Clock, Consistency, Draw, Draws, FailureMode, KeyRef, LeasedState, Limit, MAX_DRAWS, Micros, Op, Scope,
    State,
};

#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only states of a shared store are cached"))]
impl<C: Clock> MemoryStore<C> {
    /// Caches the states that the store returned for a group. Draws with local consistency are in the table already.
    ///
    /// Replies may arrive out of order. An older state has fewer units taken, so it denies nothing that the newer one
    /// would not.
    pub(crate) fn cache_replies(&self, draws: &Draws, group: usize) {
        for draw in draws.group(group).iter().filter(|draw| draw.options().consistency != Consistency::Local)
        {
            if let Some(state) = draw.result().state() {
                let key_hash = self.key_hash(draws.key(draw), draw.scope(), draw.limit());
                self.cache_one(
                    &draw_target(key_hash, draw.scope(), draw.limit()),
                    state,
                    draw.decided_at(),
                    draw.is_denied(),
                );
            }
        }
    }

    /// Caches a state that the store returned at its time `now` or before.
    pub(crate) fn cache_state(
        &self,
        key_hash: KeyHash,
        scope: Scope,
        limit: &Limit,
        state: State,
        now: Micros,
    ) {
        self.cache_one(&draw_target(key_hash, scope, limit), state, now, false);
    }

    fn cache_one(&self, target: &DrawTarget<'_>, state: State, now: Micros, is_denied: bool) {
        let DrawTarget { key_hash, limit, .. } = *target;
        let shard = self.table.lock(self.table.shard_of(key_hash));
        let position = shard.find(key_hash.fingerprint);
        if limit.is_expired(state, now) {
            if let SlotPosition::Found(slot) = position {
                shard.remove(slot);
            }
            return;
        }
        let Some(limit_slot) = self.limit_table.intern(target.scope, limit, now) else { return };
        match position {
            SlotPosition::Found(slot) => shard.set_entry(slot, TableEntry { state, limit_slot, is_denied }),
            SlotPosition::InsertAt(slot) => {
                // The store has this state anyway, so it is not worth moving another one to the sketch.
                self.insert_state(&shard, slot, target, state, false, now);
            }
        }
    }

    /// Denies a group if the states of all its keys are cached and one of its limits can't have refilled enough.
    /// Otherwise decides nothing and returns `false`.
    ///
    /// `now` must not be earlier than the store's time of the cached states.
    pub(crate) fn deny_from_cache(&self, draws: &mut Draws, group: usize, now: Micros) -> bool {
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
            let peeked = self.peek(draw.limit(), Some(known), amount, now);
            is_denied |= !draw.is_shadow() && peeked.is_denied();
            *result = Some(peeked);
        }
        if is_denied {
            for (draw, result) in draws.group_mut(group).iter_mut().zip(results) {
                draw.decide_with(|_, _, _| result.expect("every draw of the group has a result"));
            }
        }
        is_denied
    }

    /// Decides a group locally while the store is unreachable: the draws for which `is_included` is true, all or
    /// nothing among them, from the cached states, each at the time that `now` returns for it.
    pub(crate) fn decide_locally(
        &self,
        draws: &mut Draws,
        group: usize,
        now: impl Fn(&Draw) -> Micros,
        is_included: impl Fn(&Draw) -> bool,
    ) {
        let mut key_hashes = [KeyHash::NONE; MAX_DRAWS];
        let count = self.hash_group(draws, group, &mut key_hashes);
        // A draw that could not be counted is part of a group that has failed already.
        self.apply_all(draws.group_mut(group), &key_hashes[..count], now, is_included);
    }

    /// The hash of a key under a limit, as used by this store and every other per-key table of the process.
    #[inline]
    pub(crate) fn key_hash(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> KeyHash {
        self.key_hasher.key_hash(key, limit).in_scope(scope)
    }

    /// The cached state of a key, if this very limit wrote it.
    fn cached_state(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<State> {
        if limit.uses_list_state() {
            return None;
        }
        let key_hash = self.key_hash(key, scope, limit);
        let shard = self.table.lock(self.table.shard_of(key_hash));
        let SlotPosition::Found(slot) = shard.find(key_hash.fingerprint) else { return None };
        let entry = shard.entry(slot);
        self.limit_table.holds(entry.limit_slot, limit).then_some(entry.state)
    }
}

fn draw_target(key_hash: KeyHash, scope: Scope, limit: &Limit) -> DrawTarget<'_> {
    DrawTarget { key_hash, scope, limit, on_failure: FailureMode::Local }
}
