//! The result of one draw and the forecast for its limit.

use crate::limit::Limit;
use crate::op::Amount;
use crate::state::State;
use crate::time::{Micros, Span};

/// When a denied request may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// After this span. A retry then succeeds unless other requests draw in the meantime; an earlier one fails.
    After(Span),
    /// Never: the request needs more units than the limit can ever grant.
    Never,
}

/// The result of one draw from one limit: the outcome, the units left, and when to retry.
///
/// Only the outcome is computed when a draw is decided. The forecast is computed on each call that needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    pub(crate) limit: Limit,
    pub(crate) amount: Amount,
    pub(crate) result: DrawResult,
}

impl LimitStatus {
    /// Creates the status of a draw of `amount` from `limit` with the given result.
    #[inline]
    pub fn new(limit: &Limit, amount: Amount, result: DrawResult) -> LimitStatus {
        LimitStatus { limit: *limit, amount, result }
    }

    /// Returns the limit that was drawn from.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the outcome of the draw.
    pub fn outcome(&self) -> DrawOutcome {
        self.result.outcome()
    }

    /// Returns the time of the decision, by the clock of the store.
    pub fn decided_at(&self) -> Micros {
        self.result.decided_at()
    }

    /// Returns how many units are left.
    pub fn remaining(&self) -> u32 {
        self.forecast().remaining
    }

    /// Returns how long until the limit is at full capacity again if no other draw is made; zero if it is.
    pub fn reset(&self) -> Span {
        self.forecast().reset
    }

    /// Returns how long the request must wait for its turn in a queue.
    pub fn delay(&self) -> Span {
        self.forecast().delay
    }

    /// Returns when a denied request may be retried, or `None` if this limit did not deny it.
    pub fn retry(&self) -> Option<Retry> {
        self.forecast().retry
    }

    /// Returns all forecast values, computed once.
    #[inline]
    pub fn forecast(&self) -> Forecast {
        self.result.forecast(&self.limit, self.amount)
    }
}

/// The outcome of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawOutcome {
    /// The given number of units was taken.
    Granted(u32),
    /// The limit would have granted the draw, but nothing was taken: another limit denied the request, or the draw
    /// only peeked.
    WouldGrant,
    /// The limit has too few units left.
    Denied,
}

impl DrawOutcome {
    /// Returns how many units were granted, or `None` if the draw was denied.
    pub(crate) fn granted(self) -> Option<u32> {
        match self {
            DrawOutcome::Granted(units) => Some(units),
            DrawOutcome::WouldGrant => Some(0),
            DrawOutcome::Denied => None,
        }
    }
}

/// The compact result of a decided draw: the outcome, its time, and the numbers that the forecast is computed from.
///
/// The fields are five full words instead of the enums that they stand for. Enums are written in parts and copied
/// as a whole, which stalls the processor for about a third of the time that a draw takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawResult {
    /// The first number of the state, or the units remaining.
    first: u64,
    /// The units granted, or one of the codes below. [`DrawResult::HAS_FORECAST`] is set if the other numbers are a
    /// forecast instead of a state.
    code: u64,
    /// The second number of the state, or the time until the limit is at full capacity. It is not next to the first
    /// number, because the compiler would then copy both as one value.
    second: u64,
    decided_at: Micros,
    /// The retry time in microseconds, if the numbers are a forecast; [`u64::MAX`] means never.
    third: u64,
}

impl DrawResult {
    const WOULD_GRANT: u64 = 1 << 32;
    const DENIED: u64 = 2 << 32;
    const HAS_FORECAST: u64 = 1 << 63;

    /// Creates the result of a draw from a limit with a fixed-size state.
    #[inline(always)]
    pub fn from_state(outcome: DrawOutcome, decided_at: Micros, state: State) -> DrawResult {
        let (first, second) = state.numbers();
        DrawResult { first, code: DrawResult::encode(outcome), second, decided_at, third: 0 }
    }

    /// Creates the result of a draw whose state stays in the store, which computes the forecast. Such a result has
    /// no delay.
    pub fn from_forecast(outcome: DrawOutcome, decided_at: Micros, forecast: Forecast) -> DrawResult {
        let wait = match forecast.retry {
            Some(Retry::After(span)) => span.get(),
            Some(Retry::Never) | None => u64::MAX,
        };
        let code = DrawResult::encode(outcome) | DrawResult::HAS_FORECAST;
        DrawResult {
            first: u64::from(forecast.remaining),
            code,
            second: forecast.reset.get(),
            decided_at,
            third: wait,
        }
    }

    #[inline(always)]
    fn encode(outcome: DrawOutcome) -> u64 {
        match outcome {
            DrawOutcome::Granted(units) => u64::from(units),
            DrawOutcome::WouldGrant => DrawResult::WOULD_GRANT,
            DrawOutcome::Denied => DrawResult::DENIED,
        }
    }

    pub(crate) fn forecast(&self, limit: &Limit, amount: Amount) -> Forecast {
        #[cfg(feature = "forecast-count")]
        FORECASTS.with(|count| count.set(count.get() + 1));
        if self.code & DrawResult::HAS_FORECAST == 0 {
            return limit.forecast(
                State::new(self.first, self.second),
                self.decided_at,
                amount,
                self.outcome().granted(),
            );
        }
        let retry = (self.outcome() == DrawOutcome::Denied).then_some(match self.third {
            u64::MAX => Retry::Never,
            wait => Retry::After(Span::micros(wait)),
        });
        let remaining = u32::try_from(self.first).unwrap_or(u32::MAX);
        Forecast { remaining, reset: Span::micros(self.second), delay: Span::ZERO, retry }
    }

    /// Returns the outcome.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a value that is no code is a number of units, which has 32 bits"
    )]
    pub fn outcome(&self) -> DrawOutcome {
        match self.code & !DrawResult::HAS_FORECAST {
            DrawResult::DENIED => DrawOutcome::Denied,
            DrawResult::WOULD_GRANT => DrawOutcome::WouldGrant,
            units => DrawOutcome::Granted(units as u32),
        }
    }

    /// Returns the state after the draw, or `None` if the state stays in the store.
    #[inline]
    pub fn state(&self) -> Option<State> {
        match self.code & DrawResult::HAS_FORECAST {
            0 => Some(State::new(self.first, self.second)),
            _ => None,
        }
    }

    /// Returns whether the limit denied the draw.
    #[inline(always)]
    pub fn is_denied(&self) -> bool {
        self.code & DrawResult::DENIED != 0
    }

    /// Returns the time of the decision, by the clock of the store.
    #[inline]
    pub fn decided_at(&self) -> Micros {
        self.decided_at
    }
}

#[cfg(feature = "forecast-count")]
thread_local! {
    static FORECASTS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns how many forecasts this thread has evaluated.
#[cfg(feature = "forecast-count")]
pub fn forecast_count() -> u64 {
    FORECASTS.with(std::cell::Cell::get)
}

/// What a limit predicts after a draw, if no other draw is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The units left.
    pub remaining: u32,
    /// The time until the limit is at full capacity again.
    pub reset: Span,
    /// How long the request waits for its turn in a queue.
    pub delay: Span,
    /// When to retry; `None` if the draw was not denied.
    pub retry: Option<Retry>,
}
