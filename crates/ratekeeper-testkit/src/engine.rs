//! The interface that all implementations of the limits have in common in tests.

use ratekeeper_core::{Draw, DrawOutcome, Draws, Limit, LimitStatus, Micros, Op, PermitId, Retry, Span};

/// Anything that decides requests as a store does: in order, and each all or nothing.
pub trait Engine {
    /// Decides every group at `now`, and returns the reply to each draw.
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply>;
}

/// Decides the draws of one key under one limit, whose quota may change.
pub trait KeyEngine {
    /// Decides one draw at `now`.
    fn apply(&mut self, now: Micros, limit: &Limit, op: Op, permit: PermitId) -> EngineReply;
}

/// The reply to one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineReply {
    /// Whether the draw was granted or denied.
    pub outcome: DrawOutcome,
    /// Units that are left.
    pub remaining: u32,
    /// How long a queue delays the request.
    pub delay: Span,
    /// When to retry; `None` unless the draw was denied.
    pub retry: Option<Retry>,
    /// How long until all units are available again.
    pub reset: Span,
}

impl From<&LimitStatus> for EngineReply {
    fn from(status: &LimitStatus) -> EngineReply {
        EngineReply {
            outcome: status.outcome(),
            remaining: status.remaining(),
            delay: status.delay(),
            retry: status.retry(),
            reset: status.reset(),
        }
    }
}

impl From<&Draw> for EngineReply {
    fn from(draw: &Draw) -> EngineReply {
        EngineReply::from(&draw.status())
    }
}

impl EngineReply {
    /// The replies to all draws of a batch that a store has decided.
    pub fn from_draws(decided: &Draws) -> Vec<EngineReply> {
        decided.all().iter().map(EngineReply::from).collect()
    }
}
