//! The offset between a server's clock and this node's.
//!
//! A reply that carries the server's time was stamped after the call was sent and before the reply arrived. When the
//! call was sent, the server's clock therefore showed at most the stamp: the minimum of `stamp - sent` over the
//! recent calls bounds the server's clock from above. Denials from memory rely on that bound, so that they never deny
//! a unit that is already due. The midpoint of the fastest call estimates how far the node's wall clock is off. No
//! decision depends on that estimate; it is reported so that operators can fix the clock. The caller passes every
//! instant.

use ratekeeper_core::Micros;
use std::time::Duration;
use tokio::time::Instant;

/// Calls are remembered for one to two windows.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum drift rate between two clocks, in parts per million: the largest slew of a time daemon, on both sides.
const MAX_DRIFT_PPM: u64 = 1_000;
/// Drift above which to warn, and below which the warning is cleared, in microseconds.
const DRIFT_ALARM_MICROS: (u64, u64) = (500_000, 400_000);
/// How much two estimates may differ beyond what their round trips explain before the older is dropped, in
/// microseconds.
const ESTIMATE_TOLERANCE_MICROS: u64 = 10_000;

/// The offset between a server's clock and this node's.
#[derive(Debug)]
pub(crate) struct ClockOffset {
    origin: Instant,
    /// When the current window began.
    window_start: Instant,
    current: OffsetWindow,
    previous: OffsetWindow,
    is_alarmed: bool,
}

/// The measurements of one window.
#[derive(Clone, Copy, Debug, Default)]
struct OffsetWindow {
    /// Upper bound of the server's clock at the origin, and when it was measured.
    ceiling: Option<(i64, Instant)>,
    estimate: Option<OffsetEstimate>,
}

/// How far the server's clock is ahead of the node's wall clock, estimated from one call.
#[derive(Clone, Copy, Debug)]
struct OffsetEstimate {
    ahead_micros: i64,
    /// Duration of the call: the estimate may be off by half of it.
    round_trip_micros: u64,
}

/// The drift has crossed a threshold; the values are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriftChange {
    /// The clocks differ too much.
    Exceeded(i64),
    /// The clocks are close enough again.
    Cleared(i64),
}

impl ClockOffset {
    /// Creates an offset without measurements.
    pub(crate) fn new(now: Instant) -> ClockOffset {
        let (current, previous) = (OffsetWindow::default(), OffsetWindow::default());
        ClockOffset { origin: now, window_start: now, current, previous, is_alarmed: false }
    }

    /// Records a call: when it was sent, when its reply arrived, the node's wall clock at that moment, and the server's
    /// time in the reply.
    pub(crate) fn record(
        &mut self,
        sent: Instant,
        received: Instant,
        wall: Micros,
        store: Micros,
    ) -> Option<DriftChange> {
        self.rotate_windows(received);
        // The server's clock shows at least the stamp by now. A bound below the stamp means that the clock was set
        // forward.
        if self.ceiling(received).is_some_and(|ceiling| ceiling < store) {
            self.current = OffsetWindow::default();
            self.previous = OffsetWindow::default();
        }
        let offset = signed(store.get()) - self.since_origin(sent);
        if self.current.ceiling.is_none_or(|(least, _)| offset < least) {
            self.current.ceiling = Some((offset, sent));
        }
        let length_micros = micros(received.saturating_duration_since(sent));
        let ahead_micros = signed(store.get()) - (signed(wall.get()) - signed(length_micros / 2));
        self.add_estimate(OffsetEstimate { ahead_micros, round_trip_micros: length_micros });
        self.check_drift()
    }

    /// Upper bound of the server's clock now, unless it has been set since the last call. Returns `None` before the
    /// first call.
    pub(crate) fn ceiling(&self, now: Instant) -> Option<Micros> {
        let ceilings = [self.current.ceiling, self.previous.ceiling].into_iter().flatten();
        let most = ceilings.map(|(offset, found)| {
            let drift = micros(now.saturating_duration_since(found)) * MAX_DRIFT_PPM / 1_000_000;
            offset + self.since_origin(now) + signed(drift)
        });
        most.min().map(|most| Micros::new(u64::try_from(most).unwrap_or(0)))
    }

    /// How many microseconds the server's clock is ahead of the node's wall clock.
    pub(crate) fn drift_micros(&self) -> Option<i64> {
        let estimates = [self.current.estimate, self.previous.estimate].into_iter().flatten();
        estimates.min_by_key(|estimate| estimate.round_trip_micros).map(|estimate| estimate.ahead_micros)
    }

    /// Starts a new window if the current one is over, and drops the one before the previous.
    fn rotate_windows(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.window_start);
        if passed < WINDOW {
            return;
        }
        self.previous = if passed < 2 * WINDOW { self.current } else { OffsetWindow::default() };
        self.current = OffsetWindow::default();
        self.window_start = now;
    }

    fn add_estimate(&mut self, new: OffsetEstimate) {
        let differs = |old: &OffsetEstimate| {
            let explained = (old.round_trip_micros + new.round_trip_micros) / 2 + ESTIMATE_TOLERANCE_MICROS;
            old.ahead_micros.abs_diff(new.ahead_micros) > explained
        };
        for window in [&mut self.current, &mut self.previous] {
            window.estimate = window.estimate.filter(|old| !differs(old));
        }
        if self.current.estimate.is_none_or(|old| new.round_trip_micros <= old.round_trip_micros) {
            self.current.estimate = Some(new);
        }
    }

    fn check_drift(&mut self) -> Option<DriftChange> {
        let drift = self.drift_micros()?;
        let (raise, clear) = DRIFT_ALARM_MICROS;
        match self.is_alarmed {
            false if drift.unsigned_abs() > raise => {
                self.is_alarmed = true;
                Some(DriftChange::Exceeded(drift))
            }
            true if drift.unsigned_abs() < clear => {
                self.is_alarmed = false;
                Some(DriftChange::Cleared(drift))
            }
            _ => None,
        }
    }

    fn since_origin(&self, now: Instant) -> i64 {
        match now.checked_duration_since(self.origin) {
            Some(after) => signed(micros(after)),
            None => -signed(micros(self.origin - now)),
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_700_000_000_000_000;

    /// Simulated clocks: the node's monotonic clock shows the true time; the server's and the wall clock are ahead of
    /// it.
    struct OffsetFixture {
        origin: Instant,
        server_ahead: i64,
        wall_ahead: i64,
    }

    impl OffsetFixture {
        fn at(&self, micros: u64) -> Instant {
            self.origin + Duration::from_micros(micros)
        }

        fn clock_at(ahead: i64, micros: u64) -> Micros {
            Micros::new(START.saturating_add_signed(ahead) + micros)
        }

        fn call(&self, offset: &mut ClockOffset, sent: u64, request: u64, reply: u64) -> Option<DriftChange> {
            let (stamped, received) = (sent + request, sent + request + reply);
            let store = OffsetFixture::clock_at(self.server_ahead, stamped);
            offset.record(
                self.at(sent),
                self.at(received),
                OffsetFixture::clock_at(self.wall_ahead, received),
                store,
            )
        }
    }

    fn fixture(server_ahead: i64, wall_ahead: i64) -> (OffsetFixture, ClockOffset) {
        let origin = Instant::now();
        (OffsetFixture { origin, server_ahead, wall_ahead }, ClockOffset::new(origin))
    }

    #[test]
    fn the_fastest_request_gives_the_tightest_bound() {
        let (clocks, mut offset) = fixture(0, 0);
        assert_eq!(offset.ceiling(clocks.at(0)), None);
        clocks.call(&mut offset, 0, 900, 100);
        assert_eq!(offset.ceiling(clocks.at(1_000)), Some(OffsetFixture::clock_at(0, 1_901)));
        clocks.call(&mut offset, 2_000, 50, 5_000);
        assert_eq!(offset.ceiling(clocks.at(10_000)), Some(OffsetFixture::clock_at(0, 10_050 + 8)));
    }

    #[test]
    fn a_server_clock_set_forward_is_adopted_at_the_next_reply() {
        let (mut clocks, mut offset) = fixture(0, 0);
        clocks.call(&mut offset, 0, 100, 100);
        clocks.server_ahead = 3_600_000_000;
        clocks.call(&mut offset, 1_000_000, 100, 100);
        let truth = OffsetFixture::clock_at(clocks.server_ahead, 2_000_000);
        let ceiling = offset.ceiling(clocks.at(2_000_000)).expect("a reply was recorded");
        assert!(ceiling >= truth && ceiling.get() < truth.get() + 5_000);
    }

    #[test]
    fn drift_is_reported_once_when_it_begins_and_once_when_it_ends() {
        let (mut clocks, mut offset) = fixture(2_000_000, 0);
        assert_eq!(clocks.call(&mut offset, 0, 100, 100), Some(DriftChange::Exceeded(2_000_000)));
        assert_eq!(clocks.call(&mut offset, 1_000, 100, 100), None);
        clocks.wall_ahead = 1_550_000;
        assert_eq!(clocks.call(&mut offset, 2_000, 100, 100), None);
        clocks.wall_ahead = 2_000_000;
        assert_eq!(clocks.call(&mut offset, 3_000, 100, 100), Some(DriftChange::Cleared(0)));
        assert_eq!(clocks.call(&mut offset, 4_000, 100, 100), None);
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_estimate_is_close(
            server_ahead in -10_000_000_i64..10_000_000,
            wall_ahead in -10_000_000_i64..10_000_000,
            calls in proptest::collection::vec((0_u64..3_000_000, 1_u64..50_000, 1_u64..50_000), 1..60),
        ) {
            let (clocks, mut offset) = fixture(server_ahead, wall_ahead);
            let mut now = 0;
            for (pause, request, reply) in calls {
                now += pause;
                clocks.call(&mut offset, now, request, reply);
                now += request + reply;
                let truth = OffsetFixture::clock_at(server_ahead, now);
                let ceiling = offset.ceiling(clocks.at(now)).expect("a reply was recorded");
                prop_assert!(ceiling >= truth, "{ceiling:?} < {truth:?}");
                let drift = offset.drift_micros().expect("a reply was recorded");
                prop_assert!(drift.abs_diff(server_ahead - wall_ahead) <= (request + reply) / 2 + 1);
            }
        }
    }
}
