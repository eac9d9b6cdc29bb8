//! Clocks: the system clock, and a manual one for tests.

use parking_lot::Mutex;
use ratekeeper_core::{Clock, MAX_CLOCK_STEP_BACK, Micros};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often the wall clock is read, in microseconds.
const CHECK_INTERVAL_US: u64 = 1_000_000;
/// The largest backward correction per check, in microseconds: 0.05 %, which is also the usual slew rate of a time
/// daemon.
const MAX_SLEW_BACK_US: u64 = 500;
/// The largest step forward that is followed at once, in microseconds: more than the counter drifts in an hour.
const MAX_STEP_FORWARD_US: u64 = 100_000;
/// How many checks in a row, at least a second apart, must show the same larger step before it is followed. A time
/// daemon or hypervisor that sets a clock wrongly either corrects it within a few seconds or leaves it wrong.
const STEP_CONFIRMATIONS: u32 = 5;
/// How much two measurements of the same step may differ, in microseconds.
const STEP_TOLERANCE_US: u64 = 50_000;

/// The system clock: as steady as the time-stamp counter of the processor, as accurate as the wall clock.
///
/// It runs on the processor's counter and reads the wall clock once a second. If it is behind by up to 0.1 s, it
/// catches up at once. If it is ahead by up to [`MAX_CLOCK_STEP_BACK`], it goes back by 0.5 ms per second, 0.05 %
/// slower, until both agree. A larger step, forward or back, is followed once the wall clock has shown it in five
/// checks in a row. So a wall clock that is wrong for a few seconds changes nothing, and a correction of a longer
/// error is followed just as fast. A machine that was suspended accounts for that time five seconds after it wakes
/// up. After a step back, states are rebased to the new time, which grants each key at most one extra burst; a step
/// forward refills as that much time would.
///
/// The first clock of a process calibrates the counter, which takes up to 0.2 s.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// The counter value at creation.
    origin: u64,
    /// Microseconds per count, times 2^64. Converting to nanoseconds first would take two multiplications instead
    /// of one.
    scale: u64,
    /// The offset to add to the microseconds since the origin.
    offset: AtomicU64,
    /// When to read the wall clock next, in microseconds since the origin.
    next_check: AtomicU64,
    /// A step of the wall clock that is not followed yet.
    pending_step: Mutex<ClockStep>,
}

/// A step of the wall clock that is not followed yet.
#[derive(Clone, Copy, Debug, Default)]
struct ClockStep {
    /// The offset if the step is followed.
    offset: u64,
    /// In how many checks in a row the step was seen.
    confirmations: u32,
}

impl ClockStep {
    /// Returns the offset after a reading of the wall clock.
    fn corrected_offset(&mut self, offset: u64, elapsed: u64, wall: u64) -> u64 {
        let wall_offset = wall.saturating_sub(elapsed);
        let is_small = wall_offset <= offset.saturating_add(MAX_STEP_FORWARD_US)
            && wall_offset >= offset.saturating_sub(MAX_CLOCK_STEP_BACK.get());
        if is_small {
            *self = ClockStep::default();
            return wall_offset.max(offset.saturating_sub(MAX_SLEW_BACK_US));
        }
        let is_same = self.confirmations > 0 && self.offset.abs_diff(wall_offset) <= STEP_TOLERANCE_US;
        *self = ClockStep {
            offset: wall_offset,
            confirmations: if is_same { self.confirmations + 1 } else { 1 },
        };
        if self.confirmations < STEP_CONFIRMATIONS {
            return offset;
        }
        *self = ClockStep::default();
        wall_offset
    }
}

impl SystemClock {
    /// Creates a clock that starts at the time of the wall clock.
    pub fn new() -> SystemClock {
        let counter = quanta::Clock::new();
        let (origin, scale) = (counter.raw(), calibrated_scale(&counter));
        let (offset, next_check) = (AtomicU64::new(wall_micros()), AtomicU64::new(CHECK_INTERVAL_US));
        SystemClock { counter, origin, scale, offset, next_check, pending_step: Mutex::default() }
    }

    #[cold]
    fn check_wall_clock(&self, elapsed: u64) {
        // If another thread is already checking, leave it to that thread.
        let Some(mut step) = self.pending_step.try_lock() else { return };
        if elapsed < self.next_check.load(Relaxed) {
            return;
        }
        self.next_check.store(elapsed + CHECK_INTERVAL_US, Relaxed);
        self.offset.store(step.corrected_offset(self.offset.load(Relaxed), elapsed, wall_micros()), Relaxed);
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
        // A core whose counter is behind the first reading shows the start time instead of wrapping around.
        let counts = self.counter.raw().saturating_sub(self.origin);
        let elapsed = ((u128::from(counts) * u128::from(self.scale)) >> 64) as u64;
        if elapsed >= self.next_check.load(Relaxed) {
            self.check_wall_clock(elapsed);
        }
        Micros::new(elapsed.saturating_add(self.offset.load(Relaxed)))
    }
}

/// Returns the scale that the calibration found, computed over an interval of minutes to hours for precision.
fn calibrated_scale(counter: &quanta::Clock) -> u64 {
    let counts = 1 << 43;
    let nanos = u128::from(counter.delta_as_nanos(0, counts));
    u64::try_from((nanos << 64) / 1_000 / u128::from(counts)).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "all other code reads this clock")]
fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is set. For tests, in this crate and in yours.
///
/// ```
/// use ratekeeper::{Capacity, Limiter, ManualClock, MemoryStore, Micros, Span};
/// use std::sync::Arc;
///
/// let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
/// let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100))?;
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
    /// Creates a clock that shows `now`.
    pub fn new(now: Micros) -> ManualClock {
        ManualClock(AtomicU64::new(now.get()))
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, now: Micros) {
        self.0.store(now.get(), Relaxed);
    }

    /// Advances the clock.
    pub fn advance(&self, span: ratekeeper_core::Span) {
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

    const START: u64 = 1_700_000_000_000_000;
    const HOUR: i64 = 3_600_000_000;

    /// Returns the error of the clock after each check of a wall clock that is ahead of true time by `ahead`.
    fn errors_after_checks(ahead: &[i64]) -> Vec<i64> {
        let (mut step, mut offset) = (ClockStep::default(), START);
        let errors = (1..).zip(ahead).map(|(second, ahead)| {
            let elapsed = second * CHECK_INTERVAL_US;
            offset = step.corrected_offset(offset, elapsed, (START + elapsed).saturating_add_signed(*ahead));
            i64::try_from(offset).unwrap() - i64::try_from(START).unwrap()
        });
        errors.collect()
    }

    #[test]
    fn small_steps_are_followed_at_once_forward_and_gradually_back() {
        assert_eq!(errors_after_checks(&[0, 200, 200]), [0, 200, 200]);
        assert_eq!(errors_after_checks(&[-200, -200]), [-200, -200]);
        assert_eq!(errors_after_checks(&[-4_000_000, -4_000_000]), [-500, -1_000]);
        assert_eq!(errors_after_checks(&[100_000, 0, 0]), [100_000, 99_500, 99_000]);
    }

    #[test]
    fn a_wall_clock_that_is_wrong_for_three_seconds_changes_nothing() {
        for step in [HOUR, -HOUR] {
            assert_eq!(errors_after_checks(&[0, step, step, step, 0, 0]), [0; 6]);
        }
        assert_eq!(
            errors_after_checks(&[HOUR, 2 * HOUR, HOUR, 2 * HOUR, HOUR, 2 * HOUR]),
            [0; 6],
            "no step lasted"
        );
    }

    #[test]
    fn a_lasting_step_is_followed_and_so_is_its_correction() {
        for step in [HOUR, -HOUR] {
            let wall = [[step; 6], [0; 6]].concat();
            let expected = [[0, 0, 0, 0, step, step], [step, step, step, step, 0, 0]].concat();
            assert_eq!(errors_after_checks(&wall), expected);
        }
    }

    #[test]
    fn a_wall_clock_before_the_epoch_saturates_at_zero() {
        assert_eq!(ClockStep::default().corrected_offset(0, 5_000_000, 0), 0);
    }

    #[test]
    fn the_scale_agrees_with_quanta() {
        let counter = quanta::Clock::new();
        let scale = calibrated_scale(&counter);
        for counts in [1_u64 << 20, 1 << 32, 1 << 45] {
            let micros = ((u128::from(counts) * u128::from(scale)) >> 64) as u64;
            assert!(micros.abs_diff(counter.delta_as_nanos(0, counts) / 1_000) <= 1 + micros / 1_000_000);
        }
    }

    #[test]
    fn the_system_clock_follows_the_wall_clock_and_never_steps_back_far() {
        let clock = SystemClock::new();
        let mut before = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now.get() + MAX_SLEW_BACK_US >= before.get());
            before = now;
        }
        assert!(clock.now().get().abs_diff(wall_micros()) < 1_000_000);
    }
}
