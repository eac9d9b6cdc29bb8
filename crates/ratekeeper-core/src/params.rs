//! The constants of a limit, for a store that executes the algorithm itself.
//!
//! Such a store runs the same algorithms on the same numbers and keeps the same states. These constants are all
//! that it needs to know about a limit.

use crate::time::Span;

/// The constants that an algorithm computes with. All are below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitParams {
    /// A token bucket or leaky bucket.
    Bucket {
        /// The parts per unit. The debt of a bucket is counted in parts, so that any rate is exact.
        unit: u64,
        /// The parts refilled per tick.
        refill: u64,
        /// The maximum debt in parts.
        capacity: u64,
        /// The maximum debt in units.
        burst: u32,
        /// The length of a tick in microseconds.
        tick: u32,
        /// Whether units wait in a queue, so that the accepted delay of a draw matters.
        is_queue: bool,
    },
    /// A fixed window.
    FixedWindow {
        /// The units per window.
        amount: u32,
        /// The usual length of a window.
        per: Span,
        /// Where windows begin.
        start: WindowStart,
        /// How far in the future the end of a window may be. A later end means that the clock was set back.
        max_end_ahead: Span,
    },
    /// A sliding window counter.
    SlidingWindow {
        /// The maximum weighted count.
        amount: u32,
        /// The length of the window in ticks.
        window: u64,
        /// The length of a tick in microseconds.
        tick: u32,
    },
    /// A sliding window log.
    SlidingLog {
        /// The maximum number of units per period.
        amount: u32,
        /// How long a unit counts.
        per: Span,
    },
    /// A concurrency limit.
    Concurrency {
        /// The maximum number of units held at the same time.
        amount: u32,
        /// How long a permit lasts if it is never released.
        permit_ttl: Span,
    },
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStart {
    /// With the first unit admitted after the previous window ended.
    FirstHit,
    /// At multiples of the period since the epoch.
    Multiples,
    /// At calendar boundaries: see [`Limit::window_end`](crate::Limit::window_end).
    Calendar,
}
