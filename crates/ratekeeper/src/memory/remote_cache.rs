//! What a store elsewhere said, remembered here.
//!
//! A store that other processes share too is asked over a network. What it says of a key is kept, so that two things can
//! be told without it. First, that a request is refused: others can only have taken more since, so what did not fit then
//! and has not come back by now does not fit whatever they did. Second, where to go on while the store gives no answer.
//!
//! Where units are lent to nodes, the store says how it stands as if they were owed. So it is now; and what is owed flows
//! back from now on, what is lent only once it was spent or has lapsed. So whoever is refused by this memory would be refused
//! there, unless a node gives back what it was lent. That is as with any other refund: whoever refuses from here does so
//! only for a moment.
//!
//! The states are those of the shared store, and so is the time that goes with them: this process's clock has no say.

use super::MemoryStore;
use super::decide::DrawTarget;
use super::entry::TableEntry;
use super::key_hash::KeyHash;
use super::shard::SlotPosition;
use ratekeeper_core::{
    Clock, Consistency, Draw, Draws, FailureMode, KeyRef, LeasedState, Limit, MAX_DRAWS, Micros, Op, Scope,
    State,
};

#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a store elsewhere is remembered"))]
impl<C: Clock> MemoryStore<C> {
    /// Remembers what was said of the keys of a group; draws that stay on this node are remembered already.
    ///
    /// What is said may overtake what was said before it. An older state has less taken, and so refuses nobody whom the
    /// newer one would not.
    pub(crate) fn learn(&self, draws: &Draws, group: usize) {
        for draw in draws.group(group).iter().filter(|draw| draw.terms().consistency != Consistency::Local) {
            if let Some(state) = draw.outcome().state() {
                let tag = self.tag(draws.key(draw), draw.scope(), draw.limit());
                self.learn_one(
                    &subject(tag, draw.scope(), draw.limit()),
                    state,
                    draw.now(),
                    draw.is_refused(),
                );
            }
        }
    }

    /// Remembers what was said of a key by the store's time `now`, or before it.
    pub(crate) fn learn_state(&self, tag: KeyHash, scope: Scope, limit: &Limit, state: State, now: Micros) {
        self.learn_one(&subject(tag, scope, limit), state, now, false);
    }

    fn learn_one(&self, subject: &DrawTarget<'_>, state: State, now: Micros, refused: bool) {
        let DrawTarget { tag, limit, .. } = *subject;
        let mut shard = self.table.lock(self.table.shard_of(tag));
        let place = shard.find(tag.mark);
        if limit.is_drained(state, now) {
            if let SlotPosition::Here(slot) = place {
                shard.remove(slot);
            }
            return;
        }
        let Some(page) = self.book.intern(subject.scope, limit, now) else { return };
        match place {
            SlotPosition::Here(slot) => shard.set(slot, TableEntry { state, page, refused }),
            SlotPosition::Before(slot) => {
                // What the store knows anyway is not worth a place in the sketch.
                self.remember(&mut shard, slot, subject, state, false, now);
            }
        }
    }

    /// Refuses a group if all its keys are known and one of its limits can't have room yet; else decides nothing.
    ///
    /// `now` is not before the time of the store whose states are known here.
    pub(crate) fn refuse_known(&self, draws: &mut Draws, group: usize, now: Micros) -> bool {
        let mut outcomes = [None; MAX_DRAWS];
        let mut is_refused = false;
        for (draw, outcome) in draws.group(group).iter().zip(&mut outcomes) {
            let Op::Take(ask) = draw.act() else { return false };
            let Some(known) = self.known(draws.key(draw), draw.scope(), draw.limit()) else { return false };
            // The store's clock was set back since: it counts from now on, and nobody here knows from when.
            let held = LeasedState { state: Some(known), ..LeasedState::default() };
            if draw.limit().rebase(held, now).is_some() {
                return false;
            }
            let looked = self.looked(draw.limit(), Some(known), ask, now);
            is_refused |= !draw.is_shadow() && looked.is_refused();
            *outcome = Some(looked);
        }
        if is_refused {
            for (draw, outcome) in draws.group_mut(group).iter_mut().zip(outcomes) {
                draw.settle(|_, _, _| outcome.expect("every draw of the group was looked at"));
            }
        }
        is_refused
    }

    /// Decides a group from here while the store gives no answer: those of its draws that `has_a_say` picks, all or
    /// nothing among them, by what is known of their keys, each by the time that holds for it.
    pub(crate) fn decide_here(
        &self,
        draws: &mut Draws,
        group: usize,
        now: impl Fn(&Draw) -> Micros,
        has_a_say: impl Fn(&Draw) -> bool,
    ) {
        let mut tags = [KeyHash::NONE; MAX_DRAWS];
        let count = self.tag_group(draws, group, &mut tags);
        // Whatever could not be counted is part of a group that has failed already.
        self.act_together(draws.group_mut(group), &tags[..count], now, has_a_say);
    }

    /// What stands for a key under a limit, here and wherever else this process remembers something of it.
    #[inline]
    pub(crate) fn tag(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> KeyHash {
        self.tagger.tag(key, limit).in_scope(scope)
    }

    /// The state of a key that this very limit has written.
    fn known(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<State> {
        if limit.keeps_roll() {
            return None;
        }
        let tag = self.tag(key, scope, limit);
        let shard = self.table.lock(self.table.shard_of(tag));
        let SlotPosition::Here(slot) = shard.find(tag.mark) else { return None };
        let entry = shard.entry(slot);
        self.book.holds(entry.page, limit).then_some(entry.state)
    }
}

fn subject(tag: KeyHash, scope: Scope, limit: &Limit) -> DrawTarget<'_> {
    DrawTarget { tag, scope, limit, on_failure: FailureMode::Local }
}
