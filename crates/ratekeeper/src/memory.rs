//! The in-process store: bounded, sharded and exact.
//!
//! A key is represented by a keyed hash, which selects a shard. Draws are decided under the shard's lock. A request
//! that touches several shards locks them in index order, so that two requests can't deadlock, and is undone if one of
//! its limits denies it. The clock is read once per call.
//!
//! A drained state is equivalent to no state, so it may be dropped at any time without changing a decision. Drained
//! states are dropped when a shard would have to grow, and by [`MemoryStore::sweep`]. At capacity, a new key needs the
//! slot of another one: a drained state if a sample contains one, otherwise the state that has used the least, provided
//! that it has used less than half of its limit. A key that is being denied, or has used more, is never evicted. If the
//! new key's rule has fewer keys, such a state is moved to a [sketch], where keys share cells and may be denied too
//! early but never too late. If no state may be evicted or moved, the new key itself is counted in the sketch. If the
//! sketch is full too, the draw's failure mode decides. Each of these events is counted.

mod capacity;
mod decide;
mod entry;
mod evict;
mod geometry;
pub(crate) mod key_hash;
pub(crate) mod limit_table;
mod list_draws;
mod list_states;
mod maintenance;
mod remote_cache;
mod shard;
mod sketch;
pub(crate) mod sweep_rounds;
pub(crate) mod sync;
mod table;

pub use capacity::{Capacity, CapacityError};
pub use remote_cache::RemoteCache;

use crate::clock::SystemClock;
use crate::memory_stats::MemoryStats;
use crate::store::Store;
use decide::{DrawTarget, UndoStep};
use geometry::TableGeometry;
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
use table::EntryTable;

/// How long [`MemoryStats::is_sketching`] and [`MemoryStats::is_full`] stay set: the interval at which a server
/// completes a sweep.
const RECENT: Span = Span::secs(10);

/// The number of draws whose slots are prefetched ahead of deciding them. A CPU overlaps about that many loads.
pub(crate) const PREFETCH_DRAWS: usize = 16;

/// The maximum number of shards that one call sweeps while limits wait for a limit slot. A full shard takes some tens
/// of microseconds.
const MAX_ASSIST_SHARDS: usize = 64;

/// An in-process store: bounded, sharded and exact.
///
/// ```
/// use ratekeeper::{Capacity, MemoryStore, SystemClock};
///
/// let store = MemoryStore::with(SystemClock::new(), Capacity::keys(5_000_000).and_bytes(200 << 20))?;
/// assert_eq!(store.stats().keys, 0);
/// # Ok::<(), ratekeeper::CapacityError>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    key_hasher: KeyHasher,
    table: EntryTable,
    limit_table: LimitTable,
    sketch: Sketch,
    counters: MemoryCounters,
    sweep_rounds: SweepRounds,
}

/// Counters of evictions and of draws that were decided without an exact state.
#[derive(Debug, Default)]
struct MemoryCounters {
    evicted: AtomicU64,
    moved_to_sketch: AtomicU64,
    retired: AtomicU64,
    sketch_decisions: AtomicU64,
    uncounted: AtomicU64,
    /// When a draw was last decided by the sketch, and when one could last not be counted.
    last_sketch_decision_at: AtomicU64,
    last_uncounted_at: AtomicU64,
}

impl MemoryCounters {
    #[cold]
    fn count_sketch_decision(&self, now: Micros) {
        self.sketch_decisions.fetch_add(1, Relaxed);
        self.last_sketch_decision_at.store(now.get(), Relaxed);
    }

    #[cold]
    fn count_uncounted(&self, now: Micros) {
        self.uncounted.fetch_add(1, Relaxed);
        self.last_uncounted_at.store(now.get(), Relaxed);
    }
}

impl MemoryStore {
    /// Creates a store for up to [a million keys](Capacity::DEFAULT) on the system clock.
    ///
    /// # Panics
    /// If 30 MB of address space can't be allocated.
    pub fn new() -> MemoryStore {
        MemoryStore::with(SystemClock::new(), Capacity::DEFAULT)
            .expect("30 MB of address space can be allocated")
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Creates a store that reads `clock` and is bounded by `capacity`.
    ///
    /// # Errors
    /// If `capacity` is too small for a single key, or the table can't be allocated.
    pub fn with(clock: C, capacity: Capacity) -> Result<MemoryStore<C>, CapacityError> {
        let geometry: TableGeometry = capacity.geometry()?;
        let table = EntryTable::new(geometry).ok_or(CapacityError::TooLarge { bytes: geometry.bytes() })?;
        let (key_hasher, limit_table, counters) =
            (KeyHasher::random(), LimitTable::new(), MemoryCounters::default());
        let sketch = Sketch::new(Sketch::cells_for(geometry.shards * geometry.keys));
        Ok(MemoryStore {
            clock,
            key_hasher,
            table,
            limit_table,
            sketch,
            counters,
            sweep_rounds: SweepRounds::new(geometry.shards),
        })
    }

    /// The store's clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Decides every group synchronously: [`Store::draw`] for a store that never waits and never fails.
    ///
    /// The slots of many groups are prefetched before the first is decided, so that the cache misses of a batch
    /// overlap.
    pub fn draw_now(&self, draws: &mut Draws) {
        self.assist_sweep(draws.len());
        let now = self.clock.now();
        let mut key_hashes = [KeyHash::NONE; PREFETCH_DRAWS + MAX_DRAWS];
        let mut first = 0;
        while first < draws.len() {
            let (mut end, mut hashed) = (first, 0);
            while end < draws.len() && hashed < PREFETCH_DRAWS {
                hashed += self.hash_group(draws, end, &mut key_hashes[hashed..]);
                end += 1;
            }
            let mut key_hashes = &key_hashes[..hashed];
            // A separate loop: with hashing in between, the CPU would overlap only two loads at a time.
            for key_hash in key_hashes {
                self.table.prefetch(*key_hash);
            }
            for group in first..end {
                let own_draws = draws.group_mut(group);
                let (own, others) = key_hashes.split_at(own_draws.len());
                if !self.decide_group(own_draws, own, now) {
                    draws.fail_group(group, StoreFailure::Full);
                }
                key_hashes = others;
            }
            first = end;
        }
    }

    /// See [`KeyHasher::hash_group`].
    pub(crate) fn hash_group(&self, draws: &Draws, group: usize, key_hashes: &mut [KeyHash]) -> usize {
        self.key_hasher.hash_group(draws, group, key_hashes)
    }

    /// Decides one group. Returns `false` if one of its draws could not be counted.
    fn decide_group(&self, draws: &mut [Draw], key_hashes: &[KeyHash], now: Micros) -> bool {
        match (draws, key_hashes) {
            ([draw], [key_hash]) => {
                let (scope, on_failure) = (draw.scope(), draw.options().on_failure);
                let mut is_counted = true;
                draw.decide_with(|limit, op, permit| {
                    let target = DrawTarget { key_hash: *key_hash, scope, limit, on_failure };
                    let (result, undo) = match op {
                        Op::Take(amount) => self.take_one(&target, amount, permit, now),
                        op => {
                            let shard = self.table.lock(self.table.shard_of(*key_hash));
                            self.apply(&shard, &target, op, permit, now)
                        }
                    };
                    is_counted = !matches!(undo, UndoStep::Uncounted);
                    result
                });
                is_counted
            }
            (draws, key_hashes) => self.apply_all(draws, key_hashes, |_| now, |_| true),
        }
    }

    /// Sweeps one shard per request, up to [`MAX_ASSIST_SHARDS`], while limits wait for a free limit slot, so that they
    /// need not wait for the next periodic sweep.
    #[inline]
    fn assist_sweep(&self, requests: usize) {
        if self.limit_table.needs_sweep() {
            self.sweep(requests.min(MAX_ASSIST_SHARDS));
        }
    }

    /// Takes from one limit of one key: [`MemoryStore::draw_now`] without a [`Draws`] buffer.
    #[inline(always)]
    pub fn take_now(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        amount: Amount,
        permit: PermitId,
    ) -> DrawResult {
        self.assist_sweep(1);
        let now = self.clock.now();
        let key_hash = self.key_hasher.key_hash(key, limit).in_scope(scope);
        let target = DrawTarget { key_hash, scope, limit, on_failure: FailureMode::Local };
        self.take_one(&target, amount, permit, now).0
    }

    /// Drops drained states from the next `shards` shards, so that idle keys free their memory. Shards are locked one
    /// after the other, each for some tens of microseconds. A server calls this on a timer.
    pub fn sweep(&self, shards: usize) {
        let now = self.clock.now();
        let end = || {
            self.limit_table.end_cycle();
            self.sketch.sweep(now);
        };
        self.sweep_rounds.advance(shards, |shard| self.sweep_shard(&self.table.lock(shard), now), end);
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.table.geometry().shards
    }

    /// The counters of [`MemoryStore::stats`] without its gauges. Takes no shard lock.
    pub fn counts(&self) -> MemoryStats {
        let (limits, limits_retired) = self.limit_table.count();
        let now = self.clock.now();
        let is_recent = |at: &AtomicU64| now.since(Micros::new(at.load(Relaxed))) < RECENT;
        MemoryStats {
            evicted: self.counters.evicted.load(Relaxed),
            moved_to_sketch: self.counters.moved_to_sketch.load(Relaxed),
            retired: self.counters.retired.load(Relaxed),
            sketch_decisions: self.counters.sketch_decisions.load(Relaxed),
            uncounted: self.counters.uncounted.load(Relaxed),
            is_sketching: is_recent(&self.counters.last_sketch_decision_at),
            is_full: is_recent(&self.counters.last_uncounted_at),
            limits,
            limits_retired,
            ..MemoryStats::default()
        }
    }

    /// Counts the states held. Takes every shard's lock in turn, so it is meant for metrics and not for the request
    /// path.
    pub fn stats(&self) -> MemoryStats {
        let geometry = self.table.geometry();
        let mut stats = MemoryStats {
            max_keys: geometry.shards * geometry.keys,
            max_list_entries: geometry.shards * geometry.keys,
            max_bytes: capacity::bytes(&geometry),
            max_limits: LimitTable::capacity(),
            ..self.counts()
        };
        for locked in (0..geometry.shards).map(|shard| self.table.lock(shard)) {
            stats.keys += locked.keys();
            if let Some(lists) = locked.lists_if_any() {
                let (lists, entries) = lists.count();
                stats.list_states += lists;
                stats.list_entries += entries;
            }
        }
        stats
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn draw(&self, draws: &mut Draws) {
        self.draw_now(draws);
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        let key_hash = self.key_hasher.key_hash(key, limit).in_scope(scope);
        let shard = self.table.lock(self.table.shard_of(key_hash));
        let target = DrawTarget { key_hash, scope, limit, on_failure: FailureMode::Local };
        let _: (DrawResult, _) = self.apply(&shard, &target, Op::Refund(u32::MAX), permit, self.clock.now());
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        Some(self.stats())
    }

    async fn maintain(&self) {
        self.sweep_forever().await;
    }
}
