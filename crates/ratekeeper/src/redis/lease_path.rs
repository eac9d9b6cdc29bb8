//! Requests that are answered from what this node was lent, and what becomes of that.
//!
//! A request that leased units don't [answer](crate::lease::Leases::spend_together) goes to the server. It asks there for what is
//! missing here, and what the leases want is told along with it. What is claimed here meanwhile is put back if the request
//! is given up ([`CallClaims`]).

use super::router::Router;
use super::store::RedisStore;
use crate::health::LATELY;
use crate::lease::{
    DetachedRenewal, DrawClaim, DrawRenewal, KeyName, LeaseRenewal, PendingRequest, is_leased, is_lendable,
};
use crate::memory::AHEAD;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Clock, Draw, Draws, MAX_DRAWS, Micros, Op};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout_at};

/// How often what lies idle is looked for, and in how many steps all of it is looked at.
const SWEEP: Duration = Duration::from_millis(100);
const STEPS: usize = 10;
/// How long a node that stops waits for everything to be given back.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many keys are given back at a time: fewer than there is room for on the way to a server, and so few
/// that it answers in time.
const GIVEN_AT_ONCE: usize = 1024;

/// What is claimed for the groups of one call. What has not been resolved when this is dropped is put back: the request was
/// given up.
#[derive(Debug)]
pub(super) struct CallClaims<'a> {
    post: &'a Router,
    claims: Vec<DrawClaim>,
}

impl<'a> CallClaims<'a> {
    pub(super) fn new(post: &'a Router, claims: Vec<DrawClaim>) -> CallClaims<'a> {
        CallClaims { post, claims }
    }

    /// Adds those of further groups.
    pub(super) fn extend(&mut self, claims: Vec<DrawClaim>) {
        self.claims.extend(claims);
    }

    /// Settles those of a group that was answered, or was not. Says whether units were given back to the server for it.
    pub(super) fn resolve(&mut self, draws: &mut Draws, group: usize) -> bool {
        if self.claims.is_empty() {
            return false;
        }
        let claims: Vec<_> = self.claims.extract_if(.., |claim| claim.group() == group).collect();
        let mut errands = Vec::new();
        self.post.leases.resolve(draws, group, &claims, self.post.clock.now(), &mut errands);
        let has_returned = !errands.is_empty();
        for errand in errands {
            self.post.send(errand);
        }
        has_returned
    }
}

impl Drop for CallClaims<'_> {
    fn drop(&mut self) {
        if !self.claims.is_empty() {
            self.post.leases.abandon(&self.claims);
        }
    }
}

impl RedisStore {
    /// Answers groups from leased units, from the first on, and says how many. Collects what goes along with the next.
    ///
    /// What many of them need is touched before the first is decided, so that a batch waits for memory together and not one
    /// by one.
    #[inline]
    pub(super) fn spend_all(&self, draws: &mut Draws, now: Micros, out: &mut PendingRequest) -> usize {
        match draws.len() {
            1 => usize::from(self.spend(draws, 0, now, out)),
            _ => self.spend_batch(draws, now, out),
        }
    }

    fn spend_batch(&self, draws: &mut Draws, now: Micros, out: &mut PendingRequest) -> usize {
        let mut tags = [KeyHash::NONE; AHEAD + MAX_DRAWS];
        let mut first = 0;
        loop {
            let (mut end, mut tagged) = (first, 0);
            while end < draws.len() && tagged < AHEAD && draws.group(end).iter().any(is_lendable) {
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
                if !self.spend_tagged(draws, group, own, now, out) {
                    return group;
                }
                tags = others;
            }
            first = end;
        }
    }

    /// Answers a group from leased units, if all of it can be. Else collects what goes along with it.
    pub(super) fn spend(
        &self,
        draws: &mut Draws,
        group: usize,
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        match draws.group(group) {
            [draw] if is_leased(draw) => {
                let tag = self.memory.tag(draws.key(draw), draw.scope(), draw.limit());
                self.spend_tagged(draws, group, &[tag], now, out)
            }
            all => {
                all.iter().any(is_lendable) && {
                    let mut tags = [KeyHash::NONE; MAX_DRAWS];
                    let tagged = self.memory.tag_group(draws, group, &mut tags);
                    self.spend_tagged(draws, group, &tags[..tagged], now, out)
                }
            }
        }
    }

    #[inline]
    fn spend_tagged(
        &self,
        draws: &mut Draws,
        group: usize,
        tags: &[KeyHash],
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let leases = &self.post.leases;
        let is_answered = match tags {
            [tag] if is_leased(&draws.group(group)[0]) => leases.spend_one(draws, group, *tag, now, out),
            tags => leases.spend_together(draws, group, tags, now, out),
        };
        if is_answered {
            for DrawRenewal { draw, order } in out.orders.drain(..) {
                self.send_alone(draws, &draws.group(group)[draw], order);
            }
        }
        is_answered
    }

    /// Sends an order for the key of a draw that was answered from hand.
    fn send_alone(&self, draws: &Draws, draw: &Draw, order: LeaseRenewal) {
        let name = self.post.leases.name(order.tag);
        let name =
            name.unwrap_or_else(|| Arc::new(KeyName { key: draws.key(draw).to_key(), scope: draw.scope() }));
        self.post.send(DetachedRenewal { order, limit: *draw.limit(), name });
    }

    /// Takes back orders that were not sent.
    pub(super) fn take_back(&self, wanted: &[DrawRenewal]) {
        for DrawRenewal { order, .. } in wanted {
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

    /// Notes that a server has units of a key again, because some were given back or the key was reset.
    pub(super) fn note_returns(&self, draws: &Draws, group: usize) {
        let is_return = |draw: &&Draw| matches!(draw.act(), Op::Give(_) | Op::Clear);
        for draw in draws.group(group).iter().filter(is_return) {
            self.post.leases.resume(self.memory.tag(draws.key(draw), draw.scope(), draw.limit()));
        }
    }
}

impl Router {
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
