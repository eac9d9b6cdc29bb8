//! Units that this node was lent, and spends without asking.
//!
//! A store of many nodes lends units ahead (`ALGORITHMS.md`, *Leases*). Here is what a node does with them: it spends them
//! while the lease lasts, measures how fast each key is drawn, says when to ask the store and for how much, and gives
//! back what lies idle. Nothing here waits or sends: an [`LeaseRenewal`] says what to ask, and whoever has sent it says what
//! became of it, once.
//!
//! The rules that the limit rests on are kept here, whatever callers do. A unit is in hand only after the store has said
//! so ([`Leases::settle`]). It leaves the hand when it is spent, told of or given back, and what was said of a lease is
//! said once: an order carries a serial number, which changes with every order and every answer, and what comes with
//! another number is void. An order without an answer makes the lease *mute*: it is spent up to its deadline and never
//! spoken of again. The deadline counts from before the question was sent, on a [clock](table::MonotonicClock) that never goes
//! back.
//!
//! All times are of one clock of this node, and handed in, except those that are said to be the store's.

mod claim;
mod counters;
mod demand;
mod entry;
mod group;
mod hot;
mod policy;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod sim;
mod table;
#[cfg(test)]
mod tests;

use crate::health::{KeyLease, LeaseCounts};
use crate::memory::key_hash::KeyHash;
use crate::memory::limit_table::LimitTable;
use crate::memory::sweep_rounds::SweepRounds;
pub(crate) use claim::Claim;
use entry::EntryGuard;
pub(crate) use group::{DrawClaim, DrawRenewal, PendingRequest, is_leased, is_lendable, spared};
use hot::HotFields;
use ratekeeper_core::{
    Amount, DrawResult, Key, KeyRef, LeaseGrant, LeaseReport, LeaseRequest, Limit, Micros, Scope, State,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use table::{LeaseShardGuard, LeaseTable};

/// The longest key that is kept with its lease. A longer one is leased too, but what lies idle of it lapses, because
/// nobody knows any more how to give it back.
const LONGEST_NAME: usize = 512;

/// All leases of this node, in bounded memory.
#[derive(Debug)]
pub(crate) struct Leases {
    table: LeaseTable,
    book: LimitTable,
    nodes: AtomicU32,
    /// Whether the store is away, so that whoever asks it only hears so.
    is_away: AtomicBool,
    rounds: SweepRounds,
}

/// Whose units they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseKey<'a> {
    /// Stands for all of this, and the law's family.
    pub(crate) tag: KeyHash,
    pub(crate) key: KeyRef<'a>,
    pub(crate) scope: Scope,
}

/// What is to be done with a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpendOutcome {
    /// It is granted.
    Spent(SpentUnits),
    /// The store is to be asked for it, but for the units that are claimed here, and for what the order says too.
    Ask { order: Option<LeaseRenewal>, claim: Option<Claim> },
    /// It is refused: the store had nothing left a moment ago.
    Paused(DrawResult),
}

impl SpendOutcome {
    /// The store is to be asked for all of it, and for nothing else.
    pub(crate) const ASK: SpendOutcome = SpendOutcome::Ask { order: None, claim: None };
}

/// Units that were spent from hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpentUnits {
    /// What the limit says, as of the store's time.
    pub(crate) outcome: DrawResult,
    /// Shows which lease they were of, and what had been said of it: for [`Leases::put_back`].
    pub(crate) receipt: SpendReceipt,
    /// To be sent by and by, so that there is always something in hand.
    pub(crate) order: Option<LeaseRenewal>,
}

/// Which lease, and what had been said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpendReceipt(u32);

/// What to tell the store of a key, and what to ask it for. Whoever takes one settles it in one of the four ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRenewal {
    pub(crate) tag: KeyHash,
    pub(crate) report: LeaseReport,
    pub(crate) wish: LeaseRequest,
    /// When it was made, which is before it is sent.
    asked_at: Micros,
    serial: u32,
}

impl LeaseRenewal {
    /// When it was made, which is before it is sent.
    pub(crate) fn asked_at(&self) -> Micros {
        self.asked_at
    }
}

/// An order for which no draw tells whose it is.
#[derive(Clone, Debug)]
pub(crate) struct DetachedRenewal {
    pub(crate) order: LeaseRenewal,
    pub(crate) limit: Limit,
    pub(crate) name: Arc<KeyName>,
}

/// What a key is called.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    pub(crate) key: Key,
    pub(crate) scope: Scope,
}

/// What the store said to an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseReply {
    pub(crate) loan: LeaseGrant,
    /// What it remembers after that, with all that is lent counted as taken; nothing if it did not say.
    pub(crate) seen: Option<State>,
    /// The store's time then.
    pub(crate) at: Micros,
}

impl Leases {
    /// Leases of up to so many keys, rounded up to whole shards.
    pub(crate) fn new(cells: usize) -> Leases {
        let table = LeaseTable::new(cells);
        Leases {
            rounds: SweepRounds::new(table.shards()),
            table,
            book: LimitTable::new(),
            nodes: AtomicU32::new(1),
            is_away: AtomicBool::new(false),
        }
    }

    /// Says how many nodes there are. What one takes ahead is a part of what it may, were it alone.
    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Relaxed);
    }

    /// Says whether the store is away.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Relaxed);
    }

    /// Has what draws with these tags need near when they come: for batches.
    #[inline]
    pub(crate) fn touch(&self, tags: &[KeyHash]) {
        self.table.touch(tags);
    }

    /// Takes units from hand; or says that the store is to be asked.
    #[inline]
    pub(crate) fn spend(&self, whose: &LeaseKey<'_>, limit: &Limit, units: u32, now: Micros) -> SpendOutcome {
        let mut locked = self.table.lock(whose.tag);
        let now = locked.clock.read(now);
        let found = locked.find(whose.tag).and_then(|index| Some((index, locked.line(index)?)));
        let Some((index, line)) = found else { return self.meet(&mut locked, whose, limit, units, now) };
        let mut hot = HotFields::read(line);
        // One comparison tells that there is enough, and that it is not yet time to ask for more.
        let is_plain = units <= hot.hand.saturating_sub(hot.low) && now < hot.ends;
        if is_plain && self.book.holds(hot.page, limit) {
            let outcome = hot.take(limit, units, now);
            hot.write_taken(line);
            locked.tally.spend(units);
            return SpendOutcome::Spent(SpentUnits {
                outcome,
                receipt: SpendReceipt(hot.serial),
                order: None,
            });
        }
        self.spend_slowly(&mut locked, index, whose, limit, units, now)
    }

    /// Puts back what was spent a moment ago for a request that another of its limits denies. If anything was said of the
    /// lease meanwhile, it is forfeited.
    pub(crate) fn put_back(&self, tag: KeyHash, units: u32, receipt: SpendReceipt) {
        let mut shard = self.table.lock(tag);
        shard.tally.put_back(units);
        let found = shard.find(tag);
        if let Some(mut slot) = found.and_then(|index| shard.slot(index)) {
            slot.forget_draw(units);
            if slot.hot.serial == receipt.0 {
                slot.put_back(units);
            } else {
                slot.lose(units);
            }
            return;
        }
        shard.tally.forfeited += u64::from(units);
    }

    /// What the key of an order is called, if that is known.
    pub(crate) fn name(&self, tag: KeyHash) -> Option<Arc<KeyName>> {
        let mut shard = self.table.lock(tag);
        let index = shard.find(tag)?;
        shard.slot(index)?.cold.name.clone()
    }

    /// Takes note of what the store said to an order. If this node is [closing](Leases::drain), gives an order that gives
    /// everything back.
    pub(crate) fn settle(
        &self,
        order: &LeaseRenewal,
        told: LeaseReply,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        let mut shard = self.table.lock(order.tag);
        let now = shard.clock.about(now);
        shard.tally.lent += u64::from(told.loan.units);
        let is_closed = shard.is_closed;
        let Some((mut slot, limit)) = self.asked(&mut shard, order) else {
            shard.tally.forfeited += u64::from(told.loan.units);
            return None;
        };
        slot.settle(&limit, order, &told, now);
        if !is_closed {
            return None;
        }
        let errand = slot.give_back(&limit, order.tag, now);
        slot.close();
        errand
    }

    /// Takes note that an order got no answer. Whether the store has heard of it is unknown, so nothing more is said of
    /// the lease.
    pub(crate) fn settle_lost(&self, order: &LeaseRenewal) {
        let mut shard = self.table.lock(order.tag);
        if let Some((mut slot, _)) = self.asked(&mut shard, order) {
            slot.lose(order.report.back);
            slot.fall_mute();
        }
    }

    /// Takes note that an order was never sent: everything is as if it had not been made. A node that is
    /// [closing](Leases::drain) has no other occasion to give back what it was about, which is forfeited.
    pub(crate) fn settle_unsent(&self, order: &LeaseRenewal) {
        let mut shard = self.table.lock(order.tag);
        let is_closed = shard.is_closed;
        if let Some((mut slot, _)) = self.asked(&mut shard, order) {
            slot.take_back(order);
            if is_closed {
                slot.forfeit();
            }
        }
    }

    /// Takes note of what the store said to a draw for which it was asked; before the order that went along is settled, if
    /// one did. `asked_at` is before it was sent.
    pub(crate) fn note(
        &self,
        tag: KeyHash,
        limit: &Limit,
        ask: Amount,
        outcome: &DrawResult,
        asked_at: Micros,
    ) {
        let mut shard = self.table.lock(tag);
        let asked_at = shard.clock.past(asked_at);
        let Some(mut slot) = shard.find(tag).and_then(|index| shard.slot(index)) else { return };
        if self.book.holds(slot.hot.page, limit) {
            slot.note(limit, ask, outcome, asked_at);
        }
    }

    /// Looks through the next shards: drops what is over, and collects orders that give back what lies idle.
    pub(crate) fn sweep(&self, shards: usize, now: Micros, out: &mut Vec<DetachedRenewal>) {
        let nodes = self.nodes.load(Relaxed);
        let visit = |next: usize| {
            let mut shard = self.table.lock_at(next);
            let now = shard.clock.about(now);
            for index in 0..shard.places() {
                let Some(tag) = shard.tag(index) else { continue };
                let Some(mut slot) = shard.slot(index) else { continue };
                match self.book.limit(slot.hot.page) {
                    Some(limit) => out.extend(slot.sweep(&limit, tag, nodes, now)),
                    None => slot.forfeit(),
                }
                let (page, is_over) = (slot.hot.page, slot.is_over(now));
                drop(slot);
                match is_over {
                    true => shard.remove(index),
                    false => self.book.mark(page),
                }
            }
        };
        self.rounds.go_on(shards, visit, || self.book.end_cycle());
    }

    /// How many shards there are to sweep.
    pub(crate) fn shards(&self) -> usize {
        self.table.shards()
    }

    /// Spends nothing from now on, and collects orders that give everything back. What is being asked for is given back
    /// when it is [settled](Leases::settle).
    pub(crate) fn drain(&self, now: Micros, out: &mut Vec<DetachedRenewal>) {
        for next in 0..self.table.shards() {
            let mut shard = self.table.lock_at(next);
            let now = shard.clock.about(now);
            shard.is_closed = true;
            for index in 0..shard.places() {
                let Some(tag) = shard.tag(index) else { continue };
                let Some(mut slot) = shard.slot(index) else { continue };
                let limit = self.book.limit(slot.hot.page);
                out.extend(limit.and_then(|limit| slot.give_back(&limit, tag, now)));
                slot.close();
            }
        }
    }

    /// What the store said last of a key under this limit, for whoever has to decide without it. It says so once: from then
    /// on, whoever decides knows better, until the store says something again.
    pub(crate) fn news(&self, tag: KeyHash, limit: &Limit) -> Option<State> {
        let mut shard = self.table.lock(tag);
        let index = shard.find(tag)?;
        let mut slot = shard.slot(index)?;
        if self.book.holds(slot.hot.page, limit) { slot.news() } else { None }
    }

    /// How it stands with one key under this limit, for people; nothing if it has no place here.
    pub(crate) fn describe(&self, tag: KeyHash, limit: &Limit, now: Micros) -> Option<KeyLease> {
        let mut shard = self.table.lock(tag);
        let now = shard.clock.about(now);
        let index = shard.find(tag)?;
        let slot = shard.slot(index)?;
        self.book.holds(slot.hot.page, limit).then(|| slot.describe(now))
    }

    /// Counts what it did so far. It takes every shard's lock in turn: for a gauge, not for the request path.
    pub(crate) fn counts(&self) -> LeaseCounts {
        let mut counts = LeaseCounts { max_keys: self.table.capacity(), ..LeaseCounts::default() };
        for shard in (0..self.table.shards()).map(|shard| self.table.lock_at(shard)) {
            counts.add(&shard.tally, shard.cells());
        }
        counts
    }

    /// The first draw of a key: a place for it, if there is one. It is decided by the store, and nothing is ordered for
    /// somebody who may never come again.
    #[cold]
    fn meet(
        &self,
        shard: &mut LeaseShardGuard<'_>,
        whose: &LeaseKey<'_>,
        limit: &Limit,
        units: u32,
        now: Micros,
    ) -> SpendOutcome {
        let may_have_a_place = units > 0 && !shard.is_closed && limit.can_lend();
        if may_have_a_place
            && let Some(page) = self.book.intern(whose.scope, limit, now)
            && let Some(mut slot) = shard.make_room(whose.tag, now)
        {
            slot.begin(page, now);
            slot.count(units);
            slot.ask();
            return SpendOutcome::ASK;
        }
        shard.tally.asks += 1;
        shard.tally.crowded += u64::from(may_have_a_place);
        SpendOutcome::ASK
    }

    /// All that is not plain: too little in hand, time to ask, a lease that is over, another limit.
    #[inline(never)]
    fn spend_slowly(
        &self,
        shard: &mut LeaseShardGuard<'_>,
        index: usize,
        whose: &LeaseKey<'_>,
        limit: &Limit,
        units: u32,
        now: Micros,
    ) -> SpendOutcome {
        let is_closed = shard.is_closed;
        let Some(mut slot) = shard.slot(index) else { return SpendOutcome::ASK };
        if !self.book.holds(slot.hot.page, limit) {
            slot.forfeit();
            match self.book.intern(whose.scope, limit, now) {
                Some(page) => slot.begin(page, now),
                None => {
                    slot.tally.asks += 1;
                    drop(slot);
                    shard.remove(index);
                    return SpendOutcome::ASK;
                }
            }
        }
        if is_closed || units == 0 {
            slot.ask();
            return SpendOutcome::ASK;
        }
        if self.is_away.load(Relaxed) {
            slot.forget_asks();
        }
        slot.spend(limit, whose, units, self.nodes.load(Relaxed), now)
    }

    /// The cell that an order is of, if that is still what it waits for.
    fn asked<'a>(
        &self,
        shard: &'a mut LeaseShardGuard<'_>,
        order: &LeaseRenewal,
    ) -> Option<(EntryGuard<'a>, Limit)> {
        let index = shard.find(order.tag)?;
        let slot = shard.slot(index)?;
        if !slot.cold.is_asked() || slot.hot.serial != order.serial {
            return None;
        }
        let limit = self.book.limit(slot.hot.page)?;
        Some((slot, limit))
    }
}
