//! The fixed window counter.
//!
//! What is remembered is when the window ends and how much of it is used. Until then a draw is one comparison,
//! however the window was laid out; only the first draw of a window asks the calendar.

use super::bucket::per_mille;
use super::calendar::{CalendarPeriod, Zone};
use super::share::{ShareChange, portion};
use crate::lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
use crate::limit::Step;
use crate::op::Amount;
use crate::params::{LimitParams, WindowStart};
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{MOST_BACK, Micros, Span};

/// A fixed window's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    amount: u32,
    per: Span,
    layout: WindowLayout,
    /// How many microseconds ahead a window's end may be.
    farthest: u64,
}

/// Where windows begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowLayout {
    /// At multiples of the period since the epoch.
    Multiples,
    /// Where the calendar says.
    Calendar(CalendarPeriod, Zone),
    /// At the first hit.
    FirstHit,
}

/// How much is used of the window that ends then.
#[derive(Clone, Copy)]
struct WindowUse {
    ends: Micros,
    used: u32,
}

impl WindowUse {
    #[inline]
    fn state(self) -> State {
        State::new(self.ends.get(), u64::from(self.used))
    }
}

impl FixedWindow {
    pub(crate) fn new(amount: u32, per: Span, layout: WindowLayout) -> FixedWindow {
        // The longest that a window can be, in microseconds. Clocks that change make a day two hours longer at most.
        let longest = match layout {
            WindowLayout::Multiples | WindowLayout::FirstHit => per.get(),
            WindowLayout::Calendar(CalendarPeriod::Day | CalendarPeriod::Week, _) => {
                per.get() + 2 * Span::HOUR.get()
            }
            WindowLayout::Calendar(CalendarPeriod::Month, _) => {
                per.get() + Span::DAY.get() + 2 * Span::HOUR.get()
            }
        };
        FixedWindow { amount, per, layout, farthest: longest + MOST_BACK.get() }
    }

    /// How many microseconds ahead a window's end may be; if it is farther, the clock was set back.
    pub(crate) fn farthest(&self) -> Span {
        Span::micros(self.farthest)
    }

    /// What one of `nodes` has of it, in the same windows.
    pub(crate) fn share(&self, nodes: u32) -> FixedWindow {
        FixedWindow { amount: portion(self.amount, nodes), ..*self }
    }

    /// The most units of a window.
    pub(crate) fn amount(&self) -> u32 {
        self.amount
    }

    /// Starts over if the window has ended, then grants as much of `ask` as still fits.
    #[inline]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, ask: Amount) -> Step {
        let window = self.age(state, now);
        let room = self.amount - window.used;
        if ask.at_least() > room {
            // A window that was put where the clock is now, after that was set back, must be written.
            let is_rebased = window.used > 0 && state.is_some_and(|before| before != window.state());
            return Step { granted: None, state: window.state(), changed: is_rebased };
        }
        let granted = ask.at_most().min(room);
        let ends = if window.used == 0 && granted > 0 { self.end(now) } else { window.ends };
        let state = WindowUse { ends, used: window.used + granted }.state();
        Step { granted: Some(granted), state, changed: granted > 0 }
    }

    /// The window as it stands at `now`. A clock stepping back stays in the window it had reached, unless that is too far
    /// ahead: then what was used is used of the window that the clock is in.
    #[inline]
    fn age(&self, state: Option<State>, now: Micros) -> WindowUse {
        let (ends, used) = state.map_or((0, 0), State::numbers);
        let used =
            if now.get() < ends { u32::try_from(used).unwrap_or(u32::MAX).min(self.amount) } else { 0 };
        if used > 0 && ends - now.get() > self.farthest {
            return WindowUse { ends: self.end(now), used };
        }
        WindowUse { ends: Micros::new(ends), used }
    }

    /// Whether the clock was set back far behind the window of this state, so that it must be counted from now on.
    #[inline]
    pub(crate) fn is_ahead(&self, state: State, now: Micros) -> bool {
        let (ends, used) = state.numbers();
        used > 0 && ends > now.get() && ends - now.get() > self.farthest
    }

    /// The state as it is counted from `now` on, after the clock was set back.
    pub(crate) fn rebase(&self, state: State, now: Micros) -> State {
        self.age(Some(state), now).state()
    }

    /// When the window that `now` falls into ends.
    #[cold]
    pub(crate) fn end(&self, now: Micros) -> Micros {
        match self.layout {
            WindowLayout::FirstHit => now.plus(self.per),
            WindowLayout::Calendar(stretch, zone) => stretch.end(now, zone),
            WindowLayout::Multiples => {
                Micros::new((now.get() / self.per.get() + 1).saturating_mul(self.per.get()))
            }
        }
    }

    /// What the state promises: `ask` was answered with `granted` at `now`.
    pub(crate) fn outlook(&self, state: State, now: Micros, ask: Amount, granted: Option<u32>) -> Forecast {
        let window = self.age(Some(state), now);
        let reset = if window.used == 0 { Span::ZERO } else { window.ends.since(now) };
        let retry = if ask.at_least() > self.amount { Retry::Never } else { Retry::After(reset) };
        Forecast {
            remaining: self.amount - window.used,
            reset,
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(retry) } else { None },
        }
    }

    /// Gives back so many units, at most all that are used.
    pub(crate) fn give(&self, state: State, now: Micros, units: u32) -> State {
        let window = self.age(Some(state), now);
        WindowUse { used: window.used.saturating_sub(units), ..window }.state()
    }

    /// Takes back what a node was lent in the same window, and lends it more, until the window ends. What it spent or
    /// keeps is used since it was lent.
    pub(crate) fn lend(
        &self,
        state: Option<State>,
        now: Micros,
        report: LeaseReport,
        wish: LeaseRequest,
    ) -> (LeasedState, LeaseGrant) {
        let window = self.age(state, now);
        let is_known = window.used > 0 && report.term == window.ends.get();
        let back = if is_known { report.back.min(window.used) } else { 0 };
        let used = window.used - back;
        let units = wish.of(self.amount - used);
        let ends = if window.used == 0 { self.end(now) } else { window.ends };
        let state = (used + units > 0).then(|| WindowUse { ends, used: used + units }.state());
        (
            LeasedState { state, lent: LentUnits::default() },
            LeaseGrant { units, term: ends.get(), until: ends, is_known },
        )
    }

    /// The same key's state under this limit: what was used stays used, until this limit's window ends. Ending it with
    /// the other window, if that is nearer, would have this limit begin one anew with every change to and fro. Between
    /// shares, what is left is divided or put together.
    pub(crate) fn adopt(
        &self,
        state: State,
        before: &FixedWindow,
        passage: ShareChange,
        now: Micros,
    ) -> State {
        let window = before.age(Some(state), now);
        let used = match passage.is_level() {
            true => window.used.min(self.amount),
            false => self.amount.saturating_sub(passage.down(before.amount - window.used)),
        };
        // From the first hit, every quota has windows of its own, unless one is a share of the other.
        let is_same_window = (self.per, self.layout) == (before.per, before.layout)
            && (self.layout != WindowLayout::FirstHit || !passage.is_level());
        let ends = if is_same_window { window.ends } else { self.end(now) };
        WindowUse { ends, used }.state()
    }

    /// The larger of two counts, until the later of two ends.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let (one, other) = (self.age(Some(one), now), self.age(Some(other), now));
        match (one.used, other.used) {
            (0, _) => other.state(),
            (_, 0) => one.state(),
            _ => WindowUse { ends: one.ends.max(other.ends), used: one.used.max(other.used) }.state(),
        }
    }

    /// The same count in a window that ends no sooner than one that begins with a draw at `now`.
    pub(crate) fn prolong(&self, state: State, now: Micros) -> State {
        let window = self.age(Some(state), now);
        WindowUse { ends: window.ends.max(self.end(now)), ..window }.state()
    }

    /// When the window of a state began.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        Micros::new(state.numbers().0).less(self.per)
    }

    /// Whether nothing is used any more.
    #[inline]
    pub(crate) fn is_drained(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).used == 0
    }

    /// How much of the window is used, in thousandths.
    pub(crate) fn fill(&self, state: State, now: Micros) -> u32 {
        per_mille(u64::from(self.age(Some(state), now).used), u64::from(self.amount))
    }

    /// The numbers that it computes with.
    pub(crate) fn figures(&self) -> LimitParams {
        let start = match self.layout {
            WindowLayout::FirstHit => WindowStart::FirstHit,
            WindowLayout::Multiples => WindowStart::Multiples,
            WindowLayout::Calendar(..) => WindowStart::Calendar,
        };
        LimitParams::FixedWindow { amount: self.amount, per: self.per, start, farthest: self.farthest() }
    }

    /// The longest that a state matters after it was written: the longest month has 31 days and perhaps an hour.
    pub(crate) fn ttl(&self) -> Span {
        match self.layout {
            WindowLayout::Multiples | WindowLayout::FirstHit => self.per,
            WindowLayout::Calendar(..) => Span::micros(self.per.get() + 2 * Span::DAY.get()),
        }
    }
}
