//! Making room: what has drained goes first, and who is being refused never goes.

use super::MemoryStore;
use super::entry::Entry;
use super::table::Locked;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::{Clock, Micros};

/// How many entries are looked at for one to drop at the cap.
const LOOKED_AT: usize = 8;
/// How many are looked at if none of them may be dropped. More would let a flood hold the lock.
const PASSED: usize = 64;

impl<C: Clock> MemoryStore<C> {
    /// Makes room for one more entry; says whether there is.
    #[cold]
    pub(super) fn make_room(&self, shard: &mut Locked<'_>, now: Micros) -> bool {
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
        shard.shard.rolls.sweep(now);
    }

    fn is_drained(&self, entry: &Entry, now: Micros) -> bool {
        self.book.limit(entry.page).is_none_or(|limit| limit.is_drained(entry.state, now))
    }
}
