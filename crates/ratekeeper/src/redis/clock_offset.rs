//! How a server's clock stands to this node's.
//!
//! A reply that carries the server's time was stamped after the call was sent and before its answer came. So the
//! server's clock, at the sending, showed no more than the stamp: the least `stamp - sending` of the last calls bounds
//! the server's clock from above. Whoever denies from memory needs that bound, since it never denies what is due. The
//! middle of the quickest call says how far the node's wall clock is off, which nobody's answer depends on; it is told
//! so that people can mend it. Instants are handed in.

use ratekeeper_core::Micros;
use std::time::Duration;
use tokio::time::Instant;

/// How long calls are looked back at, at least; at most it is twice that.
const WINDOW: Duration = Duration::from_secs(10);
/// How far clocks may part by running at different speeds, in parts of a million: what a time daemon may turn one by,
/// for both of them.
const PARTING_PPM: u64 = 1_000;
/// From where on clocks that differ are worth a warning, and below what they are well again, in microseconds.
const ALARM_MICROS: (u64, u64) = (500_000, 400_000);
/// By how much the estimate may be off beyond what the calls' length explains before it is given up, in microseconds.
const DOUBT_MICROS: u64 = 10_000;

/// How a server's clock stands to this node's.
#[derive(Debug)]
pub(super) struct ClockOffset {
    origin: Instant,
    /// When the current stretch began.
    begun: Instant,
    current: OffsetWindow,
    previous: OffsetWindow,
    is_alarmed: bool,
}

/// What was learnt in one stretch of time.
#[derive(Clone, Copy, Debug, Default)]
struct OffsetWindow {
    /// What the server's clock showed at the origin, at most, and when that was found.
    ceiling: Option<(i64, Instant)>,
    guess: Option<OffsetEstimate>,
}

/// By how much the server's clock is ahead of the node's wall clock, from one call.
#[derive(Clone, Copy, Debug)]
struct OffsetEstimate {
    ahead_micros: i64,
    /// How long the call took: the guess may be off by half of it.
    length_micros: u64,
}

/// That clocks have begun or ceased to differ by too much, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriftChange {
    /// They differ too much.
    Alarming(i64),
    /// They are close enough again.
    Over(i64),
}

impl ClockOffset {
    /// Nothing is known yet.
    pub(super) fn new(now: Instant) -> ClockOffset {
        let (current, previous) = (OffsetWindow::default(), OffsetWindow::default());
        ClockOffset { origin: now, begun: now, current, previous, is_alarmed: false }
    }

    /// Learns from a call: when it was sent, when its answer came, what the node's wall clock showed then, and what
    /// the server's clock showed in between.
    pub(super) fn note(
        &mut self,
        sent: Instant,
        received: Instant,
        wall: Micros,
        store: Micros,
    ) -> Option<DriftChange> {
        self.turn(received);
        // The server's clock shows at least the stamp by now. If it should show less, somebody has set it forward.
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
        self.take_guess(OffsetEstimate { ahead_micros, length_micros });
        self.alarm()
    }

    /// The most that the server's clock can show now, if it has not been set meanwhile.
    pub(super) fn ceiling(&self, now: Instant) -> Option<Micros> {
        let ceilings = [self.current.ceiling, self.previous.ceiling].into_iter().flatten();
        let most = ceilings.map(|(offset, found)| {
            let parting = micros(now.saturating_duration_since(found)) * PARTING_PPM / 1_000_000;
            offset + self.since_origin(now) + signed(parting)
        });
        most.min().map(|most| Micros::new(u64::try_from(most).unwrap_or(0)))
    }

    /// By how many microseconds the server's clock is ahead of the node's wall clock.
    pub(super) fn drift_micros(&self) -> Option<i64> {
        let guesses = [self.current.guess, self.previous.guess].into_iter().flatten();
        guesses.min_by_key(|guess| guess.length_micros).map(|guess| guess.ahead_micros)
    }

    /// Forgets the stretch before the last one.
    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.begun);
        if passed < WINDOW {
            return;
        }
        self.previous = if passed < 2 * WINDOW { self.current } else { OffsetWindow::default() };
        self.current = OffsetWindow::default();
        self.begun = now;
    }

    fn take_guess(&mut self, new: OffsetEstimate) {
        let differs = |old: &OffsetEstimate| {
            let explained = (old.length_micros + new.length_micros) / 2 + DOUBT_MICROS;
            old.ahead_micros.abs_diff(new.ahead_micros) > explained
        };
        for stretch in [&mut self.current, &mut self.previous] {
            stretch.guess = stretch.guess.filter(|old| !differs(old));
        }
        if self.current.guess.is_none_or(|old| new.length_micros <= old.length_micros) {
            self.current.guess = Some(new);
        }
    }

    fn alarm(&mut self) -> Option<DriftChange> {
        let drift = self.drift_micros()?;
        let (alarming, well) = ALARM_MICROS;
        match self.is_alarmed {
            false if drift.unsigned_abs() > alarming => {
                self.is_alarmed = true;
                Some(DriftChange::Alarming(drift))
            }
            true if drift.unsigned_abs() < well => {
                self.is_alarmed = false;
                Some(DriftChange::Over(drift))
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

    /// A world with a true time: the node's monotonic clock shows it, the server's is ahead of it, the wall clock too.
    struct OffsetFixture {
        origin: Instant,
        server_ahead: i64,
        wall_ahead: i64,
    }

    impl OffsetFixture {
        fn at(&self, micros: u64) -> Instant {
            self.origin + Duration::from_micros(micros)
        }

        fn shown(ahead: i64, micros: u64) -> Micros {
            Micros::new(START.saturating_add_signed(ahead) + micros)
        }

        fn call(&self, skew: &mut ClockOffset, sent: u64, there: u64, back: u64) -> Option<DriftChange> {
            let (stamped, received) = (sent + there, sent + there + back);
            let store = OffsetFixture::shown(self.server_ahead, stamped);
            skew.note(
                self.at(sent),
                self.at(received),
                OffsetFixture::shown(self.wall_ahead, received),
                store,
            )
        }
    }

    fn world(server_ahead: i64, wall_ahead: i64) -> (OffsetFixture, ClockOffset) {
        let origin = Instant::now();
        (OffsetFixture { origin, server_ahead, wall_ahead }, ClockOffset::new(origin))
    }

    #[test]
    fn the_quickest_way_there_is_the_tightest_bound() {
        let (world, mut skew) = world(0, 0);
        assert_eq!(skew.ceiling(world.at(0)), None);
        world.call(&mut skew, 0, 900, 100);
        assert_eq!(skew.ceiling(world.at(1_000)), Some(OffsetFixture::shown(0, 1_901)));
        world.call(&mut skew, 2_000, 50, 5_000);
        assert_eq!(skew.ceiling(world.at(10_000)), Some(OffsetFixture::shown(0, 10_050 + 8)));
    }

    #[test]
    fn a_server_set_forward_is_believed_at_the_next_reply() {
        let (mut world, mut skew) = world(0, 0);
        world.call(&mut skew, 0, 100, 100);
        world.server_ahead = 3_600_000_000;
        world.call(&mut skew, 1_000_000, 100, 100);
        let truth = OffsetFixture::shown(world.server_ahead, 2_000_000);
        let ceiling = skew.ceiling(world.at(2_000_000)).expect("it has seen a reply");
        assert!(ceiling >= truth && ceiling.get() < truth.get() + 5_000);
    }

    #[test]
    fn one_warning_when_clocks_differ_and_one_word_when_it_is_over() {
        let (mut world, mut skew) = world(2_000_000, 0);
        assert_eq!(world.call(&mut skew, 0, 100, 100), Some(DriftChange::Alarming(2_000_000)));
        assert_eq!(world.call(&mut skew, 1_000, 100, 100), None);
        world.wall_ahead = 1_550_000;
        assert_eq!(world.call(&mut skew, 2_000, 100, 100), None);
        world.wall_ahead = 2_000_000;
        assert_eq!(world.call(&mut skew, 3_000, 100, 100), Some(DriftChange::Over(0)));
        assert_eq!(world.call(&mut skew, 4_000, 100, 100), None);
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_estimate_is_near(
            server_ahead in -10_000_000_i64..10_000_000,
            wall_ahead in -10_000_000_i64..10_000_000,
            calls in proptest::collection::vec((0_u64..3_000_000, 1_u64..50_000, 1_u64..50_000), 1..60),
        ) {
            let (world, mut skew) = world(server_ahead, wall_ahead);
            let mut now = 0;
            for (pause, there, back) in calls {
                now += pause;
                world.call(&mut skew, now, there, back);
                now += there + back;
                let truth = OffsetFixture::shown(server_ahead, now);
                let ceiling = skew.ceiling(world.at(now)).expect("it has seen a reply");
                prop_assert!(ceiling >= truth, "{ceiling:?} < {truth:?}");
                let drift = skew.drift_micros().expect("it has seen a reply");
                prop_assert!(drift.abs_diff(server_ahead - wall_ahead) <= (there + back) / 2 + 1);
            }
        }
    }
}
