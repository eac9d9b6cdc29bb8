//! Requests that are answered from what this node was lent, and what becomes of that.
//!
//! A request is answered from hand if all of its limits have enough there. Else what was taken is put back, and the whole
//! request goes to the server, which decides it all or nothing; what the leases want is told along with it.

use super::post::Post;
use super::store::{RedisStore, spared};
use crate::health::LATELY;
use crate::lease::{Errand, Name, Order, Spend, Whose};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout_at};
use tollgate_core::{Act, Consistency, Draw, Draws, MAX_DRAWS, Micros};

/// How often what lies idle is looked for, and in how many steps all of it is looked at.
const SWEEP: Duration = Duration::from_millis(100);
const STEPS: usize = 10;
/// How long a node that stops waits for everything to be given back.
const FAREWELL: Duration = Duration::from_secs(2);

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
    /// Decides a group from hand, if all of it can be. Else collects what is wanted along with it.
    pub(super) fn spend(
        &self,
        draws: &mut Draws,
        group: usize,
        now: Micros,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        match draws.group(group) {
            [draw] => is_leased(draw) && self.spend_one(draws, group, now, wanted),
            all => all.iter().all(is_leased) && self.spend_together(draws, group, now, wanted),
        }
    }

    fn spend_one(&self, draws: &mut Draws, group: usize, now: Micros, wanted: &mut Vec<Wanted>) -> bool {
        let outcome = match self.spend_draw(draws, &draws.group(group)[0], now) {
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

    fn spend_together(&self, draws: &mut Draws, group: usize, now: Micros, wanted: &mut Vec<Wanted>) -> bool {
        let mut spends = [None; MAX_DRAWS];
        let (mut must_ask, mut is_refused) = (false, false);
        for (index, draw) in draws.group(group).iter().enumerate() {
            let spend = self.spend_draw(draws, draw, now);
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
            self.put_back(draws, group, &spends);
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

    fn spend_draw(&self, draws: &Draws, draw: &Draw, now: Micros) -> Spend {
        let (key, scope) = (draws.key(draw), draw.scope());
        let whose = Whose { tag: self.memory.tag(key, scope, draw.limit()), key, scope };
        self.post.leases.spend(&whose, draw.limit(), draw.act().ask().at_least(), now)
    }

    fn put_back(&self, draws: &Draws, group: usize, spends: &[Option<Spend>]) {
        for (draw, spend) in draws.group(group).iter().zip(spends) {
            if let Some(Spend::Spent(spent)) = spend {
                let tag = self.memory.tag(draws.key(draw), draw.scope(), draw.limit());
                self.post.leases.put_back(tag, draw.act().ask().at_least(), spent.receipt);
            }
        }
    }

    /// Sends an order for the key of a draw that was answered from hand.
    fn send_alone(&self, draws: &Draws, draw: &Draw, order: Order) {
        let name = Arc::new(Name { key: draws.key(draw).to_key(), scope: draw.scope() });
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
            if !self.fleet.is_up() || self.tally.last_miss().is_some_and(|ago| ago < LATELY) {
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
        let deadline = Instant::now() + FAREWELL;
        let tickets: Vec<_> = errands.into_iter().filter_map(|errand| self.send(errand)).collect();
        for ticket in tickets {
            // Whether it arrived or was lost, there is nothing more to do for it.
            let _ = timeout_at(deadline, ticket.decided).await;
        }
    }
}
