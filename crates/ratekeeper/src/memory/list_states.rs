//! Keys whose laws keep a roll: logs and permits.
//!
//! Their state has no fixed size, so it lives beside the slots in a map of the shard's own, under the same lock, with a
//! bound of its own: as many entries in a shard as it may have keys. The last eighth of it is for scopes that have few.
//!
//! At the bound drained rolls go first. If that is not enough, the newest unit of a log that is known takes the entry of the one
//! before it, which then counts as long as the new one. A log that is not known is held to a [stand-in](stand_in) that is
//! counted in the [sketch](super::sketch). A permit can be neither merged nor counted roughly: its draw is answered as its
//! terms say for a store that fails.

use super::MemoryStore;
use super::decide::{DrawTarget, UndoStep};
use super::table::ShardGuard;
use ratekeeper_core::{
    Algorithm, Amount, Clock, DrawOutcome, DrawResult, LeasedState, Limit, LimitStatus, ListState, Micros,
    Op, PermitId, PriorStates, Quota, Scope, Span, State,
};
use std::collections::HashMap;

/// How often at most a shard's rolls are swept because they have reached their bound. A sweep takes some tens of
/// microseconds, and a flood must not buy one with every request.
const BETWEEN_SWEEPS: Span = Span::millis(10);

/// The rolls of a shard, by mark.
#[derive(Debug, Default)]
pub(super) struct ListStates {
    by_mark: HashMap<u64, StoredList>,
    /// What quotas before the current one have left of keys that are drawn from under several.
    former: HashMap<u64, PriorStates>,
    /// Entries of all of them together.
    entries: usize,
    /// Entries of each scope.
    scopes: HashMap<Scope, usize>,
    swept: Micros,
}

/// A roll, and the limit that wrote it.
#[derive(Debug)]
struct StoredList {
    scope: Scope,
    limit: Limit,
    roll: ListState,
}

impl ListStates {
    /// How many there are, and how many entries they have.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.by_mark.len(), self.entries)
    }

    fn take(&mut self, mark: u64) -> Option<(Limit, ListState)> {
        let StoredList { scope, limit, roll } = self.by_mark.remove(&mark)?;
        self.entries -= roll.entries();
        if let Some(entries) = self.scopes.get_mut(&scope) {
            *entries -= roll.entries();
        }
        Some((limit, roll))
    }

    fn put(&mut self, mark: u64, scope: Scope, limit: Limit, roll: ListState) {
        if roll.entries() > 0 {
            self.entries += roll.entries();
            *self.scopes.entry(scope).or_default() += roll.entries();
            self.by_mark.insert(mark, StoredList { scope, limit, roll });
        }
    }

    /// Drops the rolls on which nothing is left, and memory that the others no longer need.
    pub(super) fn sweep(&mut self, now: Micros) {
        self.by_mark.retain(|_, kept| {
            let is_live = !kept.limit.drain_roll(&mut kept.roll, now);
            kept.roll.shrink();
            is_live
        });
        self.scopes.clear();
        for kept in self.by_mark.values() {
            *self.scopes.entry(kept.scope).or_default() += kept.roll.entries();
        }
        self.entries = self.scopes.values().sum();
        self.former.retain(|_, former| former.until(now) > now);
        self.swept = now;
    }

    /// The state that `before` wrote, under `limit`. What `before` leaves is kept beside it until it has drained, for at most
    /// as many keys as the shard may have.
    #[cold]
    pub(super) fn take_over(
        &mut self,
        mark: u64,
        limit: &Limit,
        state: State,
        before: &Limit,
        bound: usize,
        now: Micros,
    ) -> Option<State> {
        let mut former = self.former.remove(&mark).unwrap_or_default();
        let held = LeasedState { state: Some(state), ..LeasedState::default() };
        let held = limit.take_over(held, before, &mut former, now);
        self.put_former(mark, former, bound, now);
        held.state
    }

    /// The state that `before` wrote, under a `limit` that can keep none: what each quota has left stays as it is.
    #[cold]
    pub(super) fn look_over(
        &self,
        mark: u64,
        limit: &Limit,
        state: State,
        before: &Limit,
        now: Micros,
    ) -> Option<State> {
        let mut former = self.former.get(&mark).cloned().unwrap_or_default();
        let held = LeasedState { state: Some(state), ..LeasedState::default() };
        limit.take_over(held, before, &mut former, now).state
    }

    /// Takes out what `limit` left of a key that has no state in the table.
    #[inline]
    pub(super) fn resume(&mut self, mark: u64, limit: &Limit, now: Micros) -> Option<State> {
        if self.former.is_empty() {
            return None;
        }
        let former = self.former.get_mut(&mark)?;
        let held = former.take(limit, now);
        if former.is_empty() {
            self.former.remove(&mark);
        }
        held?.state
    }

    /// Puts back what `limit` left of a key, if the table has no room for it.
    #[cold]
    pub(super) fn leave(&mut self, mark: u64, limit: &Limit, left: State, bound: usize, now: Micros) {
        let mut former = self.former.remove(&mark).unwrap_or_default();
        former.push(*limit, LeasedState { state: Some(left), ..LeasedState::default() }, now);
        self.put_former(mark, former, bound, now);
    }

    fn put_former(&mut self, mark: u64, former: PriorStates, bound: usize, now: Micros) {
        if self.former.len() >= bound && now.since(self.swept) >= BETWEEN_SWEEPS {
            self.sweep(now);
        }
        if !former.is_empty() && self.former.len() < bound {
            self.former.insert(mark, former);
        }
    }

    /// Forgets what other quotas have left of a key.
    pub(super) fn clear_former(&mut self, mark: u64) {
        self.former.remove(&mark);
    }

    /// Whether a roll of so many entries fits within `bound`, perhaps after a sweep.
    fn has_room(&mut self, entries: usize, scope: Scope, bound: usize, now: Micros) -> bool {
        if !self.fits(entries, scope, bound) && now.since(self.swept) >= BETWEEN_SWEEPS {
            self.sweep(now);
        }
        self.fits(entries, scope, bound)
    }

    fn fits(&self, entries: usize, scope: Scope, bound: usize) -> bool {
        let of_scope = self.scopes.get(&scope).copied().unwrap_or(0);
        let is_small = of_scope + entries <= bound / 16;
        let reserved = if is_small { 0 } else { bound / 8 };
        self.entries + entries <= bound - reserved
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a draw of a law that keeps a roll.
    #[cold]
    pub(super) fn act_on_roll(
        &self,
        shard: &mut ShardGuard<'_>,
        subject: &DrawTarget<'_>,
        act: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        let bound = shard.geometry.keys;
        let rolls = &mut shard.shard.rolls;
        let (written_under, mut roll) = rolls.take(tag.mark).unwrap_or_else(|| (*limit, limit.new_roll()));
        limit.take_over_roll(&mut roll, &written_under, now);
        limit.drain_roll(&mut roll, now);
        let before = roll.entries();
        if before == 0
            && let Some(held) = self.act_on_stand_in(subject, act, false, now)
        {
            return held;
        }
        let mut undo = UndoStep::Nothing;
        let outcome = match act {
            Op::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = UndoStep::GiveBack(units);
                }
                limit.read_roll(&roll, now, ask, granted.map_or(DrawOutcome::Refused, DrawOutcome::Granted))
            }
            Op::Look(ask) => limit.look_roll(&roll, now, ask),
            Op::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                // Without its newest unit it may be earlier again.
                limit.drain_roll(&mut roll, now);
                limit.look_roll(&roll, now, Amount::PEEK)
            }
            Op::Clear => {
                roll = limit.new_roll();
                limit.look_roll(&roll, now, Amount::PEEK)
            }
        };
        if let (UndoStep::GiveBack(units), Op::Take(ask)) = (undo, act)
            && roll.entries() > before
            && !rolls.has_room(roll.entries(), scope, bound, now)
            && !join_newest(&mut roll)
        {
            limit.give_roll(&mut roll, units, permit);
            rolls.put(tag.mark, scope, *limit, roll);
            let held = self.act_on_stand_in(subject, act, true, now);
            return held.unwrap_or_else(|| self.take_uncounted(subject, ask, now));
        }
        rolls.put(tag.mark, scope, *limit, roll);
        (outcome, undo)
    }

    /// Decides a draw by the stand-in of its limit: if it must, or if the key is counted under it already.
    fn act_on_stand_in(
        &self,
        subject: &DrawTarget<'_>,
        act: Op,
        must: bool,
        now: Micros,
    ) -> Option<(DrawResult, UndoStep)> {
        let (Op::Take(ask) | Op::Look(ask)) = act else { return None };
        if !must && self.sketch.count() == 0 {
            return None;
        }
        let limit = stand_in(subject.limit)?;
        let state = self.sketch.estimate(subject.scope, &limit, subject.tag.mark, now);
        if !must && state.is_none() {
            return None;
        }
        let (outcome, undo) = match act {
            Op::Take(_) => self.take_in_sketch(&DrawTarget { limit: &limit, ..*subject }, None, ask, now),
            _ => (self.looked(&limit, state, ask, now), UndoStep::Nothing),
        };
        // The draw's own limit can't read the state of another.
        let outlook = LimitStatus::new(&limit, ask, outcome).outlook();
        Some((DrawResult::of_outlook(outcome.answer(), now, outlook), undo))
    }
}

/// [Joins](ratekeeper_core::Log::join_newest) the newest runs of a log; `false` if there are none, or it is none.
fn join_newest(roll: &mut ListState) -> bool {
    match roll {
        ListState::Log(log) => log.join_newest(),
        ListState::Holders(_) => false,
    }
}

/// A bucket that never grants more than a sliding log does: all units but one at once, and then one in each period. In any
/// stretch of a period that is the log's amount. It has not drained before the last unit is a period old, so a key that
/// goes back to a log of its own begins with an empty one. Returns `None` for a concurrency limit, and for a log whose
/// stand-in would take too long to drain.
fn stand_in(limit: &Limit) -> Option<Limit> {
    let Algorithm::SlidingWindowLog(_) = limit.law() else { return None };
    let burst = (limit.capacity() - 1).max(1);
    let quota = Quota::new(1, limit.quota().per()).ok()?.with_burst(burst).ok()?;
    Limit::new(Algorithm::TokenBucket, quota).ok()
}
