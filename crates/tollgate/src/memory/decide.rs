//! Deciding draws under the lock, and making room for what they leave behind.

use super::MemoryStore;
use super::entry::Entry;
use super::shard::Place;
use super::table::Locked;
use super::tag::Tag;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::{Act, Answer, Ask, Clock, Draw, Limit, MAX_DRAWS, Micros, Outcome, PermitId, State};

/// How many entries are looked at for one to drop at the cap.
const LOOKED_AT: usize = 8;
/// How many are looked at if none of them may be dropped. More would let a flood hold the lock.
const PASSED: usize = 64;

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
    pub(super) fn act_together(&self, draws: &mut [Draw], tags: &[Tag], now: Micros) {
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
        for (index, draw) in draws.iter_mut().enumerate() {
            let Some(shard) = &mut locks[lock_of(tags[index])] else { continue };
            // After a refusal the others are only looked at: the client learns all that stands in its way.
            draw.settle(|limit, act, permit| {
                let act = if refused { act.look() } else { act };
                let (outcome, undo) = self.act(shard, tags[index], limit, act, permit, now);
                undos[index] = undo;
                outcome
            });
            refused |= draw.answer() == Answer::Refused;
        }
        if refused {
            for (index, draw) in draws.iter().enumerate().rev() {
                if let Some(shard) = &mut locks[lock_of(tags[index])] {
                    self.undo(shard, tags[index], draw, undos[index], now);
                }
            }
            for (draw, tag) in draws.iter_mut().zip(tags) {
                if let (Some(shard), Answer::Granted(_) | Answer::Spared) =
                    (&mut locks[lock_of(*tag)], draw.answer())
                {
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
            act => self.act_aside(shard, shard.find(tag.mark), limit, act, now),
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
                let before = shard.entry(slot);
                let (entry, state) = self.seen_by(limit, before, now);
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

    /// An entry as `limit` sees it: as it is, or adopted if another limit wrote it.
    fn seen_by(&self, limit: &Limit, before: Entry, now: Micros) -> (Entry, Option<State>) {
        match self.book.limit(before.page) == Some(limit) {
            true => (before, Some(before.state)),
            false => self.adopted(before, limit, now),
        }
    }

    /// The entry as `limit` sees it, after another limit wrote it. It is kept even if the draw is refused: else the
    /// old rate would go on for as long as somebody hammers.
    #[cold]
    fn adopted(&self, before: Entry, limit: &Limit, now: Micros) -> (Entry, Option<State>) {
        let state = self.book.limit(before.page).and_then(|old| limit.adopt(before.state, old, now));
        let Some(page) = self.book.page(limit) else { return (before, state) };
        (Entry { state: state.unwrap_or_default(), page, ..before }, state)
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
        let step = limit.step(None, now, ask);
        let mut undo = Undo::Nothing;
        if step.changed {
            match self.remember(shard, slot, tag, limit, step.state, now) {
                true => undo = Undo::Remove,
                false => {
                    self.tally.unremembered.fetch_add(1, Relaxed);
                }
            }
        }
        (Outcome::of_state(step.answer(), now, step.state), undo)
    }

    fn remember(
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
        place: Place,
        limit: &Limit,
        act: Act,
        now: Micros,
    ) -> (Outcome, Undo) {
        let Place::Here(slot) = place else {
            let ask = if let Act::Look(ask) = act { ask } else { Ask::PEEK };
            return (self.looked(limit, None, ask, now), Undo::Nothing);
        };
        let before = shard.entry(slot);
        let (entry, state) = self.seen_by(limit, before, now);
        if entry != before {
            shard.set(slot, entry);
        }
        let state = match act {
            Act::Look(ask) | Act::Take(ask) => return (self.looked(limit, state, ask, now), Undo::Nothing),
            Act::Clear => {
                shard.remove(slot);
                None
            }
            Act::Give(units) => state.map(|state| limit.give(state, now, units)),
        };
        if let Some(state) = state {
            shard.set(slot, Entry { state, refused: false, ..entry });
        }
        (self.looked(limit, state, Ask::PEEK, now), Undo::Nothing)
    }

    fn looked(&self, limit: &Limit, state: Option<State>, ask: Ask, now: Micros) -> Outcome {
        let granted = limit.step(state, now, ask).granted;
        let state = limit.step(state, now, Ask::PEEK).state;
        Outcome::of_state(granted.map_or(Answer::Refused, |_| Answer::Spared), now, state)
    }

    /// Decides a draw of a law that keeps a roll.
    #[cold]
    fn act_on_roll(
        &self,
        shard: &mut Locked<'_>,
        tag: Tag,
        limit: &Limit,
        act: Act,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        let (written_under, mut roll) = match shard.shard.rolls.remove(&tag.mark) {
            Some(kept) => kept,
            None => (*limit, limit.new_roll()),
        };
        let before = roll.entries();
        written_under.drain_roll(&mut roll, now);
        limit.drain_roll(&mut roll, now);
        let mut undo = Undo::Nothing;
        let outcome = match act {
            Act::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = Undo::GiveBack(units);
                }
                limit.read_roll(&roll, now, ask, granted.map_or(Answer::Refused, Answer::Granted))
            }
            Act::Look(ask) => limit.look_roll(&roll, now, ask),
            Act::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                limit.look_roll(&roll, now, Ask::PEEK)
            }
            Act::Clear => {
                roll = limit.new_roll();
                limit.look_roll(&roll, now, Ask::PEEK)
            }
        };
        if let (Undo::GiveBack(units), false) = (undo, self.has_room_for_entries()) {
            limit.give_roll(&mut roll, units, permit);
            self.tally.unremembered.fetch_add(1, Relaxed);
            undo = Undo::Nothing;
        }
        self.count_entries(before, roll.entries());
        if roll.entries() > 0 {
            shard.shard.rolls.insert(tag.mark, (*limit, roll));
        }
        (outcome, undo)
    }

    fn has_room_for_entries(&self) -> bool {
        self.tally.roll_entries.load(Relaxed) < self.max_roll_entries()
    }

    fn count_entries(&self, before: usize, after: usize) {
        if after >= before {
            self.tally.roll_entries.fetch_add(after - before, Relaxed);
        } else {
            self.tally.roll_entries.fetch_sub(before - after, Relaxed);
        }
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

    /// Makes room for one more entry; says whether there is.
    #[cold]
    fn make_room(&self, shard: &mut Locked<'_>, now: Micros) -> bool {
        if shard.is_at_cap() {
            return self.drop_one(shard, now);
        }
        let keys = shard.shard.keys;
        let live = (0..shard.reach())
            .filter(|slot| shard.mark(*slot) != 0 && !self.is_drained(&shard.entry(*slot), now))
            .count();
        // If a quarter goes, that is room enough; else the shard is spread over a quarter more slots.
        let spread = match live * 4 <= keys * 3 {
            true => shard.shard.spread.max(16),
            false => shard.shard.spread * 5 / 4 + 16,
        };
        shard.spread(spread.min(shard.geometry.homes), |entry| !self.is_drained(entry, now));
        !shard.is_full()
    }

    /// At the cap: drops a drained entry, or the one that has used the least, of the next few.
    fn drop_one(&self, shard: &mut Locked<'_>, now: Micros) -> bool {
        let reach = shard.reach();
        let (mut least, mut looked_at) = (None, 0);
        for _ in 0..reach {
            let slot = shard.shard.hand % reach;
            shard.shard.hand = slot + 1;
            if shard.mark(slot) == 0 {
                continue;
            }
            let entry = shard.entry(slot);
            let used = self.book.limit(entry.page).map_or(0, |limit| limit.fill(entry.state, now));
            if used == 0 {
                shard.remove(slot);
                return true;
            }
            if !entry.refused && least.is_none_or(|(least, _)| used < least) {
                least = Some((used, slot));
            }
            looked_at += 1;
            if looked_at >= if least.is_some() { LOOKED_AT } else { PASSED } {
                break;
            }
        }
        let Some((_, slot)) = least else { return false };
        shard.remove(slot);
        self.tally.evicted.fetch_add(1, Relaxed);
        true
    }

    /// Drops every drained entry of a shard.
    pub(super) fn sweep_shard(&self, shard: &mut Locked<'_>, now: Micros) {
        let drained = |slot: usize| shard.mark(slot) != 0 && self.is_drained(&shard.entry(slot), now);
        if (0..shard.reach()).any(drained) {
            shard.spread(shard.shard.spread, |entry| !self.is_drained(entry, now));
        }
        self.sweep_rolls(shard, now);
    }

    fn sweep_rolls(&self, shard: &mut Locked<'_>, now: Micros) {
        shard.shard.rolls.retain(|_, (limit, roll)| {
            let before = roll.entries();
            let drained = limit.drain_roll(roll, now);
            self.count_entries(before, roll.entries());
            !drained
        });
    }

    fn is_drained(&self, entry: &Entry, now: Micros) -> bool {
        self.book.limit(entry.page).is_none_or(|limit| limit.is_drained(entry.state, now))
    }
}
