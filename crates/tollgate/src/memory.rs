//! State kept in this process.
//!
//! A draw is tagged with a keyed hash, finds its shard's lock, and is decided under it. A request that touches several
//! shards locks them in index order, so that two requests can never wait for each other, and is undone if one of its
//! limits refuses. The clock is read once a call.
//!
//! A drained state says the same as none, so it may be dropped at any time without changing an answer. That happens
//! when a shard would have to grow, and in [`MemoryStore::sweep`]. At the cap something must go for a newcomer: a
//! drained state if a look around finds one, else the state of the key that has used the least. A key that is being
//! refused is never dropped. If nothing may go, the newcomer is decided as what it is, a key never seen, but it is not
//! remembered; both cases are counted.

pub(crate) mod book;
mod cap;
mod decide;
mod entry;
mod mirror;
mod roll;
mod room;
mod shard;
pub(crate) mod sync;
mod table;
pub(crate) mod tag;

pub use cap::{Cap, CapError};

use crate::clock::SystemClock;
use crate::health::StoreHealth;
use crate::store::Store;
use book::Book;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use table::{Geometry, Table};
use tag::{Tag, Tagger};
use tollgate_core::{
    Act, Ask, Clock, Draw, Draws, KeyRef, Limit, MAX_DRAWS, Micros, Outcome, PermitId, Scope,
};

/// How many draws of a batch have their slots touched ahead. The processor overlaps about that many.
pub(crate) const AHEAD: usize = 16;

/// State kept in this process: bounded, sharded, and exact.
///
/// ```
/// use tollgate::{Cap, MemoryStore, SystemClock};
///
/// let store = MemoryStore::with(SystemClock::new(), Cap::keys(5_000_000).and_bytes(200 << 20))?;
/// assert_eq!(store.stats().keys, 0);
/// # Ok::<(), tollgate::CapError>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    tagger: Tagger,
    table: Table,
    book: Book,
    tally: Tally,
    /// The shard that is swept next.
    broom: AtomicUsize,
}

/// What happened that should not go unseen.
#[derive(Debug, Default)]
struct Tally {
    evicted: AtomicU64,
    unremembered: AtomicU64,
}

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
    /// The most memory that the table can take.
    pub max_bytes: usize,
    /// States dropped at the cap before they had drained.
    pub evicted: u64,
    /// Draws that were granted and could not be remembered.
    pub unremembered: u64,
}

impl MemoryStore {
    /// A store for up to [a million keys](Cap::DEFAULT) on the machine's clock.
    ///
    /// # Panics
    /// If the system won't lend 30 MB of address space.
    pub fn new() -> MemoryStore {
        MemoryStore::with(SystemClock::new(), Cap::DEFAULT).expect("30 MB of address space can be had")
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
    pub fn with(clock: C, cap: Cap) -> Result<MemoryStore<C>, CapError> {
        let geometry: Geometry = cap.geometry()?;
        let table = Table::new(geometry).ok_or(CapError::TooLarge { bytes: geometry.bytes() })?;
        let (tagger, book, tally) = (Tagger::random(), Book::new(), Tally::default());
        Ok(MemoryStore { clock, tagger, table, book, tally, broom: AtomicUsize::new(0) })
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
        let now = self.clock.now();
        let mut tags = [Tag::NONE; AHEAD + MAX_DRAWS];
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
                let draws = draws.group_mut(group);
                let (own, others) = tags.split_at(draws.len());
                self.decide(draws, own, now);
                tags = others;
            }
            first = end;
        }
    }

    /// Hashes the keys of a group and says how many there are. A key that is drawn from several limits in a row is
    /// hashed once.
    pub(crate) fn tag_group(&self, draws: &Draws, group: usize, tags: &mut [Tag]) -> usize {
        let draws_of_group = draws.group(group);
        let mut hashed = Tag::NONE;
        for (index, draw) in draws_of_group.iter().enumerate() {
            let is_hashed = index > 0 && draw.shares_hash(&draws_of_group[index - 1]);
            if !is_hashed {
                hashed = self.tagger.tag(draws.key(draw), draw.limit());
            }
            tags[index] = hashed.in_scope(draw.scope());
        }
        draws_of_group.len()
    }

    fn decide(&self, draws: &mut [Draw], tags: &[Tag], now: Micros) {
        match (draws, tags) {
            ([draw], [tag]) => {
                let mut shard = self.table.lock(self.table.shard_of(*tag));
                draw.settle(|limit, act, permit| self.act(&mut shard, *tag, limit, act, permit, now).0);
            }
            (draws, tags) => self.act_together(draws, tags, |_| now, |_| true),
        }
    }

    /// Takes from one limit under one key: [`MemoryStore::draw_now`] without the buffer.
    #[inline]
    pub fn take_now(
        &self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        ask: Ask,
        permit: PermitId,
    ) -> Outcome {
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
        ask: Ask,
    ) -> Result<Outcome, Micros> {
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
        ask: Ask,
        permit: PermitId,
        now: Micros,
    ) -> Outcome {
        let tag = self.tagger.tag(key, limit).in_scope(scope);
        let mut shard = self.table.lock(self.table.shard_of(tag));
        self.act(&mut shard, tag, limit, Act::Take(ask), permit, now).0
    }

    /// Drops drained states from the next `shards` shards. Each is locked for some tens of microseconds, one after the
    /// other; a server calls this on a timer, so that idle keys go by themselves.
    pub fn sweep(&self, shards: usize) {
        let now = self.clock.now();
        for _ in 0..shards.min(self.table.geometry().shards) {
            let next = self.broom.fetch_add(1, Relaxed) % self.table.geometry().shards;
            self.sweep_shard(&mut self.table.lock(next), now);
        }
    }

    /// How many shards there are to sweep.
    pub fn shards(&self) -> usize {
        self.table.geometry().shards
    }

    /// Counts what it holds. It takes every shard's lock in turn: for a gauge, not for the request path.
    pub fn stats(&self) -> MemoryStats {
        let geometry = self.table.geometry();
        let mut stats = MemoryStats {
            max_keys: geometry.shards * geometry.keys,
            max_roll_entries: geometry.shards * geometry.keys,
            max_bytes: geometry.bytes(),
            evicted: self.tally.evicted.load(Relaxed),
            unremembered: self.tally.unremembered.load(Relaxed),
            ..MemoryStats::default()
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
        let _: (Outcome, _) = self.act(&mut shard, tag, limit, Act::Give(u32::MAX), permit, self.clock.now());
    }
}

/// It is this process, and nobody else's.
impl<C: Clock> StoreHealth for MemoryStore<C> {}
