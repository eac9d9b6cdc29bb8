//! An engine made of many key engines.

use crate::engine::{Engine, EngineReply, KeyEngine};
use crate::model::Model;
use crate::single_key_store::SingleKeyStore;
use ratekeeper_core::{Amount, Draw, DrawOutcome, Draws, Key, Limit, Micros, Op, Scope};
use std::collections::HashMap;

/// An engine that follows the contract of stores to the letter: a key engine per key, scope and algorithm family, and a
/// copy of all of them to roll back to when a request is denied.
#[derive(Clone, Debug)]
pub struct KeyEngines<A> {
    engines: HashMap<(Key, Scope, usize), A>,
    new_engine: fn(&Limit) -> A,
}

impl KeyEngines<SingleKeyStore> {
    /// An engine that runs the algorithms themselves.
    pub fn of_algorithms() -> KeyEngines<SingleKeyStore> {
        KeyEngines { engines: HashMap::new(), new_engine: |_| SingleKeyStore::default() }
    }
}

impl KeyEngines<Model> {
    /// An engine that runs the models of the algorithms.
    pub fn of_models() -> KeyEngines<Model> {
        KeyEngines { engines: HashMap::new(), new_engine: Model::new }
    }
}

impl<A: KeyEngine + Clone> KeyEngines<A> {
    fn apply(&mut self, now: Micros, draws: &Draws, draw: &Draw, op: Op) -> EngineReply {
        let id = (draws.key(draw).to_key(), draw.scope(), draw.limit().family());
        let engine = self.engines.entry(id).or_insert_with(|| (self.new_engine)(draw.limit()));
        engine.apply(now, draw.limit(), op, draw.permit())
    }

    fn decide_group(&mut self, now: Micros, draws: &Draws, group: &[Draw]) -> Vec<EngineReply> {
        // A changed quota takes effect even if the request is denied.
        for draw in group {
            self.apply(now, draws, draw, Op::Peek(Amount::ZERO));
        }
        let (before, mut is_denied) = (self.engines.clone(), false);
        let mut replies = Vec::new();
        for draw in group {
            // After a denial the remaining limits are only peeked at, so that the client learns of every limit it
            // exceeds.
            let op = if is_denied { draw.op().to_peek() } else { draw.op() };
            let reply = self.apply(now, draws, draw, op);
            is_denied |= reply.outcome == DrawOutcome::Denied && !draw.is_shadow();
            replies.push(reply);
        }
        if is_denied {
            self.engines = before;
            for (draw, reply) in group.iter().zip(&mut replies) {
                if reply.outcome != DrawOutcome::Denied {
                    *reply = self.apply(now, draws, draw, draw.op().to_peek());
                }
            }
        }
        replies
    }
}

impl<A: KeyEngine + Clone> Engine for KeyEngines<A> {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        (0..draws.len()).flat_map(|group| self.decide_group(now, draws, draws.group(group))).collect()
    }
}
