//! States of algorithms that keep a list per key: sliding logs and concurrency permits.
//!
//! Their states have no fixed size, so they are kept beside the slots in a per-shard map, under the same lock and with
//! a separate bound: a shard holds as many list entries as it may have keys. The last eighth is reserved for scopes
//! that have few.

use ratekeeper_core::{LeasedState, Limit, ListState, Micros, PriorStates, Scope, Span, State};
use std::collections::HashMap;

/// The minimum time between two sweeps of a shard's lists because of the bound. A sweep takes some tens of
/// microseconds, and a flood must not trigger one with every request.
const MIN_SWEEP_INTERVAL: Span = Span::millis(10);

/// The list states of a shard, by fingerprint.
#[derive(Debug, Default)]
pub(super) struct ListStates {
    by_fingerprint: HashMap<u64, StoredList>,
    /// Prior states: those that other limits have left for keys that are drawn from under several limits.
    prior: HashMap<u64, PriorStates>,
    /// The number of entries in all lists.
    entries: usize,
    /// The number of entries per scope.
    entries_by_scope: HashMap<Scope, usize>,
    swept_at: Micros,
}

/// A list state and the limit that wrote it.
#[derive(Debug)]
struct StoredList {
    scope: Scope,
    limit: Limit,
    list: ListState,
}

impl ListStates {
    /// The number of lists, and of their entries.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.by_fingerprint.len(), self.entries)
    }

    pub(super) fn remove(&mut self, fingerprint: u64) -> Option<(Limit, ListState)> {
        let StoredList { scope, limit, list } = self.by_fingerprint.remove(&fingerprint)?;
        self.entries -= list.entries();
        if let Some(entries) = self.entries_by_scope.get_mut(&scope) {
            *entries -= list.entries();
        }
        Some((limit, list))
    }

    pub(super) fn insert(&mut self, fingerprint: u64, scope: Scope, limit: Limit, list: ListState) {
        if list.entries() > 0 {
            self.entries += list.entries();
            *self.entries_by_scope.entry(scope).or_default() += list.entries();
            self.by_fingerprint.insert(fingerprint, StoredList { scope, limit, list });
        }
    }

    /// Drops drained lists and prior states, and shrinks the memory of the others.
    pub(super) fn sweep(&mut self, now: Micros) {
        self.by_fingerprint.retain(|_, stored| {
            let is_live = !stored.limit.expire_list(&mut stored.list, now);
            stored.list.shrink();
            is_live
        });
        self.entries_by_scope.clear();
        for stored in self.by_fingerprint.values() {
            *self.entries_by_scope.entry(stored.scope).or_default() += stored.list.entries();
        }
        self.entries = self.entries_by_scope.values().sum();
        self.prior.retain(|_, prior| prior.expires_at(now) > now);
        self.swept_at = now;
    }

    /// Converts the state that `before` wrote to `limit`. The state of `before` is kept as a prior state until it has
    /// drained, for at most as many keys as the shard may have.
    #[cold]
    pub(super) fn adopt(
        &mut self,
        fingerprint: u64,
        limit: &Limit,
        state: State,
        before: &Limit,
        bound: usize,
        now: Micros,
    ) -> Option<State> {
        let mut prior = self.prior.remove(&fingerprint).unwrap_or_default();
        let leased = LeasedState { state: Some(state), ..LeasedState::default() };
        let leased = limit.adopt_with_prior(leased, before, &mut prior, now);
        self.insert_prior(fingerprint, prior, bound, now);
        leased.state
    }

    /// Converts the state that `before` wrote to a `limit` that can't store one. Prior states stay unchanged.
    #[cold]
    pub(super) fn peek_adopted(
        &self,
        fingerprint: u64,
        limit: &Limit,
        state: State,
        before: &Limit,
        now: Micros,
    ) -> Option<State> {
        let mut prior = self.prior.get(&fingerprint).cloned().unwrap_or_default();
        let leased = LeasedState { state: Some(state), ..LeasedState::default() };
        limit.adopt_with_prior(leased, before, &mut prior, now).state
    }

    /// Removes and returns the prior state of `limit` for a key that has no entry in the table.
    #[inline]
    pub(super) fn take_prior(&mut self, fingerprint: u64, limit: &Limit, now: Micros) -> Option<State> {
        if self.prior.is_empty() {
            return None;
        }
        let prior = self.prior.get_mut(&fingerprint)?;
        let leased = prior.remove(limit, now);
        if prior.is_empty() {
            self.prior.remove(&fingerprint);
        }
        leased?.state
    }

    /// Puts the prior state of `limit` back if the table has no space for it.
    #[cold]
    pub(super) fn restore_prior(
        &mut self,
        fingerprint: u64,
        limit: &Limit,
        state: State,
        bound: usize,
        now: Micros,
    ) {
        let mut prior = self.prior.remove(&fingerprint).unwrap_or_default();
        prior.push(*limit, LeasedState { state: Some(state), ..LeasedState::default() }, now);
        self.insert_prior(fingerprint, prior, bound, now);
    }

    fn insert_prior(&mut self, fingerprint: u64, prior: PriorStates, bound: usize, now: Micros) {
        if self.prior.len() >= bound && now.since(self.swept_at) >= MIN_SWEEP_INTERVAL {
            self.sweep(now);
        }
        if !prior.is_empty() && self.prior.len() < bound {
            self.prior.insert(fingerprint, prior);
        }
    }

    /// Drops the prior states of a key.
    pub(super) fn clear_prior(&mut self, fingerprint: u64) {
        self.prior.remove(&fingerprint);
    }

    /// Whether a list of `entries` entries fits within `bound`, if necessary after a sweep.
    pub(super) fn fits_after_sweep(
        &mut self,
        entries: usize,
        scope: Scope,
        bound: usize,
        now: Micros,
    ) -> bool {
        if !self.fits(entries, scope, bound) && now.since(self.swept_at) >= MIN_SWEEP_INTERVAL {
            self.sweep(now);
        }
        self.fits(entries, scope, bound)
    }

    fn fits(&self, entries: usize, scope: Scope, bound: usize) -> bool {
        let of_scope = self.entries_by_scope.get(&scope).copied().unwrap_or(0);
        let is_small = of_scope + entries <= bound / 16;
        let reserved = if is_small { 0 } else { bound / 8 };
        self.entries + entries <= bound - reserved
    }
}
