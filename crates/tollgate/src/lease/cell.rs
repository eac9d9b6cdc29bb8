//! What is known of one key: what is in hand of it, and what was said of that.
//!
//! A cell is in one of three phases. It is *free* to ask; it is *asked*, while an order is on its way, and goes on spending
//! what it has said to keep; or its lease is *mute*, since an order got no answer. Whenever something is said or
//! heard of its lease, its serial number changes, and what was given out under another number counts no more.

use super::demand::{Counts, Demand, remaining};
use super::policy::{self, View};
use super::stats::Tally;
use super::{Errand, LONGEST_NAME, Name, Order, Receipt, Spend, Spent, Told, Whose};
use crate::memory::tag::Tag;
use std::sync::Arc;
use tollgate_core::{
    Answer, Ask, Limit, Micros, Outcome, Outlook, Reading, Report, Retry, Span, State, TERM, Wish,
};

/// By what part of its length a lease ends early, for clocks that run at different speeds, and by how much at least.
const MARGIN_PART: u64 = 64;
const LEAST_MARGIN: Span = Span::millis(2);
/// What is left of a lease for less than this is not worth beginning with.
const LEAST_USE: Span = Span::micros(500);
/// For how long nothing has been drawn when what is in hand is given back.
const IDLE: Span = Span::secs(5);
/// Of how many equal parts of the capacity one must be in hand for that.
const WORTH_GIVING: u64 = 64;
/// How long before a lease ends it is renewed, if it is worth it: what lapses is missed for as long as it takes to come
/// back.
const RENEWED: Span = Span::secs(3);
/// How long a key is remembered that holds nothing and is not drawn.
const FORGOTTEN: Span = Span::secs(120);

/// The soonest that somebody is told to come back who is refused without asking.
const SOONEST_RETRY: Span = Span::millis(1);

/// What a draw from hand needs: a line of the cache.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Hot {
    /// What the store said last, with all that is lent counted as taken.
    seen: State,
    /// By how many microseconds the store's clock is ahead of this one, or a little less.
    ahead: i64,
    /// When the lease ends.
    pub(super) ends: Micros,
    /// The term that it is of.
    term: u64,
    /// Units that may be spent.
    pub(super) hand: u32,
    /// With how many in hand it is time to ask for more.
    pub(super) low: u32,
    /// Units of the lease that were spent and not told of.
    spent: u32,
    /// The limit that they are of.
    pub(super) page: u32,
    counts: Counts,
}

/// What is needed now and then.
#[derive(Debug)]
pub(super) struct Cold {
    demand: Demand,
    /// Until when the key is refused without asking, unless for so few units.
    paused_until: Micros,
    paused_left: u32,
    pub(super) serial: u32,
    phase: Phase,
    /// The store's time when it said something last; nothing if it has not.
    seen_at: Option<Micros>,
    /// Whether the store had too little when it was asked last.
    is_scarce: bool,
    /// How many draws there had been when that was last found to have changed, and when.
    watched: u32,
    watched_at: Micros,
    pub(super) name: Option<Arc<Name>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Asked,
    Mute,
}

/// Why an order is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A draw goes to the store anyway.
    Draw,
    /// Little is left in hand.
    Low,
    /// The lease ends soon.
    Renewal,
}

impl Hot {
    /// Whether there is something of a lease to spend or to tell.
    pub(super) fn is_lent(&self, now: Micros) -> bool {
        now < self.ends && (self.hand > 0 || self.spent > 0)
    }

    /// Spends units that are in hand, and words what the limit says: all that is left at the store and here.
    #[inline(always)]
    pub(super) fn take(&mut self, limit: &Limit, units: u32, now: Micros) -> Outcome {
        self.hand -= units;
        self.spent += units;
        self.count(units);
        let at = self.store_time(now);
        Outcome::of_state(Answer::Granted(units), at, limit.give(self.seen, at, self.hand))
    }

    #[inline(always)]
    fn count(&mut self, units: u32) {
        self.counts.draws = self.counts.draws.wrapping_add(1);
        self.counts.units = self.counts.units.wrapping_add(units);
    }

    /// What the store's clock shows: never less, and more by the time that its last question took to get there.
    #[inline(always)]
    fn store_time(&self, now: Micros) -> Micros {
        Micros::new(now.get().saturating_add_signed(self.ahead))
    }
}

impl Cold {
    /// Whether an order is on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.phase == Phase::Asked
    }

    /// When the store was last asked, or the key came first.
    pub(super) fn asked_at(&self) -> Micros {
        self.demand.since()
    }

    fn turn(&mut self, phase: Phase) {
        self.phase = phase;
        self.serial = self.serial.wrapping_add(1);
    }
}

impl Default for Cold {
    fn default() -> Cold {
        Cold {
            demand: Demand::new(Micros::EPOCH),
            paused_until: Micros::EPOCH,
            paused_left: 0,
            serial: 0,
            phase: Phase::Free,
            seen_at: None,
            is_scarce: false,
            watched: 0,
            watched_at: Micros::EPOCH,
            name: None,
        }
    }
}

/// A cell, and where what it does is counted.
pub(super) struct Slot<'a> {
    pub(super) hot: &'a mut Hot,
    pub(super) cold: &'a mut Cold,
    pub(super) tally: &'a mut Tally,
}

impl Slot<'_> {
    /// Begins anew under the limit on that page.
    pub(super) fn begin(&mut self, page: u32, now: Micros) {
        *self.hot = Hot { page, ..Hot::default() };
        let (serial, name) = (self.cold.serial.wrapping_add(1), self.cold.name.take());
        *self.cold = Cold { demand: Demand::new(now), serial, watched_at: now, name, ..Cold::default() };
    }

    /// Counts a draw that the store decides.
    pub(super) fn count(&mut self, units: u32) {
        self.hot.count(units);
    }

    /// Takes from hand what there is, asks in time, and does not ask in vain.
    pub(super) fn spend(
        &mut self,
        limit: &Limit,
        whose: &Whose<'_>,
        units: u32,
        nodes: u32,
        now: Micros,
    ) -> Spend {
        if now >= self.hot.ends && !self.cold.is_asked() {
            self.forfeit();
        }
        if now < self.hot.ends && units <= self.hot.hand {
            // The order comes first, so that what is spent here is not yet told of and can be put back.
            let order = self.order(Cause::Low, limit, whose, nodes, now);
            self.tally.refills += u64::from(order.is_some());
            self.tally.spend(units);
            let outcome = self.hot.take(limit, units, now);
            return Spend::Spent(Spent { outcome, receipt: Receipt(self.cold.serial), order });
        }
        self.hot.count(units);
        // While the store is being asked for a key that is as good as empty, asking it in vain does not help.
        let is_awaited = self.cold.is_asked() && self.cold.is_scarce;
        if is_awaited || now < self.cold.paused_until && units > self.cold.paused_left {
            self.tally.paused += 1;
            self.cold.demand.refuse(units);
            return Spend::Paused(self.refusal(limit, units, now));
        }
        self.tally.asks += 1;
        if self.cold.phase == Phase::Mute {
            // Too little is left of it, and no more can be had as long as it is held.
            self.forfeit();
        }
        Spend::Ask(self.order(Cause::Draw, limit, whose, nodes, now))
    }

    /// An order, if there is anything to ask for or, where that costs nothing, to tell; and if none is on its way.
    fn order(
        &mut self,
        cause: Cause,
        limit: &Limit,
        whose: &Whose<'_>,
        nodes: u32,
        now: Micros,
    ) -> Option<Order> {
        // Until the answer is there, or if there is nothing to be had, what is in hand is spent to the last.
        self.hot.low = 0;
        if self.cold.phase != Phase::Free {
            return None;
        }
        let wish = self.wish(limit, nodes, now);
        let is_wished = wish != Wish::default();
        let is_told = self.hot.is_lent(now) && cause != Cause::Low;
        if !is_wished && !is_told {
            return None;
        }
        if is_wished && self.cold.name.is_none() && whose.key.bytes().len() <= LONGEST_NAME {
            self.cold.name = Some(Arc::new(Name { key: whose.key.to_key(), scope: whose.scope }));
        }
        Some(self.tell(whose.tag, self.hot.hand, wish, now))
    }

    /// What to ask for beyond what is in hand; nothing if that is no unit.
    fn wish(&mut self, limit: &Limit, nodes: u32, now: Micros) -> Wish {
        self.cold.demand.count(self.hot.counts, now);
        let at = self.hot.store_time(now);
        let seen = self.cold.seen_at.map(|_| self.hot.seen);
        let view = View {
            left: self.left_by_now(limit, nodes, at),
            lasts: policy::window_left(limit, seen, at),
            is_scarce: self.cold.is_scarce,
            nodes,
        };
        let wish = policy::wish(limit, &self.cold.demand, view);
        let (soon, later) =
            (wish.soon.saturating_sub(self.hot.hand), wish.later.saturating_sub(self.hot.hand));
        if soon == 0 && later == 0 { Wish::default() } else { Wish { soon, later, ..wish } }
    }

    /// How many units are left at the store, as far as one can tell: others draw too.
    fn left_by_now(&self, limit: &Limit, nodes: u32, at: Micros) -> u32 {
        let Some(seen_at) = self.cold.seen_at else { return limit.capacity() };
        let drawn = self.cold.demand.everywhere(nodes) * policy::seconds(at.since(seen_at));
        remaining(limit, self.hot.seen, at).saturating_sub(policy::units(drawn))
    }

    /// Says of each unit of the lease that it is spent, kept or, beyond what is kept, given back; and that no more is to
    /// be said until there is an answer.
    fn tell(&mut self, tag: Tag, kept: u32, wish: Wish, now: Micros) -> Order {
        let report = match now < self.hot.ends {
            true => Report { term: self.hot.term, spent: self.hot.spent, kept, back: self.hot.hand - kept },
            false => Report::default(),
        };
        self.hot.spent = 0;
        self.hot.hand = report.kept;
        self.cold.turn(Phase::Asked);
        Order { tag, report, wish, asked_at: now, serial: self.cold.serial }
    }

    /// Takes over what the store has lent.
    pub(super) fn settle(&mut self, limit: &Limit, order: &Order, told: &Told, now: Micros) {
        self.cold.turn(Phase::Free);
        self.tally.returned += u64::from(order.report.back);
        if !told.loan.is_known {
            // What was kept had lapsed before the store heard of it, and what was spent of it meanwhile with it.
            self.forfeit();
        }
        let lasts = told.loan.until.since(told.at);
        let margin = Span::micros(lasts.get() / MARGIN_PART).max(LEAST_MARGIN);
        self.hot.ends = order.asked_at.plus(lasts).less(margin);
        self.hot.term = told.loan.term;
        self.hot.hand = self.hot.hand.saturating_add(told.loan.units);
        if self.hot.ends < now.plus(LEAST_USE) {
            self.forfeit();
        }
        let seen = match told.seen {
            Some(seen) => seen,
            None => {
                self.cold.demand.add(told.loan.units);
                limit.step(Some(self.hot.seen), told.at, Ask::exactly(told.loan.units)).state
            }
        };
        self.see(limit, seen, told.at, order.asked_at);
        self.look_ahead(limit, order, told);
    }

    /// Decides when to ask next: when little is left in hand, or, if the store had less than is spent in a moment, after a
    /// while.
    fn look_ahead(&mut self, limit: &Limit, order: &Order, told: &Told) {
        let demand = &self.cold.demand;
        let lasts = policy::window_left(limit, Some(self.hot.seen), told.at);
        let pause = policy::pause(limit, demand, lasts);
        let left = remaining(limit, self.hot.seen, told.at);
        // It is scarce once the store has refused, and until more is left than comes in such a while. Before that, who wants
        // all that is left may have it at once.
        let pause = pause.filter(|pause| self.cold.is_scarce && policy::is_scarce(limit, left, *pause));
        self.cold.is_scarce = pause.is_some();
        self.hot.low = if self.cold.is_scarce { 0 } else { policy::low(demand, self.hot.hand) };
        match pause {
            Some(pause) if told.loan.units < order.wish.soon => self.pause(order.asked_at.plus(pause), 0),
            Some(_) => {}
            None => self.pause(Micros::EPOCH, 0),
        }
    }

    /// Refuses until then whoever wants more than so few.
    fn pause(&mut self, until: Micros, but: u32) {
        (self.cold.paused_until, self.cold.paused_left) = (until, but);
    }

    /// Takes note of what the store said to a draw.
    pub(super) fn note(&mut self, limit: &Limit, ask: Ask, outcome: &Outcome, asked_at: Micros) {
        let Some(seen) = outcome.state() else { return };
        self.see(limit, seen, outcome.now(), asked_at);
        if !outcome.is_refused() {
            return;
        }
        self.cold.demand.refuse(ask.at_least());
        let lasts = policy::window_left(limit, Some(seen), outcome.now());
        let outlook = Reading::new(limit, ask, *outcome).outlook();
        if let Some(Retry::After(wait)) = outlook.retry
            && let Some(pause) = policy::pause_until_due(limit, &self.cold.demand, lasts, wait)
        {
            self.cold.is_scarce = true;
            self.pause(asked_at.plus(pause), outlook.remaining);
        }
    }

    /// Takes over what the store remembers. What it said before may come after it; it is then believed again, for a
    /// moment: no limit rests on this.
    fn see(&mut self, limit: &Limit, seen: State, at: Micros, asked_at: Micros) {
        if let Some(before) = self.cold.seen_at.filter(|before| *before <= at) {
            self.cold.demand.learn(limit, (self.hot.seen, before), (seen, at));
        }
        self.cold.seen_at = Some(at);
        self.hot.seen = seen;
        self.hot.ahead = at.get().cast_signed() - asked_at.get().cast_signed();
    }

    /// What a key hears that is refused without asking: to come back when the store will be asked again.
    fn refusal(&self, limit: &Limit, units: u32, now: Micros) -> Outcome {
        let at = self.hot.store_time(now);
        let refused = Outcome::of_state(Answer::Refused, at, self.hot.seen);
        let outlook = Reading::new(limit, Ask::exactly(units), refused).outlook();
        let retry = match outlook.retry {
            Some(Retry::After(wait)) => {
                Some(Retry::After(wait.max(self.cold.paused_until.since(now)).max(SOONEST_RETRY)))
            }
            retry => retry,
        };
        // What has come since is there, but not for so many.
        let remaining = outlook.remaining.min(units.saturating_sub(1));
        Outcome::of_outlook(Answer::Refused, at, Outlook { remaining, retry, ..outlook })
    }

    /// Has the lease spent until it ends, and never speaks of it again.
    pub(super) fn fall_mute(&mut self) {
        self.tally.lost += 1;
        self.cold.turn(Phase::Mute);
    }

    /// Takes back an order that was not sent.
    pub(super) fn take_back(&mut self, order: &Order) {
        self.cold.turn(Phase::Free);
        self.hot.spent = self.hot.spent.saturating_add(order.report.spent);
        self.hot.hand = self.hot.hand.saturating_add(order.report.back);
    }

    /// Puts back what was spent a moment ago.
    pub(super) fn put_back(&mut self, units: u32) {
        let units = units.min(self.hot.spent);
        self.hot.spent -= units;
        self.hot.hand = self.hot.hand.saturating_add(units);
    }

    /// Lets the lease lapse. What was said of it counts no more.
    pub(super) fn forfeit(&mut self) {
        self.tally.forfeited += u64::from(self.hot.hand);
        (self.hot.hand, self.hot.spent, self.hot.low) = (0, 0, 0);
        self.hot.ends = Micros::EPOCH;
        self.cold.turn(Phase::Free);
    }

    /// Looks after a cell that perhaps nobody else does: what lies idle is given back, what ends soon is renewed.
    pub(super) fn sweep(&mut self, limit: &Limit, tag: Tag, nodes: u32, now: Micros) -> Option<Errand> {
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
        let is_ending = !policy::has_windows(limit) && self.hot.ends.since(now) < RENEWED;
        if !is_ending || !is_much(self.hot.hand.saturating_add(self.hot.spent)) {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        let whose = Whose { tag, key: name.key.borrow(), scope: name.scope };
        let order = self.order(Cause::Renewal, limit, &whose, nodes, now)?;
        Some(Errand { order, limit: *limit, name: Arc::clone(&name) })
    }

    /// Gives back all that is in hand, if it is known whose it is and may be spoken of.
    pub(super) fn give_back(&mut self, limit: &Limit, tag: Tag, now: Micros) -> Option<Errand> {
        if self.cold.phase != Phase::Free || !self.hot.is_lent(now) {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        self.tally.refills += 1;
        Some(Errand { order: self.tell(tag, 0, Wish::default(), now), limit: *limit, name })
    }

    /// Spends nothing more. What is in hand stays there only if an answer is awaited, with which it is given back.
    pub(super) fn close(&mut self) {
        match self.cold.is_asked() {
            true => self.hot.ends = Micros::EPOCH,
            false => self.forfeit(),
        }
    }

    /// Whether nothing is lost if the cell is dropped.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        let last = self.cold.watched_at.max(self.cold.asked_at());
        !self.cold.is_asked() && !self.hot.is_lent(now) && now.since(last) > FORGOTTEN
    }
}
