//! State kept in this process.
//!
//! A draw is tagged with a keyed hash, finds its shard's lock, and is decided under it. A request that touches several
//! shards locks them in index order, so that two requests can never wait for each other, and is undone if one of its
//! limits refuses. The clock is read once a call.
//!
//! A drained state says the same as none, so it may be dropped at any time without changing an answer. That happens
//! when a shard would have to grow, and in [`MemoryStore::sweep`]. At the cap something must go for a newcomer: a
//! drained state if a sample has one, else one that has used the least, and less than half of its limit. A key that is being
//! denied, or has used more, is never forgotten: for a newcomer of a rule that has fewer keys it is moved to a [sketch], in
//! which keys share cells and may be denied too early but never too late. If nothing may go, the newcomer itself is
//! counted there. Only if that has no room either do the draw's terms decide. All of these are counted.

mod capacity;
mod decide;
mod entry;
mod evict;
pub(crate) mod key_hash;
pub(crate) mod limit_table;
mod list_states;
mod remote_cache;
mod shard;
mod sketch;
pub(crate) mod sweep_rounds;
pub(crate) mod sync;
mod table;

pub use capacity::{Capacity, CapacityError};

use crate::clock::SystemClock;
use crate::health::StoreHealth;
use crate::store::Store;
use decide::{DrawTarget, UndoStep};
use key_hash::{KeyHash, KeyHasher};
use limit_table::LimitTable;
use ratekeeper_core::{
    Amount, Clock, Draw, DrawResult, Draws, FailureMode, KeyRef, Limit, MAX_DRAWS, Micros, Op, PermitId,
    Scope, Span, StoreFailure,
};
use sketch::Sketch;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use sweep_rounds::SweepRounds;
use table::{EntryTable, TableGeometry};

/// How many draws of a batch have their slots touched ahead. The processor overlaps about that many.
pub(crate) const AHEAD: usize = 16;

/// The most shards that one call visits for limits that wait for a page. Each takes some tens of microseconds if it is
/// full.
const MOST_VISITS: usize = 64;

/// State kept in this process: bounded, sharded, and exact.
///
/// ```
/// use ratekeeper::{Cap, MemoryStore, SystemClock};
///
/// let store = MemoryStore::with(SystemClock::new(), Cap::keys(5_000_000).and_bytes(200 << 20))?;
/// assert_eq!(store.stats().keys, 0);
/// # Ok::<(), ratekeeper::CapError>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    tagger: KeyHasher,
    table: EntryTable,
    book: LimitTable,
    sketch: Sketch,
    tally: MemoryCounters,
    rounds: SweepRounds,
}

/// What happened that should not go unseen.
#[derive(Debug, Default)]
struct MemoryCounters {
    evicted: AtomicU64,
    moved: AtomicU64,
    retired: AtomicU64,
    sketched: AtomicU64,
    unremembered: AtomicU64,
    /// When a draw was last decided by shared cells, and when one could last not be counted.
    sketched_at: AtomicU64,
    unremembered_at: AtomicU64,
}

/// For how long it counts that there was no room: as long as a server takes for a sweep.
const LATELY: Span = Span::secs(10);

/// What a memory store holds and what it had to let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// States in the table: one for each limit that a key is under.
    pub keys: usize,
    /// The most of those.
    pub max_keys: usize,
    /// Sliding logs and lists of permits, which are kept beside the table.
    pub rolls: usize,
    /// Their entries: units admitted at the same time, and permits.
    pub roll_entries: usize,
    /// The most of those.
    pub max_roll_entries: usize,
    /// The most memory that states can take: in the table, and in the cells that keys share once it is full.
    pub max_bytes: usize,
    /// States forgotten at the cap before they had drained, each with less than half of its limit used.
    pub evicted: u64,
    /// States moved at the cap to cells that several keys share.
    pub moved: u64,
    /// States dropped because a scope had too many limits, of which theirs was among the oldest.
    pub retired: u64,
    /// Draws decided by cells that several keys share: they may have been denied too early, and never too late.
    pub sketched: u64,
    /// Draws for which there was no room at all, and which were answered as their terms say for a store that fails.
    pub unremembered: u64,
    /// Whether a draw was decided by shared cells within the last ten seconds.
    pub is_short: bool,
    /// Whether there was no room at all for a draw within the last ten seconds.
    pub is_full: bool,
    /// Limits in use, each in its scope.
    pub limits: usize,
    /// The most of those.
    pub max_limits: usize,
    /// Limits dropped because their scope had too many.
    pub limits_retired: u64,
}

impl MemoryCounters {
    #[cold]
    fn count_sketched(&self, now: Micros) {
        self.sketched.fetch_add(1, Relaxed);
        self.sketched_at.store(now.get(), Relaxed);
    }

    #[cold]
    fn count_unremembered(&self, now: Micros) {
        self.unremembered.fetch_add(1, Relaxed);
        self.unremembered_at.store(now.get(), Relaxed);
    }
}

impl MemoryStore {
    /// A store for up to [a million keys](Capacity::DEFAULT) on the machine's clock.
    ///
    /// # Panics
    /// If the system won't lend 30 MB of address space.
    pub fn new() -> MemoryStore {
        MemoryStore::with(SystemClock::new(), Capacity::DEFAULT).expect("30 MB of address space can be had")
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// A store that reads `clock` and keeps to `cap`.
    ///
    /// # Errors
    /// If the cap is too small to hold anything, or larger than the system will lend.
    pub fn with(clock: C, cap: Capacity) -> Result<MemoryStore<C>, CapacityError> {
        let geometry: TableGeometry = cap.geometry()?;
        let table = EntryTable::new(geometry).ok_or(CapacityError::TooLarge { bytes: geometry.bytes() })?;
        let (tagger, book, tally) = (KeyHasher::random(), LimitTable::new(), MemoryCounters::default());
        let sketch = Sketch::new(Sketch::cells_for(geometry.shards * geometry.keys));
        Ok(MemoryStore {
            clock,
            tagger,
            table,
            book,
            sketch,
            tally,
            rounds: SweepRounds::new(geometry.shards),
        })
    }

    /// The clock that it reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Decides every group at once: what [`Store::draw`] does, without waiting and without fail.
    ///
    /// The slots of many groups are touched before the first is decided, so that a batch of requests waits for memory
    /// together and not one by one.
    pub fn draw_now(&self, draws: &mut Draws) {
        self.help_sweeping(draws.len());
        let now = self.clock.now();
        let mut tags = [KeyHash::NONE; AHEAD + MAX_DRAWS];
        let mut first = 0;
        while first < draws.len() {
            let (mut end, mut tagged) = (first, 0);
            while end < draws.len() && tagged < AHEAD {
                tagged += self.tag_group(draws, end, &mut tags[tagged..]);
                end += 1;
            }
            let mut tags = &tags[..tagged];
            // In a loop of its own: hashing in between would leave the processor room for two touches at a time.
            for tag in tags {
                self.table.touch(*tag);
            }
            for group in first..end {
                let own_draws = draws.group_mut(group);
                let (own, others) = tags.split_at(own_draws.len());
                if !self.decide(own_draws, own, now) {
                    draws.fail(group, StoreFailure::Full);
                }
                tags = others;
            }
            first = end;
        }
    }

    /// Hashes the keys of a group and says how many there are. A key that is drawn from several limits in a row is
    /// hashed once.
    pub(crate) fn tag_group(&self, draws: &Draws, group: usize, tags: &mut [KeyHash]) -> usize {
        let draws_of_group = draws.group(group);
        let mut hashed = KeyHash::NONE;
        for (index, draw) in draws_of_group.iter().enumerate() {
            let is_hashed = index > 0 && draw.shares_hash(&draws_of_group[index - 1]);
            if !is_hashed {
                hashed = self.tagger.tag(draws.key(draw), draw.limit());
            }
            tags[index] = hashed.in_scope(draw.scope());
        }
        draws_of_group.len()
    }

    /// Decides a request. Returns `false` if one of its draws could not be counted.
    fn decide(&self, draws: &mut [Draw], tags: &[KeyHash], now: Micros) -> bool {
        match (draws, tags) {
            ([draw], [tag]) => {
                let mut shard = self.table.lock(self.table.shard_of(*tag));
                let (scope, on_failure) = (draw.scope(), draw.terms().on_failure);
                let mut is_counted = true;
                draw.settle(|limit, act, permit| {
                    let subject = DrawTarget { tag: *tag, scope, limit, on_failure };
                    let (outcome, undo) = self.act(&mut shard, &subject, act, permit, now);
                    is_counted = !matches!(undo, UndoStep::NotCounted);
                    outcome
                });
                is_counted
            }
            (draws, tags) => self.act_together(draws, tags, |_| now, |_| true),
        }
    }

    /// While limits wait for the pages of others, every call visits a shard for each of its requests, up to
    /// [`MOST_VISITS`], so that they need not wait for a sweep.
    #[inline]
    fn help_sweeping(&self, requests: usize) {
        if self.book.is_crowded() {
            self.sweep(requests.min(MOST_VISITS));
        }
    }

    /// Takes from one limit under one key: [`MemoryStore::draw_now`] without the buffer.
    #[inline]
    pub fn take_now(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        ask: Amount,
        permit: PermitId,
    ) -> DrawResult {
        match self.take_known(key, scope, limit, ask) {
            Ok(outcome) => outcome,
            Err(now) => self.take_unknown(key, scope, limit, ask, permit, now),
        }
    }

    /// Takes under a key that this very limit knows; if it does not, says only what time it is.
    ///
    /// Nearly every check goes this way. It is kept apart from the other so that it can be inlined as a whole and its
    /// outcome stays in registers.
    #[inline(always)]
    pub(crate) fn take_known(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        ask: Amount,
    ) -> Result<DrawResult, Micros> {
        let now = self.clock.now();
        let tag = self.tagger.tag(key, limit).in_scope(scope);
        let shard = self.table.lock(self.table.shard_of(tag));
        self.take_again(&shard, tag, limit, ask, now).ok_or(now)
    }

    /// Takes under a key that may be new, at a time that was read before.
    #[inline(never)]
    pub(crate) fn take_unknown(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        ask: Amount,
        permit: PermitId,
        now: Micros,
    ) -> DrawResult {
        self.help_sweeping(1);
        let tag = self.tagger.tag(key, limit).in_scope(scope);
        let mut shard = self.table.lock(self.table.shard_of(tag));
        let subject = DrawTarget { tag, scope, limit, on_failure: FailureMode::Local };
        self.act(&mut shard, &subject, Op::Take(ask), permit, now).0
    }

    /// Drops drained states from the next `shards` shards. Each is locked for some tens of microseconds, one after the
    /// other; a server calls this on a timer, so that idle keys go by themselves.
    pub fn sweep(&self, shards: usize) {
        let now = self.clock.now();
        let end = || {
            self.book.end_cycle();
            self.sketch.sweep(now);
        };
        self.rounds.go_on(shards, |shard| self.sweep_shard(&mut self.table.lock(shard), now), end);
    }

    /// How many shards there are to sweep.
    pub fn shards(&self) -> usize {
        self.table.geometry().shards
    }

    /// What it had to do without room, without the rest of [`MemoryStore::stats`]: it takes no shard's lock.
    pub fn counts(&self) -> MemoryStats {
        let (limits, limits_retired) = self.book.count();
        let now = self.clock.now();
        let is_lately = |at: &AtomicU64| now.since(Micros::new(at.load(Relaxed))) < LATELY;
        MemoryStats {
            evicted: self.tally.evicted.load(Relaxed),
            moved: self.tally.moved.load(Relaxed),
            retired: self.tally.retired.load(Relaxed),
            sketched: self.tally.sketched.load(Relaxed),
            unremembered: self.tally.unremembered.load(Relaxed),
            is_short: is_lately(&self.tally.sketched_at),
            is_full: is_lately(&self.tally.unremembered_at),
            limits,
            limits_retired,
            ..MemoryStats::default()
        }
    }

    /// Counts what it holds. It takes every shard's lock in turn: for a gauge, not for the request path.
    pub fn stats(&self) -> MemoryStats {
        let geometry = self.table.geometry();
        let mut stats = MemoryStats {
            max_keys: geometry.shards * geometry.keys,
            max_roll_entries: geometry.shards * geometry.keys,
            max_bytes: capacity::bytes(&geometry),
            max_limits: LimitTable::capacity(),
            ..self.counts()
        };
        for locked in (0..geometry.shards).map(|shard| self.table.lock(shard)) {
            let (rolls, entries) = locked.shard.rolls.count();
            stats.keys += locked.shard.keys;
            stats.rolls += rolls;
            stats.roll_entries += entries;
        }
        stats
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn draw(&self, draws: &mut Draws) {
        self.draw_now(draws);
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        let tag = self.tagger.tag(key, limit).in_scope(scope);
        let mut shard = self.table.lock(self.table.shard_of(tag));
        let subject = DrawTarget { tag, scope, limit, on_failure: FailureMode::Local };
        let _: (DrawResult, _) = self.act(&mut shard, &subject, Op::Give(u32::MAX), permit, self.clock.now());
    }
}

/// It is this process, and nobody else's.
impl<C: Clock> StoreHealth for MemoryStore<C> {}
