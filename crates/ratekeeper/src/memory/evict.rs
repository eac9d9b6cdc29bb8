//! Making room: drained states go first, and every scope is sure of a share.
//!
//! At the cap, a newcomer takes the place of a state that says little: one that has used less than half of its limit and is not being
//! denied. That one is forgotten. If there is none, the newcomer takes the place of another state, which is moved to the
//! [sketch](super::sketch); or it is counted there itself.
//!
//! Whose place it may take is decided by a sample of the shard's entries, which are in the order of random marks. A newcomer of a scope
//! may take the place of a state of another scope only if that scope has more entries in the sample, and among limits of one scope
//! likewise. So a flood on one rule never drives out the states of a rule that has fewer, and those always get room.

use super::MemoryStore;
use super::entry::TableEntry;
use super::limit_table::LastLimit;
use super::table::ShardGuard;
use ratekeeper_core::{Clock, Micros, Scope};
use std::sync::atomic::Ordering::Relaxed;

/// How many entries are sampled for one to drop at the cap.
const LOOKED_AT: usize = 8;
/// How many are sampled if none of them may be dropped. More would let a flood hold the lock.
const PASSED: usize = 64;
/// From how much of its limit on, in thousandths, a state is not forgotten at the cap.
const HEAVY: u32 = 500;

/// An entry that was looked at.
#[derive(Clone, Copy, Debug, Default)]
struct SampledEntry {
    slot: usize,
    page: u32,
    /// How much of its limit is used, in thousandths.
    used: u32,
    refused: bool,
}

impl SampledEntry {
    fn is_light(&self) -> bool {
        !self.refused && self.used < HEAVY
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Makes room for one more entry of this page; says whether there is. If `may_move`, a state may be moved to the sketch for it.
    #[cold]
    pub(super) fn make_room(
        &self,
        shard: &mut ShardGuard<'_>,
        page: u32,
        may_move: bool,
        now: Micros,
    ) -> bool {
        if shard.is_at_cap() {
            return self.drop_one(shard, page, may_move, now);
        }
        let keys = shard.shard.keys;
        let mut limits = LastLimit::new(&self.book);
        let live = (0..shard.reach())
            .filter(|slot| shard.mark(*slot) != 0 && !is_drained(&mut limits, &shard.entry(*slot), now))
            .count();
        // If a quarter goes, that is room enough; else the shard is spread over a quarter more slots.
        let spread = match live * 4 <= keys * 3 {
            true => shard.shard.spread.max(16),
            false => shard.shard.spread * 5 / 4 + 16,
        };
        shard.spread(spread.min(shard.geometry.homes), |entry| !is_drained(&mut limits, entry, now));
        !shard.is_full()
    }

    /// At the cap: drops a drained entry, or one that may go for an entry of this page, of the next few.
    fn drop_one(&self, shard: &mut ShardGuard<'_>, page: u32, may_move: bool, now: Micros) -> bool {
        let reach = shard.reach();
        let mut limits = LastLimit::new(&self.book);
        let (mut sample, mut count) = ([SampledEntry::default(); PASSED], 0);
        for _ in 0..reach {
            let slot = shard.shard.hand % reach;
            shard.shard.hand = slot + 1;
            if shard.mark(slot) == 0 {
                continue;
            }
            let entry = shard.entry(slot);
            let used = limits.get(entry.page).map_or(0, |limit| limit.fill(entry.state, now));
            if used == 0 {
                shard.remove(slot);
                return true;
            }
            sample[count] = SampledEntry { slot, page: entry.page, used, refused: entry.refused };
            count += 1;
            if count == LOOKED_AT
                && let Some(light) = self.lightest(&sample[..count], page)
            {
                return self.forget(shard, light);
            }
            if count == PASSED {
                break;
            }
        }
        let sample = &sample[..count];
        if let Some(light) = self.lightest(sample, page) {
            return self.forget(shard, light);
        }
        may_move && self.heaviest(sample, page).is_some_and(|slot| self.move_to_sketch(shard, slot, now))
    }

    /// The state that has used the least, of those that may be forgotten for an entry of this page.
    fn lightest(&self, sample: &[SampledEntry], page: u32) -> Option<usize> {
        let light = sample.iter().filter(|one| one.is_light());
        let own = light.clone().filter(|one| one.page == page).min_by_key(|one| one.used);
        // Where all entries are of one limit there is nothing to count.
        if let Some(own) = own
            && sample.iter().all(|one| one.page == page)
        {
            return Some(own.slot);
        }
        let ranks = SampleCounts::of(self, sample, page);
        let others = light.filter(|one| one.page == page || ranks.outranks(one.page));
        others.min_by_key(|one| one.used).map(|one| one.slot)
    }

    /// A state that may be moved for an entry of this page: of the limit that has the most.
    fn heaviest(&self, sample: &[SampledEntry], page: u32) -> Option<usize> {
        let ranks = SampleCounts::of(self, sample, page);
        let others = sample.iter().filter(|one| one.page != page && ranks.outranks(one.page));
        others.min_by_key(|one| (one.refused, one.used)).map(|one| one.slot)
    }

    fn forget(&self, shard: &mut ShardGuard<'_>, slot: usize) -> bool {
        shard.remove(slot);
        self.tally.evicted.fetch_add(1, Relaxed);
        true
    }

    /// Moves a state to the sketch; says whether there is room for it.
    fn move_to_sketch(&self, shard: &mut ShardGuard<'_>, slot: usize, now: Micros) -> bool {
        let (mark, entry) = (shard.mark(slot), shard.entry(slot));
        let Some(limit) = self.book.limit(entry.page) else { return false };
        let is_moved = self.sketch.charge(self.book.scope(entry.page), &limit, mark, entry.state, now);
        if is_moved {
            shard.remove(slot);
            self.tally.moved.fetch_add(1, Relaxed);
        }
        is_moved
    }

    /// Drops every drained entry of a shard, and those of limits that are retired. Marks the limits of all others.
    pub(super) fn sweep_shard(&self, shard: &mut ShardGuard<'_>, now: Micros) {
        let mut limits = LastLimit::new(&self.book);
        let mut retired = 0;
        let mut keep = |entry: &TableEntry| {
            let Some(limit) = limits.get(entry.page) else { return false };
            if limit.is_drained(entry.state, now) {
                return false;
            }
            let is_kept = self.book.mark_entry(entry.page, limit, entry.state);
            retired += u64::from(!is_kept);
            is_kept
        };
        if (0..shard.reach()).any(|slot| shard.mark(slot) != 0 && !keep(&shard.entry(slot))) {
            shard.spread(shard.shard.spread, &mut keep);
        }
        self.tally.retired.fetch_add(retired, Relaxed);
        shard.shard.rolls.sweep(now);
    }
}

fn is_drained(limits: &mut LastLimit<'_>, entry: &TableEntry, now: Micros) -> bool {
    limits.get(entry.page).is_none_or(|limit| limit.is_drained(entry.state, now))
}

/// How many entries of a sample are of each limit, and of each scope.
struct SampleCounts {
    pages: [(u32, Scope, usize); PASSED],
    count: usize,
    /// Those of the newcomer's limit and scope.
    scope: Scope,
    of_page: usize,
    of_scope: usize,
}

impl SampleCounts {
    fn of<C: Clock>(store: &MemoryStore<C>, sample: &[SampledEntry], page: u32) -> SampleCounts {
        let scope = store.book.scope(page);
        let mut ranks =
            SampleCounts { pages: [(0, Scope(0), 0); PASSED], count: 0, scope, of_page: 0, of_scope: 0 };
        for one in sample {
            match ranks.pages[..ranks.count].iter_mut().find(|(page, ..)| *page == one.page) {
                Some((.., entries)) => *entries += 1,
                None => {
                    ranks.pages[ranks.count] = (one.page, store.book.scope(one.page), 1);
                    ranks.count += 1;
                }
            }
        }
        let known = &ranks.pages[..ranks.count];
        ranks.of_page = known.iter().filter(|(of, ..)| *of == page).map(|(.., entries)| entries).sum();
        ranks.of_scope = ranks.entries_of(scope);
        ranks
    }

    fn entries_of(&self, scope: Scope) -> usize {
        self.pages[..self.count].iter().filter(|(_, of, _)| *of == scope).map(|(.., entries)| entries).sum()
    }

    /// Whether a page has more entries than the newcomer's: of another scope, by what the scopes have.
    fn outranks(&self, page: u32) -> bool {
        let found = self.pages[..self.count].iter().find(|(of, ..)| *of == page);
        found.is_some_and(|(_, scope, entries)| match *scope == self.scope {
            true => *entries > self.of_page,
            false => self.entries_of(*scope) > self.of_scope,
        })
    }
}
