//! Deciding draws under the lock.

use super::MemoryStore;
use super::entry::Entry;
use super::shard::Place;
use super::table::Locked;
use super::tag::Tag;
use ratekeeper_core::{
    Act, Answer, Ask, Clock, Draw, FailureMode, Held, Limit, MAX_DRAWS, Micros, Outcome, Outlook, PermitId,
    Retry, Scope, Span, State, Step,
};

/// When a request should come back that was denied because there was no room to count it. Nobody can tell when there
/// will be.
const NO_ROOM_WAIT: Span = Span::SECOND;

/// What a draw is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) tag: Tag,
    pub(super) scope: Scope,
    pub(super) limit: &'a Limit,
    /// What to answer if there is no room to count it.
    pub(super) on_failure: FailureMode,
}

/// How to take a draw back if another limit of the same request refuses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// It took nothing; or it was counted in the sketch, out of which nothing is taken.
    Nothing,
    Remove,
    Restore(Entry),
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
        tags: &[Tag],
        now: impl Fn(&Draw) -> Micros,
        has_a_say: impl Fn(&Draw) -> bool,
    ) -> bool {
        let mut order = [usize::MAX; MAX_DRAWS];
        for (shard, tag) in order.iter_mut().zip(tags) {
            *shard = self.table.shard_of(*tag);
        }
        order[..draws.len()].sort_unstable();
        let mut locks: [Option<Locked<'_>>; MAX_DRAWS] = [const { None }; MAX_DRAWS];
        let mut locked = 0;
        for index in 0..draws.len() {
            if index == 0 || order[index] != order[index - 1] {
                order[locked] = order[index];
                locks[locked] = Some(self.table.lock(order[index]));
                locked += 1;
            }
        }
        let lock_of = |tag: Tag| {
            order[..locked].iter().position(|shard| *shard == self.table.shard_of(tag)).unwrap_or(0)
        };

        let mut undos = [Undo::Nothing; MAX_DRAWS];
        let mut refused = false;
        for (index, draw) in draws.iter_mut().enumerate().filter(|(_, draw)| has_a_say(draw)) {
            let Some(shard) = &mut locks[lock_of(tags[index])] else { continue };
            let now = now(draw);
            let (tag, scope, on_failure) = (tags[index], draw.scope(), draw.terms().on_failure);
            // After a refusal the others are only looked at: the client learns all that stands in its way.
            draw.settle(|limit, act, permit| {
                let act = if refused { act.look() } else { act };
                let subject = Subject { tag, scope, limit, on_failure };
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
                if let (Some(shard), Answer::Granted(_) | Answer::Spared) =
                    (&mut locks[lock_of(*tag)], draw.answer())
                {
                    let now = now(draw);
                    let (scope, on_failure) = (draw.scope(), draw.terms().on_failure);
                    draw.settle(|limit, act, permit| {
                        let subject = Subject { tag: *tag, scope, limit, on_failure };
                        self.act(shard, &subject, act.look(), permit, now).0
                    });
                }
            }
        }
        !undos[..draws.len()].iter().any(|undo| matches!(undo, Undo::NotCounted))
    }

    /// Decides one draw.
    pub(super) fn act(
        &self,
        shard: &mut Locked<'_>,
        subject: &Subject<'_>,
        act: Act,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        match act {
            act if subject.limit.keeps_roll() => self.act_on_roll(shard, subject, act, permit, now),
            Act::Take(ask) => self.take(shard, subject, ask, now),
            act => self.act_aside(shard, subject, act, now),
        }
    }

    /// Takes as much as the limit allows.
    fn take(&self, shard: &mut Locked<'_>, subject: &Subject<'_>, ask: Ask, now: Micros) -> (Outcome, Undo) {
        let limit = subject.limit;
        match shard.find(subject.tag.mark) {
            Place::Here(slot) => {
                let entry = shard.entry(slot);
                let (entry, state) = match self.seen_by(shard, subject, entry, now) {
                    Seen::Kept(entry, state) => (entry, state),
                    Seen::NoPage(state) => return self.take_in_sketch(subject, state, ask, now),
                };
                let step = limit.step(state, now, ask);
                let after = if step.changed { step.state } else { entry.state };
                shard.set(slot, Entry { state: after, refused: step.granted.is_none(), ..entry });
                (Outcome::of_state(step.answer(), now, step.state), Undo::Restore(entry))
            }
            Place::Before(slot) => self.take_first(shard, slot, subject, ask, now),
        }
    }

    /// Takes under a key that this very limit has written before; nothing if it has not.
    #[inline(always)]
    pub(super) fn take_again(
        &self,
        shard: &Locked<'_>,
        tag: Tag,
        limit: &Limit,
        ask: Ask,
        now: Micros,
    ) -> Option<Outcome> {
        let Place::Here(slot) = shard.find(tag.mark) else { return None };
        let entry = shard.entry(slot);
        if !self.book.holds(entry.page, limit) {
            return None;
        }
        let step = limit.step(Some(entry.state), now, ask);
        let refused = step.granted.is_none();
        // Where nothing changes, nothing is written: the cache line of a key that is hammered stays clean.
        if step.changed {
            shard.set(slot, Entry { state: step.state, refused, ..entry });
        } else if refused != entry.refused {
            shard.set(slot, Entry { refused, ..entry });
        }
        Some(Outcome::of_state(step.answer(), now, step.state))
    }

    /// An entry as the subject's limit sees it: as it is, or adopted if another limit wrote it.
    ///
    /// What was adopted is kept even if the draw is refused: else the old rate would go on for as long as somebody
    /// hammers. So is what counts from now on because the clock was set back.
    fn seen_by(&self, shard: &mut Locked<'_>, subject: &Subject<'_>, entry: Entry, now: Micros) -> Seen {
        let Subject { tag, scope, limit, .. } = *subject;
        if self.book.holds(entry.page, limit) {
            let held = Held { state: Some(entry.state), ..Held::default() };
            let state = limit.rebase(held, now).and_then(|held| held.state).unwrap_or(entry.state);
            return Seen::Kept(Entry { state, ..entry }, Some(state));
        }
        let before = self.book.limit(entry.page);
        let bound = shard.geometry.keys;
        let rolls = &mut shard.shard.rolls;
        match self.book.intern(scope, limit, now) {
            Some(page) => {
                let state = before
                    .and_then(|before| rolls.take_over(tag.mark, limit, entry.state, &before, bound, now));
                Seen::Kept(Entry { state: state.unwrap_or_default(), page, ..entry }, state)
            }
            None => Seen::NoPage(
                before.and_then(|before| rolls.look_over(tag.mark, limit, entry.state, &before, now)),
            ),
        }
    }

    /// Takes under a key that was never seen, or moved to the sketch, or forgotten.
    fn take_first(
        &self,
        shard: &mut Locked<'_>,
        slot: usize,
        subject: &Subject<'_>,
        ask: Ask,
        now: Micros,
    ) -> (Outcome, Undo) {
        let Subject { tag, scope, limit, .. } = *subject;
        if let Some(left) = shard.shard.rolls.resume(tag.mark, limit, now) {
            return self.take_resumed(shard, slot, subject, left, ask, now);
        }
        let before = self.sketch.estimate(scope, limit, tag.mark, now);
        let step = step_shared(limit, before, now, ask);
        if !step.changed {
            if before.is_some() {
                self.tally.count_sketched(now);
            }
            return (Outcome::of_state(step.answer(), now, step.state), Undo::Nothing);
        }
        match self.remember(shard, slot, subject, step.state, true, now) {
            true => (Outcome::of_state(step.answer(), now, step.state), Undo::Remove),
            false => self.take_in_sketch(subject, before, ask, now),
        }
    }

    /// Takes under a key of which this limit `left` a state before others drew from it, and whose last state has drained,
    /// moved or was forgotten.
    #[cold]
    fn take_resumed(
        &self,
        shard: &mut Locked<'_>,
        slot: usize,
        subject: &Subject<'_>,
        left: State,
        ask: Ask,
        now: Micros,
    ) -> (Outcome, Undo) {
        let Subject { tag, scope, limit, .. } = *subject;
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
            Place::Here(slot) if is_kept => {
                let undo = Undo::Restore(Entry { state: before, ..shard.entry(slot) });
                (Outcome::of_state(step.answer(), now, step.state), undo)
            }
            Place::Here(_) | Place::Before(_) => {
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
        subject: &Subject<'_>,
        known: Option<State>,
        ask: Ask,
        now: Micros,
    ) -> (Outcome, Undo) {
        let Subject { tag, scope, limit, .. } = *subject;
        let counted = self.sketch.estimate(scope, limit, tag.mark, now);
        let before = merged(limit, known, counted, now);
        let step = step_shared(limit, before, now, ask);
        if step.changed && !self.sketch.charge(scope, limit, tag.mark, step.state, now) {
            return self.take_uncounted(subject, ask, now);
        }
        self.tally.count_sketched(now);
        (Outcome::of_state(step.answer(), now, step.state), Undo::Nothing)
    }

    /// Answers a draw that can't be counted, as its terms say.
    #[cold]
    pub(super) fn take_uncounted(&self, subject: &Subject<'_>, ask: Ask, now: Micros) -> (Outcome, Undo) {
        self.tally.count_unremembered(now);
        let limit = subject.limit;
        let (answer, outlook) = match subject.on_failure {
            FailureMode::Open => {
                let full = Outlook {
                    remaining: limit.capacity(),
                    reset: Span::ZERO,
                    delay: Span::ZERO,
                    retry: None,
                };
                (Answer::Granted(ask.at_least()), full)
            }
            // Local means that this node enforces the limit from memory, and it has none left.
            FailureMode::Closed | FailureMode::Local => {
                let retry = Some(Retry::After(NO_ROOM_WAIT));
                (Answer::Refused, Outlook { remaining: 0, reset: NO_ROOM_WAIT, delay: Span::ZERO, retry })
            }
        };
        (Outcome::of_outlook(answer, now, outlook), Undo::NotCounted)
    }

    /// Puts the state of a key into the table; says whether there is room. If `may_move`, another state may be moved to the
    /// sketch for it.
    pub(super) fn remember(
        &self,
        shard: &mut Locked<'_>,
        slot: usize,
        subject: &Subject<'_>,
        state: State,
        may_move: bool,
        now: Micros,
    ) -> bool {
        let mark = subject.tag.mark;
        let Some(page) = self.book.intern(subject.scope, subject.limit, now) else { return false };
        let entry = Entry { state, page, refused: false };
        if !shard.is_full() {
            return shard.insert(slot, mark, entry);
        }
        let made = self.make_room(shard, page, may_move, now);
        match shard.find(mark) {
            Place::Before(slot) if made => shard.insert(slot, mark, entry),
            Place::Before(_) | Place::Here(_) => false,
        }
    }

    /// Looks, gives back or clears: everything but taking.
    #[cold]
    fn act_aside(
        &self,
        shard: &mut Locked<'_>,
        subject: &Subject<'_>,
        act: Act,
        now: Micros,
    ) -> (Outcome, Undo) {
        let Subject { tag, scope, limit, .. } = *subject;
        if act == Act::Clear {
            shard.shard.rolls.clear_former(tag.mark);
            if let Place::Here(slot) = shard.find(tag.mark) {
                shard.remove(slot);
                return (self.looked(limit, None, Ask::PEEK, now), Undo::Nothing);
            }
        }
        let mut known = None;
        if let Place::Before(slot) = shard.find(tag.mark) {
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
        let Place::Here(slot) = shard.find(tag.mark) else {
            // Nothing is given back to cells that others share, or cleared in them: they drain.
            let ask = if let Act::Look(ask) = act { ask } else { Ask::PEEK };
            return (self.looked(limit, known, ask, now), Undo::Nothing);
        };
        let before = shard.entry(slot);
        let (entry, state) = match self.seen_by(shard, subject, before, now) {
            Seen::Kept(entry, state) => (entry, state),
            Seen::NoPage(state) => {
                let ask = if let Act::Look(ask) = act { ask } else { Ask::PEEK };
                return (self.looked(limit, state, ask, now), Undo::Nothing);
            }
        };
        if entry != before {
            shard.set(slot, entry);
        }
        let state = match act {
            Act::Look(ask) | Act::Take(ask) => return (self.looked(limit, state, ask, now), Undo::Nothing),
            Act::Clear => None,
            Act::Give(units) => state.map(|state| limit.give(state, now, units)),
        };
        if let Some(state) = state {
            shard.set(slot, Entry { state, refused: false, ..entry });
        }
        (self.looked(limit, state, Ask::PEEK, now), Undo::Nothing)
    }

    pub(super) fn looked(&self, limit: &Limit, state: Option<State>, ask: Ask, now: Micros) -> Outcome {
        let granted = limit.step(state, now, ask).granted;
        let state = limit.step(state, now, Ask::PEEK).state;
        Outcome::of_state(granted.map_or(Answer::Refused, |_| Answer::Spared), now, state)
    }

    /// Takes a draw back. What a limit that refused has noted stays.
    fn undo(&self, shard: &mut Locked<'_>, tag: Tag, draw: &Draw, undo: Undo, now: Micros) {
        match (undo, shard.find(tag.mark)) {
            (Undo::GiveBack(units), _) => {
                let (scope, on_failure) = (draw.scope(), draw.terms().on_failure);
                let subject = Subject { tag, scope, limit: draw.limit(), on_failure };
                let _ = self.act_on_roll(shard, &subject, Act::Give(units), draw.permit(), now);
            }
            (Undo::Restore(entry), Place::Here(slot)) if draw.answer() != Answer::Refused => {
                shard.set(slot, entry);
            }
            (Undo::Remove, Place::Here(slot)) => shard.remove(slot),
            (Undo::Nothing | Undo::Restore(_) | Undo::Remove | Undo::NotCounted, _) => {}
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
fn step_shared(limit: &Limit, before: Option<State>, now: Micros, ask: Ask) -> Step {
    let step = limit.step(before, now, ask);
    match before.is_some() && step.changed {
        true => Step { state: limit.prolong(step.state, now), ..step },
        false => step,
    }
}

/// An entry as a limit sees it.
enum Seen {
    /// As the limit would have written it, and its state if it has not drained.
    Kept(Entry, Option<State>),
    /// Only its state, since the limit has no page to keep it under.
    NoPage(Option<State>),
}
