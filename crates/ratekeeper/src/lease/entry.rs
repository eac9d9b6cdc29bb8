//! What is known of one key: what is in hand of it, and what was said of that.
//!
//! A cell is in one of three phases. It is *free* to ask; it is *asked*, while an order is on its way, and goes on spending
//! what it has said to keep; or its lease is *mute*, since an order got no answer. Whenever something is said or
//! heard of its lease, its serial number changes, and what was given out under another number counts no more.

use super::counters::{KeyCounters, LeaseCounters};
use super::demand::{Demand, remaining};
use super::hot::{HotFields, PackedHot};
use super::policy::{self, PolicyInput, WindowView};
use super::{
    DetachedRenewal, KeyName, LONGEST_NAME, LeaseKey, LeaseRenewal, LeaseReply, SpendOutcome, SpendReceipt,
    SpentUnits,
};
use crate::health::KeyLease;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Amount, DrawOutcome, DrawResult, Forecast, LeaseReport, LeaseRequest, Limit, LimitStatus, Micros, Retry,
    Span, State, TERM,
};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// By what part of its length a lease ends early, for clocks that run at different speeds, and by how much at least.
const MARGIN_PART: u64 = 64;
pub(super) const LEAST_MARGIN: Span = Span::millis(2);
/// What is left of a lease for less than this is not worth beginning with.
pub(super) const LEAST_USE: Span = Span::micros(500);
/// For how long nothing has been drawn when what is in hand is given back.
const IDLE: Span = Span::secs(5);
/// Of how many equal parts of the capacity one must be in hand for that.
const WORTH_GIVING: u64 = 64;
/// How long before a lease ends it is renewed, if it is worth it: what lapses is missed for as long as it takes to come
/// back. All leases of a term end together, so some are renewed earlier.
const RENEWED: (Span, Span) = (Span::secs(3), Span::secs(13));
/// A bucket is as good as full that lacks less than one of so many equal parts.
const AS_GOOD_AS_FULL: u64 = 256;
/// How long a key is remembered that holds nothing and is not drawn.
const FORGOTTEN: Span = Span::secs(120);

/// For how many draws of one key the store is asked within a moment. A key that is drawn a million times a second would else
/// fill the way to the store whenever nothing is in hand, make it slower, and hold up all others. One that is drawn for the
/// first time is known for what it is after some hundred draws.
const MOST_ASKS: u32 = 1024;
const MOMENT: Span = Span::millis(10);
/// An answer that is older than another by less than this came late; by more, and the store's clock was set back.
const LATEST: Span = Span::secs(2);
/// The soonest that somebody is told to come back who is refused without asking.
const SOONEST_RETRY: Span = Span::millis(1);

/// Where a key stands among others, from 0 to 255: a whim, so that not all do the same at once.
fn whim(tag: KeyHash) -> u8 {
    tag.mark.to_le_bytes()[0]
}

/// How long before its lease ends a key's is renewed.
fn renewed(tag: KeyHash) -> Span {
    let (latest, earliest) = (RENEWED.0.get(), RENEWED.1.get());
    Span::micros(latest + (earliest - latest) * u64::from(whim(tag)) / u64::from(u8::MAX))
}

/// What is needed now and then.
#[derive(Debug)]
pub(super) struct ColdFields {
    demand: Demand,
    /// The term that the lease is of.
    term: u64,
    /// Until when the key is refused without asking, unless for so few units.
    paused_until: Micros,
    pub(super) paused_left: u32,
    phase: LeasePhase,
    /// Units of the lease that are set aside for requests of which the store decides the rest.
    pub(super) claimed: u32,
    /// Names the lease: the serial number that it began with. What was claimed of another lease is not put back.
    pub(super) lease: u32,
    /// The store's time when it said something last; nothing if it has not.
    seen_at: Option<Micros>,
    /// Whether the store had too little when it was asked last.
    is_scarce: bool,
    /// How long its answers take.
    trip: Span,
    /// How many draws there had been when that was last found to have changed, and when.
    watched: u32,
    watched_at: Micros,
    pub(super) name: Option<Arc<KeyName>>,
    account: KeyCounters,
    /// Draws for which the store was asked, since then, which is a moment ago at most.
    asks: u32,
    asks_since: Micros,
    /// Whether what the store said last was not yet asked for by whoever decides without it.
    is_news: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeasePhase {
    Free,
    Asked,
    Mute,
}

/// Why an order is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RenewalCause {
    /// A draw goes to the store anyway.
    Draw,
    /// Little is left in hand.
    Low,
    /// The lease ends soon.
    Renewal,
}

impl ColdFields {
    /// Whether an order is on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.phase == LeasePhase::Asked
    }

    /// When the store was last asked, or the key came first.
    pub(super) fn asked_at(&self) -> Micros {
        self.demand.since()
    }
}

impl Default for ColdFields {
    fn default() -> ColdFields {
        ColdFields {
            demand: Demand::new(Micros::EPOCH),
            term: 0,
            paused_until: Micros::EPOCH,
            paused_left: 0,
            phase: LeasePhase::Free,
            claimed: 0,
            lease: 0,
            seen_at: None,
            is_scarce: false,
            trip: Span::ZERO,
            watched: 0,
            watched_at: Micros::EPOCH,
            name: None,
            account: KeyCounters::default(),
            asks: 0,
            asks_since: Micros::EPOCH,
            is_news: false,
        }
    }
}

/// A cell, and where what it does is counted. What is changed is written when this is dropped.
pub(super) struct EntryGuard<'a> {
    pub(super) hot: HotFields,
    pub(super) line: &'a PackedHot,
    pub(super) cold: &'a mut ColdFields,
    pub(super) tally: &'a mut LeaseCounters,
}

impl Drop for EntryGuard<'_> {
    fn drop(&mut self) {
        self.hot.write(self.line);
    }
}

impl EntryGuard<'_> {
    /// Begins anew under the limit on that page.
    pub(super) fn begin(&mut self, page: u32, now: Micros) {
        self.hot = HotFields { page, serial: self.hot.serial.wrapping_add(1), ..HotFields::default() };
        *self.cold = ColdFields {
            demand: Demand::new(now),
            watched_at: now,
            asks_since: now,
            name: self.cold.name.take(),
            lease: self.hot.serial,
            ..ColdFields::default()
        };
    }

    /// Something is said or heard of the lease.
    fn turn(&mut self, phase: LeasePhase) {
        self.cold.phase = phase;
        self.hot.serial = self.hot.serial.wrapping_add(1);
    }

    /// Counts a draw that the store decides.
    pub(super) fn count(&mut self, units: u32) {
        self.hot.count(units);
    }

    /// Counts that the store is asked.
    pub(super) fn ask(&mut self) {
        self.tally.asks += 1;
        self.cold.asks = self.cold.asks.saturating_add(1);
        self.cold.account.asked = self.cold.account.asked.wrapping_add(1);
    }

    /// Whether the store is asked for more draws than it should be.
    fn asks_too_much(&mut self, now: Micros) -> bool {
        if now.since(self.cold.asks_since) >= MOMENT {
            (self.cold.asks, self.cold.asks_since) = (0, now);
        }
        self.cold.asks >= MOST_ASKS
    }

    /// Forgets how often the store was asked: it is away, so nobody holds it up.
    pub(super) fn forget_asks(&mut self) {
        self.cold.asks = 0;
    }

    /// Counts units that can be neither spent nor given back.
    pub(super) fn lose(&mut self, units: u32) {
        self.tally.forfeited += u64::from(units);
        self.cold.account.forfeited += u64::from(units);
    }

    /// Takes from hand what there is, asks in time, and does not ask in vain.
    pub(super) fn spend(
        &mut self,
        limit: &Limit,
        whose: &LeaseKey<'_>,
        units: u32,
        nodes: u32,
        now: Micros,
    ) -> SpendOutcome {
        if now >= self.hot.ends && !self.cold.is_asked() {
            self.forfeit();
        }
        if now < self.hot.ends && units <= self.hot.hand {
            // The order comes first, so that what is spent here is not yet told of and can be put back.
            let order = self.order(RenewalCause::Low, limit, whose, nodes, now);
            self.tally.refills += u64::from(order.is_some());
            self.tally.spend(units);
            let outcome = self.hot.take(limit, units, now);
            return SpendOutcome::Spent(SpentUnits {
                outcome,
                receipt: SpendReceipt(self.hot.serial),
                order,
            });
        }
        self.hot.count(units);
        // The store is asked for what is missing here only.
        let missing = units - self.unspent(now).min(units);
        // While the store is being asked for a key that is as good as empty, asking it in vain does not help.
        let is_awaited = self.cold.is_asked() && self.cold.is_scarce;
        if (is_awaited || now < self.cold.paused_until) && missing > self.cold.paused_left {
            self.cold.demand.refuse(units);
            return SpendOutcome::Paused(self.refuse(limit, units, now));
        }
        if self.asks_too_much(now) {
            // That says nothing of how much is left.
            return SpendOutcome::Paused(self.refuse(limit, units, now));
        }
        self.ask();
        let claim = self.claim(limit, whose.tag, units, now);
        if self.cold.phase == LeasePhase::Mute {
            // Too little is left of it, and no more can be had as long as it is held.
            self.forfeit();
        }
        SpendOutcome::Ask { order: self.order(RenewalCause::Draw, limit, whose, nodes, now), claim }
    }

    /// Units that may be spent now.
    pub(super) fn unspent(&self, now: Micros) -> u32 {
        if now < self.hot.ends { self.hot.hand } else { 0 }
    }

    /// Forgets a draw that this limit would have granted and another one denied: it is no demand for this one.
    pub(super) fn forget_draw(&mut self, units: u32) {
        self.cold.demand.forget(units);
    }

    /// The state of the key at the store's time, as far as it is known here: units that are unspent here are left. `None`
    /// if the store has not told anything yet.
    pub(super) fn known_state(&self, limit: &Limit, now: Micros) -> Option<(Micros, State)> {
        self.cold.seen_at?;
        let (at, unspent) = (self.hot.store_time(now), self.unspent(now));
        Some((at, limit.give_unspent(self.hot.seen, at, unspent, self.hot.spent)))
    }

    /// Asks the store again at once: it is known to have more than it said.
    pub(super) fn resume(&mut self) {
        self.cold.is_scarce = false;
        self.pause(Micros::EPOCH, 0);
    }

    /// An order, if there is anything to ask for or, where that costs nothing, to tell; and if none is on its way.
    fn order(
        &mut self,
        cause: RenewalCause,
        limit: &Limit,
        whose: &LeaseKey<'_>,
        nodes: u32,
        now: Micros,
    ) -> Option<LeaseRenewal> {
        // Until the answer is there, or if there is nothing to be had, what is in hand is spent to the last.
        self.hot.low = 0;
        if self.cold.phase != LeasePhase::Free {
            return None;
        }
        let wish = self.wish(limit, nodes, now);
        let is_wished = wish != LeaseRequest::default();
        let is_told = self.hot.is_lent(now) && cause != RenewalCause::Low;
        if !is_wished && !is_told {
            // There is enough in hand, or else nothing to be had.
            self.hot.low = if self.cold.is_scarce { 0 } else { self.hot.hand / 2 };
            return None;
        }
        if is_wished && self.cold.name.is_none() && whose.key.bytes().len() <= LONGEST_NAME {
            self.cold.name = Some(Arc::new(KeyName { key: whose.key.to_key(), scope: whose.scope }));
        }
        Some(self.tell(whose.tag, self.hot.hand, wish, now))
    }

    /// What to ask for beyond what is in hand; nothing if that is no unit.
    fn wish(&mut self, limit: &Limit, nodes: u32, now: Micros) -> LeaseRequest {
        self.cold.demand.count(self.hot.counts, policy::counted(limit), now);
        let at = self.hot.store_time(now);
        let seen = self.cold.seen_at.map(|_| self.hot.seen);
        self.cold.is_scarce &= !policy::is_over(limit, seen, at);
        let view = PolicyInput {
            left: self.left_by_now(limit, nodes, at),
            window: WindowView::of(limit, seen, at, self.cold.trip),
            is_scarce: self.cold.is_scarce,
            nodes,
        };
        let wish = policy::wish(limit, &self.cold.demand, view);
        let (soon, later) =
            (wish.soon.saturating_sub(self.hot.hand), wish.later.saturating_sub(self.hot.hand));
        if soon == 0 && later == 0 { LeaseRequest::default() } else { LeaseRequest { soon, later, ..wish } }
    }

    /// How many units are left at the store, as far as one can tell: others draw too.
    fn left_by_now(&self, limit: &Limit, nodes: u32, at: Micros) -> u32 {
        let Some(seen_at) = self.cold.seen_at else { return limit.capacity() };
        let drawn = self.cold.demand.everywhere(nodes) * policy::seconds(at.since(seen_at));
        remaining(limit, self.hot.seen, at).saturating_sub(policy::units(drawn))
    }

    /// Says of each unit of the lease that it is spent, kept or, beyond what is kept, given back; and that no more is to
    /// be said until there is an answer.
    fn tell(&mut self, tag: KeyHash, kept: u32, wish: LeaseRequest, now: Micros) -> LeaseRenewal {
        let report = match now < self.hot.ends {
            // What is claimed may be put back, so it is kept for now.
            true => LeaseReport {
                term: self.cold.term,
                spent: self.hot.spent,
                kept: kept.saturating_add(self.cold.claimed),
                back: self.hot.hand - kept,
            },
            false => LeaseReport::default(),
        };
        self.hot.spent = 0;
        self.hot.hand = if now < self.hot.ends { kept } else { 0 };
        self.turn(LeasePhase::Asked);
        LeaseRenewal { tag, report, wish, asked_at: now, serial: self.hot.serial }
    }

    /// Takes over what the store has lent.
    pub(super) fn settle(&mut self, limit: &Limit, order: &LeaseRenewal, told: &LeaseReply, now: Micros) {
        self.turn(LeasePhase::Free);
        self.tally.returned += u64::from(order.report.back);
        self.cold.account.returned += u64::from(order.report.back);
        self.cold.account.lent += u64::from(told.loan.units);
        if !told.loan.is_known {
            // What was kept had lapsed before the store heard of it, and what was spent of it meanwhile with it.
            self.forfeit();
        }
        self.cold.trip = policy::smooth(self.cold.trip, now.since(order.asked_at));
        let lasts = told.loan.until.since(told.at);
        let margin = Span::micros(lasts.get() / MARGIN_PART).max(LEAST_MARGIN);
        self.hot.ends = order.asked_at.plus(lasts).less(margin);
        self.cold.term = told.loan.term;
        self.hot.hand = self.hot.hand.saturating_add(told.loan.units);
        if self.hot.ends < now.plus(LEAST_USE) {
            self.forfeit();
        }
        let seen = match told.seen {
            Some(seen) => seen,
            None => {
                self.cold.demand.add(told.loan.units);
                limit.step(Some(self.hot.seen), told.at, Amount::exactly(told.loan.units)).state
            }
        };
        self.see(limit, seen, told.at, order.asked_at);
        self.look_ahead(limit, order, told);
    }

    /// Decides when to ask next: when little is left in hand, or, if the store had less than is spent in a moment, after a
    /// while.
    fn look_ahead(&mut self, limit: &Limit, order: &LeaseRenewal, told: &LeaseReply) {
        let demand = &self.cold.demand;
        let window = WindowView::of(limit, Some(self.hot.seen), told.at, self.cold.trip);
        let left = remaining(limit, self.hot.seen, told.at);
        if left == 0
            && let Some(pause) = policy::pause_when_used_up(limit, demand, window)
        {
            (self.hot.low, self.cold.is_scarce) = (0, true);
            return self.pause(order.asked_at.plus(pause), 0);
        }
        let pause = policy::pause(limit, demand, window)
            .filter(|pause| policy::is_scarce(limit, demand, left, *pause, self.cold.is_scarce));
        self.cold.is_scarce = pause.is_some();
        let is_short = told.loan.units < order.wish.soon;
        self.hot.low = match is_short && pause.is_some() {
            true => 0,
            false => policy::low(demand, self.hot.hand, self.cold.trip, whim(order.tag)),
        };
        match pause {
            Some(pause) if is_short => self.pause(order.asked_at.plus(pause), 0),
            Some(_) => {}
            None => self.pause(Micros::EPOCH, 0),
        }
    }

    /// Refuses until then whoever wants more than so few.
    fn pause(&mut self, until: Micros, but: u32) {
        (self.cold.paused_until, self.cold.paused_left) = (until, but);
    }

    /// Takes note of what the store said to a draw.
    pub(super) fn note(&mut self, limit: &Limit, ask: Amount, outcome: &DrawResult, asked_at: Micros) {
        let Some(seen) = outcome.state() else { return };
        self.see(limit, seen, outcome.now(), asked_at);
        if !outcome.is_refused() {
            return;
        }
        self.cold.demand.refuse(ask.at_least());
        let window = WindowView::of(limit, Some(seen), outcome.now(), self.cold.trip);
        let outlook = LimitStatus::new(limit, ask, *outcome).outlook();
        if let Some(Retry::After(wait)) = outlook.retry
            && let Some(pause) = policy::pause_until_due(limit, &self.cold.demand, window, wait)
        {
            self.cold.is_scarce = true;
            self.pause(asked_at.plus(pause), outlook.remaining);
        }
    }

    /// Takes over what the store remembers, unless it has said something since: whoever asked for a draw hears of it after
    /// what was lent with it is settled. Of what it said at the same time, what leaves less was said last.
    fn see(&mut self, limit: &Limit, seen: State, at: Micros, asked_at: Micros) {
        if let Some(before) = self.cold.seen_at {
            let is_late = match at.cmp(&before) {
                Ordering::Less => before.since(at) < LATEST,
                Ordering::Equal => remaining(limit, seen, at) > remaining(limit, self.hot.seen, at),
                Ordering::Greater => false,
            };
            if is_late {
                return;
            }
            if before <= at {
                self.cold.demand.learn(limit, (self.hot.seen, before), (seen, at));
            }
        }
        self.cold.seen_at = Some(at);
        self.cold.is_news = true;
        self.hot.seen = seen;
        self.hot.ahead = at.get().cast_signed() - asked_at.get().cast_signed();
    }

    /// What a key hears that is refused without asking: to come back when the store will be asked again.
    fn refuse(&mut self, limit: &Limit, units: u32, now: Micros) -> DrawResult {
        let at = self.hot.store_time(now);
        let known = self.known_state(limit, now).map_or(self.hot.seen, |(_, state)| state);
        let refused = DrawResult::of_state(DrawOutcome::Refused, at, known);
        let outlook = LimitStatus::new(limit, Amount::exactly(units), refused).outlook();
        let retry = match outlook.retry {
            Some(Retry::After(wait)) => {
                Some(Retry::After(wait.max(self.cold.paused_until.since(now)).max(SOONEST_RETRY)))
            }
            retry => retry,
        };
        let is_stale = outlook.remaining >= units;
        self.tally.paused += 1;
        self.tally.stale += u64::from(is_stale);
        let account = &mut self.cold.account;
        account.refused = account.refused.wrapping_add(1);
        account.stale = account.stale.wrapping_add(u32::from(is_stale));
        // What has come since is there, but not for so many.
        let remaining = outlook.remaining.min(units.saturating_sub(1));
        DrawResult::of_outlook(DrawOutcome::Refused, at, Forecast { remaining, retry, ..outlook })
    }

    /// Has the lease spent until it ends, and never speaks of it again.
    pub(super) fn fall_mute(&mut self) {
        self.tally.lost += 1;
        self.turn(LeasePhase::Mute);
    }

    /// Takes back an order that was not sent.
    pub(super) fn take_back(&mut self, order: &LeaseRenewal) {
        self.turn(LeasePhase::Free);
        self.hot.spent = self.hot.spent.saturating_add(order.report.spent);
        self.hot.hand = self.hot.hand.saturating_add(order.report.back);
        self.hot.low = self.hot.hand / 2;
    }

    /// Puts back what was spent a moment ago.
    pub(super) fn put_back(&mut self, units: u32) {
        let units = units.min(self.hot.spent);
        self.hot.spent -= units;
        self.hot.hand = self.hot.hand.saturating_add(units);
    }

    /// Lets the lease lapse. What was said of it counts no more.
    pub(super) fn forfeit(&mut self) {
        self.lose(self.hot.hand);
        (self.hot.hand, self.hot.spent, self.hot.low) = (0, 0, 0);
        self.hot.ends = Micros::EPOCH;
        self.turn(LeasePhase::Free);
        (self.cold.claimed, self.cold.lease) = (0, self.hot.serial);
    }

    /// Looks after a cell that perhaps nobody else does: what lies idle is given back, what ends soon is renewed.
    pub(super) fn sweep(
        &mut self,
        limit: &Limit,
        tag: KeyHash,
        nodes: u32,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        if self.cold.is_asked() {
            // Whoever took the order owes an answer. If it was dropped, the lease must not wait for ever.
            if now.since(self.cold.asked_at()) > TERM {
                self.fall_mute();
            }
            return None;
        }
        if now >= self.hot.ends {
            self.forfeit();
            return None;
        }
        if self.cold.watched != self.hot.counts.draws {
            (self.cold.watched, self.cold.watched_at) = (self.hot.counts.draws, now);
        }
        let is_idle = now.since(self.cold.watched_at) >= IDLE;
        let is_much = |units: u32| u64::from(units) * WORTH_GIVING > u64::from(limit.capacity());
        if is_idle && is_much(self.hot.hand) {
            return self.give_back(limit, tag, now);
        }
        let is_ending = !policy::has_windows(limit) && self.hot.ends.since(now) < renewed(tag);
        let lent = self.hot.hand.saturating_add(self.hot.spent);
        let is_missed = is_much(lent) || self.hot.hand > 0 && self.is_in_demand(limit, lent, now);
        if !is_ending || !is_missed {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        let whose = LeaseKey { tag, key: name.key.borrow(), scope: name.scope };
        let order = self.order(RenewalCause::Renewal, limit, &whose, nodes, now)?;
        Some(DetachedRenewal { order, limit: *limit, name: Arc::clone(&name) })
    }

    /// Whether a key is drawn faster than it refills, or has been: then what lapses of it is lost. A bucket that is as good as
    /// full refills before anybody misses it.
    fn is_in_demand(&self, limit: &Limit, lent: u32, now: Micros) -> bool {
        let left = remaining(limit, self.hot.seen, self.hot.store_time(now)).saturating_add(lent);
        u64::from(left) + u64::from(limit.capacity()) / AS_GOOD_AS_FULL < u64::from(limit.capacity())
    }

    /// Gives back all that is in hand, if it is known whose it is and may be spoken of.
    pub(super) fn give_back(&mut self, limit: &Limit, tag: KeyHash, now: Micros) -> Option<DetachedRenewal> {
        if self.cold.phase != LeasePhase::Free || !self.hot.is_lent(now) {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        self.tally.refills += 1;
        Some(DetachedRenewal { order: self.tell(tag, 0, LeaseRequest::default(), now), limit: *limit, name })
    }

    /// Spends nothing more. What is in hand stays there only if an answer is awaited, with which it is given back.
    pub(super) fn close(&mut self) {
        match self.cold.is_asked() {
            true => self.hot.ends = Micros::EPOCH,
            false => self.forfeit(),
        }
    }

    /// What the store said last, for whoever has to decide without it; nothing if it was asked for already, and has been
    /// gone on from.
    pub(super) fn news(&mut self) -> Option<State> {
        std::mem::take(&mut self.cold.is_news).then_some(self.hot.seen)
    }

    /// How it stands, for people.
    pub(super) fn describe(&self, now: Micros) -> KeyLease {
        let until = |end: Micros| (end > now).then(|| Duration::from_micros(end.since(now).get()));
        let KeyCounters { lent, returned, forfeited, asked, refused, stale } = self.cold.account;
        let claimed = u64::from(self.cold.claimed);
        KeyLease {
            in_hand: self.unspent(now),
            lasts: until(self.hot.ends).filter(|_| self.hot.is_lent(now)),
            is_mute: self.cold.phase == LeasePhase::Mute,
            paused: until(self.cold.paused_until),
            per_second: self.cold.demand.here(),
            lent,
            spent: lent.saturating_sub(returned + forfeited + u64::from(self.hot.hand) + claimed),
            returned,
            forfeited,
            draws: self.hot.counts.draws,
            asked,
            refused,
            stale,
        }
    }

    /// Whether nothing is lost if the cell is dropped.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        let last = self.cold.watched_at.max(self.cold.asked_at());
        !self.cold.is_asked() && !self.hot.is_lent(now) && now.since(last) > FORGOTTEN
    }
}
