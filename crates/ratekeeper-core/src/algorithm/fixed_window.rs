//! The fixed window counter.
//!
//! The state is the end of the window and the units used in it. Until the window ends a draw is one comparison,
//! whatever the layout; only the first draw of a window consults the calendar.

use super::bucket::per_mille;
use super::calendar::{CalendarPeriod, Zone};
use super::share::{ShareChange, share_of};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::limit::Step;
use crate::op::Amount;
use crate::params::{LimitParams, WindowStart};
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{MAX_CLOCK_STEP_BACK, Micros, Span};

/// The constants of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    amount: u32,
    per: Span,
    layout: WindowLayout,
    /// How many microseconds in the future the end of a window may be.
    max_end_ahead: u64,
}

/// Where windows begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowLayout {
    /// At multiples of the period since the epoch.
    Multiples,
    /// At calendar boundaries.
    Calendar(CalendarPeriod, Zone),
    /// With the first unit after the previous window ended.
    FirstHit,
}

/// The units used in the window that ends at `ends_at`.
#[derive(Clone, Copy)]
struct WindowUse {
    ends_at: Micros,
    used: u32,
}

impl WindowUse {
    #[inline]
    fn to_state(self) -> State {
        State::new(self.ends_at.get(), u64::from(self.used))
    }
}

impl FixedWindow {
    pub(crate) fn new(amount: u32, per: Span, layout: WindowLayout) -> FixedWindow {
        // The longest possible window in microseconds. Daylight saving makes a day at most two hours longer.
        let longest = match layout {
            WindowLayout::Multiples | WindowLayout::FirstHit => per.get(),
            WindowLayout::Calendar(CalendarPeriod::Day | CalendarPeriod::Week, _) => {
                per.get() + 2 * Span::HOUR.get()
            }
            WindowLayout::Calendar(CalendarPeriod::Month, _) => {
                per.get() + Span::DAY.get() + 2 * Span::HOUR.get()
            }
        };
        FixedWindow { amount, per, layout, max_end_ahead: longest + MAX_CLOCK_STEP_BACK.get() }
    }

    /// Returns how far in the future the end of a window may be. A later end means that the clock was set back.
    pub(crate) fn max_end_ahead(&self) -> Span {
        Span::micros(self.max_end_ahead)
    }

    /// Returns the share of one of `nodes`, with the same windows.
    pub(crate) fn share(&self, nodes: u32) -> FixedWindow {
        FixedWindow { amount: share_of(self.amount, nodes), ..*self }
    }

    /// Returns the maximum number of units per window.
    pub(crate) fn amount(&self) -> u32 {
        self.amount
    }

    /// Starts a new window if the old one has ended, then grants as much of `amount` as fits.
    #[inline]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, amount: Amount) -> Step {
        let window = self.age(state, now);
        let remaining = self.amount - window.used;
        // A window that was rebased, after the clock was set back, must be written even if no unit is granted.
        let is_rebased = window.used > 0 && state.is_some_and(|before| before != window.to_state());
        if amount.at_least() > remaining {
            return Step { granted: None, state: window.to_state(), needs_write: is_rebased };
        }
        let granted = amount.at_most().min(remaining);
        let ends = if window.used == 0 && granted > 0 { self.window_end(now) } else { window.ends_at };
        let state = WindowUse { ends_at: ends, used: window.used + granted }.to_state();
        Step { granted: Some(granted), state, needs_write: granted > 0 || is_rebased }
    }

    /// Returns the window as of `now`. A clock that steps back stays in the window that it had reached, unless that
    /// is too far ahead: then the used units count in the window that contains `now`.
    #[inline]
    fn age(&self, state: Option<State>, now: Micros) -> WindowUse {
        let (ends, used) = state.map_or((0, 0), State::numbers);
        let used =
            if now.get() < ends { u32::try_from(used).unwrap_or(u32::MAX).min(self.amount) } else { 0 };
        if used > 0 && ends - now.get() > self.max_end_ahead {
            return WindowUse { ends_at: self.window_end(now), used };
        }
        WindowUse { ends_at: Micros::new(ends), used }
    }

    /// Returns whether the clock was set back so far behind the window of this state that it must be rebased.
    #[inline]
    pub(crate) fn needs_rebase(&self, state: State, now: Micros) -> bool {
        let (ends, used) = state.numbers();
        used > 0 && ends > now.get() && ends - now.get() > self.max_end_ahead
    }

    /// Returns the state rebased to `now` after the clock was set back.
    pub(crate) fn rebase(&self, state: State, now: Micros) -> State {
        self.age(Some(state), now).to_state()
    }

    /// Returns when the window that contains `now` ends.
    #[cold]
    pub(crate) fn window_end(&self, now: Micros) -> Micros {
        match self.layout {
            WindowLayout::FirstHit => now.plus(self.per),
            WindowLayout::Calendar(period, zone) => period.end(now, zone),
            WindowLayout::Multiples => {
                Micros::new((now.get() / self.per.get() + 1).saturating_mul(self.per.get()))
            }
        }
    }

    /// Returns the forecast after a draw of `amount` at `now` that got `granted`.
    pub(crate) fn forecast(
        &self,
        state: State,
        now: Micros,
        amount: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        let window = self.age(Some(state), now);
        let reset = if window.used == 0 { Span::ZERO } else { window.ends_at.since(now) };
        let retry = if amount.at_least() > self.amount { Retry::Never } else { Retry::After(reset) };
        Forecast {
            remaining: self.amount - window.used,
            reset,
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(retry) } else { None },
        }
    }

    /// Refunds units, at most all that are used.
    pub(crate) fn refund(&self, state: State, now: Micros, units: u32) -> State {
        let window = self.age(Some(state), now);
        WindowUse { used: window.used.saturating_sub(units), ..window }.to_state()
    }

    /// Takes back the units that a node returns of a lease in the same window, and lends it more until the window
    /// ends. Units that it spent or keeps have counted as used since they were lent.
    pub(crate) fn grant_lease(
        &self,
        state: Option<State>,
        now: Micros,
        report: LeaseReport,
        request: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let window = self.age(state, now);
        let is_report_accepted = window.used > 0 && report.term == window.ends_at.get();
        let returned = if is_report_accepted { report.returned.min(window.used) } else { 0 };
        let used = window.used - returned;
        let units = request.grant_from(self.amount - used);
        let ends = if window.used == 0 { self.window_end(now) } else { window.ends_at };
        let state = (used + units > 0).then(|| WindowUse { ends_at: ends, used: used + units }.to_state());
        (
            LeasedState { state, lent: LentUnits::default() },
            LeaseGrant { units, term: ends.get(), expires_at: ends, is_report_accepted },
        )
    }

    /// Converts a state that `before` wrote: used units stay used until the window of this limit ends. Keeping the
    /// end of the other window, if that is sooner, would begin a new window with every switch back and forth. If
    /// the number of shares changes, the units left are divided or combined.
    pub(crate) fn adopt(
        &self,
        state: State,
        before: &FixedWindow,
        change: ShareChange,
        now: Micros,
    ) -> State {
        let window = before.age(Some(state), now);
        let used = if change.is_unchanged() {
            window.used.min(self.amount)
        } else {
            self.amount.saturating_sub(change.scale_down(before.amount - window.used))
        };
        // With `FirstHit`, every quota has its own windows, unless one is a share of the other.
        let is_same_window = (self.per, self.layout) == (before.per, before.layout)
            && (self.layout != WindowLayout::FirstHit || !change.is_unchanged());
        let ends = if is_same_window { window.ends_at } else { self.window_end(now) };
        WindowUse { ends_at: ends, used }.to_state()
    }

    /// Returns the larger of two counts, until the later of two ends.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let (one, other) = (self.age(Some(one), now), self.age(Some(other), now));
        match (one.used, other.used) {
            (0, _) => other.to_state(),
            (_, 0) => one.to_state(),
            _ => WindowUse { ends_at: one.ends_at.max(other.ends_at), used: one.used.max(other.used) }
                .to_state(),
        }
    }

    /// Returns the same count in a window that ends no sooner than one that begins with a draw at `now`.
    pub(crate) fn extend_window(&self, state: State, now: Micros) -> State {
        let window = self.age(Some(state), now);
        WindowUse { ends_at: window.ends_at.max(self.window_end(now)), ..window }.to_state()
    }

    /// Returns when the window of a state began.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        Micros::new(state.numbers().0).minus(self.per)
    }

    /// Returns whether nothing is used.
    #[inline]
    pub(crate) fn is_expired(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).used == 0
    }

    /// Returns how much of the window is used, in thousandths.
    pub(crate) fn fill_per_mille(&self, state: State, now: Micros) -> u32 {
        per_mille(u64::from(self.age(Some(state), now).used), u64::from(self.amount))
    }

    /// Returns the constants of the window.
    pub(crate) fn params(&self) -> LimitParams {
        let start = match self.layout {
            WindowLayout::FirstHit => WindowStart::FirstHit,
            WindowLayout::Multiples => WindowStart::Multiples,
            WindowLayout::Calendar(..) => WindowStart::Calendar,
        };
        LimitParams::FixedWindow {
            amount: self.amount,
            per: self.per,
            start,
            max_end_ahead: self.max_end_ahead(),
        }
    }

    /// Returns the longest time for which a state matters after it was written. The longest month has 31 days and
    /// possibly an extra hour.
    pub(crate) fn ttl(&self) -> Span {
        match self.layout {
            WindowLayout::Multiples | WindowLayout::FirstHit => self.per,
            WindowLayout::Calendar(..) => Span::micros(self.per.get() + 2 * Span::DAY.get()),
        }
    }
}
