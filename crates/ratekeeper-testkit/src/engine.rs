//! Anything that decides requests.

use ratekeeper_core::{Draw, DrawOutcome, Draws, LimitStatus, Micros, Retry, Span};

/// Anything that decides requests, as a store does: in order, and each all or nothing.
pub trait Engine {
    /// Decides every group at `now`, and says what each of the draws was told.
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply>;
}

/// What a draw was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineReply {
    /// What the limit answered.
    pub answer: DrawOutcome,
    /// How many units are left.
    pub remaining: u32,
    /// How long a queue delays it.
    pub delay: Span,
    /// When to come back, if it was refused.
    pub retry: Option<Retry>,
    /// How long until everything is back.
    pub reset: Span,
}

impl From<&LimitStatus> for EngineReply {
    fn from(reading: &LimitStatus) -> EngineReply {
        EngineReply {
            answer: reading.answer(),
            remaining: reading.remaining(),
            delay: reading.delay(),
            retry: reading.retry(),
            reset: reading.reset(),
        }
    }
}

impl From<&Draw> for EngineReply {
    fn from(draw: &Draw) -> EngineReply {
        EngineReply::from(&draw.reading())
    }
}

impl EngineReply {
    /// What each of a buffer's draws was told by the store that decided them.
    pub fn all(decided: &Draws) -> Vec<EngineReply> {
        decided.all().iter().map(EngineReply::from).collect()
    }
}
