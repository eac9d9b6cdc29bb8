//! Eviction: drained states go first, and every scope is guaranteed a share.
//!
//! At capacity, a new entry replaces a state of little value: one that has used less than half of its limit and is not
//! being denied. That state is evicted. If there is none, the new entry replaces another state, which is moved to the
//! [sketch](super::sketch), or the new key is counted in the sketch itself.
//!
//! The victim is chosen from a sample of the shard's entries, which are ordered by random fingerprints. An entry may
//! replace a state of another scope only if that scope has more entries in the sample; the same holds among limits of
//! one scope. So a flood on one rule never evicts the states of a rule that has fewer, and that rule can always add
//! entries.

use super::MemoryStore;
use super::entry::TableEntry;
use super::limit_table::LastLimit;
use super::shard::ShardGuard;
use ratekeeper_core::{Clock, Micros, Scope};
use std::sync::atomic::Ordering::Relaxed;

/// The number of entries sampled to find one to evict at capacity.
const SAMPLE_SIZE: usize = 8;
/// The sample size if none of the first [`SAMPLE_SIZE`] may be evicted. A larger one would let a flood hold the lock.
const MAX_SAMPLE_SIZE: usize = 64;
/// A state that has used at least this much of its limit, in thousandths, is never evicted at capacity.
const EVICTABLE_BELOW: u32 = 500;

/// An entry of the sample.
#[derive(Clone, Copy, Debug, Default)]
struct SampledEntry {
    slot: usize,
    limit_slot: u32,
    /// The used part of its limit, in thousandths.
    used: u32,
    is_denied: bool,
}

impl SampledEntry {
    fn is_evictable(&self) -> bool {
        !self.is_denied && self.used < EVICTABLE_BELOW
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Makes space for one more entry of a limit. Returns `false` if there is none. If `may_move`, another state may be
    /// moved to the sketch.
    #[cold]
    pub(super) fn make_space(
        &self,
        shard: &ShardGuard<'_>,
        limit_slot: u32,
        may_move: bool,
        now: Micros,
    ) -> bool {
        if shard.is_at_capacity() {
            return self.evict_one(shard, limit_slot, may_move, now);
        }
        let keys = shard.keys();
        let mut limits = LastLimit::new(&self.limit_table);
        let live = (0..shard.occupied_end())
            .filter(|slot| {
                shard.fingerprint(*slot) != 0 && !is_drained(&mut limits, &shard.entry(*slot), now)
            })
            .count();
        // If a quarter of the entries has drained, dropping them suffices; otherwise the shard grows by a quarter.
        let span = if live * 4 <= keys * 3 { shard.span().max(16) } else { shard.span() * 5 / 4 + 16 };
        shard.rebuild(span.min(shard.geometry.max_span), |entry| !is_drained(&mut limits, entry, now));
        !shard.is_full()
    }

    /// At capacity: removes a drained entry, or one that an entry of this limit may replace, from the next few entries.
    fn evict_one(&self, shard: &ShardGuard<'_>, limit_slot: u32, may_move: bool, now: Micros) -> bool {
        let mut limits = LastLimit::new(&self.limit_table);
        let (mut sample, mut count) = ([SampledEntry::default(); MAX_SAMPLE_SIZE], 0);
        for _ in 0..shard.occupied_end() {
            let slot = shard.advance_evict_cursor();
            if shard.fingerprint(slot) == 0 {
                continue;
            }
            let entry = shard.entry(slot);
            let used = limits.get(entry.limit_slot).map_or(0, |limit| limit.fill_per_mille(entry.state, now));
            if used == 0 {
                shard.remove(slot);
                return true;
            }
            sample[count] =
                SampledEntry { slot, limit_slot: entry.limit_slot, used, is_denied: entry.is_denied };
            count += 1;
            if count == SAMPLE_SIZE
                && let Some(victim) = self.pick_evictable(&sample[..count], limit_slot)
            {
                return self.evict(shard, victim);
            }
            if count == MAX_SAMPLE_SIZE {
                break;
            }
        }
        let sample = &sample[..count];
        if let Some(victim) = self.pick_evictable(sample, limit_slot) {
            return self.evict(shard, victim);
        }
        may_move
            && self.pick_movable(sample, limit_slot).is_some_and(|slot| self.move_to_sketch(shard, slot, now))
    }

    /// The slot of the state that has used the least, among those that may be evicted for an entry of this limit.
    fn pick_evictable(&self, sample: &[SampledEntry], limit_slot: u32) -> Option<usize> {
        let light = sample.iter().filter(|one| one.is_evictable());
        let own = light.clone().filter(|one| one.limit_slot == limit_slot).min_by_key(|one| one.used);
        // If all entries are of one limit, there is nothing to compare.
        if let Some(own) = own
            && sample.iter().all(|one| one.limit_slot == limit_slot)
        {
            return Some(own.slot);
        }
        let counts = SampleCounts::from_sample(self, sample, limit_slot);
        let others =
            light.filter(|one| one.limit_slot == limit_slot || counts.has_more_entries(one.limit_slot));
        others.min_by_key(|one| one.used).map(|one| one.slot)
    }

    /// The slot of a state that may be moved to the sketch for an entry of this limit: one of a limit that has more
    /// entries.
    fn pick_movable(&self, sample: &[SampledEntry], limit_slot: u32) -> Option<usize> {
        let counts = SampleCounts::from_sample(self, sample, limit_slot);
        let others = sample
            .iter()
            .filter(|one| one.limit_slot != limit_slot && counts.has_more_entries(one.limit_slot));
        others.min_by_key(|one| (one.is_denied, one.used)).map(|one| one.slot)
    }

    fn evict(&self, shard: &ShardGuard<'_>, slot: usize) -> bool {
        shard.remove(slot);
        self.counters.evicted.fetch_add(1, Relaxed);
        true
    }

    /// Moves a state to the sketch. Returns `false` if the sketch has no space for it.
    fn move_to_sketch(&self, shard: &ShardGuard<'_>, slot: usize, now: Micros) -> bool {
        let (fingerprint, entry) = (shard.fingerprint(slot), shard.entry(slot));
        let Some(limit) = self.limit_table.limit(entry.limit_slot) else { return false };
        let is_moved = self.sketch.charge(
            self.limit_table.scope(entry.limit_slot),
            &limit,
            fingerprint,
            entry.state,
            now,
        );
        if is_moved {
            shard.remove(slot);
            self.counters.moved_to_sketch.fetch_add(1, Relaxed);
        }
        is_moved
    }

    /// Drops the drained entries of a shard and those of retired limits. Marks the limits of all others.
    pub(super) fn sweep_shard(&self, shard: &ShardGuard<'_>, now: Micros) {
        let mut limits = LastLimit::new(&self.limit_table);
        let mut retired = 0;
        let mut keep = |entry: &TableEntry| {
            let Some(limit) = limits.get(entry.limit_slot) else { return false };
            if limit.is_expired(entry.state, now) {
                return false;
            }
            let is_kept = self.limit_table.mark_entry(entry.limit_slot, limit, entry.state);
            retired += u64::from(!is_kept);
            is_kept
        };
        if (0..shard.occupied_end()).any(|slot| shard.fingerprint(slot) != 0 && !keep(&shard.entry(slot))) {
            shard.rebuild(shard.span(), &mut keep);
        }
        self.counters.retired.fetch_add(retired, Relaxed);
        if let Some(mut lists) = shard.lists_if_any() {
            lists.sweep(now);
        }
    }
}

#[inline(always)]
fn is_drained(limits: &mut LastLimit<'_>, entry: &TableEntry, now: Micros) -> bool {
    limits.get(entry.limit_slot).is_none_or(|limit| limit.is_expired(entry.state, now))
}

/// The number of sampled entries per limit and per scope.
struct SampleCounts {
    by_limit: [(u32, Scope, usize); MAX_SAMPLE_SIZE],
    limits: usize,
    /// The new entry's scope, and the number of sampled entries of its limit and its scope.
    scope: Scope,
    own_limit_entries: usize,
    own_scope_entries: usize,
}

impl SampleCounts {
    fn from_sample<C: Clock>(
        store: &MemoryStore<C>,
        sample: &[SampledEntry],
        limit_slot: u32,
    ) -> SampleCounts {
        let scope = store.limit_table.scope(limit_slot);
        let mut counts = SampleCounts {
            by_limit: [(0, Scope(0), 0); MAX_SAMPLE_SIZE],
            limits: 0,
            scope,
            own_limit_entries: 0,
            own_scope_entries: 0,
        };
        for one in sample {
            match counts.by_limit[..counts.limits]
                .iter_mut()
                .find(|(limit_slot, ..)| *limit_slot == one.limit_slot)
            {
                Some((.., entries)) => *entries += 1,
                None => {
                    counts.by_limit[counts.limits] =
                        (one.limit_slot, store.limit_table.scope(one.limit_slot), 1);
                    counts.limits += 1;
                }
            }
        }
        let known = &counts.by_limit[..counts.limits];
        counts.own_limit_entries =
            known.iter().filter(|(of, ..)| *of == limit_slot).map(|(.., entries)| entries).sum();
        counts.own_scope_entries = counts.entries_in_scope(scope);
        counts
    }

    fn entries_in_scope(&self, scope: Scope) -> usize {
        self.by_limit[..self.limits]
            .iter()
            .filter(|(_, of, _)| *of == scope)
            .map(|(.., entries)| entries)
            .sum()
    }

    /// Whether a limit has more entries in the sample than the new entry's limit. Limits of different scopes are
    /// compared by the entries of their scopes.
    fn has_more_entries(&self, limit_slot: u32) -> bool {
        let found = self.by_limit[..self.limits].iter().find(|(of, ..)| *of == limit_slot);
        found.is_some_and(|(_, scope, entries)| {
            if *scope == self.scope {
                *entries > self.own_limit_entries
            } else {
                self.entries_in_scope(*scope) > self.own_scope_entries
            }
        })
    }
}
