//! What one key has under one limit; and an engine made of many of them.

use crate::cell::Cell;
use crate::engine::{Engine, EngineReply};
use crate::model::Model;
use ratekeeper_core::{Amount, Draw, DrawOutcome, Draws, Key, Limit, Micros, Op, PermitId, Scope};
use std::collections::HashMap;

/// What one key has under one limit, whose quota may change.
pub trait KeyEngine {
    /// Decides one draw at `now`.
    fn act(&mut self, now: Micros, limit: &Limit, act: Op, permit: PermitId) -> EngineReply;
}

/// An engine that follows the contract of stores to the letter: an account for each key, scope and family of laws, and a copy
/// of all of them to go back to when a request is refused.
#[derive(Clone, Debug)]
pub struct KeyEngines<A> {
    open: HashMap<(Key, Scope, usize), A>,
    new: fn(&Limit) -> A,
}

impl KeyEngines<Cell> {
    /// The laws themselves.
    pub fn of_cells() -> KeyEngines<Cell> {
        KeyEngines { open: HashMap::new(), new: |_| Cell::default() }
    }
}

impl KeyEngines<Model> {
    /// Their models.
    pub fn of_models() -> KeyEngines<Model> {
        KeyEngines { open: HashMap::new(), new: Model::new }
    }
}

impl<A: KeyEngine + Clone> KeyEngines<A> {
    fn act(&mut self, now: Micros, draws: &Draws, draw: &Draw, act: Op) -> EngineReply {
        let name = (draws.key(draw).to_key(), draw.scope(), draw.limit().family());
        let account = self.open.entry(name).or_insert_with(|| (self.new)(draw.limit()));
        account.act(now, draw.limit(), act, draw.permit())
    }

    fn decide_group(&mut self, now: Micros, draws: &Draws, group: &[Draw]) -> Vec<EngineReply> {
        // A quota that has changed takes hold even if the request is refused.
        for draw in group {
            self.act(now, draws, draw, Op::Look(Amount::PEEK));
        }
        let (before, mut is_refused) = (self.open.clone(), false);
        let mut replies = Vec::new();
        for draw in group {
            // After a refusal the others are only looked at: the client learns all that stands in its way.
            let act = if is_refused { draw.act().look() } else { draw.act() };
            let reply = self.act(now, draws, draw, act);
            is_refused |= reply.answer == DrawOutcome::Refused && !draw.is_shadow();
            replies.push(reply);
        }
        if is_refused {
            self.open = before;
            for (draw, reply) in group.iter().zip(&mut replies) {
                if reply.answer != DrawOutcome::Refused {
                    *reply = self.act(now, draws, draw, draw.act().look());
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
