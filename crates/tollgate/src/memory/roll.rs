//! Keys whose laws keep a roll: logs and permits.
//!
//! Their state has no fixed size, so it lives beside the slots in a map of the shard's own, under the same lock, with a
//! bound of its own: as many entries in a shard as it may have keys. At the bound drained rolls go first; a unit that
//! still does not fit is granted if its roll allows it, not remembered, and counted.

use super::MemoryStore;
use super::decide::Undo;
use super::table::Locked;
use super::tag::Tag;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::{
    Act, Answer, Ask, Clock, Former, Held, Limit, Micros, Outcome, PermitId, Roll, Span, State,
};

/// How often at most a shard's rolls are swept because they have reached their bound. A sweep takes some tens of
/// microseconds, and a flood must not buy one with every request.
const BETWEEN_SWEEPS: Span = Span::millis(10);

/// The rolls of a shard, by mark, each with the limit that wrote it.
#[derive(Debug, Default)]
pub(super) struct Rolls {
    by_mark: HashMap<u64, (Limit, Roll)>,
    /// What quotas before the current one have left of keys that are drawn from under several.
    former: HashMap<u64, Former>,
    /// Entries of all of them together.
    entries: usize,
    swept: Micros,
}

impl Rolls {
    /// How many there are, and how many entries they have.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.by_mark.len(), self.entries)
    }

    fn take(&mut self, mark: u64) -> Option<(Limit, Roll)> {
        let (limit, roll) = self.by_mark.remove(&mark)?;
        self.entries -= roll.entries();
        Some((limit, roll))
    }

    fn put(&mut self, mark: u64, limit: Limit, roll: Roll) {
        if roll.entries() > 0 {
            self.entries += roll.entries();
            self.by_mark.insert(mark, (limit, roll));
        }
    }

    /// Drops the rolls on which nothing is left, and memory that the others no longer need.
    pub(super) fn sweep(&mut self, now: Micros) {
        self.by_mark.retain(|_, (limit, roll)| {
            let is_live = !limit.drain_roll(roll, now);
            roll.shrink();
            is_live
        });
        self.entries = self.by_mark.values().map(|(_, roll)| roll.entries()).sum();
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
        let held = Held { state: Some(state), ..Held::default() };
        let held = limit.take_over(held, before, &mut former, now);
        if self.former.len() >= bound && now.since(self.swept) >= BETWEEN_SWEEPS {
            self.sweep(now);
        }
        if !former.is_empty() && self.former.len() < bound {
            self.former.insert(mark, former);
        }
        held.state
    }

    /// What `limit` left of a key that has drained under the quota that was drawn from since.
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

    /// Forgets what other quotas have left of a key.
    pub(super) fn clear_former(&mut self, mark: u64) {
        self.former.remove(&mark);
    }

    /// Whether one more entry fits within `bound`, perhaps after a sweep.
    fn has_room(&mut self, bound: usize, now: Micros) -> bool {
        if self.entries >= bound && now.since(self.swept) >= BETWEEN_SWEEPS {
            self.sweep(now);
        }
        self.entries < bound
    }
}

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
        let bound = shard.geometry.keys;
        let rolls = &mut shard.shard.rolls;
        let (written_under, mut roll) = rolls.take(tag.mark).unwrap_or_else(|| (*limit, limit.new_roll()));
        limit.take_over_roll(&mut roll, &written_under, now);
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
                // Without its newest unit it may be earlier again.
                limit.drain_roll(&mut roll, now);
                limit.look_roll(&roll, now, Ask::PEEK)
            }
            Act::Clear => {
                roll = limit.new_roll();
                limit.look_roll(&roll, now, Ask::PEEK)
            }
        };
        if let (Undo::GiveBack(units), false) =
            (undo, rolls.has_room(bound - roll.entries().min(bound) + 1, now))
        {
            limit.give_roll(&mut roll, units, permit);
            self.tally.unremembered.fetch_add(1, Relaxed);
            undo = Undo::Nothing;
        }
        rolls.put(tag.mark, *limit, roll);
        (outcome, undo)
    }
}
