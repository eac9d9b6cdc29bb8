//! Deciding draws under the lock.

use super::MemoryStore;
use super::entry::TableEntry;
use super::key_hash::KeyHash;
use super::shard::SlotPosition;
use super::table::ShardGuard;
use ratekeeper_core::{
    Amount, Clock, Draw, DrawOutcome, DrawResult, FailureMode, Forecast, LeasedState, Limit, MAX_DRAWS,
    Micros, Op, PermitId, Retry, Scope, Span, State, Step,
};

/// When a request should come back that was denied because there was no room to count it. Nobody can tell when there
/// will be.
const NO_ROOM_WAIT: Span = Span::SECOND;

/// What a draw is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawTarget<'a> {
    pub(super) tag: KeyHash,
    pub(super) scope: Scope,
    pub(super) limit: &'a Limit,
    /// What to answer if there is no room to count it.
    pub(super) on_failure: FailureMode,
}

/// How to take a draw back if another limit of the same request refuses.
#[derive(Clone, Copy, Debug)]
pub(super) enum UndoStep {
    /// It took nothing; or it was counted in the sketch, out of which nothing is taken.
    Nothing,
    Remove,
    Restore(TableEntry),
    GiveBack(u32),
    /// It could not be counted at all.
    NotCounted,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a request's draws all or nothing.
    ///
    /// Only those have a say, and are decided at all, that `has_a_say` picks. Returns `false` if one of them could not be counted.
    pub(super) fn act_together(
        &self,
        draws: &mut [Draw],
        tags: &[KeyHash],
        now: impl Fn(&Draw) -> Micros,
        has_a_say: impl Fn(&Draw) -> bool,
    ) -> bool {
        let mut order = [usize::MAX; MAX_DRAWS];
        for (shard, tag) in order.iter_mut().zip(tags) {
            *shard = self.table.shard_of(*tag);
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
        let lock_of = |tag: KeyHash| {
            order[..locked].iter().position(|shard| *shard == self.table.shard_of(tag)).unwrap_or(0)
        };

        let mut undos = [UndoStep::Nothing; MAX_DRAWS];
        let mut refused = false;
        for (index, draw) in draws.iter_mut().enumerate().filter(|(_, draw)| has_a_say(draw)) {
            let Some(shard) = &mut locks[lock_of(tags[index])] else { continue };
            let now = now(draw);
            let (tag, scope, on_failure) = (tags[index], draw.scope(), draw.terms().on_failure);
            // After a refusal the others are only looked at: the client learns all that stands in its way.
            draw.settle(|limit, act, permit| {
                let act = if refused { act.look() } else { act };
                let subject = DrawTarget { tag, scope, limit, on_failure };
                let (outcome, undo) = self.act(shard, &subject, act, permit, now);
                undos[index] = undo;
                outcome
            });
            refused |= draw.stops();
        }
        if refused {
            for (index, draw) in draws.iter().enumerate().rev().filter(|(_, draw)| has_a_say(draw)) {
                if let Some(shard) = &mut locks[lock_of(tags[index])] {
                    self.undo(shard, tags[index], draw, undos[index], now(draw));
                }
            }
            for (draw, tag) in draws.iter_mut().zip(tags).filter(|(draw, _)| has_a_say(draw)) {
                if let (Some(shard), DrawOutcome::Granted(_) | DrawOutcome::Spared) =
                    (&mut locks[lock_of(*tag)], draw.answer())
                {
                    let now = now(draw);
                    let (scope, on_failure) = (draw.scope(), draw.terms().on_failure);
                    draw.settle(|limit, act, permit| {
                        let subject = DrawTarget { tag: *tag, scope, limit, on_failure };
                        self.act(shard, &subject, act.look(), permit, now).0
                    });
                }
            }
        }
        !undos[..draws.len()].iter().any(|undo| matches!(undo, UndoStep::NotCounted))
    }

    /// Decides one draw.
    pub(super) fn act(
        &self,
        shard: &mut ShardGuard<'_>,
        subject: &DrawTarget<'_>,
        act: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        match act {
            act if subject.limit.keeps_roll() => self.act_on_roll(shard, subject, act, permit, now),
            Op::Take(ask) => self.take(shard, subject, ask, now),
            act => self.act_aside(shard, subject, act, now),
        }
    }

    /// Takes as much as the limit allows.
    fn take(
        &self,
        shard: &mut ShardGuard<'_>,
        subject: &DrawTarget<'_>,
        ask: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let limit = subject.limit;
        match shard.find(subject.tag.mark) {
            SlotPosition::Here(slot) => {
                let entry = shard.entry(slot);
                let (entry, state) = match self.seen_by(shard, subject, entry, now) {
                    SeenEntry::Kept(entry, state) => (entry, state),
                    SeenEntry::NoPage(state) => return self.take_in_sketch(subject, state, ask, now),
                };
                let step = limit.step(state, now, ask);
                let after = if step.changed { step.state } else { entry.state };
                shard.set(slot, TableEntry { state: after, refused: step.granted.is_none(), ..entry });
                (DrawResult::of_state(step.answer(), now, step.state), UndoStep::Restore(entry))
            }
            SlotPosition::Before(slot) => self.take_first(shard, slot, subject, ask, now),
        }
    }

    /// Takes under a key that this very limit has written before; nothing if it has not.
    #[inline(always)]
    pub(super) fn take_again(
        &self,
        shard: &ShardGuard<'_>,
        tag: KeyHash,
        limit: &Limit,
        ask: Amount,
        now: Micros,
    ) -> Option<DrawResult> {
        let SlotPosition::Here(slot) = shard.find(tag.mark) else { return None };
        let entry = shard.entry(slot);
        if !self.book.holds(entry.page, limit) {
            return None;
        }
        let step = limit.step(Some(entry.state), now, ask);
        let refused = step.granted.is_none();
        // Where nothing changes, nothing is written: the cache line of a key that is hammered stays clean.
        if step.changed {
            shard.set(slot, TableEntry { state: step.state, refused, ..entry });
        } else if refused != entry.refused {
            shard.set(slot, TableEntry { refused, ..entry });
        }
        Some(DrawResult::of_state(step.answer(), now, step.state))
    }

    /// An entry as the subject's limit sees it: as it is, or adopted if another limit wrote it.
    ///
    /// What was adopted is kept even if the draw is refused: else the old rate would go on for as long as somebody
    /// hammers. So is what counts from now on because the clock was set back.
    fn seen_by(
        &self,
        shard: &mut ShardGuard<'_>,
        subject: &DrawTarget<'_>,
        entry: TableEntry,
        now: Micros,
    ) -> SeenEntry {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        if self.book.holds(entry.page, limit) {
            let held = LeasedState { state: Some(entry.state), ..LeasedState::default() };
            let state = limit.rebase(held, now).and_then(|held| held.state).unwrap_or(entry.state);
            return SeenEntry::Kept(TableEntry { state, ..entry }, Some(state));
        }
        let before = self.book.limit(entry.page);
        let bound = shard.geometry.keys;
        let rolls = &mut shard.shard.rolls;
        match self.book.intern(scope, limit, now) {
            Some(page) => {
                let state = before
                    .and_then(|before| rolls.take_over(tag.mark, limit, entry.state, &before, bound, now));
                SeenEntry::Kept(TableEntry { state: state.unwrap_or_default(), page, ..entry }, state)
            }
            None => SeenEntry::NoPage(
                before.and_then(|before| rolls.look_over(tag.mark, limit, entry.state, &before, now)),
            ),
        }
    }

    /// Takes under a key that was never seen, or moved to the sketch, or forgotten.
    fn take_first(
        &self,
        shard: &mut ShardGuard<'_>,
        slot: usize,
        subject: &DrawTarget<'_>,
        ask: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        if let Some(left) = shard.shard.rolls.resume(tag.mark, limit, now) {
            return self.take_resumed(shard, slot, subject, left, ask, now);
        }
        let before = self.sketch.estimate(scope, limit, tag.mark, now);
        let step = step_shared(limit, before, now, ask);
        if !step.changed {
            if before.is_some() {
                self.tally.count_sketched(now);
            }
            return (DrawResult::of_state(step.answer(), now, step.state), UndoStep::Nothing);
        }
        match self.remember(shard, slot, subject, step.state, true, now) {
            true => (DrawResult::of_state(step.answer(), now, step.state), UndoStep::Remove),
            false => self.take_in_sketch(subject, before, ask, now),
        }
    }

    /// Takes under a key of which this limit `left` a state before others drew from it, and whose last state has drained,
    /// moved or was forgotten.
    #[cold]
    fn take_resumed(
        &self,
        shard: &mut ShardGuard<'_>,
        slot: usize,
        subject: &DrawTarget<'_>,
        left: State,
        ask: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        let counted = self.sketch.estimate(scope, limit, tag.mark, now);
        let before = counted.map_or(left, |counted| limit.merge(left, counted, now));
        let step = match counted {
            Some(_) => step_shared(limit, Some(before), now, ask),
            None => limit.step(Some(before), now, ask),
        };
        if counted.is_some() && !step.changed {
            self.tally.count_sketched(now);
        }
        // As when it is adopted, it is kept even if the draw is refused.
        let after = if step.changed { step.state } else { before };
        let is_kept = self.remember(shard, slot, subject, after, true, now);
        match shard.find(tag.mark) {
            SlotPosition::Here(slot) if is_kept => {
                let undo = UndoStep::Restore(TableEntry { state: before, ..shard.entry(slot) });
                (DrawResult::of_state(step.answer(), now, step.state), undo)
            }
            SlotPosition::Here(_) | SlotPosition::Before(_) => {
                let bound = shard.geometry.keys;
                shard.shard.rolls.leave(tag.mark, limit, left, bound, now);
                self.take_in_sketch(subject, Some(left), ask, now)
            }
        }
    }

    /// Takes under a key for which the table has no room, and of which `known` is known.
    #[cold]
    pub(super) fn take_in_sketch(
        &self,
        subject: &DrawTarget<'_>,
        known: Option<State>,
        ask: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        let counted = self.sketch.estimate(scope, limit, tag.mark, now);
        let before = merged(limit, known, counted, now);
        let step = step_shared(limit, before, now, ask);
        if step.changed && !self.sketch.charge(scope, limit, tag.mark, step.state, now) {
            return self.take_uncounted(subject, ask, now);
        }
        self.tally.count_sketched(now);
        (DrawResult::of_state(step.answer(), now, step.state), UndoStep::Nothing)
    }

    /// Answers a draw that can't be counted, as its terms say.
    #[cold]
    pub(super) fn take_uncounted(
        &self,
        subject: &DrawTarget<'_>,
        ask: Amount,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        self.tally.count_unremembered(now);
        let limit = subject.limit;
        let (answer, outlook) = match subject.on_failure {
            FailureMode::Open => {
                let full = Forecast {
                    remaining: limit.capacity(),
                    reset: Span::ZERO,
                    delay: Span::ZERO,
                    retry: None,
                };
                (DrawOutcome::Granted(ask.at_least()), full)
            }
            // Local means that this node enforces the limit from memory, and it has none left.
            FailureMode::Closed | FailureMode::Local => {
                let retry = Some(Retry::After(NO_ROOM_WAIT));
                (
                    DrawOutcome::Refused,
                    Forecast { remaining: 0, reset: NO_ROOM_WAIT, delay: Span::ZERO, retry },
                )
            }
        };
        (DrawResult::of_outlook(answer, now, outlook), UndoStep::NotCounted)
    }

    /// Puts the state of a key into the table; says whether there is room. If `may_move`, another state may be moved to the
    /// sketch for it.
    pub(super) fn remember(
        &self,
        shard: &mut ShardGuard<'_>,
        slot: usize,
        subject: &DrawTarget<'_>,
        state: State,
        may_move: bool,
        now: Micros,
    ) -> bool {
        let mark = subject.tag.mark;
        let Some(page) = self.book.intern(subject.scope, subject.limit, now) else { return false };
        let entry = TableEntry { state, page, refused: false };
        if !shard.is_full() {
            return shard.insert(slot, mark, entry);
        }
        let made = self.make_room(shard, page, may_move, now);
        match shard.find(mark) {
            SlotPosition::Before(slot) if made => shard.insert(slot, mark, entry),
            SlotPosition::Before(_) | SlotPosition::Here(_) => false,
        }
    }

    /// Looks, gives back or clears: everything but taking.
    #[cold]
    fn act_aside(
        &self,
        shard: &mut ShardGuard<'_>,
        subject: &DrawTarget<'_>,
        act: Op,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { tag, scope, limit, .. } = *subject;
        if act == Op::Clear {
            shard.shard.rolls.clear_former(tag.mark);
            if let SlotPosition::Here(slot) = shard.find(tag.mark) {
                shard.remove(slot);
                return (self.looked(limit, None, Amount::PEEK, now), UndoStep::Nothing);
            }
        }
        let mut known = None;
        if let SlotPosition::Before(slot) = shard.find(tag.mark) {
            let left = shard.shard.rolls.resume(tag.mark, limit, now);
            let counted = self.sketch.estimate(scope, limit, tag.mark, now);
            known = merged(limit, left, counted, now);
            if let (Some(left), Some(known)) = (left, known)
                && !self.remember(shard, slot, subject, known, false, now)
            {
                let bound = shard.geometry.keys;
                shard.shard.rolls.leave(tag.mark, limit, left, bound, now);
            }
        }
        let SlotPosition::Here(slot) = shard.find(tag.mark) else {
            // Nothing is given back to cells that others share, or cleared in them: they drain.
            let ask = if let Op::Look(ask) = act { ask } else { Amount::PEEK };
            return (self.looked(limit, known, ask, now), UndoStep::Nothing);
        };
        let before = shard.entry(slot);
        let (entry, state) = match self.seen_by(shard, subject, before, now) {
            SeenEntry::Kept(entry, state) => (entry, state),
            SeenEntry::NoPage(state) => {
                let ask = if let Op::Look(ask) = act { ask } else { Amount::PEEK };
                return (self.looked(limit, state, ask, now), UndoStep::Nothing);
            }
        };
        if entry != before {
            shard.set(slot, entry);
        }
        let state = match act {
            Op::Look(ask) | Op::Take(ask) => return (self.looked(limit, state, ask, now), UndoStep::Nothing),
            Op::Clear => None,
            Op::Give(units) => state.map(|state| limit.give(state, now, units)),
        };
        if let Some(state) = state {
            shard.set(slot, TableEntry { state, refused: false, ..entry });
        }
        (self.looked(limit, state, Amount::PEEK, now), UndoStep::Nothing)
    }

    pub(super) fn looked(&self, limit: &Limit, state: Option<State>, ask: Amount, now: Micros) -> DrawResult {
        let granted = limit.step(state, now, ask).granted;
        let state = limit.step(state, now, Amount::PEEK).state;
        DrawResult::of_state(granted.map_or(DrawOutcome::Refused, |_| DrawOutcome::Spared), now, state)
    }

    /// Takes a draw back. What a limit that refused has noted stays.
    fn undo(&self, shard: &mut ShardGuard<'_>, tag: KeyHash, draw: &Draw, undo: UndoStep, now: Micros) {
        match (undo, shard.find(tag.mark)) {
            (UndoStep::GiveBack(units), _) => {
                let (scope, on_failure) = (draw.scope(), draw.terms().on_failure);
                let subject = DrawTarget { tag, scope, limit: draw.limit(), on_failure };
                let _ = self.act_on_roll(shard, &subject, Op::Give(units), draw.permit(), now);
            }
            (UndoStep::Restore(entry), SlotPosition::Here(slot)) if draw.answer() != DrawOutcome::Refused => {
                shard.set(slot, entry);
            }
            (UndoStep::Remove, SlotPosition::Here(slot)) => shard.remove(slot),
            (UndoStep::Nothing | UndoStep::Restore(_) | UndoStep::Remove | UndoStep::NotCounted, _) => {}
        }
    }
}

/// The state in which as much is used as in both.
fn merged(limit: &Limit, one: Option<State>, other: Option<State>, now: Micros) -> Option<State> {
    match (one, other) {
        (Some(one), Some(other)) => Some(limit.merge(one, other, now)),
        (one, other) => one.or(other),
    }
}

/// A step from a state that other keys may have had a part in.
fn step_shared(limit: &Limit, before: Option<State>, now: Micros, ask: Amount) -> Step {
    let step = limit.step(before, now, ask);
    match before.is_some() && step.changed {
        true => Step { state: limit.prolong(step.state, now), ..step },
        false => step,
    }
}

/// An entry as a limit sees it.
enum SeenEntry {
    /// As the limit would have written it, and its state if it has not drained.
    Kept(TableEntry, Option<State>),
    /// Only its state, since the limit has no page to keep it under.
    NoPage(Option<State>),
}
