//! The intern table of limits: an entry names the limit that wrote it by the number of a limit slot.
//!
//! An entry is too small for its limit, but sweeping it, or finding it after the limit was changed, requires the limit.
//! So each limit in use in a scope has a slot, and entries refer to it. The hot path only checks whether a slot
//! [holds](LimitTable::holds) the limit of a draw, which is three loads without a lock.
//!
//! **Reclaiming.** Slots that no entry refers to are reused for other limits, by mark and sweep. Sweeping visits all
//! shards of the entry table in *cycles* and [marks](LimitTable::mark) the slots of all entries that it keeps.
//! Interning a limit marks its slot too, under the lock of the shard that the entry is written to. So at the
//! [end](LimitTable::end_cycle) of a cycle, a slot without the cycle's mark is in no entry: an entry that existed when
//! its shard was visited was marked then, and one written after that visit was interned within the cycle.
//!
//! **Bounds.** A scope (a rule, or all inline limits of one listener) keeps [`SCOPE_LIMITS`] limits. Beyond that, the
//! least recently written ones are *retired* at the end of a cycle, and the next cycle drops their entries. A scope
//! never has more than [`MAX_SCOPE_SLOTS`] slots. If there is no slot for a limit, [`LimitTable::intern`] returns
//! `None`, and the caller counts the draw elsewhere.

use parking_lot::{Mutex, RwLock};
use ratekeeper_core::{Limit, Micros, Scope, State};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

const CHUNKS: usize = 1 << 10;
const CHUNK_SLOTS: usize = 1 << 10;
/// Slots that are reached without looking up a chunk. Most programs have a handful of limits.
const INLINE_SLOTS: usize = 8;
/// The number of limits that a scope keeps from one cycle to the next.
pub(crate) const SCOPE_LIMITS: usize = 1 << 16;
/// The maximum number of slots per scope. The two scopes of inline limits then leave three quarters to rules.
const MAX_SCOPE_SLOTS: usize = 2 * SCOPE_LIMITS;
/// The size of the cache of the last slot of a limit, through which most limits are found without a lock.
const HINTS: usize = 256;
/// The first number of the identity of a vacant slot. No limit has it: see [`Limit::identity`].
const VACANT: u64 = u64::MAX;

/// A bounded table of limits.
#[derive(Debug)]
pub(crate) struct LimitTable {
    inline_slots: [LimitSlot; INLINE_SLOTS],
    chunks: Box<[OnceLock<Box<[LimitSlot]>>]>,
    hints: Box<[AtomicU32]>,
    index: Mutex<LimitIndex>,
    /// The number of the current cycle, counted from 1.
    cycle: AtomicU64,
    /// Whether limits wait for a slot or a scope has too many, so that callers should sweep.
    needs_sweep: AtomicBool,
    retired: AtomicU64,
}

/// A limit in a scope, and when it was last in use.
#[derive(Debug)]
struct LimitSlot {
    /// The identity of the limit; the first number is [`VACANT`] if there is none.
    identity: [AtomicU64; 3],
    scope: AtomicU64,
    /// The last cycle in which the limit was interned or seen in an entry.
    marked_cycle: AtomicU64,
    /// The last cycle in which the limit was seen in an entry.
    seen_cycle: AtomicU64,
    /// When the newest of its states was written, as far as sweeps have seen.
    written_at: AtomicU64,
    is_retired: AtomicBool,
    limit: RwLock<Option<Limit>>,
}

#[derive(Debug, Default)]
struct LimitIndex {
    slots: HashMap<(Scope, [u64; 3]), u32>,
    vacant: Vec<u32>,
    /// The number of slots that were ever in use.
    allocated: u32,
    /// The number of slots per scope.
    slots_by_scope: HashMap<Scope, usize>,
}

impl LimitTable {
    pub(crate) fn new() -> LimitTable {
        LimitTable {
            inline_slots: std::array::from_fn(|_| LimitSlot::vacant()),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            hints: (0..HINTS).map(|_| AtomicU32::new(u32::MAX)).collect(),
            index: Mutex::default(),
            cycle: AtomicU64::new(1),
            needs_sweep: AtomicBool::new(false),
            retired: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn slot(&self, number: u32) -> Option<&LimitSlot> {
        let number = number as usize;
        match self.inline_slots.get(number) {
            Some(slot) => Some(slot),
            None => self.chunks.get(number / CHUNK_SLOTS)?.get()?.get(number % CHUNK_SLOTS),
        }
    }

    /// Whether a slot holds this very limit. The slot must be that of an entry whose shard is locked, so that it can't
    /// change.
    #[inline(always)]
    pub(crate) fn holds(&self, number: u32, limit: &Limit) -> bool {
        self.slot(number).is_some_and(|slot| slot.matches(limit.identity()))
    }

    /// The limit in a slot. Returns `None` if the slot is vacant.
    pub(crate) fn limit(&self, number: u32) -> Option<Limit> {
        *self.slot(number)?.limit.read()
    }

    /// The scope of the limit in a slot.
    pub(crate) fn scope(&self, number: u32) -> Scope {
        Scope(self.slot(number).map_or(0, |slot| slot.scope.load(Relaxed)))
    }

    /// The slot of a limit, which is assigned if it has none. Returns `None` if there is no slot left for the scope.
    ///
    /// The caller holds the lock of the shard to which it writes the slot number.
    #[inline]
    pub(crate) fn intern(&self, scope: Scope, limit: &Limit, now: Micros) -> Option<u32> {
        let identity = limit.identity();
        let hint = &self.hints[hint_index(scope, identity)];
        let number = hint.load(Relaxed);
        if self.slot(number).is_some_and(|slot| slot.claim(scope, identity, &self.cycle)) {
            return Some(number);
        }
        let number = self.intern_slow(scope, limit, now)?;
        hint.store(number, Relaxed);
        Some(number)
    }

    #[cold]
    fn intern_slow(&self, scope: Scope, limit: &Limit, now: Micros) -> Option<u32> {
        let mut index = self.index.lock();
        let index = &mut *index;
        if let Some(number) = index.slots.get(&(scope, limit.identity())) {
            self.slot(*number)?.mark(self.cycle.load(SeqCst));
            return Some(*number);
        }
        let held = index.slots_by_scope.get(&scope).copied().unwrap_or(0);
        let number = if held < MAX_SCOPE_SLOTS {
            index.vacant.pop().or_else(|| self.add_slot(&mut index.allocated))
        } else {
            None
        };
        let Some(number) = number else {
            self.needs_sweep.store(true, Relaxed);
            return None;
        };
        self.slot(number)?.fill(scope, limit, self.cycle.load(SeqCst), now);
        index.slots.insert((scope, limit.identity()), number);
        index.slots_by_scope.insert(scope, held + 1);
        Some(number)
    }

    /// Allocates a slot that was never in use. Returns `None` if there are no more.
    fn add_slot(&self, used: &mut u32) -> Option<u32> {
        let number = *used;
        if number as usize >= INLINE_SLOTS {
            let chunk = self.chunks.get(number as usize / CHUNK_SLOTS)?;
            chunk.get_or_init(|| (0..CHUNK_SLOTS).map(|_| LimitSlot::vacant()).collect());
        }
        *used += 1;
        Some(number)
    }

    /// Marks a slot as in use. The caller has seen an entry that refers to it, under the lock of its shard.
    pub(crate) fn mark(&self, number: u32) {
        if let Some(slot) = self.slot(number) {
            slot.mark(self.cycle.load(SeqCst));
        }
    }

    /// [Marks](LimitTable::mark) a slot and records when an entry of it was written. Returns `false`, without marking,
    /// if the limit is retired, so that the caller drops the entry.
    pub(crate) fn mark_entry(&self, number: u32, limit: &Limit, state: State) -> bool {
        let Some(slot) = self.slot(number) else { return false };
        if slot.is_retired.load(Relaxed) {
            return false;
        }
        let cycle = self.cycle.load(SeqCst);
        slot.mark(cycle);
        slot.seen_cycle.store(cycle, Relaxed);
        let written_at = limit.written_at(state).get();
        if slot.written_at.load(Relaxed) < written_at {
            slot.written_at.store(written_at, Relaxed);
        }
        true
    }

    /// Ends a cycle, in which every shard was visited once: vacates the slots that no entry refers to, retires limits
    /// of scopes that have too many, and starts the next cycle.
    pub(crate) fn end_cycle(&self) {
        let mut index = self.index.lock();
        let cycle = self.cycle.load(SeqCst);
        for number in 0..index.allocated {
            if let Some(slot) = self.slot(number)
                && slot.vacate(cycle)
            {
                self.free_slot(&mut index, number, slot);
            }
        }
        let retired = self.retire(&index, cycle);
        self.retired.fetch_add(retired, Relaxed);
        let is_crowded = index.slots_by_scope.values().any(|held| *held > SCOPE_LIMITS);
        self.needs_sweep.store(is_crowded, Relaxed);
        self.cycle.store(cycle + 1, SeqCst);
    }

    fn free_slot(&self, index: &mut LimitIndex, number: u32, slot: &LimitSlot) {
        let Some(limit) = slot.limit.write().take() else { return };
        let scope = Scope(slot.scope.load(Relaxed));
        index.slots.remove(&(scope, limit.identity()));
        index.vacant.push(number);
        if let Some(held) = index.slots_by_scope.get_mut(&scope) {
            *held -= 1;
            if *held == 0 {
                index.slots_by_scope.remove(&scope);
            }
        }
    }

    /// Retires the least recently written limits of scopes that have too many, and returns their number. Limits that
    /// were in no entry in this cycle are not counted: if they are in none in the next cycle either, their slots are
    /// vacated at its end.
    fn retire(&self, index: &LimitIndex, cycle: u64) -> u64 {
        let mut retired = 0;
        for (scope, _) in index.slots_by_scope.iter().filter(|(_, held)| **held > SCOPE_LIMITS) {
            let own = index.slots.iter().filter(|((of, _), _)| of == scope);
            let own = own.filter_map(|(_, number)| self.slot(*number));
            let mut slots: Vec<&LimitSlot> =
                own.filter(|slot| slot.seen_cycle.load(Relaxed) == cycle).collect();
            if slots.len() <= SCOPE_LIMITS {
                continue;
            }
            slots.sort_by_key(|slot| slot.written_at.load(Relaxed));
            // Retires a quarter more than necessary, so that the next retirement does not follow at once.
            for slot in slots.iter().take(slots.len() - SCOPE_LIMITS / 4 * 3) {
                slot.is_retired.store(true, Relaxed);
                retired += 1;
            }
        }
        retired
    }

    /// Whether limits wait for a slot or a scope has too many. Callers should then sweep, a shard at a time.
    #[inline]
    pub(crate) fn needs_sweep(&self) -> bool {
        self.needs_sweep.load(Relaxed)
    }

    /// The number of limits, and of limits retired so far.
    pub(crate) fn count(&self) -> (usize, u64) {
        (self.index.lock().slots.len(), self.retired.load(Relaxed))
    }

    /// The maximum number of limits.
    pub(crate) const fn capacity() -> usize {
        CHUNKS * CHUNK_SLOTS
    }
}

impl LimitSlot {
    fn vacant() -> LimitSlot {
        LimitSlot {
            identity: [VACANT, 0, 0].map(AtomicU64::new),
            scope: AtomicU64::new(0),
            marked_cycle: AtomicU64::new(0),
            seen_cycle: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            limit: RwLock::new(None),
        }
    }

    #[inline(always)]
    fn matches(&self, [first, second, third]: [u64; 3]) -> bool {
        let [own_first, own_second, own_third] = &self.identity;
        let differ = (own_first.load(Relaxed) ^ first)
            | (own_second.load(Relaxed) ^ second)
            | (own_third.load(Relaxed) ^ third);
        differ == 0
    }

    /// Marks the slot if it holds this limit in this scope.
    ///
    /// [`LimitSlot::vacate`] may run concurrently. It removes the first identity number and then reads the mark; this
    /// method sets the mark and then reads the number. In the single total order of these four operations, either
    /// `vacate` sees the mark or this method misses the number.
    ///
    /// A slot that already has the mark of the cycle is not vacated before the end of the next one, which visits the
    /// shard that the caller has locked. So it needs no second look.
    #[inline]
    fn claim(&self, scope: Scope, identity: [u64; 3], cycle: &AtomicU64) -> bool {
        let cycle = cycle.load(SeqCst);
        let is_marked = self.marked_cycle.load(SeqCst) >= cycle && !self.is_retired.load(Relaxed);
        if !self.matches(identity) || self.scope.load(Relaxed) != scope.0 {
            return false;
        }
        is_marked || self.claim_unmarked(scope, identity, cycle)
    }

    #[cold]
    fn claim_unmarked(&self, scope: Scope, identity: [u64; 3], cycle: u64) -> bool {
        self.mark(cycle);
        self.identity[0].load(SeqCst) == identity[0]
            && self.matches(identity)
            && self.scope.load(Relaxed) == scope.0
    }

    fn mark(&self, cycle: u64) {
        if self.marked_cycle.load(SeqCst) < cycle {
            self.marked_cycle.fetch_max(cycle, SeqCst);
        }
        if self.is_retired.load(Relaxed) {
            self.is_retired.store(false, Relaxed);
        }
    }

    fn fill(&self, scope: Scope, limit: &Limit, cycle: u64, now: Micros) {
        let identity = limit.identity();
        // A reader of an entry without its lock that sees any of these values also sees that the entry is gone.
        fence(Release);
        *self.limit.write() = Some(*limit);
        self.marked_cycle.store(cycle, SeqCst);
        self.seen_cycle.store(0, Relaxed);
        self.written_at.store(now.get(), Relaxed);
        self.is_retired.store(false, Relaxed);
        self.scope.store(scope.0, Relaxed);
        self.identity[1].store(identity[1], Relaxed);
        self.identity[2].store(identity[2], Relaxed);
        self.identity[0].store(identity[0], SeqCst);
    }

    /// Removes the limit's identity, unless the slot is marked in this cycle. Returns whether it did.
    fn vacate(&self, cycle: u64) -> bool {
        if self.identity[0].load(Relaxed) == VACANT || self.marked_cycle.load(SeqCst) >= cycle {
            return false;
        }
        let first = self.identity[0].swap(VACANT, SeqCst);
        if self.marked_cycle.load(SeqCst) >= cycle {
            self.identity[0].store(first, SeqCst);
            return false;
        }
        true
    }
}

/// The index of a limit in the cache of hints.
#[inline]
fn hint_index(scope: Scope, [first, second, third]: [u64; 3]) -> usize {
    // 2^64 divided by the golden ratio. The upper bits of the product depend on all of the input.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (scope.0 ^ first).wrapping_mul(MIX) ^ second.rotate_left(20) ^ third.rotate_left(40);
    usize::try_from(mixed.wrapping_mul(MIX) >> (u64::BITS - HINTS.trailing_zeros())).unwrap_or(0)
}

/// The limit of the most recently requested slot: consecutive entries mostly belong to a few limits.
#[derive(Debug)]
pub(crate) struct LastLimit<'a> {
    limit_table: &'a LimitTable,
    number: u32,
    limit: Option<Limit>,
}

impl<'a> LastLimit<'a> {
    pub(crate) fn new(table: &'a LimitTable) -> LastLimit<'a> {
        LastLimit { limit_table: table, number: u32::MAX, limit: None }
    }

    /// The limit in a slot. Returns `None` if the slot is vacant.
    #[inline(always)]
    pub(crate) fn get(&mut self, number: u32) -> Option<&Limit> {
        if number != self.number {
            (self.number, self.limit) = (number, self.limit_table.limit(number));
        }
        self.limit.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::{Algorithm, Quota, Span};

    const NOW: Micros = Micros::new(1_700_000_000_000_000);

    fn limit(amount: usize) -> Limit {
        let quota = Quota::new(u32::try_from(amount).unwrap(), Span::SECOND).unwrap();
        Limit::new(Algorithm::TokenBucket, quota).unwrap()
    }

    #[test]
    fn every_limit_of_a_scope_has_one_slot() {
        let table = LimitTable::new();
        let slots: Vec<u32> =
            (1..5000).map(|amount| table.intern(Scope(1), &limit(amount), NOW).unwrap()).collect();
        for (amount, slot) in (1..5000).zip(&slots) {
            assert_eq!(table.intern(Scope(1), &limit(amount), NOW), Some(*slot));
            assert!(table.holds(*slot, &limit(amount)) && !table.holds(*slot, &limit(amount + 1)));
            assert_eq!((table.limit(*slot), table.scope(*slot)), (Some(limit(amount)), Scope(1)));
        }
        assert!(!slots.contains(&table.intern(Scope(2), &limit(7), NOW).unwrap()));
        assert!(!table.holds(u32::MAX, &limit(7)));
        assert_eq!(table.limit(u32::MAX), None);
    }

    #[test]
    fn a_slot_that_no_entry_refers_to_is_reused() {
        let table = LimitTable::new();
        let kept = table.intern(Scope(1), &limit(1), NOW).unwrap();
        // Simulates years of rule changes.
        for amount in 2..3 * LimitTable::capacity() / 1000 {
            table.intern(Scope(1), &limit(amount), NOW).unwrap();
            table.mark(kept);
            table.end_cycle();
        }
        assert!(table.holds(kept, &limit(1)));
        assert!(table.count().0 <= 3, "{:?}", table.count());
        assert!(table.index.lock().allocated <= 4);
    }

    #[test]
    fn a_scope_is_bounded_and_retires_its_least_recently_written_limits() {
        let table = LimitTable::new();
        for amount in 1..=MAX_SCOPE_SLOTS {
            assert!(table.intern(Scope(1), &limit(amount), NOW.plus(Span::micros(amount as u64))).is_some());
        }
        assert_eq!(table.intern(Scope(1), &limit(MAX_SCOPE_SLOTS + 1), NOW), None);
        assert!(table.needs_sweep());
        assert!(table.intern(Scope(2), &limit(1), NOW).is_some(), "another scope is not affected");
        // All are in use, so the least recently written ones are retired.
        let numbers: Vec<u32> = table.index.lock().slots.values().copied().collect();
        let visit = || {
            for number in &numbers {
                if let Some(limit) = table.limit(*number) {
                    table.mark_entry(*number, &limit, State::default());
                }
            }
        };
        visit();
        table.end_cycle();
        visit();
        table.end_cycle();
        let (limits, retired) = table.count();
        assert_eq!(limits, SCOPE_LIMITS / 4 * 3 + 1);
        assert_eq!(retired, (MAX_SCOPE_SLOTS - SCOPE_LIMITS / 4 * 3) as u64);
        let known =
            |amount: usize| table.index.lock().slots.contains_key(&(Scope(1), limit(amount).identity()));
        assert!(known(MAX_SCOPE_SLOTS) && !known(1));
        assert!(!table.needs_sweep());
    }
}
