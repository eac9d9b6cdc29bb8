//! Decides draws under the shard lock.

use super::MemoryStore;
use super::entry::TableEntry;
use super::key_hash::KeyHash;
use super::shard::{Shard, ShardGuard, SlotPosition};
use ratekeeper_core::{
    Amount, Clock, Draw, DrawOutcome, DrawResult, FailureMode, Forecast, LeasedState, Limit, MAX_DRAWS,
    Micros, Op, PermitId, Retry, Scope, Span, State, Step,
};

/// The retry delay of a draw that was denied because it could not be counted. It is a guess: when memory will be free
/// again is unknown.
const UNCOUNTED_RETRY_AFTER: Span = Span::SECOND;

/// The key and the limit of one draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawTarget<'a> {
    pub(super) key_hash: KeyHash,
    pub(super) scope: Scope,
    pub(super) limit: &'a Limit,
    /// How to answer if the draw can't be counted.
    pub(super) on_failure: FailureMode,
}

/// How to undo a draw if another limit of the same request denies.
#[derive(Clone, Copy, Debug)]
pub(super) enum UndoStep {
    /// The draw took nothing, or it was counted in the sketch, from which nothing is ever removed.
    Nothing,
    Remove,
    Restore(TableEntry),
    ReturnUnits(u32),
    /// The draw could not be counted at all.
    Uncounted,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides the draws of a group, all or nothing.
    ///
    /// Draws for which `is_included` is false are neither decided nor taken into account. Returns `false` if a draw
    /// could not be counted.
    pub(super) fn apply_all(
        &self,
        draws: &mut [Draw],
        key_hashes: &[KeyHash],
        now: impl Fn(&Draw) -> Micros,
        is_included: impl Fn(&Draw) -> bool,
    ) -> bool {
        let mut order = [usize::MAX; MAX_DRAWS];
        for (shard, key_hash) in order.iter_mut().zip(key_hashes) {
            *shard = self.table.shard_of(*key_hash);
        }
        order[..draws.len()].sort_unstable();
        let mut locks: [Option<ShardGuard<'_>>; MAX_DRAWS] = [const { None }; MAX_DRAWS];
        let mut locked = 0;
        for index in 0..draws.len() {
            if index == 0 || order[index] != order[index - 1] {
                order[locked] = order[index];
                locks[locked] = Some(self.table.lock(order[index]));
                locked += 1;
            }
        }
        let guard_of = |key_hash: KeyHash| {
            order[..locked].iter().position(|shard| *shard == self.table.shard_of(key_hash)).unwrap_or(0)
        };

        let mut undos = [UndoStep::Nothing; MAX_DRAWS];
        let mut is_denied = false;
        for (index, draw) in draws.iter_mut().enumerate().filter(|(_, draw)| is_included(draw)) {
            let Some(shard) = &locks[guard_of(key_hashes[index])] else { continue };
            let now = now(draw);
            let (key_hash, scope, on_failure) = (key_hashes[index], draw.scope(), draw.options().on_failure);
            // After a denial the remaining draws are only peeked at, so that the client learns of every limit that
            // denies it.
            draw.decide_with(|limit, op, permit| {
                let op = if is_denied { op.to_peek() } else { op };
                let target = DrawTarget { key_hash, scope, limit, on_failure };
                let (result, undo) = self.apply(shard, &target, op, permit, now);
                undos[index] = undo;
                result
            });
            is_denied |= draw.denies_request();
        }
        if is_denied {
            for (index, draw) in draws.iter().enumerate().rev().filter(|(_, draw)| is_included(draw)) {
                if let Some(shard) = &locks[guard_of(key_hashes[index])] {
                    self.undo(shard, key_hashes[index], draw, undos[index], now(draw));
                }
            }
            for (draw, key_hash) in draws.iter_mut().zip(key_hashes).filter(|(draw, _)| is_included(draw)) {
                if let (Some(shard), DrawOutcome::Granted(_) | DrawOutcome::WouldGrant) =
                    (&locks[guard_of(*key_hash)], draw.outcome())
                {
                    let now = now(draw);
                    let (scope, on_failure) = (draw.scope(), draw.options().on_failure);
                    draw.decide_with(|limit, op, permit| {
                        let target = DrawTarget { key_hash: *key_hash, scope, limit, on_failure };
                        self.apply(shard, &target, op.to_peek(), permit, now).0
                    });
                }
            }
        }
        !undos[..draws.len()].iter().any(|undo| matches!(undo, UndoStep::Uncounted))
    }

    /// Decides one draw.
    #[inline(always)]
    pub(super) fn apply(
        &self,
        shard: &ShardGuard<'_>,
        target: &DrawTarget<'_>,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        match op {
            Op::Take(amount) => self.take(shard, target, amount, permit, now),
            op => self.apply_other(shard, target, op, permit, now),
        }
    }

    /// Takes from one limit of one key: the hot path of every check, in the library and in the server.
    ///
    /// Nearly every take finds a state that its own limit wrote, without the lock. The shard is then locked only to write
    /// the result, if it is still unchanged. A client that is denied again changes nothing, so no cache line is written
    /// for it, not even the lock's. All other takes, and those that another thread interfered with, are decided under
    /// the lock.
    #[inline(always)]
    pub(super) fn take_one(
        &self,
        target: &DrawTarget<'_>,
        amount: Amount,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let shard = self.table.shard(self.table.shard_of(target.key_hash));
        if let Some(read) = shard.read(target.key_hash.fingerprint)
            && self.limit_table.holds(read.entry.limit_slot, target.limit)
            && shard.is_unchanged(&read)
        {
            let step = target.limit.step(Some(read.entry.state), now, amount);
            let after = entry_after(read.entry, &step);
            let is_settled =
                !step.needs_write && after == read.entry || shard.replace_unchanged(&read, after);
            if is_settled {
                let result = DrawResult::from_state(step.outcome(), now, step.state);
                return (result, UndoStep::Restore(read.entry));
            }
        }
        self.take_locked(shard, target, amount, permit, now)
    }

    #[inline(never)]
    fn take_locked(
        &self,
        shard: Shard<'_>,
        target: &DrawTarget<'_>,
        amount: Amount,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        self.take(&shard.lock(), target, amount, permit, now)
    }

    /// Takes as much of `amount` as the limit allows, in a locked shard.
    fn take(
        &self,
        shard: &ShardGuard<'_>,
        target: &DrawTarget<'_>,
        amount: Amount,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let position = shard.find(target.key_hash.fingerprint);
        if let SlotPosition::Found(slot) = position {
            let entry = shard.entry(slot);
            if self.limit_table.holds(entry.limit_slot, target.limit) {
                let step = target.limit.step(Some(entry.state), now, amount);
                shard.set_entry(slot, entry_after(entry, &step));
                return (DrawResult::from_state(step.outcome(), now, step.state), UndoStep::Restore(entry));
            }
        }
        self.take_uncommon(shard, position, target, amount, permit, now)
    }

    /// Takes from a key that is new, whose state another limit wrote, or that keeps a list.
    #[inline(never)]
    fn take_uncommon(
        &self,
        shard: &ShardGuard<'_>,
        position: SlotPosition,
        target: &DrawTarget<'_>,
        amount: Amount,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        if target.limit.uses_list_state() {
            return self.apply_to_list(shard, target, Op::Take(amount), permit, now);
        }
        let slot = match position {
            SlotPosition::Found(slot) => slot,
            SlotPosition::InsertAt(slot) => return self.take_new(shard, slot, target, amount, now),
        };
        let before = shard.entry(slot);
        match self.view_entry(shard, target, before, now) {
            EntryView::Writable(entry, state) => {
                let step = target.limit.step(state, now, amount);
                shard.set_entry(slot, entry_after(entry, &step));
                (DrawResult::from_state(step.outcome(), now, step.state), UndoStep::Restore(entry))
            }
            EntryView::ReadOnly(state) => self.take_from_sketch(target, state, amount, now),
        }
    }

    /// An entry as the target's limit sees it: unchanged, or adopted if another limit wrote it.
    ///
    /// The adopted state is stored even if the draw is denied; otherwise the old rate would apply for as long as the
    /// client keeps sending requests. The same holds for a state that was rebased because the clock was set back.
    fn view_entry(
        &self,
        shard: &ShardGuard<'_>,
        target: &DrawTarget<'_>,
        entry: TableEntry,
        now: Micros,
    ) -> EntryView {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        if self.limit_table.holds(entry.limit_slot, limit) {
            let state = rebased(limit, entry.state, now);
            return EntryView::Writable(TableEntry { state, ..entry }, Some(state));
        }
        let before = self.limit_table.limit(entry.limit_slot);
        let bound = shard.geometry.keys;
        match self.limit_table.intern(scope, limit, now) {
            Some(limit_slot) => {
                let state = before.and_then(|before| {
                    shard.lists().adopt(key_hash.fingerprint, limit, entry.state, &before, bound, now)
                });
                EntryView::Writable(
                    TableEntry { state: state.unwrap_or_default(), limit_slot, ..entry },
                    state,
                )
            }
            None => EntryView::ReadOnly(before.and_then(|before| {
                shard.lists().peek_adopted(key_hash.fingerprint, limit, entry.state, &before, now)
            })),
        }
    }

    /// Takes from a key that is not in the table: it is new, was moved to the sketch, or was evicted.
    #[inline(always)]
    fn take_new(
        &self,
        shard: &ShardGuard<'_>,
        slot: usize,
        target: &DrawTarget<'_>,
        amount: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        if let Some(prior) = take_prior(shard, target, now) {
            return self.take_with_prior(shard, slot, target, prior, amount, now);
        }
        let before = self.sketch.estimate(scope, limit, key_hash.fingerprint, now);
        let step = step_shared(limit, before, now, amount);
        if !step.needs_write {
            if before.is_some() {
                self.counters.count_sketch_decision(now);
            }
            return (DrawResult::from_state(step.outcome(), now, step.state), UndoStep::Nothing);
        }
        if self.insert_state(shard, slot, target, step.state, true, now) {
            (DrawResult::from_state(step.outcome(), now, step.state), UndoStep::Remove)
        } else {
            self.take_from_sketch(target, before, amount, now)
        }
    }

    /// Takes from a key for which this limit has a prior state, stored before other limits drew from the key. The key's
    /// entry in the table has drained, was moved, or was evicted.
    #[cold]
    fn take_with_prior(
        &self,
        shard: &ShardGuard<'_>,
        slot: usize,
        target: &DrawTarget<'_>,
        prior: State,
        amount: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        let estimate = self.sketch.estimate(scope, limit, key_hash.fingerprint, now);
        let before = estimate.map_or(prior, |estimate| limit.merge(prior, estimate, now));
        let step = match estimate {
            Some(_) => step_shared(limit, Some(before), now, amount),
            None => limit.step(Some(before), now, amount),
        };
        if estimate.is_some() && !step.needs_write {
            self.counters.count_sketch_decision(now);
        }
        // As with an adopted state, it is stored even if the draw is denied.
        let after = if step.needs_write { step.state } else { before };
        let is_kept = self.insert_state(shard, slot, target, after, true, now);
        match shard.find(key_hash.fingerprint) {
            SlotPosition::Found(slot) if is_kept => {
                let undo = UndoStep::Restore(TableEntry { state: before, ..shard.entry(slot) });
                (DrawResult::from_state(step.outcome(), now, step.state), undo)
            }
            SlotPosition::Found(_) | SlotPosition::InsertAt(_) => {
                let bound = shard.geometry.keys;
                shard.lists().restore_prior(key_hash.fingerprint, limit, prior, bound, now);
                self.take_from_sketch(target, Some(prior), amount, now)
            }
        }
    }

    /// Takes from the sketch, for a key that has no entry in the table. `known` is its state, if there is one.
    #[cold]
    pub(super) fn take_from_sketch(
        &self,
        target: &DrawTarget<'_>,
        known: Option<State>,
        amount: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        let estimate = self.sketch.estimate(scope, limit, key_hash.fingerprint, now);
        let before = merge_states(limit, known, estimate, now);
        let step = step_shared(limit, before, now, amount);
        if step.needs_write && !self.sketch.charge(scope, limit, key_hash.fingerprint, step.state, now) {
            return self.take_uncounted(target, amount, now);
        }
        self.counters.count_sketch_decision(now);
        (DrawResult::from_state(step.outcome(), now, step.state), UndoStep::Nothing)
    }

    /// Answers a draw that can't be counted by its failure mode.
    #[cold]
    pub(super) fn take_uncounted(
        &self,
        target: &DrawTarget<'_>,
        amount: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        self.counters.count_uncounted(now);
        let limit = target.limit;
        let (outcome, forecast) = match target.on_failure {
            FailureMode::Open => {
                let full = Forecast {
                    remaining: limit.capacity(),
                    reset: Span::ZERO,
                    delay: Span::ZERO,
                    retry: None,
                };
                (DrawOutcome::Granted(amount.at_least()), full)
            }
            // `Local` means that this node enforces the limit from memory, which is exhausted.
            FailureMode::Closed | FailureMode::Local => {
                let retry = Some(Retry::After(UNCOUNTED_RETRY_AFTER));
                (
                    DrawOutcome::Denied,
                    Forecast { remaining: 0, reset: UNCOUNTED_RETRY_AFTER, delay: Span::ZERO, retry },
                )
            }
        };
        (DrawResult::from_forecast(outcome, now, forecast), UndoStep::Uncounted)
    }

    /// Inserts the state of a key into the table. Returns `false` if there is no space for it. If `may_move`, another
    /// state may be moved to the sketch to make space.
    #[inline(always)]
    pub(super) fn insert_state(
        &self,
        shard: &ShardGuard<'_>,
        slot: usize,
        target: &DrawTarget<'_>,
        state: State,
        may_move: bool,
        now: Micros,
    ) -> bool {
        let fingerprint = target.key_hash.fingerprint;
        let Some(limit_slot) = self.limit_table.intern(target.scope, target.limit, now) else { return false };
        let entry = TableEntry { state, limit_slot, is_denied: false };
        if !shard.is_full() {
            return shard.insert(slot, fingerprint, entry);
        }
        let made = self.make_space(shard, limit_slot, may_move, now);
        match shard.find(fingerprint) {
            SlotPosition::InsertAt(slot) if made => shard.insert(slot, fingerprint, entry),
            SlotPosition::InsertAt(_) | SlotPosition::Found(_) => false,
        }
    }

    /// Applies an operation other than a take: peek, return or clear.
    #[cold]
    fn apply_other(
        &self,
        shard: &ShardGuard<'_>,
        target: &DrawTarget<'_>,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        if limit.uses_list_state() {
            return self.apply_to_list(shard, target, op, permit, now);
        }
        if op == Op::Reset {
            if let Some(mut lists) = shard.lists_if_any() {
                lists.clear_prior(key_hash.fingerprint);
            }
            if let SlotPosition::Found(slot) = shard.find(key_hash.fingerprint) {
                shard.remove(slot);
                return (self.peek(limit, None, Amount::ZERO, now), UndoStep::Nothing);
            }
        }
        let mut known = None;
        if let SlotPosition::InsertAt(slot) = shard.find(key_hash.fingerprint) {
            let prior = take_prior(shard, target, now);
            let estimate = self.sketch.estimate(scope, limit, key_hash.fingerprint, now);
            known = merge_states(limit, prior, estimate, now);
            if let (Some(prior), Some(known)) = (prior, known)
                && !self.insert_state(shard, slot, target, known, false, now)
            {
                let bound = shard.geometry.keys;
                shard.lists().restore_prior(key_hash.fingerprint, limit, prior, bound, now);
            }
        }
        let SlotPosition::Found(slot) = shard.find(key_hash.fingerprint) else {
            // Cells of the sketch are shared by several keys, so units are neither returned to them nor cleared. They
            // drain.
            let amount = if let Op::Peek(amount) = op { amount } else { Amount::ZERO };
            return (self.peek(limit, known, amount, now), UndoStep::Nothing);
        };
        let before = shard.entry(slot);
        let (entry, state) = match self.view_entry(shard, target, before, now) {
            EntryView::Writable(entry, state) => (entry, state),
            EntryView::ReadOnly(state) => {
                let amount = if let Op::Peek(amount) = op { amount } else { Amount::ZERO };
                return (self.peek(limit, state, amount, now), UndoStep::Nothing);
            }
        };
        if entry != before {
            shard.set_entry(slot, entry);
        }
        let state = match op {
            Op::Peek(amount) | Op::Take(amount) => {
                return (self.peek(limit, state, amount, now), UndoStep::Nothing);
            }
            Op::Reset => None,
            Op::Refund(units) => state.map(|state| limit.refund(state, now, units)),
        };
        if let Some(state) = state {
            shard.set_entry(slot, TableEntry { state, is_denied: false, ..entry });
        }
        (self.peek(limit, state, Amount::ZERO, now), UndoStep::Nothing)
    }

    /// The result of a peek at a state.
    pub(super) fn peek(
        &self,
        limit: &Limit,
        state: Option<State>,
        amount: Amount,
        now: Micros,
    ) -> DrawResult {
        let granted = limit.step(state, now, amount).granted;
        let state = limit.step(state, now, Amount::ZERO).state;
        DrawResult::from_state(granted.map_or(DrawOutcome::Denied, |_| DrawOutcome::WouldGrant), now, state)
    }

    /// Undoes a draw. State written by a limit that denied is kept.
    fn undo(&self, shard: &ShardGuard<'_>, key_hash: KeyHash, draw: &Draw, undo: UndoStep, now: Micros) {
        match (undo, shard.find(key_hash.fingerprint)) {
            (UndoStep::ReturnUnits(units), _) => {
                let (scope, on_failure) = (draw.scope(), draw.options().on_failure);
                let target = DrawTarget { key_hash, scope, limit: draw.limit(), on_failure };
                let _ = self.apply_to_list(shard, &target, Op::Refund(units), draw.permit(), now);
            }
            (UndoStep::Restore(entry), SlotPosition::Found(slot))
                if draw.outcome() != DrawOutcome::Denied =>
            {
                let state = rebased(draw.limit(), entry.state, now);
                shard.set_entry(slot, TableEntry { state, ..entry });
            }
            (UndoStep::Remove, SlotPosition::Found(slot)) => shard.remove(slot),
            (UndoStep::Nothing | UndoStep::Restore(_) | UndoStep::Remove | UndoStep::Uncounted, _) => {}
        }
    }
}

/// The entry after a step from `before`, as its limit sees it.
#[inline(always)]
fn entry_after(before: TableEntry, step: &Step) -> TableEntry {
    let state = if step.needs_write { step.state } else { before.state };
    TableEntry { state, is_denied: step.granted.is_none(), ..before }
}

/// Removes and returns the prior state of the target's limit for a key that has no entry in the table.
#[inline]
fn take_prior(shard: &ShardGuard<'_>, target: &DrawTarget<'_>, now: Micros) -> Option<State> {
    shard.lists_if_any()?.take_prior(target.key_hash.fingerprint, target.limit, now)
}

/// The state of an entry, rebased if the clock was set back.
fn rebased(limit: &Limit, state: State, now: Micros) -> State {
    let leased = LeasedState { state: Some(state), ..LeasedState::default() };
    limit.rebase(leased, now).and_then(|leased| leased.state).unwrap_or(state)
}

/// Merges two optional states: the result has used as much as both.
fn merge_states(limit: &Limit, one: Option<State>, other: Option<State>, now: Micros) -> Option<State> {
    match (one, other) {
        (Some(one), Some(other)) => Some(limit.merge(one, other, now)),
        (one, other) => one.or(other),
    }
}

/// Steps from a state of the sketch, to which other keys may have contributed.
#[inline(always)]
fn step_shared(limit: &Limit, before: Option<State>, now: Micros, amount: Amount) -> Step {
    let step = limit.step(before, now, amount);
    if before.is_some() && step.needs_write {
        Step { state: limit.extend_window(step.state, now), ..step }
    } else {
        step
    }
}

/// An entry as a limit sees it.
enum EntryView {
    /// The entry as the limit would have written it, and its state unless it has drained.
    Writable(TableEntry, Option<State>),
    /// Only the state: the limit has no limit slot to store an entry under.
    ReadOnly(Option<State>),
}
