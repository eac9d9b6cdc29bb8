//! Clocks: the machine's, and one that tests turn by hand.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_core::{Clock, Micros};

/// How often the wall clock is looked at.
const LOOK: u64 = 1_000_000;
/// By how much the clock is held back, at the most, each time it is found ahead of the wall clock: 0.05 %, which is
/// also how fast a time daemon turns a clock.
const HOLD: u64 = 500;

/// The machine's time: as steady as its time-stamp counter, as right as its wall clock.
///
/// It runs on the processor's counter and looks at the wall clock once a second. If it finds itself behind (the counter
/// is slow, or the machine was asleep), it catches up at once. If it finds itself ahead (the counter is fast, or
/// somebody set the wall clock back), it goes back by half a millisecond each second until they meet: 0.05 % slower. So
/// setting the wall clock back can't make anyone wait, and day and month limits still begin at midnight.
///
/// The first clock of a process finds out how fast the counter runs, which takes up to a fifth of a second.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// The counter at the start.
    origin: u64,
    /// Microseconds for each count, times 2^64: one multiplication where nanoseconds first would take two.
    scale: u64,
    /// What to add to the microseconds since the origin.
    offset: AtomicU64,
    /// When to look at the wall clock next, in microseconds since the origin.
    look_at: AtomicU64,
}

impl SystemClock {
    /// A clock that begins at the wall clock's time.
    pub fn new() -> SystemClock {
        let counter = quanta::Clock::new();
        let (origin, scale) = (counter.raw(), scale_of(&counter));
        let (offset, look_at) = (AtomicU64::new(wall_micros()), AtomicU64::new(LOOK));
        SystemClock { counter, origin, scale, offset, look_at }
    }

    #[cold]
    fn look(&self, elapsed: u64) {
        self.look_at.store(elapsed + LOOK, Relaxed);
        self.offset.store(corrected(self.offset.load(Relaxed), elapsed, wall_micros()), Relaxed);
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline(always)]
    fn now(&self) -> Micros {
        // A core whose counter lags behind the first reading shows the beginning, not the end of time.
        let counts = self.counter.raw().saturating_sub(self.origin);
        let elapsed = ((u128::from(counts) * u128::from(self.scale)) >> 64) as u64;
        if elapsed >= self.look_at.load(Relaxed) {
            self.look(elapsed);
        }
        Micros::new(elapsed.saturating_add(self.offset.load(Relaxed)))
    }
}

/// What the counter was found to count by when it was calibrated, measured over a stretch of some minutes to hours.
fn scale_of(counter: &quanta::Clock) -> u64 {
    let counts = 1 << 43;
    let nanos = u128::from(counter.delta_as_nanos(0, counts));
    u64::try_from((nanos << 64) / 1_000 / u128::from(counts)).unwrap_or(u64::MAX)
}

/// The offset after a look at the wall clock: forward at once, back only slowly.
fn corrected(offset: u64, elapsed: u64, wall: u64) -> u64 {
    let right = wall.saturating_sub(elapsed);
    right.max(offset.saturating_sub(HOLD))
}

#[expect(clippy::disallowed_methods, reason = "this is the clock that everyone else reads")]
fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is set: for tests, of this crate and of yours.
///
/// ```
/// use tollgate::{Cap, Limiter, ManualClock, MemoryStore, Micros, Span};
/// use std::sync::Arc;
///
/// let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
/// let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(100))?;
/// let limiter = Limiter::with_store("1/s", store)?;
///
/// assert!(limiter.check_now("user:42").is_allowed());
/// assert!(!limiter.check_now("user:42").is_allowed());
/// clock.advance(Span::SECOND);
/// assert!(limiter.check_now("user:42").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Micros) -> ManualClock {
        ManualClock(AtomicU64::new(now.get()))
    }

    /// Sets it, forward or back.
    pub fn set(&self, now: Micros) {
        self.0.store(now.get(), Relaxed);
    }

    /// Moves it forward.
    pub fn advance(&self, span: tollgate_core::Span) {
        self.0.fetch_add(span.get(), Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros::new(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_catches_up_at_once_and_falls_back_slowly() {
        let (offset, elapsed) = (1_700_000_000_000_000, 5_000_000);
        let shown = offset + elapsed;
        assert_eq!(corrected(offset, elapsed, shown), offset);
        assert_eq!(corrected(offset, elapsed, shown + 3_600_000_000), offset + 3_600_000_000);
        assert_eq!(corrected(offset, elapsed, shown - 200), offset - 200);
        assert_eq!(corrected(offset, elapsed, shown - 3_600_000_000), offset - HOLD);
        assert_eq!(corrected(offset, elapsed, 0), offset - HOLD);
        assert_eq!(corrected(0, elapsed, 0), 0);
    }

    #[test]
    fn the_scale_agrees_with_the_counters_own() {
        let counter = quanta::Clock::new();
        let scale = scale_of(&counter);
        for counts in [1_u64 << 20, 1 << 32, 1 << 45] {
            let micros = ((u128::from(counts) * u128::from(scale)) >> 64) as u64;
            assert!(micros.abs_diff(counter.delta_as_nanos(0, counts) / 1_000) <= 1 + micros / 1_000_000);
        }
    }

    #[test]
    fn the_system_clock_shows_the_wall_clocks_time_and_never_steps_back_far() {
        let clock = SystemClock::new();
        let mut before = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now.get() + HOLD >= before.get());
            before = now;
        }
        assert!(clock.now().get().abs_diff(wall_micros()) < 1_000_000);
    }
}
