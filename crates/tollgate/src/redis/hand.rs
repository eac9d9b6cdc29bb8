//! Requests that are answered from what this node was lent, and what becomes of that.
//!
//! A request is answered from hand if all of its limits have enough there. Else what was taken is put back, and the whole
//! request goes to the server, which decides it all or nothing; what the leases want is told along with it.

use super::post::Post;
use super::store::{RedisStore, spared};
use crate::health::LATELY;
use crate::lease::{Errand, Name, Order, Spend, Whose};
use crate::memory::AHEAD;
use crate::memory::tag::Tag;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout_at};
use tollgate_core::{Act, Clock, Consistency, Draw, Draws, MAX_DRAWS, Micros};

/// How often what lies idle is looked for, and in how many steps all of it is looked at.
const SWEEP: Duration = Duration::from_millis(100);
const STEPS: usize = 10;
/// How long a node that stops waits for everything to be given back.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many keys are given back at a time: fewer than there is room for on the way to a server, and so few
/// that it answers in time.
const GIVEN_AT_ONCE: usize = 1024;

/// An order that goes along with a draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Which of its group's draws.
    pub(super) draw: usize,
    pub(super) order: Order,
}

/// Whether a draw may be answered from what was lent.
pub(super) fn is_leased(draw: &Draw) -> bool {
    let Act::Take(ask) = draw.act() else { return false };
    draw.terms().consistency == Consistency::Leased
        && ask.at_least() == ask.at_most()
        && draw.limit().can_lend()
}

impl RedisStore {
    /// Decides groups from hand, from the first on, and says how many. Collects what is wanted along with the next.
    ///
    /// What many of them need is touched before the first is decided, so that a batch waits for memory together and not one
    /// by one.
    #[inline]
    pub(super) fn spend_all(&self, draws: &mut Draws, now: Micros, wanted: &mut Vec<Wanted>) -> usize {
        match draws.len() {
            1 => usize::from(self.spend(draws, 0, now, wanted)),
            _ => self.spend_batch(draws, now, wanted),
        }
    }

    fn spend_batch(&self, draws: &mut Draws, now: Micros, wanted: &mut Vec<Wanted>) -> usize {
        let mut tags = [Tag::NONE; AHEAD + MAX_DRAWS];
        let mut first = 0;
        loop {
            let (mut end, mut tagged) = (first, 0);
            while end < draws.len() && tagged < AHEAD && draws.group(end).iter().all(is_leased) {
                tagged += self.memory.tag_group(draws, end, &mut tags[tagged..]);
                end += 1;
            }
            if end == first {
                return first;
            }
            let mut tags = &tags[..tagged];
            self.post.leases.touch(tags);
            for group in first..end {
                let (own, others) = tags.split_at(draws.group(group).len());
                if !self.spend_tagged(draws, group, own, now, wanted) {
                    return group;
                }
                tags = others;
            }
            first = end;
        }
    }

    /// Decides a group from hand, if all of it can be. Else collects what is wanted along with it.
    pub(super) fn spend(
        &self,
        draws: &mut Draws,
        group: usize,
        now: Micros,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        match draws.group(group) {
            [draw] => {
                is_leased(draw) && {
                    let tag = self.memory.tag(draws.key(draw), draw.scope(), draw.limit());
                    self.spend_one(draws, group, tag, now, wanted)
                }
            }
            all => {
                all.iter().all(is_leased) && {
                    let mut tags = [Tag::NONE; MAX_DRAWS];
                    let tagged = self.memory.tag_group(draws, group, &mut tags);
                    self.spend_together(draws, group, &tags[..tagged], now, wanted)
                }
            }
        }
    }

    fn spend_tagged(
        &self,
        draws: &mut Draws,
        group: usize,
        tags: &[Tag],
        now: Micros,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        match tags {
            [tag] => self.spend_one(draws, group, *tag, now, wanted),
            tags => self.spend_together(draws, group, tags, now, wanted),
        }
    }

    #[inline]
    fn spend_one(
        &self,
        draws: &mut Draws,
        group: usize,
        tag: Tag,
        now: Micros,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        let outcome = match self.spend_draw(draws, &draws.group(group)[0], tag, now) {
            Spend::Spent(spent) => {
                if let Some(order) = spent.order {
                    self.send_alone(draws, &draws.group(group)[0], order);
                }
                spent.outcome
            }
            Spend::Paused(outcome) => outcome,
            Spend::Ask(order) => {
                wanted.extend(order.map(|order| Wanted { draw: 0, order }));
                return false;
            }
        };
        draws.group_mut(group)[0].settle(|_, _, _| outcome);
        true
    }

    fn spend_together(
        &self,
        draws: &mut Draws,
        group: usize,
        tags: &[Tag],
        now: Micros,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        let mut spends = [None; MAX_DRAWS];
        let (mut must_ask, mut is_refused) = (false, false);
        for (index, (draw, tag)) in draws.group(group).iter().zip(tags).enumerate() {
            let spend = self.spend_draw(draws, draw, *tag, now);
            let order = match spend {
                Spend::Ask(order) => {
                    must_ask = true;
                    order
                }
                Spend::Spent(spent) => spent.order,
                Spend::Paused(_) => {
                    is_refused |= !draw.is_shadow();
                    None
                }
            };
            wanted.extend(order.map(|order| Wanted { draw: index, order }));
            spends[index] = Some(spend);
        }
        if must_ask || is_refused {
            self.put_back(draws.group(group), tags, &spends, must_ask);
        }
        if must_ask {
            return false;
        }
        for Wanted { draw, order } in wanted.drain(..) {
            self.send_alone(draws, &draws.group(group)[draw], order);
        }
        for (draw, spend) in draws.group_mut(group).iter_mut().zip(spends) {
            match spend {
                Some(Spend::Spent(spent)) => draw.settle(|_, _, _| spent.outcome),
                Some(Spend::Paused(outcome)) => draw.settle(|_, _, _| outcome),
                Some(Spend::Ask(_)) | None => {}
            }
            if is_refused && !draw.is_refused() {
                let outcome = spared(draw, draw.act().ask().at_least());
                draw.settle(|_, _, _| outcome);
            }
        }
        true
    }

    #[inline(always)]
    fn spend_draw(&self, draws: &Draws, draw: &Draw, tag: Tag, now: Micros) -> Spend {
        let whose = Whose { tag, key: draws.key(draw), scope: draw.scope() };
        self.post.leases.spend(&whose, draw.limit(), draw.act().ask().at_least(), now)
    }

    fn put_back(&self, draws: &[Draw], tags: &[Tag], spends: &[Option<Spend>], must_ask: bool) {
        for ((draw, tag), spend) in draws.iter().zip(tags).zip(spends) {
            if let Some(Spend::Spent(spent)) = spend {
                let units = draw.act().ask().at_least();
                match must_ask {
                    true => self.post.leases.put_back(*tag, units, spent.receipt),
                    false => self.post.leases.put_back_unasked(*tag, units, spent.receipt),
                }
            }
        }
    }

    /// Sends an order for the key of a draw that was answered from hand.
    fn send_alone(&self, draws: &Draws, draw: &Draw, order: Order) {
        let name = self.post.leases.name(order.tag);
        let name =
            name.unwrap_or_else(|| Arc::new(Name { key: draws.key(draw).to_key(), scope: draw.scope() }));
        self.post.send(Errand { order, limit: *draw.limit(), name });
    }

    /// Takes back orders that were not sent.
    pub(super) fn take_back(&self, wanted: &[Wanted]) {
        for Wanted { order, .. } in wanted {
            self.post.leases.settle_unsent(order);
        }
    }

    /// Notes what a server said to draws for which nothing was ordered.
    pub(super) fn note_answers(&self, draws: &Draws, group: usize, asked_at: Micros) {
        for draw in draws.group(group).iter().filter(|draw| is_leased(draw)) {
            let tag = self.memory.tag(draws.key(draw), draw.scope(), draw.limit());
            self.post.leases.note(tag, draw.limit(), draw.act().ask(), draw.outcome(), asked_at);
        }
    }
}

impl Post {
    /// Looks after leases for ever, and counts for how long the store is away: `nodes` says how many share it.
    pub(super) async fn look_after_leases(&self, nodes: impl Fn() -> u32) {
        let (mut ticks, mut errands) = (interval(SWEEP), Vec::new());
        let mut seen = Instant::now();
        let shards = self.leases.shards().div_ceil(STEPS);
        loop {
            ticks.tick().await;
            let before = std::mem::replace(&mut seen, Instant::now());
            let is_up = self.fleet.is_up();
            self.leases.set_away(!is_up);
            if !is_up || self.tally.last_miss().is_some_and(|ago| ago < LATELY) {
                self.tally.note_away(seen.duration_since(before));
            }
            self.leases.set_nodes(nodes());
            self.leases.sweep(shards, self.clock.now(), &mut errands);
            for errand in errands.drain(..) {
                self.send(errand);
            }
        }
    }

    /// Gives back everything, and spends nothing more. It waits until the servers have heard of it, but not for ever.
    pub(super) async fn give_back_all(&self) {
        let mut errands = Vec::new();
        self.leases.drain(self.clock.now(), &mut errands);
        let (deadline, mut errands) = (Instant::now() + FAREWELL, errands.into_iter());
        while errands.len() > 0 {
            let some = errands.by_ref().take(GIVEN_AT_ONCE);
            let tickets: Vec<_> = some.filter_map(|errand| self.send(errand)).collect();
            for ticket in tickets {
                // Whether it arrived or was lost, there is nothing more to do for it.
                let _ = timeout_at(deadline, ticket.decided).await;
            }
        }
    }
}
