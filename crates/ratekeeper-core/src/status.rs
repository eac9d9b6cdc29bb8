//! What one limit said.

use crate::limit::Limit;
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

/// When a refused request may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// Not before this has passed, and then it is allowed if nobody else drew.
    After(Span),
    /// Never: it asks for more than the limit can hold.
    Never,
}

/// What one limit said to one draw, and what it says is to come.
///
/// Only the answer is worked out when a draw is decided; the rest when somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    pub(crate) limit: Limit,
    pub(crate) ask: Amount,
    pub(crate) outcome: DrawResult,
}

impl LimitStatus {
    /// What `limit` said to `ask`.
    #[inline]
    pub fn new(limit: &Limit, ask: Amount, outcome: DrawResult) -> LimitStatus {
        LimitStatus { limit: *limit, ask, outcome }
    }

    /// The limit that was read.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What it answered.
    pub fn answer(&self) -> DrawOutcome {
        self.outcome.answer()
    }

    /// The store's time when it answered.
    pub fn now(&self) -> Micros {
        self.outcome.now()
    }

    /// How many units are left now.
    pub fn remaining(&self) -> u32 {
        self.outlook().remaining
    }

    /// How long until everything is back, if nobody draws; nothing if it is.
    pub fn reset(&self) -> Span {
        self.outlook().reset
    }

    /// How long the request has to wait for its turn in a queue.
    pub fn delay(&self) -> Span {
        self.outlook().delay
    }

    /// When a refused request may come back; nothing if it was not refused by this limit.
    pub fn retry(&self) -> Option<Retry> {
        self.outlook().retry
    }

    /// All that it says is to come, worked out once.
    #[inline]
    pub fn outlook(&self) -> Forecast {
        self.outcome.outlook(&self.limit, self.ask)
    }
}

/// What a limit answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawOutcome {
    /// So many units were taken.
    Granted(u32),
    /// It would have been granted, but nothing was taken: another limit refused, or the draw only looked.
    Spared,
    /// Too little was left.
    Refused,
}

impl DrawOutcome {
    /// How many units the law granted, if it did not refuse.
    pub(crate) fn granted(self) -> Option<u32> {
        match self {
            DrawOutcome::Granted(units) => Some(units),
            DrawOutcome::Spared => Some(0),
            DrawOutcome::Refused => None,
        }
    }
}

/// A decided draw: the answer, when it was given, and what the rest can be worked out from.
///
/// Five whole words, and not the enums that they stand for: those are written in halves and copied as a whole, which
/// stalls a processor for as long as a third of the draw takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawResult {
    /// A state's first number, or how much remains.
    first: u64,
    /// The units granted, or one of the codes below; [`DrawResult::TOLD`] beside it if the numbers are an outlook.
    answer: u64,
    /// A state's second number, or how long until everything is back. It stands apart from the first, or else the two
    /// would be copied as one.
    second: u64,
    now: Micros,
    /// How long to wait, if the numbers are an outlook.
    third: u64,
}

impl DrawResult {
    const SPARED: u64 = 1 << 32;
    const REFUSED: u64 = 2 << 32;
    const TOLD: u64 = 1 << 63;

    /// An answer that leaves or finds a state of fixed size.
    #[inline(always)]
    pub fn of_state(answer: DrawOutcome, now: Micros, state: State) -> DrawResult {
        let (first, second) = state.numbers();
        DrawResult { first, answer: DrawResult::code(answer), second, now, third: 0 }
    }

    /// An answer whose state stays in the store: its outlook is worked out there. Such an answer has no delay.
    pub fn of_outlook(answer: DrawOutcome, now: Micros, outlook: Forecast) -> DrawResult {
        let wait = match outlook.retry {
            Some(Retry::After(span)) => span.get(),
            Some(Retry::Never) | None => u64::MAX,
        };
        let answer = DrawResult::code(answer) | DrawResult::TOLD;
        DrawResult {
            first: u64::from(outlook.remaining),
            answer,
            second: outlook.reset.get(),
            now,
            third: wait,
        }
    }

    #[inline(always)]
    fn code(answer: DrawOutcome) -> u64 {
        match answer {
            DrawOutcome::Granted(units) => u64::from(units),
            DrawOutcome::Spared => DrawResult::SPARED,
            DrawOutcome::Refused => DrawResult::REFUSED,
        }
    }

    pub(crate) fn outlook(&self, limit: &Limit, ask: Amount) -> Forecast {
        if self.answer & DrawResult::TOLD == 0 {
            return limit.outlook(
                State::new(self.first, self.second),
                self.now,
                ask,
                self.answer().granted(),
            );
        }
        let retry = (self.answer() == DrawOutcome::Refused).then_some(match self.third {
            u64::MAX => Retry::Never,
            wait => Retry::After(Span::micros(wait)),
        });
        let remaining = u32::try_from(self.first).unwrap_or(u32::MAX);
        Forecast { remaining, reset: Span::micros(self.second), delay: Span::ZERO, retry }
    }

    /// What was answered.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is no code is a number of units, which has 32 bits"
    )]
    pub fn answer(&self) -> DrawOutcome {
        match self.answer & !DrawResult::TOLD {
            DrawResult::REFUSED => DrawOutcome::Refused,
            DrawResult::SPARED => DrawOutcome::Spared,
            units => DrawOutcome::Granted(units as u32),
        }
    }

    /// The state that it leaves or found; nothing if that stays in the store.
    #[inline]
    pub fn state(&self) -> Option<State> {
        match self.answer & DrawResult::TOLD {
            0 => Some(State::new(self.first, self.second)),
            _ => None,
        }
    }

    /// Whether the limit refused.
    #[inline(always)]
    pub fn is_refused(&self) -> bool {
        self.answer & DrawResult::REFUSED != 0
    }

    /// The store's time when it answered.
    #[inline]
    pub fn now(&self) -> Micros {
        self.now
    }
}

/// What a limit says is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// How many units are left.
    pub remaining: u32,
    /// How long until everything is back.
    pub reset: Span,
    /// How long the request waits for its turn.
    pub delay: Span,
    /// When to come back, if it was refused.
    pub retry: Option<Retry>,
}
