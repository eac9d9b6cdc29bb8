//! The sliding window counter.
//!
//! The state holds two counts, of the current and the previous window. The weight of the previous count decreases
//! as the current window passes: at `elapsed` into a window of `w` ticks it counts `previous × (w − elapsed) / w`.
//! Comparing both sides multiplied by `w` keeps everything in integers. The estimate never rises by itself and is
//! continuous between windows, so the instant at which a denied draw will fit is known exactly.

use super::bucket::per_mille;
use super::share::{ShareChange, share_of};
use super::tick::{Tick, is_exact_product};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::limit::Step;
use crate::op::Amount;
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{Micros, Span};
use std::num::NonZeroU64;

/// The constants of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    amount: u32,
    /// The length of the window in ticks.
    window: NonZeroU64,
    tick: Tick,
}

/// The number of the current window since the epoch, and both counts.
#[derive(Clone, Copy)]
struct WindowCounts {
    index: u64,
    previous: u32,
    current: u32,
}

/// 106 bits hold the number of any window of at least [`SlidingWindow::MIN_WINDOW`] (42 bits) and two 32-bit
/// counts.
impl WindowCounts {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each count was packed into 32 bits")]
    fn unpack(state: State) -> WindowCounts {
        let (high, low) = state.numbers();
        let previous = (high & 0x7ff) << 21 | low >> 32;
        WindowCounts { index: high >> 11, previous: previous as u32, current: low as u32 }
    }

    #[inline]
    fn pack(self) -> State {
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
    /// The number of bits of a window number.
    const INDEX_BITS: u32 = 42;

    /// The shortest window whose number always fits into the state.
    pub(crate) const MIN_WINDOW: Span = Span::millis(10);

    /// Creates a window of the period of the quota. Returns `None` if its numbers would exceed 2^53 with every tick
    /// length.
    pub(crate) fn new(quota: &Quota) -> Option<SlidingWindow> {
        let amount = quota.amount();
        let tick = Tick::shortest(quota.per(), |window| is_exact_product(u64::from(amount), window))?;
        let window = NonZeroU64::new(tick.count(quota.per()))?;
        Some(SlidingWindow { amount, window, tick })
    }

    /// Returns the share of one of `nodes`, with the same windows.
    pub(crate) fn share(&self, nodes: u32) -> SlidingWindow {
        SlidingWindow { amount: share_of(self.amount, nodes), ..*self }
    }

    /// Returns the maximum number of units per window.
    pub(crate) fn amount(&self) -> u32 {
        self.amount
    }

    /// Advances the windows to `now`, then grants as much of `amount` as fits.
    #[inline]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, amount: Amount) -> Step {
        let (counts, elapsed) = self.age(state, now);
        let remaining = self.remaining(counts, elapsed);
        // Counts that were rebased, after the clock was set back, must be written even if no unit is granted.
        let is_rebased = state.is_some_and(|before| WindowCounts::unpack(before).index > counts.index);
        if amount.at_least() > remaining {
            return Step { granted: None, state: counts.pack(), needs_write: is_rebased };
        }
        let granted = amount.at_most().min(remaining);
        let state = WindowCounts { current: counts.current + granted, ..counts }.pack();
        Step { granted: Some(granted), state, needs_write: granted > 0 || is_rebased }
    }

    /// Returns the counts as of `now`, and how far into their window that is.
    #[inline]
    fn age(&self, state: Option<State>, now: Micros) -> (WindowCounts, u64) {
        let now = self.tick.floor(now);
        let (index, elapsed) = (now / self.window, now % self.window);
        let none = WindowCounts { index, previous: 0, current: 0 };
        let Some(counts) = state.map(WindowCounts::unpack) else { return (none, elapsed) };
        match index.checked_sub(counts.index) {
            Some(0) => (counts, elapsed),
            Some(1) => (WindowCounts { index, previous: counts.current, current: 0 }, elapsed),
            Some(_) => (none, elapsed),
            // The clock stepped back. An expired state is dropped in any case.
            None if counts.is_zero() => (none, elapsed),
            // Counts too far ahead move to the window that contains `now`.
            None if self.is_too_far_ahead(counts.index, now) => (WindowCounts { index, ..counts }, elapsed),
            // Otherwise the later window stays current, at its very beginning.
            None => (counts, 0),
        }
    }

    /// Returns whether a window begins so far ahead of `now`, in ticks, that the clock must have been set back.
    #[cold]
    fn is_too_far_ahead(&self, index: u64, now: u64) -> bool {
        self.tick.is_too_far_ahead(index.saturating_mul(self.window.get()), now)
    }

    /// Returns whether the clock was set back so far behind the windows of this state that it must be rebased.
    #[inline]
    pub(crate) fn needs_rebase(&self, state: State, now: Micros) -> bool {
        let (counts, now) = (WindowCounts::unpack(state), self.tick.floor(now));
        !counts.is_zero() && self.is_too_far_ahead(counts.index, now)
    }

    /// Returns the state rebased to `now` after the clock was set back.
    pub(crate) fn rebase(&self, state: State, now: Micros) -> State {
        self.age(Some(state), now).0.pack()
    }

    /// Returns how many more units fit.
    #[inline]
    fn remaining(&self, counts: WindowCounts, elapsed: u64) -> u32 {
        let weighted =
            (u64::from(counts.previous) * (self.window.get() - elapsed)).div_ceil(self.window.get());
        let used = u64::from(counts.current) + weighted;
        self.amount.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Returns the forecast after a draw of `amount` at `now` that got `granted`.
    pub(crate) fn forecast(
        &self,
        state: State,
        now: Micros,
        amount: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        let (counts, elapsed) = self.age(Some(state), now);
        let windows_until_reset = match counts {
            WindowCounts { current: 1.., .. } => 2,
            WindowCounts { previous: 1.., .. } => 1,
            WindowCounts { .. } => 0,
        };
        let reset_at = self.tick.start((counts.index + windows_until_reset) * self.window.get());
        Forecast {
            remaining: self.remaining(counts, elapsed),
            reset: if windows_until_reset == 0 { Span::ZERO } else { reset_at.since(now) },
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(counts, now, amount)) } else { None },
        }
    }

    /// Returns when to retry a draw of `amount`: exact if no other draw is made in between.
    fn retry(&self, counts: WindowCounts, now: Micros, amount: Amount) -> Retry {
        let Some(allowed) = self.amount.checked_sub(amount.at_least()) else { return Retry::Never };
        let (windows, elapsed) = match allowed.checked_sub(counts.current) {
            // It fits within this window, once the weighted previous count has fallen to `allowed`.
            Some(allowed) => (0, self.time_to_fade(counts.previous, allowed)),
            // It fits in the next window, in which the current count is the one that loses weight.
            None => (1, self.time_to_fade(counts.current, allowed)),
        };
        let at = self.tick.start((counts.index + windows) * self.window.get() + elapsed);
        Retry::After(at.since(now))
    }

    /// Returns how far into a window a previous count weighs at most `allowed`.
    fn time_to_fade(&self, count: u32, allowed: u32) -> u64 {
        match u64::from(count) {
            0 => 0,
            count => self.window.get().saturating_sub(u64::from(allowed) * self.window.get() / count),
        }
    }

    /// Refunds units, the most recent first, at most all that are counted.
    pub(crate) fn refund(&self, state: State, now: Micros, units: u32) -> State {
        let (counts, _) = self.age(Some(state), now);
        let rest = units.saturating_sub(counts.current);
        let current = counts.current.saturating_sub(units);
        WindowCounts { current, previous: counts.previous.saturating_sub(rest), ..counts }.pack()
    }

    /// Takes back the units that a node returns of a lease in the same window, and lends it more until the window
    /// ends. Units that it spent or keeps have counted since they were lent: as the window passes, they weigh no
    /// less for being spent later.
    pub(crate) fn grant_lease(
        &self,
        state: Option<State>,
        now: Micros,
        report: LeaseReport,
        request: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let (mut counts, elapsed) = self.age(state, now);
        let is_report_accepted = report.term == counts.index;
        if is_report_accepted {
            counts.current -= report.returned.min(counts.current);
        }
        let units = request.grant_from(self.remaining(counts, elapsed));
        counts.current += units;
        let until = self.tick.start((counts.index + 1) * self.window.get());
        let leased = LeasedState { state: Some(counts.pack()), lent: LentUnits::default() };
        (leased, LeaseGrant { units, term: counts.index, expires_at: until, is_report_accepted })
    }

    /// Converts a state that `before` wrote: counted units stay counted. Windows of another length can't be carried
    /// over as they are; their weighted count then counts as taken now. If the number of shares changes, the counts
    /// are divided, rounded up, or multiplied.
    pub(crate) fn adopt(
        &self,
        state: State,
        before: &SlidingWindow,
        change: ShareChange,
        now: Micros,
    ) -> State {
        let (counts, elapsed) = before.age(Some(state), now);
        if (self.window, self.tick) == (before.window, before.tick) {
            let [previous, current] =
                [counts.previous, counts.current].map(|count| change.scale_up(count).min(self.amount));
            return WindowCounts { previous, current, ..counts }.pack();
        }
        let used = change.scale_up(before.amount - before.remaining(counts, elapsed));
        let (empty, _) = self.age(None, before.tick.start(counts.index * before.window.get()).max(now));
        WindowCounts { current: used.min(self.amount), ..empty }.pack()
    }

    /// Returns the larger of two counts for each window.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let ((one, _), (other, _)) = (self.age(Some(one), now), self.age(Some(other), now));
        let (later, earlier) = if one.index >= other.index { (one, other) } else { (other, one) };
        // The windows differ only if the clock stepped back. Then all units of the earlier state count in the later
        // window.
        let current = if later.index == earlier.index {
            later.current.max(earlier.current)
        } else {
            later.current.max(earlier.current.saturating_add(earlier.previous).min(self.amount))
        };
        WindowCounts { current, previous: later.previous.max(earlier.previous), ..later }.pack()
    }

    /// Returns when the current window of a state began.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        self.tick.start(WindowCounts::unpack(state).index.saturating_mul(self.window.get()))
    }

    /// Returns whether nothing is counted.
    #[inline]
    pub(crate) fn is_expired(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).0.is_zero()
    }

    /// Returns how much of the amount is in use, in thousandths.
    pub(crate) fn fill_per_mille(&self, state: State, now: Micros) -> u32 {
        let (counts, elapsed) = self.age(Some(state), now);
        per_mille(u64::from(self.amount - self.remaining(counts, elapsed)), u64::from(self.amount))
    }

    /// Returns the constants of the window.
    pub(crate) fn params(&self) -> LimitParams {
        LimitParams::SlidingWindow {
            amount: self.amount,
            window: self.window.get(),
            tick: self.tick.micros(),
        }
    }

    /// Returns the window number, the previous count and the current count.
    pub(crate) fn state_parts(state: State) -> [u64; 3] {
        let WindowCounts { index, previous, current } = WindowCounts::unpack(state);
        [index, u64::from(previous), u64::from(current)]
    }

    /// Returns the state with these parts, or `None` if this window can't have written it.
    pub(crate) fn state_from_parts(&self, [index, previous, current]: [u64; 3]) -> Option<State> {
        let count = |count: u64| u32::try_from(count).ok().filter(|count| *count <= self.amount);
        let (previous, current) = (count(previous)?, count(current)?);
        (index < 1 << SlidingWindow::INDEX_BITS).then(|| WindowCounts { index, previous, current }.pack())
    }

    /// Returns the longest time for which a state matters after it was written.
    pub(crate) fn ttl(&self) -> Span {
        self.tick.start(2 * self.window.get()).since(Micros::EPOCH)
    }
}
