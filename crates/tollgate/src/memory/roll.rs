//! Keys whose laws keep a roll: logs and permits.
//!
//! Their state has no fixed size, so it lives beside the slots in a map of the shard's own, under the same lock. All
//! rolls together have a bound of their own; a unit that does not fit is granted if the roll allows it, not remembered,
//! and counted.

use super::MemoryStore;
use super::decide::Undo;
use super::table::Locked;
use super::tag::Tag;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::{Act, Answer, Ask, Clock, Limit, Micros, Outcome, PermitId};

impl<C: Clock> MemoryStore<C> {
    /// Decides a draw of a law that keeps a roll.
    #[cold]
    pub(super) fn act_on_roll(
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

    /// Drops the rolls of a shard on which nothing is left.
    pub(super) fn sweep_rolls(&self, shard: &mut Locked<'_>, now: Micros) {
        shard.shard.rolls.retain(|_, (limit, roll)| {
            let before = roll.entries();
            let drained = limit.drain_roll(roll, now);
            self.count_entries(before, roll.entries());
            !drained
        });
    }
}
