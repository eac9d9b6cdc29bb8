//! The circuit breaker of one server.
//!
//! Closed, it lets calls pass and records their results. After several consecutive failures, or when too large a
//! share of the recent calls failed, it opens: calls fail fast and the server gets no load. One task then probes the
//! server, never a client's request, with a back-off that doubles up to two seconds. The breaker closes after one
//! successful probe per connection in a row, so that every connection is warm. It never reads a clock: the caller
//! passes every instant.

use ratekeeper::BreakerState;
use std::time::Duration;
use tokio::time::Instant;

/// Consecutive failures that open the breaker.
const CONSECUTIVE_FAILURES: u32 = 5;
/// Length of the window over which the failure rate is measured.
const WINDOW_SECS: usize = 10;
/// Calls needed in the window before the failure rate counts.
const MIN_CALLS: u32 = 20;
/// Back-off before the first probe, and its maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Circuit breaker of one server: a state machine that gets the time passed in.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: BreakerPhase,
    /// Consecutive successful probes that close the breaker.
    probes_to_close: u32,
    /// Creation time, from which seconds are counted.
    origin: Instant,
    /// When the breaker last closed. Calls that began before that say nothing about the current server.
    closed_at: Instant,
    consecutive_failures: u32,
    recent: [SecondStats; WINDOW_SECS],
    rng: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerPhase {
    Closed,
    /// Calls fail fast. The next probe is due at `probe_at`.
    Open {
        probe_at: Instant,
        failed_probes: u32,
    },
    /// Probing: `successes` probes in a row have succeeded.
    HalfOpen {
        successes: u32,
        failed_probes: u32,
    },
}

/// Call results of one second.
#[derive(Clone, Copy, Debug, Default)]
struct SecondStats {
    number: u64,
    calls: u32,
    failures: u32,
}

/// A transition between closed and not closed, which is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    /// Calls fail fast from now on.
    Opened,
    /// Calls pass again.
    Closed,
}

impl Breaker {
    /// Creates an open breaker whose first probe is due at once, because nothing is known of the server yet.
    ///
    /// It closes after `probes` successful probes. `seed` gives it a jitter of its own.
    pub(crate) fn new(probes: u32, now: Instant, seed: u64) -> Breaker {
        Breaker {
            state: BreakerPhase::Open { probe_at: now, failed_probes: 0 },
            probes_to_close: probes.max(1),
            origin: now,
            closed_at: now,
            consecutive_failures: 0,
            recent: [SecondStats::default(); WINDOW_SECS],
            rng: seed | 1,
        }
    }

    /// The current state.
    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { .. } => BreakerState::Open,
            BreakerPhase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// When the next probe is due. Returns `None` while the breaker is closed.
    pub(crate) fn probe_at(&self, now: Instant) -> Option<Instant> {
        match self.state {
            BreakerPhase::Closed => None,
            BreakerPhase::Open { probe_at, .. } => Some(probe_at),
            BreakerPhase::HalfOpen { .. } => Some(now),
        }
    }

    /// Records the result of a call that began at `began`.
    pub(crate) fn record_call(
        &mut self,
        began: Instant,
        now: Instant,
        is_success: bool,
    ) -> Option<BreakerChange> {
        if self.state != BreakerPhase::Closed || began < self.closed_at {
            return None;
        }
        let second = self.stats_at(now);
        second.calls += 1;
        second.failures += u32::from(!is_success);
        self.consecutive_failures = if is_success { 0 } else { self.consecutive_failures.saturating_add(1) };
        let should_open = self.consecutive_failures >= CONSECUTIVE_FAILURES
            || (!is_success && self.is_failure_rate_high(now));
        if should_open { self.trip(now) } else { None }
    }

    /// Opens the breaker at once, because the server is known to be down.
    pub(crate) fn trip(&mut self, now: Instant) -> Option<BreakerChange> {
        if self.state != BreakerPhase::Closed {
            return None;
        }
        self.open(now, 0);
        Some(BreakerChange::Opened)
    }

    /// Records a successful probe. The last one needed closes the breaker.
    pub(crate) fn record_probe_success(&mut self, now: Instant) -> Option<BreakerChange> {
        let (successes, failed_probes) = match self.state {
            BreakerPhase::Closed => return None,
            BreakerPhase::Open { failed_probes, .. } => (1, failed_probes),
            BreakerPhase::HalfOpen { successes, failed_probes } => (successes + 1, failed_probes),
        };
        if successes < self.probes_to_close {
            self.state = BreakerPhase::HalfOpen { successes, failed_probes };
            return None;
        }
        self.state = BreakerPhase::Closed;
        self.closed_at = now;
        self.consecutive_failures = 0;
        self.recent = [SecondStats::default(); WINDOW_SECS];
        Some(BreakerChange::Closed)
    }

    /// Records a failed probe: the next one comes after a longer back-off.
    pub(crate) fn record_probe_failure(&mut self, now: Instant) {
        match self.state {
            BreakerPhase::Closed => {}
            BreakerPhase::Open { failed_probes, .. } | BreakerPhase::HalfOpen { failed_probes, .. } => {
                self.open(now, failed_probes.saturating_add(1));
            }
        }
    }

    fn open(&mut self, now: Instant, failed_probes: u32) {
        let (first, longest) = BACKOFF;
        let backoff = first.saturating_mul(1 << failed_probes.min(16)).min(longest);
        // Jitter between half and all of the back-off: nodes that lost a server together don't all return together.
        let backoff = backoff / 2 + (backoff / 2).mul_f64(self.random_fraction());
        self.state = BreakerPhase::Open { probe_at: now + backoff, failed_probes };
    }

    fn stats_at(&mut self, now: Instant) -> &mut SecondStats {
        let number = now.saturating_duration_since(self.origin).as_secs();
        let second = &mut self.recent[ring_index(number)];
        if second.number != number {
            *second = SecondStats { number, ..SecondStats::default() };
        }
        second
    }

    /// Whether at least half of the recent calls failed.
    fn is_failure_rate_high(&self, now: Instant) -> bool {
        let number = now.saturating_duration_since(self.origin).as_secs();
        let recent =
            self.recent.iter().filter(|second| number - second.number.min(number) < WINDOW_SECS as u64);
        let (calls, failures) = recent
            .fold((0, 0), |(calls, failures), second| (calls + second.calls, failures + second.failures));
        calls >= MIN_CALLS && failures * 2 >= calls
    }

    /// A pseudo-random number between 0 and 1, by xorshift.
    fn random_fraction(&mut self) -> f64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        f64::from(u32::try_from(self.rng >> 32).expect("the upper half of a u64 fits a u32"))
            / f64::from(u32::MAX)
    }
}

fn ring_index(number: u64) -> usize {
    usize::try_from(number % WINDOW_SECS as u64).expect("the index is below WINDOW_SECS")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(1);

    fn closed(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(1, now, 7);
        assert_eq!(breaker.record_probe_success(now), Some(BreakerChange::Closed));
        breaker
    }

    #[test]
    fn a_new_breaker_closes_only_after_its_probes_succeeded() {
        let now = Instant::now();
        let mut breaker = Breaker::new(2, now, 1);
        assert_eq!((breaker.state(), breaker.probe_at(now)), (BreakerState::Open, Some(now)));
        assert_eq!(breaker.record_probe_success(now), None);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.record_probe_success(now), Some(BreakerChange::Closed));
        assert_eq!((breaker.state(), breaker.probe_at(now)), (BreakerState::Closed, None));
    }

    #[test]
    fn five_consecutive_failures_open_it_and_a_success_resets_the_count() {
        let now = Instant::now();
        let mut breaker = closed(now);
        for is_success in [false, false, false, false, true, false, false, false, false] {
            assert_eq!(breaker.record_call(now, now, is_success), None);
        }
        assert_eq!(breaker.record_call(now, now, false), Some(BreakerChange::Opened));
        assert_eq!(breaker.record_call(now, now, false), None);
    }

    #[test]
    fn it_opens_when_half_of_the_recent_calls_fail_and_forgets_old_failures() {
        let now = Instant::now();
        let mut breaker = closed(now);
        let alternate = |breaker: &mut Breaker, now: Instant, calls: u32| {
            (0..calls).filter_map(|call| breaker.record_call(now, now, call % 2 == 0)).next()
        };
        assert_eq!(alternate(&mut breaker, now, 18), None);
        // Eleven seconds later those calls have left the window.
        let later = now + Duration::from_secs(11);
        assert_eq!(alternate(&mut breaker, later, 18), None);
        assert_eq!(alternate(&mut breaker, later, 2), Some(BreakerChange::Opened));
    }

    #[test]
    fn calls_that_began_before_it_closed_are_ignored() {
        let now = Instant::now();
        let mut breaker = closed(now + TICK);
        for _ in 0..100 {
            assert_eq!(breaker.record_call(now, now + TICK, false), None);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn backoff_grows_from_100_ms_to_2_s_and_restarts_after_recovery() {
        let mut now = Instant::now();
        let mut breaker = closed(now);
        breaker.trip(now);
        for backoff in [100, 200, 400, 800, 1600, 2000, 2000] {
            let probe_at = breaker.probe_at(now).expect("the breaker is open");
            let backoff = Duration::from_millis(backoff);
            assert!((backoff / 2..=backoff).contains(&(probe_at - now)), "{:?}", probe_at - now);
            now = probe_at;
            breaker.record_probe_failure(now);
        }
        assert_eq!(breaker.record_probe_success(now), Some(BreakerChange::Closed));
        breaker.trip(now);
        assert!(breaker.probe_at(now).expect("the breaker is open") - now <= Duration::from_millis(100));
    }

    #[derive(Clone, Copy, Debug)]
    enum BreakerEvent {
        Call(bool),
        Probe(bool),
        Trip,
        Pass(u16),
    }

    fn events() -> impl Strategy<Value = Vec<BreakerEvent>> {
        let event = prop_oneof![
            6 => any::<bool>().prop_map(BreakerEvent::Call),
            2 => any::<bool>().prop_map(BreakerEvent::Probe),
            1 => Just(BreakerEvent::Trip),
            3 => any::<u16>().prop_map(BreakerEvent::Pass),
        ];
        proptest::collection::vec(event, 0..200)
    }

    proptest! {
        #[test]
        fn it_never_sticks_and_reports_every_transition_once(events in events(), probes in 1_u32..4, seed: u64) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(probes, now, seed);
            let mut is_closed = false;
            let mut probe_successes = 0;
            for event in events {
                let change = match event {
                    BreakerEvent::Call(is_success) => breaker.record_call(now, now, is_success),
                    BreakerEvent::Trip => breaker.trip(now),
                    BreakerEvent::Pass(millis) => {
                        now += Duration::from_millis(millis.into());
                        None
                    }
                    BreakerEvent::Probe(true) => {
                        probe_successes += 1;
                        breaker.record_probe_success(now)
                    }
                    BreakerEvent::Probe(false) => {
                        breaker.record_probe_failure(now);
                        None
                    }
                };
                match change {
                    Some(BreakerChange::Opened) => {
                        prop_assert!(is_closed);
                        is_closed = false;
                    }
                    Some(BreakerChange::Closed) => {
                        prop_assert!(!is_closed && probe_successes >= probes);
                        is_closed = true;
                    }
                    None => {}
                }
                if is_closed || matches!(event, BreakerEvent::Probe(false)) {
                    probe_successes = 0;
                }
                prop_assert_eq!(breaker.state() == BreakerState::Closed, is_closed);
                // While it is not closed, a probe is always due within two seconds.
                let probe_at = breaker.probe_at(now);
                prop_assert_eq!(probe_at.is_none(), is_closed);
                if let Some(probe_at) = probe_at {
                    prop_assert!(probe_at <= now + BACKOFF.1);
                }
            }
            // Enough successful probes always close it.
            for _ in 0..probes {
                breaker.record_probe_success(now);
            }
            prop_assert_eq!(breaker.state(), BreakerState::Closed);
        }
    }
}
