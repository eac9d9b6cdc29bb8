//! Anything that decides draws under one key.

use tollgate_core::{Act, Answer, Draw, Limit, Micros, PermitId, Reading, Retry, Span};

/// Anything that decides draws under one key.
pub trait Engine {
    /// Decides one draw at `now`.
    fn act(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reply;
}

/// What a draw was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What the limit answered.
    pub answer: Answer,
    /// How many units are left.
    pub remaining: u32,
    /// How long a queue delays it.
    pub delay: Span,
    /// When to come back, if it was refused.
    pub retry: Option<Retry>,
    /// How long until everything is back.
    pub reset: Span,
}

impl From<&Reading> for Reply {
    fn from(reading: &Reading) -> Reply {
        Reply {
            answer: reading.answer(),
            remaining: reading.remaining(),
            delay: reading.delay(),
            retry: reading.retry(),
            reset: reading.reset(),
        }
    }
}

impl From<&Draw> for Reply {
    fn from(draw: &Draw) -> Reply {
        Reply::from(&draw.reading())
    }
}
