//! Clocks: the machine's, and one that tests turn by hand.

use parking_lot::Mutex;
use ratekeeper_core::{Clock, MOST_BACK, Micros};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often the wall clock is looked at.
const LOOK: u64 = 1_000_000;
/// By how much the clock is held back, at the most, each time it is found ahead of the wall clock: 0.05 %, which is
/// also how fast a time daemon turns a clock.
const HOLD: u64 = 500;
/// How far the wall clock may be ahead and be believed at once: more than a counter goes wrong in an hour.
const MOST_FORWARD: u64 = 100_000;
/// In how many looks in a row, a second or more apart, the wall clock must show the same step before it is believed. A
/// time daemon or a hypervisor that sets a clock wrongly mends it within a few seconds, or it stays wrong.
const LOOKS: u32 = 5;
/// By how much two looks at the same step may differ.
const ALIKE: u64 = 50_000;

/// The machine's time: as steady as its time-stamp counter, as right as its wall clock.
///
/// It runs on the processor's counter and looks at the wall clock once a second. If it finds itself behind by up to a tenth
/// of a second, it catches up at once. If it finds itself ahead by up to [`MOST_BACK`], it goes back by half a millisecond
/// each second until they meet: 0.05 % slower. A larger step, forward or back, is believed once the wall clock has shown it
/// in five looks in a row; so a clock that is wrong for a few seconds changes nothing, and one that is set right again is
/// followed back as soon. A machine that was asleep counts the time that it slept five seconds after it woke up. After a step
/// back, states count from the new time on, which lends each key at most one burst; a step forward refills what that time would
/// have.
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
    /// What was seen of a step that is not believed yet.
    step: Mutex<ClockStep>,
}

/// A step of the wall clock that is not believed yet.
#[derive(Clone, Copy, Debug, Default)]
struct ClockStep {
    /// What the offset would be with it.
    offset: u64,
    /// In how many looks in a row it was seen.
    looks: u32,
}

impl ClockStep {
    /// The offset after a look at the wall clock.
    fn corrected(&mut self, offset: u64, elapsed: u64, wall: u64) -> u64 {
        let right = wall.saturating_sub(elapsed);
        let is_small =
            right <= offset.saturating_add(MOST_FORWARD) && right >= offset.saturating_sub(MOST_BACK.get());
        if is_small {
            *self = ClockStep::default();
            return right.max(offset.saturating_sub(HOLD));
        }
        let is_same = self.looks > 0 && self.offset.abs_diff(right) <= ALIKE;
        *self = ClockStep { offset: right, looks: if is_same { self.looks + 1 } else { 1 } };
        if self.looks < LOOKS {
            return offset;
        }
        *self = ClockStep::default();
        right
    }
}

impl SystemClock {
    /// A clock that begins at the wall clock's time.
    pub fn new() -> SystemClock {
        let counter = quanta::Clock::new();
        let (origin, scale) = (counter.raw(), scale_of(&counter));
        let (offset, look_at) = (AtomicU64::new(wall_micros()), AtomicU64::new(LOOK));
        SystemClock { counter, origin, scale, offset, look_at, step: Mutex::default() }
    }

    #[cold]
    fn look(&self, elapsed: u64) {
        // Who finds another thread looking leaves it to that.
        let Some(mut step) = self.step.try_lock() else { return };
        if elapsed < self.look_at.load(Relaxed) {
            return;
        }
        self.look_at.store(elapsed + LOOK, Relaxed);
        self.offset.store(step.corrected(self.offset.load(Relaxed), elapsed, wall_micros()), Relaxed);
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

#[expect(clippy::disallowed_methods, reason = "this is the clock that everyone else reads")]
fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is set: for tests, of this crate and of yours.
///
/// ```
/// use ratekeeper::{Cap, Limiter, ManualClock, MemoryStore, Micros, Span};
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

    /// What the clock shows, less the true time, after each of the looks at a wall clock that is so much ahead of it.
    fn shown(ahead: &[i64]) -> Vec<i64> {
        let (mut step, mut offset) = (ClockStep::default(), START);
        let looks = (1..).zip(ahead).map(|(second, ahead)| {
            let elapsed = second * LOOK;
            offset = step.corrected(offset, elapsed, (START + elapsed).saturating_add_signed(*ahead));
            i64::try_from(offset).unwrap() - i64::try_from(START).unwrap()
        });
        looks.collect()
    }

    #[test]
    fn small_steps_are_followed_at_once_forward_and_slowly_back() {
        assert_eq!(shown(&[0, 200, 200]), [0, 200, 200]);
        assert_eq!(shown(&[-200, -200]), [-200, -200]);
        assert_eq!(shown(&[-4_000_000, -4_000_000]), [-500, -1_000]);
        assert_eq!(shown(&[100_000, 0, 0]), [100_000, 99_500, 99_000]);
    }

    #[test]
    fn a_wall_clock_that_is_wrong_for_three_seconds_changes_nothing() {
        for step in [HOUR, -HOUR] {
            assert_eq!(shown(&[0, step, step, step, 0, 0]), [0; 6]);
        }
        assert_eq!(shown(&[HOUR, 2 * HOUR, HOUR, 2 * HOUR, HOUR, 2 * HOUR]), [0; 6], "no step has stood");
    }

    #[test]
    fn a_step_that_stands_is_believed_and_undone_as_soon_as_it_came() {
        for step in [HOUR, -HOUR] {
            let wall = [[step; 6], [0; 6]].concat();
            let expected = [[0, 0, 0, 0, step, step], [step, step, step, step, 0, 0]].concat();
            assert_eq!(shown(&wall), expected);
        }
    }

    #[test]
    fn a_clock_before_the_beginning_of_time_shows_the_beginning() {
        assert_eq!(ClockStep::default().corrected(0, 5_000_000, 0), 0);
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
