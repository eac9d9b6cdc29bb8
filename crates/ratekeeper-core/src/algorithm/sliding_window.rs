//! The sliding window counter.
//!
//! Two counts are remembered: the current window's and the previous one's. The previous count fades as the current
//! window passes: at `elapsed` into a window of `w` ticks it weighs `previous × (w − elapsed) / w`. Comparing both
//! sides times `w` keeps everything whole. The estimate never rises by itself and has no jump where windows meet, so
//! the instant at which a refused ask will fit is known exactly.

use super::bucket::per_mille;
use super::share::{ShareChange, portion};
use super::tick::{Tick, exact_product};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::limit::Step;
use crate::op::Amount;
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{Micros, Span};
use std::num::NonZeroU64;

/// A sliding window's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    amount: u32,
    /// The window's length in ticks.
    window: NonZeroU64,
    tick: Tick,
}

/// The window's number since the epoch and both counts.
#[derive(Clone, Copy)]
struct WindowCounts {
    index: u64,
    previous: u32,
    current: u32,
}

/// 106 bits hold the number of any window of at least [`SlidingWindow::SHORTEST`] (42 bits) and two counts.
impl WindowCounts {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each count was packed into 32 bits")]
    fn of(state: State) -> WindowCounts {
        let (high, low) = state.numbers();
        let previous = (high & 0x7ff) << 21 | low >> 32;
        WindowCounts { index: high >> 11, previous: previous as u32, current: low as u32 }
    }

    #[inline]
    fn state(self) -> State {
        let previous = u64::from(self.previous);
        State::new(self.index << 11 | previous >> 21, (previous & 0x1f_ffff) << 32 | u64::from(self.current))
    }
}

impl WindowCounts {
    #[inline]
    fn is_zero(self) -> bool {
        self.previous == 0 && self.current == 0
    }
}

impl SlidingWindow {
    /// How many bits the number of a window has.
    const INDEX_BITS: u32 = 42;

    /// The shortest window whose number always fits the state.
    pub(crate) const SHORTEST: Span = Span::millis(10);

    /// A window of the quota's period; nothing if its numbers would pass 2^53 at every tick.
    pub(crate) fn new(quota: &Quota) -> Option<SlidingWindow> {
        let amount = quota.amount();
        let tick = Tick::shortest(quota.per(), |window| exact_product(u64::from(amount), window))?;
        let window = NonZeroU64::new(tick.count(quota.per()))?;
        Some(SlidingWindow { amount, window, tick })
    }

    /// What one of `nodes` has of it, in the same windows.
    pub(crate) fn share(&self, nodes: u32) -> SlidingWindow {
        SlidingWindow { amount: portion(self.amount, nodes), ..*self }
    }

    /// The most units of a window.
    pub(crate) fn amount(&self) -> u32 {
        self.amount
    }

    /// Moves the windows on to `now`, then grants as much of `ask` as still fits.
    #[inline]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, ask: Amount) -> Step {
        let (counts, elapsed) = self.age(state, now);
        let room = self.room(counts, elapsed);
        if ask.at_least() > room {
            // Counts that were put where the clock is now, after that was set back, must be written.
            let is_rebased = state.is_some_and(|before| WindowCounts::of(before).index > counts.index);
            return Step { granted: None, state: counts.state(), changed: is_rebased };
        }
        let granted = ask.at_most().min(room);
        let state = WindowCounts { current: counts.current + granted, ..counts }.state();
        Step { granted: Some(granted), state, changed: granted > 0 }
    }

    /// The counts as they stand at `now`, and how far into their window that is.
    #[inline]
    fn age(&self, state: Option<State>, now: Micros) -> (WindowCounts, u64) {
        let now = self.tick.of(now);
        let (index, elapsed) = (now / self.window, now % self.window);
        let none = WindowCounts { index, previous: 0, current: 0 };
        let Some(counts) = state.map(WindowCounts::of) else { return (none, elapsed) };
        match index.checked_sub(counts.index) {
            Some(0) => (counts, elapsed),
            Some(1) => (WindowCounts { index, previous: counts.current, current: 0 }, elapsed),
            Some(_) => (none, elapsed),
            // The clock stepped back. What is drained is forgotten, whenever it was.
            None if counts.is_zero() => (none, elapsed),
            // What is too far ahead is counted in the window that the clock is in.
            None if self.is_far_ahead(counts.index, now) => (WindowCounts { index, ..counts }, elapsed),
            // Else the window that was reached stays, as it was at its very beginning.
            None => (counts, 0),
        }
    }

    /// Whether a window begins so far ahead of `now`, in ticks, that the clock must have been set back.
    #[cold]
    fn is_far_ahead(&self, index: u64, now: u64) -> bool {
        self.tick.is_ahead(index.saturating_mul(self.window.get()), now)
    }

    /// Whether the clock was set back far behind the windows of this state, so that it must be counted from now on.
    #[inline]
    pub(crate) fn is_ahead(&self, state: State, now: Micros) -> bool {
        let (counts, now) = (WindowCounts::of(state), self.tick.of(now));
        !counts.is_zero() && self.is_far_ahead(counts.index, now)
    }

    /// The state as it is counted from `now` on, after the clock was set back.
    pub(crate) fn rebase(&self, state: State, now: Micros) -> State {
        self.age(Some(state), now).0.state()
    }

    /// How many more units fit.
    #[inline]
    fn room(&self, counts: WindowCounts, elapsed: u64) -> u32 {
        let fading = (u64::from(counts.previous) * (self.window.get() - elapsed)).div_ceil(self.window.get());
        let used = u64::from(counts.current) + fading;
        self.amount.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// What the state promises: `ask` was answered with `granted` at `now`.
    pub(crate) fn outlook(&self, state: State, now: Micros, ask: Amount, granted: Option<u32>) -> Forecast {
        let (counts, elapsed) = self.age(Some(state), now);
        let gone_in_windows = match counts {
            WindowCounts { current: 1.., .. } => 2,
            WindowCounts { previous: 1.., .. } => 1,
            WindowCounts { .. } => 0,
        };
        let gone_at = self.tick.start((counts.index + gone_in_windows) * self.window.get());
        Forecast {
            remaining: self.room(counts, elapsed),
            reset: if gone_in_windows == 0 { Span::ZERO } else { gone_at.since(now) },
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(counts, now, ask)) } else { None },
        }
    }

    /// When to come back with the same ask: neither early nor late, if nobody draws in between.
    fn retry(&self, counts: WindowCounts, now: Micros, ask: Amount) -> Retry {
        let Some(room) = self.amount.checked_sub(ask.at_least()) else { return Retry::Never };
        let (windows, elapsed) = match room.checked_sub(counts.current) {
            // It fits within this window, once the previous count has faded to `room`.
            Some(room) => (0, self.faded_to(counts.previous, room)),
            // It takes the next window, when the current count is the one that fades.
            None => (1, self.faded_to(counts.current, room)),
        };
        let at = self.tick.start((counts.index + windows) * self.window.get() + elapsed);
        Retry::After(at.since(now))
    }

    /// How far into a window a previous count weighs no more than `room`.
    fn faded_to(&self, count: u32, room: u32) -> u64 {
        match u64::from(count) {
            0 => 0,
            count => self.window.get().saturating_sub(u64::from(room) * self.window.get() / count),
        }
    }

    /// Gives back so many units, the youngest first, at most all that are counted.
    pub(crate) fn give(&self, state: State, now: Micros, units: u32) -> State {
        let (counts, _) = self.age(Some(state), now);
        let rest = units.saturating_sub(counts.current);
        let current = counts.current.saturating_sub(units);
        WindowCounts { current, previous: counts.previous.saturating_sub(rest), ..counts }.state()
    }

    /// Takes back what a node was lent in the same window, and lends it more, until the window ends. What it spent or
    /// keeps is counted since it was lent: the window passes, so it weighs no less for being spent later.
    pub(crate) fn lend(
        &self,
        state: Option<State>,
        now: Micros,
        report: LeaseReport,
        wish: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let (mut counts, elapsed) = self.age(state, now);
        let is_known = report.term == counts.index;
        if is_known {
            counts.current -= report.back.min(counts.current);
        }
        let units = wish.of(self.room(counts, elapsed));
        counts.current += units;
        let until = self.tick.start((counts.index + 1) * self.window.get());
        let held = LeasedState { state: Some(counts.state()), lent: LentUnits::default() };
        (held, LeaseGrant { units, term: counts.index, until, is_known })
    }

    /// The same key's state under this limit: what was counted stays counted. Windows of another length can't be
    /// carried over as they are; what still weighs then counts as taken now. Between shares, what was counted is divided,
    /// rounded up, or multiplied.
    pub(crate) fn adopt(
        &self,
        state: State,
        before: &SlidingWindow,
        passage: ShareChange,
        now: Micros,
    ) -> State {
        let (counts, elapsed) = before.age(Some(state), now);
        if (self.window, self.tick) == (before.window, before.tick) {
            let [previous, current] =
                [counts.previous, counts.current].map(|count| passage.up(count).min(self.amount));
            return WindowCounts { previous, current, ..counts }.state();
        }
        let used = passage.up(before.amount - before.room(counts, elapsed));
        let (fresh, _) = self.age(None, before.tick.start(counts.index * before.window.get()).max(now));
        WindowCounts { current: used.min(self.amount), ..fresh }.state()
    }

    /// The larger of two counts, window by window.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let ((one, _), (other, _)) = (self.age(Some(one), now), self.age(Some(other), now));
        let (later, earlier) = if one.index >= other.index { (one, other) } else { (other, one) };
        // They differ only if the clock stepped back. Then all of the earlier one is counted in the later window.
        let current = match later.index == earlier.index {
            true => later.current.max(earlier.current),
            false => later.current.max(earlier.current.saturating_add(earlier.previous).min(self.amount)),
        };
        WindowCounts { current, previous: later.previous.max(earlier.previous), ..later }.state()
    }

    /// When the current window of a state began.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        self.tick.start(WindowCounts::of(state).index.saturating_mul(self.window.get()))
    }

    /// Whether nothing is counted any more.
    #[inline]
    pub(crate) fn is_drained(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).0.is_zero()
    }

    /// How much of the amount is in use, in thousandths.
    pub(crate) fn fill(&self, state: State, now: Micros) -> u32 {
        let (counts, elapsed) = self.age(Some(state), now);
        per_mille(u64::from(self.amount - self.room(counts, elapsed)), u64::from(self.amount))
    }

    /// The numbers that it computes with.
    pub(crate) fn figures(&self) -> LimitParams {
        LimitParams::SlidingWindow {
            amount: self.amount,
            window: self.window.get(),
            tick: self.tick.micros(),
        }
    }

    /// The window's number, the previous count and the current one.
    pub(crate) fn parts_of(state: State) -> [u64; 3] {
        let WindowCounts { index, previous, current } = WindowCounts::of(state);
        [index, u64::from(previous), u64::from(current)]
    }

    /// The state of these parts; nothing if it holds none like them.
    pub(crate) fn state_of(&self, [index, previous, current]: [u64; 3]) -> Option<State> {
        let count = |count: u64| u32::try_from(count).ok().filter(|count| *count <= self.amount);
        let (previous, current) = (count(previous)?, count(current)?);
        (index < 1 << SlidingWindow::INDEX_BITS).then(|| WindowCounts { index, previous, current }.state())
    }

    /// The longest that a state matters after it was written.
    pub(crate) fn ttl(&self) -> Span {
        self.tick.start(2 * self.window.get()).since(Micros::EPOCH)
    }
}
