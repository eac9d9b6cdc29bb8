//! Lease sizing for windows, which end: units that are leased and unspent then are lost, and so are units that
//! became available and were not requested.
//!
//! If demand is so high that a good part of the draws is denied, draws that are denied later make up for those
//! that were falsely denied earlier, as long as enough of them come before the window ends. So a busy node backs
//! off as it does for buckets, but less the nearer the end is. In the last moments the store decides each draw.

use super::super::demand::Demand;
use super::super::estimate::{float, seconds, span};
use super::{MIN_MARGIN, MIN_USEFUL_LEASE};
use ratekeeper_core::{Algorithm, Limit, Micros, Span, State};

/// A window shorter than this is used up or over almost at once.
const SHORT_WINDOW: Span = Span::secs(10);
/// From this many draws per second on, the load that the key of a window puts on the store matters more than the
/// last unit.
const BUSY_DRAWS_PER_SECOND: f32 = 800.0;
/// Near the limit, a node requests units for this share of the time left in a window and, if the window is short,
/// of the units left: the greater share applies to windows of so many units that random variation makes a greater
/// difference. The remainder, which is too short to request units for, is reached after a few such steps. Units
/// leased to one node are unavailable to the others, but in a short window not for long.
const TIME_SHARES: (f32, f32) = (0.5, 0.65);
/// Units for this share of a short window with many units can be spared even if few are left.
const BRIEF_SHARE: f32 = 0.06;
/// From this many draws per window on, a window has many units.
const MANY_DRAWS: f32 = 10_000.0;
/// A window of `c` units that is drawn exactly as fast as it allows denies about `0.4 / √c` of the draws by random
/// variation. This divided by the square root is certainly more than random variation.
const NOISE_FACTOR: f32 = 2.5;
/// The share of denied units is measured over at least this many units.
const MIN_COUNTED_UNITS: f32 = 1_000.0;
/// The share of denied draws among some draws varies randomly, mostly by this divided by the square root of their
/// number.
const DEVIATION_FACTOR: f32 = 0.5;
/// The share of the draws still to be denied that may have to make up for false denials.
const RECOVERABLE_SHARE: f32 = 0.9;
/// False denials must be made up for this many round trips before the window ends.
const RECOVERY_ROUND_TRIPS: f32 = 3.0;
/// If most draws are denied, the share of the time left in a window to back off.
const BACKOFF_SHARE: f32 = 0.25;
/// What becomes available in this share of a window, relative to the share of granted draws, can be spared.
const NEGLIGIBLE_SHARE: f32 = 0.000_5;

/// A window at the time when a request reaches the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::lease) struct WindowView {
    /// Seconds until the window ends.
    time_left: f32,
    /// Round-trip time to the store, in seconds.
    round_trip: f32,
}

impl WindowView {
    /// The window of a state at the store's time `at`. `None` if the algorithm has no windows.
    pub(in crate::lease) fn of(
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
        Some(WindowView { time_left: seconds(time_left), round_trip: seconds(round_trip) })
    }

    /// For how many seconds units requested now can be spent. `None` if that is not worthwhile. They arrive with
    /// the reply, and end before the window does. A window that has just begun by this estimate may not have
    /// begun at the store yet.
    pub(super) fn usable_seconds(self, limit: &Limit) -> Option<f32> {
        let is_sure = seconds(limit.window()) - self.time_left >= self.round_trip / 2.0;
        let usable = self.time_left - self.round_trip - seconds(MIN_MARGIN);
        (is_sure && usable >= seconds(MIN_USEFUL_LEASE)).then_some(usable)
    }

    /// Time until the window ends.
    pub(super) fn time_left(self) -> Span {
        span(self.time_left)
    }

    /// Seconds until the next reply after a back-off.
    pub(super) fn until_next_reply(self, backoff: Span) -> f32 {
        seconds(backoff) + self.round_trip
    }

    /// The longest tolerable back-off, in seconds. Units that become available meanwhile are still there
    /// afterwards, but they are lost unless they are spent before the window ends: so a part of the draws still
    /// to be denied has to make up for them.
    pub(super) fn max_backoff(self, limit: &Limit, demand: &Demand) -> f32 {
        let denied = demand.denied_share();
        let negligible = NEGLIGIBLE_SHARE * seconds(limit.window()) / (1.0 - denied) - self.round_trip;
        if demand.is_mostly_denied() {
            return negligible.max(BACKOFF_SHARE * self.time_left);
        }
        if !is_overdrawn(limit, demand) {
            return 0.0;
        }
        let certain = denied
            - noise(limit, demand)
            - DEVIATION_FACTOR / (demand.local_draw_rate() * self.time_left).sqrt();
        // In the last moments neither is left, and two negative numbers must not make a back-off.
        let (certain, recovery_time) =
            (certain.max(0.0), (self.time_left - RECOVERY_ROUND_TRIPS * self.round_trip).max(0.0));
        negligible.max(certain * RECOVERABLE_SHARE * recovery_time - self.round_trip)
    }
}

/// Whether the fixed window of a state has ended, so that nothing is known about the current one.
pub(in crate::lease) fn is_window_over(limit: &Limit, state: Option<State>, at: Micros) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow(_))
        && state.is_some_and(|state| Micros::new(limit.state_parts(state)[0]) <= at)
}

/// Whether the demand for a busy key exceeds its short window by more than random variation explains.
pub(super) fn is_overdrawn(limit: &Limit, demand: &Demand) -> bool {
    is_short_window(limit) && is_busy(demand) && demand.denied_share() > noise(limit, demand)
}

fn noise(limit: &Limit, demand: &Demand) -> f32 {
    NOISE_FACTOR / (float(limit.capacity()) / demand.mean_cost()).sqrt()
}

/// Whether the key of a window is drawn so often that the load on the store matters more than the last unit.
pub(super) fn is_busy(demand: &Demand) -> bool {
    demand.local_draw_rate() > BUSY_DRAWS_PER_SECOND
}

/// Over how many units the share of denied units is measured: at least over a whole window, which is alternately
/// full and not.
pub(in crate::lease) fn counted_units(limit: &Limit) -> f32 {
    if has_windows(limit) { float(limit.capacity()).max(MIN_COUNTED_UNITS) } else { MIN_COUNTED_UNITS }
}

/// The share of the time left in a window for which to request units near the limit.
pub(super) fn time_share(limit: &Limit, demand: &Demand) -> f32 {
    TIME_SHARES.0 + (TIME_SHARES.1 - TIME_SHARES.0) * many_draws_share(limit, demand)
}

/// For how many seconds a window can spare units though few are left.
pub(super) fn brief_seconds(limit: &Limit, demand: &Demand) -> f32 {
    BRIEF_SHARE * seconds(limit.window()) * many_draws_share(limit, demand)
}

fn many_draws_share(limit: &Limit, demand: &Demand) -> f32 {
    (float(limit.capacity()) / demand.mean_cost() / MANY_DRAWS).min(1.0)
}

/// Whether leases end with a window, so that they can't be extended.
pub(in crate::lease) fn has_windows(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter)
}

/// Whether leased units are spent or expire almost at once.
pub(super) fn is_short_window(limit: &Limit) -> bool {
    has_windows(limit) && limit.window() < SHORT_WINDOW
}

#[cfg(test)]
mod tests {
    use super::super::super::demand::DrawCounters;
    use super::*;

    /// A key that is drawn 1350 times a second, of which a third is denied.
    fn demand() -> Demand {
        let mut demand = Demand::new(Micros::EPOCH);
        for second in 1..=20_u32 {
            let drawn = 1_350 * second;
            demand.add_denied(450);
            demand.update(
                DrawCounters { draws: drawn, units: drawn },
                2_000.0,
                Micros::new(u64::from(second) * 1_000_000),
            );
        }
        demand
    }

    #[test]
    fn back_offs_get_shorter_towards_the_end_of_a_window() {
        let limit = Limit::new(Algorithm::SlidingWindowCounter, "1000/s".parse().unwrap()).unwrap();
        let demand = demand();
        assert!(is_overdrawn(&limit, &demand));
        let backoffs = [1.0, 0.1, 0.03, 0.005, 0.001, 1e-4, 1e-6, 0.0].map(|time_left| {
            let backoff = WindowView { time_left, round_trip: 0.001 }.max_backoff(&limit, &demand);
            assert!(backoff < time_left.max(1e-9) / 3.0, "{backoff} s of {time_left} s");
            backoff
        });
        assert!(backoffs[0] > 0.1 && backoffs.is_sorted_by(|before, after| before >= after), "{backoffs:?}");
    }
}
