//! The time resolution of a limit.
//!
//! A limit counts time in ticks of one microsecond if its numbers then stay below 2^53. Otherwise it uses the
//! shortest tick of ten, a hundred, … microseconds that divides its period and makes the numbers fit. The rate
//! stays exact; only the instants at which units become available get coarser.

use crate::time::{MAX_CLOCK_STEP_BACK, MAX_EXACT, Micros, Span};

/// The length of a tick in microseconds; a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tick(u64);

impl Tick {
    /// Returns the shortest tick for which the number of ticks in a period passes `fits`, or `None` if there is
    /// none.
    pub(crate) fn shortest(per: Span, fits: impl Fn(u64) -> bool) -> Option<Tick> {
        (0..9)
            .map(|zeros| 10_u64.pow(zeros))
            .take_while(|tick| per.get().is_multiple_of(*tick))
            .find(|tick| fits(per.get() / tick))
            .map(Tick)
    }

    /// Returns the number of the tick that contains `now`.
    #[inline]
    pub(crate) fn floor(self, now: Micros) -> u64 {
        // Nearly every limit has ticks of a microsecond: a predicted branch is cheaper than the division.
        if self.0 == 1 { now.get() } else { now.get() / self.0 }
    }

    /// Returns the number of the first tick that does not begin before `now`.
    pub(crate) fn ceil(self, now: Micros) -> u64 {
        now.get().div_ceil(self.0)
    }

    /// Returns when a tick begins.
    #[inline]
    pub(crate) fn start(self, tick: u64) -> Micros {
        Micros::new(tick.saturating_mul(self.0))
    }

    /// Returns whether `at` is so far in the future of `now`, both in ticks, that the clock must have been set
    /// back.
    #[inline]
    pub(crate) fn is_too_far_ahead(self, at: u64, now: u64) -> bool {
        // A change of quota may put a state one tick into the future.
        at > now && at - now > self.count(MAX_CLOCK_STEP_BACK).max(1)
    }

    /// Returns the length in microseconds, which has at most nine digits.
    pub(crate) fn micros(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// Returns how many ticks `span` has, rounded down.
    pub(crate) fn count(self, span: Span) -> u64 {
        span.get() / self.0
    }
}

/// Returns whether the product of two counts is exactly representable in a double.
pub(crate) fn is_exact_product(a: u64, b: u64) -> bool {
    a.checked_mul(b).is_some_and(|product| product <= MAX_EXACT)
}
