//! A limit's constants and its states in parts, for a store that takes the step itself.
//!
//! Such a store computes what the laws here compute, from the same numbers, and keeps the same numbers of a key. This is
//! all it needs to know of a limit.

use crate::time::Span;

/// The numbers that a law computes with. All are below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitParams {
    /// A token bucket or a leaky one.
    Bucket {
        /// How many parts a unit has.
        unit: u64,
        /// How many parts a tick pays back.
        refill: u64,
        /// The most parts that may be owed.
        capacity: u64,
        /// The same in units.
        burst: u32,
        /// How many microseconds a tick has.
        tick: u32,
        /// Whether units wait their turn, so that it matters how patient one is.
        is_queue: bool,
    },
    /// A fixed window.
    FixedWindow {
        /// How many units a window has.
        amount: u32,
        /// How long it usually is.
        per: Span,
        /// Where it begins.
        start: WindowStart,
        /// How far ahead its end may be. If it is farther, the clock was set back.
        farthest: Span,
    },
    /// A sliding window counter.
    SlidingWindow {
        /// How many units may be counted.
        amount: u32,
        /// The window's length in ticks.
        window: u64,
        /// How many microseconds a tick has.
        tick: u32,
    },
    /// A sliding log.
    SlidingLog {
        /// How many units may be in sight.
        amount: u32,
        /// For how long a unit is.
        per: Span,
    },
    /// A concurrency limit.
    Concurrency {
        /// How many places there are.
        amount: u32,
        /// For how long a place is held if nobody releases it.
        lapse: Span,
    },
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStart {
    /// With the first unit admitted after the last one ended.
    FirstHit,
    /// At multiples of the period since the epoch.
    Multiples,
    /// Where the calendar says: see [`Limit::window_end`](crate::Limit::window_end).
    Calendar,
}
