//! Windows as lease sizing sees them: units that are unspent when a window ends are lost.

use super::estimate::seconds;
use ratekeeper_core::{Algorithm, Limit, Micros, Span, State};

/// The shortest time by which a lease ends before the store's deadline, because clocks may run at different speeds.
pub(super) const MIN_MARGIN: Span = Span::millis(2);
/// A lease that would last shorter than this is not used.
pub(super) const MIN_USEFUL_LEASE: Span = Span::micros(500);

/// A window at the time when a request reaches the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowView {
    seconds_left: f32,
    round_trip_seconds: f32,
}

impl WindowView {
    /// The window of a state at the store's time `at`. `None` if the algorithm has no windows.
    pub(super) fn of(
        limit: &Limit,
        state: Option<State>,
        at: Micros,
        round_trip: Span,
    ) -> Option<WindowView> {
        let time_left = match limit.algorithm() {
            Algorithm::FixedWindow(_) => {
                let end = state.map(|state| Micros::new(limit.state_parts(state)[0])).filter(|end| *end > at);
                end.or_else(|| limit.window_end(at))?.since(at)
            }
            Algorithm::SlidingWindowCounter => {
                let per = limit.quota().per().get();
                Span::micros(per - at.get() % per)
            }
            _ => return None,
        };
        Some(WindowView { seconds_left: seconds(time_left), round_trip_seconds: seconds(round_trip) })
    }

    /// For how many seconds units requested now can be spent. `None` if that is not worthwhile. They arrive with
    /// the reply, and end before the window does. A window that has just begun by this estimate may not have
    /// begun at the store yet.
    pub(super) fn usable_seconds(self, limit: &Limit) -> Option<f32> {
        let is_sure = seconds(limit.window()) - self.seconds_left >= self.round_trip_seconds / 2.0;
        let usable = self.seconds_left - self.round_trip_seconds - seconds(MIN_MARGIN);
        (is_sure && usable >= seconds(MIN_USEFUL_LEASE)).then_some(usable)
    }

    /// Seconds until the window ends.
    pub(super) fn seconds_left(self) -> f32 {
        self.seconds_left
    }

    /// Round-trip time to the store, in seconds.
    pub(super) fn round_trip_seconds(self) -> f32 {
        self.round_trip_seconds
    }
}

/// Whether the fixed window of a state has ended, so that nothing is known about the current one.
pub(super) fn is_window_over(limit: &Limit, state: Option<State>, at: Micros) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow(_))
        && state.is_some_and(|state| Micros::new(limit.state_parts(state)[0]) <= at)
}

/// Whether leases end with a window, so that they can't be extended.
pub(super) fn has_windows(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter)
}
