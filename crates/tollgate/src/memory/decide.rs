//! Deciding draws under the lock.

use super::MemoryStore;
use super::entry::Entry;
use super::shard::Place;
use super::table::Locked;
use super::tag::Tag;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::{
    Act, Answer, Ask, Clock, Draw, Held, Limit, MAX_DRAWS, Micros, Outcome, PermitId, State,
};

/// How to take a draw back if another limit of the same request refuses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    Nothing,
    Remove,
    Restore(Entry),
    GiveBack(u32),
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a request's draws all or nothing.
    ///
    /// Only those have a say, and are decided at all, that `has_a_say` picks.
    pub(super) fn act_together(
        &self,
        draws: &mut [Draw],
        tags: &[Tag],
        now: impl Fn(&Draw) -> Micros,
        has_a_say: impl Fn(&Draw) -> bool,
    ) {
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
            // After a refusal the others are only looked at: the client learns all that stands in its way.
            draw.settle(|limit, act, permit| {
                let act = if refused { act.look() } else { act };
                let (outcome, undo) = self.act(shard, tags[index], limit, act, permit, now);
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
                    draw.settle(|limit, act, permit| self.act(shard, *tag, limit, act.look(), permit, now).0);
                }
            }
        }
    }

    /// Decides one draw.
    pub(super) fn act(
        &self,
        shard: &mut Locked<'_>,
        tag: Tag,
        limit: &Limit,
        act: Act,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        match act {
            Act::Take(ask) => self.take(shard, tag, limit, ask, permit, now),
            act if limit.keeps_roll() => self.act_on_roll(shard, tag, limit, act, permit, now),
            act => self.act_aside(shard, tag, limit, act, now),
        }
    }

    /// Takes as much as the limit allows.
    fn take(
        &self,
        shard: &mut Locked<'_>,
        tag: Tag,
        limit: &Limit,
        ask: Ask,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        if limit.keeps_roll() {
            return self.act_on_roll(shard, tag, limit, Act::Take(ask), permit, now);
        }
        match shard.find(tag.mark) {
            Place::Here(slot) => {
                let Some((entry, state)) = self.seen_by(shard, tag, limit, shard.entry(slot), now) else {
                    return self.take_unremembered(limit, ask, now);
                };
                let step = limit.step(state, now, ask);
                let after = if step.changed { step.state } else { entry.state };
                shard.set(slot, Entry { state: after, refused: step.granted.is_none(), ..entry });
                (Outcome::of_state(step.answer(), now, step.state), Undo::Restore(entry))
            }
            Place::Before(slot) => self.take_first(shard, slot, tag, limit, ask, now),
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
        if self.book.limit(entry.page) != Some(limit) {
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

    /// An entry as `limit` sees it: as it is, or adopted if another limit wrote it. Nothing if the limit can't be
    /// written into the book any more, so that nothing can be kept under it.
    ///
    /// What was adopted is kept even if the draw is refused: else the old rate would go on for as long as somebody
    /// hammers. So is what counts from now on because the clock was set back.
    fn seen_by(
        &self,
        shard: &mut Locked<'_>,
        tag: Tag,
        limit: &Limit,
        entry: Entry,
        now: Micros,
    ) -> Option<(Entry, Option<State>)> {
        let before = self.book.limit(entry.page);
        if before == Some(limit) {
            let held = Held { state: Some(entry.state), ..Held::default() };
            let state = limit.rebase(held, now).and_then(|held| held.state).unwrap_or(entry.state);
            return Some((Entry { state, ..entry }, Some(state)));
        }
        let page = self.book.page(limit)?;
        let bound = shard.geometry.keys;
        let state = before
            .and_then(|before| shard.shard.rolls.take_over(tag.mark, limit, entry.state, before, bound, now));
        Some((Entry { state: state.unwrap_or_default(), page, ..entry }, state))
    }

    /// Takes under a key for which nothing can be kept.
    #[cold]
    fn take_unremembered(&self, limit: &Limit, ask: Ask, now: Micros) -> (Outcome, Undo) {
        let step = limit.step(None, now, ask);
        self.tally.unremembered.fetch_add(u64::from(step.changed), Relaxed);
        (Outcome::of_state(step.answer(), now, step.state), Undo::Nothing)
    }

    /// Takes under a key that was never seen, or forgotten.
    fn take_first(
        &self,
        shard: &mut Locked<'_>,
        slot: usize,
        tag: Tag,
        limit: &Limit,
        ask: Ask,
        now: Micros,
    ) -> (Outcome, Undo) {
        let left = shard.shard.rolls.resume(tag.mark, limit, now);
        let step = limit.step(left, now, ask);
        if !step.changed && left.is_none() {
            return (Outcome::of_state(step.answer(), now, step.state), Undo::Nothing);
        }
        let undo = match (left, self.book.page(limit)) {
            (Some(state), Some(page)) => Undo::Restore(Entry { state, page, refused: false }),
            _ => Undo::Remove,
        };
        match self.remember(shard, slot, tag, limit, step.state, now) {
            true => (Outcome::of_state(step.answer(), now, step.state), undo),
            false => self.take_unremembered(limit, ask, now),
        }
    }

    pub(super) fn remember(
        &self,
        shard: &mut Locked<'_>,
        slot: usize,
        tag: Tag,
        limit: &Limit,
        state: State,
        now: Micros,
    ) -> bool {
        let Some(page) = self.book.page(limit) else { return false };
        let entry = Entry { state, page, refused: false };
        if !shard.is_full() {
            return shard.insert(slot, tag.mark, entry);
        }
        let made = self.make_room(shard, now);
        match shard.find(tag.mark) {
            Place::Before(slot) if made => shard.insert(slot, tag.mark, entry),
            Place::Before(_) | Place::Here(_) => false,
        }
    }

    /// Looks, gives back or clears: everything but taking.
    #[cold]
    fn act_aside(
        &self,
        shard: &mut Locked<'_>,
        tag: Tag,
        limit: &Limit,
        act: Act,
        now: Micros,
    ) -> (Outcome, Undo) {
        if act == Act::Clear {
            shard.shard.rolls.clear_former(tag.mark);
            if let Place::Here(slot) = shard.find(tag.mark) {
                shard.remove(slot);
            }
            return (self.looked(limit, None, Ask::PEEK, now), Undo::Nothing);
        }
        if let Place::Before(slot) = shard.find(tag.mark)
            && let Some(left) = shard.shard.rolls.resume(tag.mark, limit, now)
        {
            self.remember(shard, slot, tag, limit, left, now);
        }
        let Place::Here(slot) = shard.find(tag.mark) else {
            let ask = if let Act::Look(ask) = act { ask } else { Ask::PEEK };
            return (self.looked(limit, None, ask, now), Undo::Nothing);
        };
        let before = shard.entry(slot);
        let (entry, state) = self.seen_by(shard, tag, limit, before, now).unwrap_or((before, None));
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
                let _ = self.act_on_roll(shard, tag, draw.limit(), Act::Give(units), draw.permit(), now);
            }
            (Undo::Restore(entry), Place::Here(slot)) if draw.answer() != Answer::Refused => {
                shard.set(slot, entry);
            }
            (Undo::Remove, Place::Here(slot)) => shard.remove(slot),
            (Undo::Nothing | Undo::Restore(_) | Undo::Remove, _) => {}
        }
    }
}
