//! The intern table of limits: an entry names the limit that wrote it by a page number.
//!
//! An entry has no room for its limit, but whoever sweeps it, or finds it after the limit was changed, needs to know it.
//! So each limit that is used in a scope has a page, and entries refer to it. The hot path only asks whether a page
//! [holds](LimitTable::holds) the limit of a draw, which is three loads and takes no lock.
//!
//! **Reclaiming.** Pages that no entry refers to are given to other limits. Whoever sweeps the table goes over all its
//! shards in *cycles*, and [marks](LimitTable::mark) the pages of all entries that it leaves in place. Interning a limit marks its
//! page too, and is done with the lock of the shard held that the entry goes to. So at the [end](LimitTable::end_cycle) of a
//! cycle, a page without the cycle's mark is in no entry: one that was there when its shard was visited would have been
//! seen, and one that was written after that visit was interned within the cycle.
//!
//! **Bounds.** A scope (a rule, or all limits that come with requests on one listener) keeps [`SCOPE_LIMITS`] limits. Above that, those
//! that were written least recently are *retired* at the end of a cycle: the next one drops their entries. A scope never has
//! more than [`SCOPE_PAGES`] pages. If a limit gets none, [`LimitTable::intern`] says so, and the caller counts it elsewhere.

use parking_lot::{Mutex, RwLock};
use ratekeeper_core::{Limit, Micros, Scope, State};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

const CHUNKS: usize = 1 << 10;
const CHUNK_PAGES: usize = 1 << 10;
/// Pages that are at hand without looking up a chunk. Most programs have a handful of limits.
const FRONT: usize = 8;
/// Limits that a scope keeps from one cycle to the next.
pub(crate) const SCOPE_LIMITS: usize = 1 << 16;
/// The most pages of one scope, so that the two scopes of limits that come with requests leave three quarters to rules.
const SCOPE_PAGES: usize = 2 * SCOPE_LIMITS;
/// Places that remember where a limit was found last, so that most are found without a lock.
const HINTS: usize = 256;
/// The first number of a page without a limit. No limit has it: see [`Limit::identity`].
const VACANT: u64 = u64::MAX;

/// A bounded table of limits.
#[derive(Debug)]
pub(crate) struct LimitTable {
    front: [LimitSlot; FRONT],
    chunks: Box<[OnceLock<Box<[LimitSlot]>>]>,
    hints: Box<[AtomicU32]>,
    index: Mutex<LimitIndex>,
    /// The number of the cycle, from 1.
    cycle: AtomicU64,
    /// Whether pages are wanted, so that callers should sweep.
    is_crowded: AtomicBool,
    retired: AtomicU64,
}

#[derive(Debug)]
struct LimitSlot {
    /// The limit as three numbers; the first is [`VACANT`] if there is none.
    identity: [AtomicU64; 3],
    scope: AtomicU64,
    /// The last cycle in which it was interned, or seen in an entry.
    marked: AtomicU64,
    /// The last cycle in which it was seen in an entry.
    seen: AtomicU64,
    /// When the youngest of its states was written, as far as sweeps have seen.
    written_at: AtomicU64,
    is_retired: AtomicBool,
    limit: RwLock<Option<Limit>>,
}

#[derive(Debug, Default)]
struct LimitIndex {
    pages: HashMap<(Scope, [u64; 3]), u32>,
    vacant: Vec<u32>,
    /// How many pages were ever in use.
    used: u32,
    /// How many pages each scope has.
    scopes: HashMap<Scope, usize>,
}

impl LimitTable {
    pub(crate) fn new() -> LimitTable {
        LimitTable {
            front: std::array::from_fn(|_| LimitSlot::vacant()),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            hints: (0..HINTS).map(|_| AtomicU32::new(u32::MAX)).collect(),
            index: Mutex::default(),
            cycle: AtomicU64::new(1),
            is_crowded: AtomicBool::new(false),
            retired: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn page(&self, number: u32) -> Option<&LimitSlot> {
        let number = number as usize;
        match self.front.get(number) {
            Some(page) => Some(page),
            None => self.chunks.get(number / CHUNK_PAGES)?.get()?.get(number % CHUNK_PAGES),
        }
    }

    /// Whether a page holds this very limit. The page is that of an entry whose shard is locked, so it does not change.
    #[inline(always)]
    pub(crate) fn holds(&self, number: u32, limit: &Limit) -> bool {
        self.page(number).is_some_and(|page| page.is_of(limit.identity()))
    }

    /// The limit on a page.
    pub(crate) fn limit(&self, number: u32) -> Option<Limit> {
        *self.page(number)?.limit.read()
    }

    /// The scope whose limit a page holds.
    pub(crate) fn scope(&self, number: u32) -> Scope {
        Scope(self.page(number).map_or(0, |page| page.scope.load(Relaxed)))
    }

    /// The page of a limit, which is given one if it has none. Returns `None` if there is no page left for the scope.
    ///
    /// The caller holds the lock of the shard that it writes the page to.
    pub(crate) fn intern(&self, scope: Scope, limit: &Limit, now: Micros) -> Option<u32> {
        let identity = limit.identity();
        let hint = &self.hints[hint(scope, identity)];
        let number = hint.load(Relaxed);
        if self.page(number).is_some_and(|page| page.claim(scope, identity, &self.cycle)) {
            return Some(number);
        }
        let number = self.look_up(scope, limit, now)?;
        hint.store(number, Relaxed);
        Some(number)
    }

    #[cold]
    fn look_up(&self, scope: Scope, limit: &Limit, now: Micros) -> Option<u32> {
        let mut index = self.index.lock();
        let index = &mut *index;
        if let Some(number) = index.pages.get(&(scope, limit.identity())) {
            self.page(*number)?.mark(self.cycle.load(SeqCst));
            return Some(*number);
        }
        let held = index.scopes.get(&scope).copied().unwrap_or(0);
        let number = if held < SCOPE_PAGES {
            index.vacant.pop().or_else(|| self.add_page(&mut index.used))
        } else {
            None
        };
        let Some(number) = number else {
            self.is_crowded.store(true, Relaxed);
            return None;
        };
        self.page(number)?.fill(scope, limit, self.cycle.load(SeqCst), now);
        index.pages.insert((scope, limit.identity()), number);
        index.scopes.insert(scope, held + 1);
        Some(number)
    }

    /// A page that was never in use. Returns `None` if there are no more.
    fn add_page(&self, used: &mut u32) -> Option<u32> {
        let number = *used;
        if number as usize >= FRONT {
            let chunk = self.chunks.get(number as usize / CHUNK_PAGES)?;
            chunk.get_or_init(|| (0..CHUNK_PAGES).map(|_| LimitSlot::vacant()).collect());
        }
        *used += 1;
        Some(number)
    }

    /// Notes that an entry refers to a page, for which the caller has looked at it under the lock of its shard.
    #[cfg(any(test, feature = "redis", feature = "simulation"))]
    pub(crate) fn mark(&self, number: u32) {
        if let Some(page) = self.page(number) {
            page.mark(self.cycle.load(SeqCst));
        }
    }

    /// [Marks](LimitTable::mark) a page, and notes when an entry of it was written. Returns `false` if the limit is retired, so
    /// that the entry should go; then it is not marked.
    pub(crate) fn mark_entry(&self, number: u32, limit: &Limit, state: State) -> bool {
        let Some(page) = self.page(number) else { return false };
        if page.is_retired.load(Relaxed) {
            return false;
        }
        let cycle = self.cycle.load(SeqCst);
        page.mark(cycle);
        page.seen.store(cycle, Relaxed);
        let written_at = limit.written_at(state).get();
        if page.written_at.load(Relaxed) < written_at {
            page.written_at.store(written_at, Relaxed);
        }
        true
    }

    /// Ends a cycle, in which every shard was visited once: vacates the pages that no entry refers to, retires limits of
    /// scopes that have too many, and begins the next cycle.
    pub(crate) fn end_cycle(&self) {
        let mut index = self.index.lock();
        let cycle = self.cycle.load(SeqCst);
        for number in 0..index.used {
            if let Some(page) = self.page(number)
                && page.vacate(cycle)
            {
                self.forget(&mut index, number, page);
            }
        }
        let retired = self.retire(&index, cycle);
        self.retired.fetch_add(retired, Relaxed);
        let is_crowded = index.scopes.values().any(|held| *held > SCOPE_LIMITS);
        self.is_crowded.store(is_crowded, Relaxed);
        self.cycle.store(cycle + 1, SeqCst);
    }

    fn forget(&self, index: &mut LimitIndex, number: u32, page: &LimitSlot) {
        let Some(limit) = page.limit.write().take() else { return };
        let scope = Scope(page.scope.load(Relaxed));
        index.pages.remove(&(scope, limit.identity()));
        index.vacant.push(number);
        if let Some(held) = index.scopes.get_mut(&scope) {
            *held -= 1;
            if *held == 0 {
                index.scopes.remove(&scope);
            }
        }
    }

    /// Retires the limits of crowded scopes that were written least recently, and says how many. Limits that were in no entry
    /// in this cycle are not counted: if they are in none in the next one either, their pages are vacated at its end.
    fn retire(&self, index: &LimitIndex, cycle: u64) -> u64 {
        let mut retired = 0;
        for (scope, _) in index.scopes.iter().filter(|(_, held)| **held > SCOPE_LIMITS) {
            let own = index.pages.iter().filter(|((of, _), _)| of == scope);
            let own = own.filter_map(|(_, number)| self.page(*number));
            let mut pages: Vec<&LimitSlot> = own.filter(|page| page.seen.load(Relaxed) == cycle).collect();
            if pages.len() <= SCOPE_LIMITS {
                continue;
            }
            pages.sort_by_key(|page| page.written_at.load(Relaxed));
            // A quarter more than need be, so that the next one does not follow at once.
            for page in pages.iter().take(pages.len() - SCOPE_LIMITS / 4 * 3) {
                page.is_retired.store(true, Relaxed);
                retired += 1;
            }
        }
        retired
    }

    /// Whether pages are wanted: then callers should sweep, a shard at a time.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded.load(Relaxed)
    }

    /// How many limits there are, and how many were retired.
    pub(crate) fn count(&self) -> (usize, u64) {
        (self.index.lock().pages.len(), self.retired.load(Relaxed))
    }

    /// How many limits there can be.
    pub(crate) const fn capacity() -> usize {
        CHUNKS * CHUNK_PAGES
    }
}

impl LimitSlot {
    fn vacant() -> LimitSlot {
        LimitSlot {
            identity: [VACANT, 0, 0].map(AtomicU64::new),
            scope: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            limit: RwLock::new(None),
        }
    }

    #[inline(always)]
    fn is_of(&self, [first, second, third]: [u64; 3]) -> bool {
        let [own_first, own_second, own_third] = &self.identity;
        let differ = (own_first.load(Relaxed) ^ first)
            | (own_second.load(Relaxed) ^ second)
            | (own_third.load(Relaxed) ^ third);
        differ == 0
    }

    /// Marks the page if it holds this limit in this scope.
    ///
    /// [`LimitSlot::vacate`] may run at the same time. It takes the first number away and then reads the mark; this sets the mark and then
    /// reads the number. In the single order of these four, either it sees the mark or this misses the number.
    fn claim(&self, scope: Scope, identity: [u64; 3], cycle: &AtomicU64) -> bool {
        if !self.is_of(identity) || self.scope.load(Relaxed) != scope.0 {
            return false;
        }
        self.mark(cycle.load(SeqCst));
        self.identity[0].load(SeqCst) == identity[0]
            && self.is_of(identity)
            && self.scope.load(Relaxed) == scope.0
    }

    fn mark(&self, cycle: u64) {
        if self.marked.load(SeqCst) < cycle {
            self.marked.fetch_max(cycle, SeqCst);
        }
        if self.is_retired.load(Relaxed) {
            self.is_retired.store(false, Relaxed);
        }
    }

    fn fill(&self, scope: Scope, limit: &Limit, cycle: u64, now: Micros) {
        let identity = limit.identity();
        *self.limit.write() = Some(*limit);
        self.marked.store(cycle, SeqCst);
        self.seen.store(0, Relaxed);
        self.written_at.store(now.get(), Relaxed);
        self.is_retired.store(false, Relaxed);
        self.scope.store(scope.0, Relaxed);
        self.identity[1].store(identity[1], Relaxed);
        self.identity[2].store(identity[2], Relaxed);
        self.identity[0].store(identity[0], SeqCst);
    }

    /// Takes the limit's numbers off the page, unless it bears the mark of this cycle. Says whether it did.
    fn vacate(&self, cycle: u64) -> bool {
        if self.identity[0].load(Relaxed) == VACANT || self.marked.load(SeqCst) >= cycle {
            return false;
        }
        let first = self.identity[0].swap(VACANT, SeqCst);
        if self.marked.load(SeqCst) >= cycle {
            self.identity[0].store(first, SeqCst);
            return false;
        }
        true
    }
}

/// Where it is remembered on which page a limit was found last.
fn hint(scope: Scope, [first, second, third]: [u64; 3]) -> usize {
    // An odd number without a pattern. The upper bits of the product depend on all that went in.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (scope.0 ^ first).wrapping_mul(MIX) ^ second.rotate_left(20) ^ third.rotate_left(40);
    usize::try_from(mixed.wrapping_mul(MIX) >> (u64::BITS - HINTS.trailing_zeros())).unwrap_or(0)
}

/// The limit of the page that was asked for last: entries in a row are mostly of few limits.
#[derive(Debug)]
pub(crate) struct LastLimit<'a> {
    book: &'a LimitTable,
    number: u32,
    limit: Option<Limit>,
}

impl<'a> LastLimit<'a> {
    pub(crate) fn new(book: &'a LimitTable) -> LastLimit<'a> {
        LastLimit { book, number: u32::MAX, limit: None }
    }

    /// The limit on a page.
    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> Option<&Limit> {
        if number != self.number {
            (self.number, self.limit) = (number, self.book.limit(number));
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
    fn every_limit_of_a_scope_has_one_page() {
        let book = LimitTable::new();
        let pages: Vec<u32> =
            (1..5000).map(|amount| book.intern(Scope(1), &limit(amount), NOW).unwrap()).collect();
        for (amount, page) in (1..5000).zip(&pages) {
            assert_eq!(book.intern(Scope(1), &limit(amount), NOW), Some(*page));
            assert!(book.holds(*page, &limit(amount)) && !book.holds(*page, &limit(amount + 1)));
            assert_eq!((book.limit(*page), book.scope(*page)), (Some(limit(amount)), Scope(1)));
        }
        assert!(!pages.contains(&book.intern(Scope(2), &limit(7), NOW).unwrap()));
        assert!(!book.holds(u32::MAX, &limit(7)));
        assert_eq!(book.limit(u32::MAX), None);
    }

    #[test]
    fn a_page_that_no_entry_refers_to_is_given_to_another_limit() {
        let book = LimitTable::new();
        let kept = book.intern(Scope(1), &limit(1), NOW).unwrap();
        // Years of rule changes.
        for amount in 2..3 * LimitTable::capacity() / 1000 {
            book.intern(Scope(1), &limit(amount), NOW).unwrap();
            book.mark(kept);
            book.end_cycle();
        }
        assert!(book.holds(kept, &limit(1)));
        assert!(book.count().0 <= 3, "{:?}", book.count());
        assert!(book.index.lock().used <= 4);
    }

    #[test]
    fn one_scope_leaves_pages_to_the_others_and_its_oldest_limits_make_room() {
        let book = LimitTable::new();
        for amount in 1..=SCOPE_PAGES {
            assert!(book.intern(Scope(1), &limit(amount), NOW.plus(Span::micros(amount as u64))).is_some());
        }
        assert_eq!(book.intern(Scope(1), &limit(SCOPE_PAGES + 1), NOW), None);
        assert!(book.is_crowded());
        assert!(book.intern(Scope(2), &limit(1), NOW).is_some(), "another scope is not concerned");
        // All are in use, and those that were written least recently have to go.
        let numbers: Vec<u32> = book.index.lock().pages.values().copied().collect();
        let visit = || {
            for number in &numbers {
                if let Some(limit) = book.limit(*number) {
                    book.mark_entry(*number, &limit, State::default());
                }
            }
        };
        visit();
        book.end_cycle();
        visit();
        book.end_cycle();
        let (limits, retired) = book.count();
        assert_eq!(limits, SCOPE_LIMITS / 4 * 3 + 1);
        assert_eq!(retired, (SCOPE_PAGES - SCOPE_LIMITS / 4 * 3) as u64);
        let known =
            |amount: usize| book.index.lock().pages.contains_key(&(Scope(1), limit(amount).identity()));
        assert!(known(SCOPE_PAGES) && !known(1));
        assert!(!book.is_crowded());
    }
}
