//! How finely a limit sees time.
//!
//! A limit counts time in ticks of one microsecond whenever its numbers then stay below 2^53. Otherwise it takes the
//! shortest tick of ten, a hundred, … microseconds that divides its period and makes them fit: the rate stays exact,
//! only the instants at which units fall due become coarser.

use crate::time::{EXACT, MOST_BACK, Micros, Span};

/// The length of a limit's tick in microseconds; a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tick(u64);

impl Tick {
    /// The shortest tick in which a period's ticks pass `fits`.
    pub(crate) fn shortest(per: Span, fits: impl Fn(u64) -> bool) -> Option<Tick> {
        (0..9)
            .map(|zeros| 10_u64.pow(zeros))
            .take_while(|tick| per.get().is_multiple_of(*tick))
            .find(|tick| fits(per.get() / tick))
            .map(Tick)
    }

    /// The tick that `now` falls into.
    #[inline]
    pub(crate) fn of(self, now: Micros) -> u64 {
        // Nearly every limit has ticks of a microsecond: a predicted branch is cheaper than the division.
        if self.0 == 1 { now.get() } else { now.get() / self.0 }
    }

    /// The first tick that does not begin before `now`.
    pub(crate) fn after(self, now: Micros) -> u64 {
        now.get().div_ceil(self.0)
    }

    /// When a tick begins.
    #[inline]
    pub(crate) fn start(self, tick: u64) -> Micros {
        Micros::new(tick.saturating_mul(self.0))
    }

    /// Whether `at` lies so far in the future of `now`, both in ticks, that the clock must have been set back.
    #[inline]
    pub(crate) fn is_ahead(self, at: u64, now: u64) -> bool {
        // A change of quota may put a state one tick into the future.
        at > now && at - now > self.count(MOST_BACK).max(1)
    }

    /// Its length in microseconds: nine digits at most.
    pub(crate) fn micros(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// How many ticks `span` makes, if they are whole.
    pub(crate) fn count(self, span: Span) -> u64 {
        span.get() / self.0
    }
}

/// Whether a product of two counts is a number that a double holds exactly.
pub(crate) fn exact_product(a: u64, b: u64) -> bool {
    a.checked_mul(b).is_some_and(|product| product <= EXACT)
}
