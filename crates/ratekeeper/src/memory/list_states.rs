//! States of algorithms that keep a list per key: sliding logs and concurrency permits.
//!
//! Their states have no fixed size, so they are kept beside the slots in a per-shard map, under the same lock and with
//! a separate bound: a shard holds as many list entries as it may have keys. The last eighth is reserved for scopes
//! that have few.
//!
//! At the bound, drained lists are dropped first. If that is not enough, the newest unit of a known log takes over the
//! entry of the unit before it, which then counts for as long as the new one. A log that is not known is replaced by a
//! [stand-in bucket](stand_in_bucket), which is counted in the [sketch](super::sketch). Permits can be neither merged
//! nor counted approximately: their draws are answered by their failure mode.

use super::MemoryStore;
use super::decide::{DrawTarget, UndoStep};
use super::table::ShardGuard;
use ratekeeper_core::{
    Algorithm, Amount, Clock, DrawOutcome, DrawResult, LeasedState, Limit, LimitStatus, ListState, Micros,
    Op, PermitId, PriorStates, Quota, Scope, Span, State,
};
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

    fn remove(&mut self, fingerprint: u64) -> Option<(Limit, ListState)> {
        let StoredList { scope, limit, list } = self.by_fingerprint.remove(&fingerprint)?;
        self.entries -= list.entries();
        if let Some(entries) = self.entries_by_scope.get_mut(&scope) {
            *entries -= list.entries();
        }
        Some((limit, list))
    }

    fn insert(&mut self, fingerprint: u64, scope: Scope, limit: Limit, list: ListState) {
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
    fn fits_after_sweep(&mut self, entries: usize, scope: Scope, bound: usize, now: Micros) -> bool {
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

impl<C: Clock> MemoryStore<C> {
    /// Decides a draw of a limit whose algorithm keeps a list.
    #[cold]
    pub(super) fn apply_to_list(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &DrawTarget<'_>,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        let bound = shard.geometry.keys;
        let lists = &mut shard.shard.lists;
        let (written_under, mut list) =
            lists.remove(key_hash.fingerprint).unwrap_or_else(|| (*limit, limit.new_list()));
        limit.adopt_list(&mut list, &written_under, now);
        limit.expire_list(&mut list, now);
        let before = list.entries();
        if before == 0
            && let Some(decided) = self.apply_to_stand_in(target, op, false, now)
        {
            return decided;
        }
        let mut undo = UndoStep::Nothing;
        let result = match op {
            Op::Take(amount) => {
                let granted = limit.step_list(&mut list, now, amount, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = UndoStep::ReturnUnits(units);
                }
                limit.list_result(
                    &list,
                    now,
                    amount,
                    granted.map_or(DrawOutcome::Denied, DrawOutcome::Granted),
                )
            }
            Op::Peek(amount) => limit.peek_list(&list, now, amount),
            Op::Refund(units) => {
                limit.refund_list(&mut list, units, permit);
                // A log's time never runs behind its newest unit. Without that unit it may be earlier, so units that
                // had expired may count again.
                limit.expire_list(&mut list, now);
                limit.peek_list(&list, now, Amount::ZERO)
            }
            Op::Reset => {
                list = limit.new_list();
                limit.peek_list(&list, now, Amount::ZERO)
            }
        };
        if let (UndoStep::ReturnUnits(units), Op::Take(amount)) = (undo, op)
            && list.entries() > before
            && !lists.fits_after_sweep(list.entries(), scope, bound, now)
            && !join_newest(&mut list)
        {
            limit.refund_list(&mut list, units, permit);
            lists.insert(key_hash.fingerprint, scope, *limit, list);
            let decided = self.apply_to_stand_in(target, op, true, now);
            return decided.unwrap_or_else(|| self.take_uncounted(target, amount, now));
        }
        lists.insert(key_hash.fingerprint, scope, *limit, list);
        (result, undo)
    }

    /// Decides a draw by the stand-in bucket of its limit, if it `must` be or the key is counted there already. Returns
    /// `None` otherwise, or if the limit has no stand-in.
    fn apply_to_stand_in(
        &self,
        target: &DrawTarget<'_>,
        op: Op,
        must: bool,
        now: Micros,
    ) -> Option<(DrawResult, UndoStep)> {
        let (Op::Take(amount) | Op::Peek(amount)) = op else { return None };
        if !must && self.sketch.count() == 0 {
            return None;
        }
        let limit = stand_in_bucket(target.limit)?;
        let state = self.sketch.estimate(target.scope, &limit, target.key_hash.fingerprint, now);
        if !must && state.is_none() {
            return None;
        }
        let (result, undo) = match op {
            Op::Take(_) => self.take_from_sketch(&DrawTarget { limit: &limit, ..*target }, None, amount, now),
            _ => (self.peek(&limit, state, amount, now), UndoStep::Nothing),
        };
        // The draw's own limit can't interpret the state of the stand-in.
        let forecast = LimitStatus::new(&limit, amount, result).forecast();
        Some((DrawResult::from_forecast(result.outcome(), now, forecast), undo))
    }
}

/// [Joins](ratekeeper_core::Log::join_newest) the newest runs of a log. Returns `false` if there are none, or the list
/// is not a log.
fn join_newest(list: &mut ListState) -> bool {
    match list {
        ListState::Log(log) => log.merge_newest_runs(),
        ListState::Holders(_) => false,
    }
}

/// A token bucket that never grants more than a sliding log does: all units but one at once, and then one per period.
/// Within any period that adds up to the log's amount. The bucket has not drained before the last unit is a period old,
/// so a key that returns to its own log starts with an empty one. Returns `None` for a concurrency limit, and for a log
/// whose stand-in would take too long to drain.
fn stand_in_bucket(limit: &Limit) -> Option<Limit> {
    let Algorithm::SlidingWindowLog(_) = limit.algorithm() else { return None };
    let burst = (limit.capacity() - 1).max(1);
    let quota = Quota::new(1, limit.quota().per()).ok()?.with_burst(burst).ok()?;
    Limit::new(Algorithm::TokenBucket, quota).ok()
}
