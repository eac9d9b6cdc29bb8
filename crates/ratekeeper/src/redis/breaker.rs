//! When a server is left alone.
//!
//! Closed, it lets calls pass and takes note of how they end. After several failures in a row, or when too large a
//! share of the recent calls failed, it opens: calls fail at once and the server is left in peace. It is then probed,
//! by one task and never by a client's request, after a pause that doubles up to two seconds. Once as many probes in a
//! row as it takes to have every connection warm have gone well, it closes. It never reads a clock: every instant is
//! handed in.

use crate::health::BreakerState;
use std::time::Duration;
use tokio::time::Instant;

/// This many failures in a row open it.
const FAILURES_IN_A_ROW: u32 = 5;
/// It looks back this many seconds.
const WINDOW_SECS: usize = 10;
/// The fewest calls in the window that say anything about a share.
const FEWEST_CALLS: u32 = 20;
/// The pause before the first probe, and the longest there is.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// When a server is left alone: a state machine to which time is handed in.
#[derive(Debug)]
pub(super) struct Breaker {
    state: BreakerPhase,
    /// How many probes in a row must go well.
    probes: u32,
    /// When it was made: what seconds are counted from.
    origin: Instant,
    /// When it last closed. Calls that began before say nothing about the server as it is now.
    closed_at: Instant,
    failures_in_a_row: u32,
    recent: [SecondStats; WINDOW_SECS],
    dice: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerPhase {
    Closed,
    /// Nobody calls until the probe at this instant; so many pauses have passed already.
    Open {
        probe_at: Instant,
        pauses: u32,
    },
    /// So many probes in a row have gone well.
    HalfOpen {
        gone_well: u32,
        pauses: u32,
    },
}

/// How the calls of one second ended.
#[derive(Clone, Copy, Debug, Default)]
struct SecondStats {
    number: u64,
    calls: u32,
    failures: u32,
}

/// That the state changed between letting calls pass and not, which is worth a line in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerChange {
    /// It opened.
    Opened,
    /// It closed.
    Closed,
}

impl Breaker {
    /// A breaker that is open, and whose first probe is due: nothing is known of the server yet. It closes after
    /// `probes` good ones. `seed` makes its pauses unlike those of others.
    pub(super) fn new(probes: u32, now: Instant, seed: u64) -> Breaker {
        Breaker {
            state: BreakerPhase::Open { probe_at: now, pauses: 0 },
            probes: probes.max(1),
            origin: now,
            closed_at: now,
            failures_in_a_row: 0,
            recent: [SecondStats::default(); WINDOW_SECS],
            dice: seed | 1,
        }
    }

    /// In which state it is.
    pub(super) fn state(&self) -> BreakerState {
        match self.state {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { .. } => BreakerState::Open,
            BreakerPhase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// When it wants to be probed; nothing while calls pass.
    pub(super) fn probe_at(&self, now: Instant) -> Option<Instant> {
        match self.state {
            BreakerPhase::Closed => None,
            BreakerPhase::Open { probe_at, .. } => Some(probe_at),
            BreakerPhase::HalfOpen { .. } => Some(now),
        }
    }

    /// Notes how a call that began at `began` ended.
    pub(super) fn note_call(&mut self, began: Instant, now: Instant, is_good: bool) -> Option<BreakerChange> {
        if self.state != BreakerPhase::Closed || began < self.closed_at {
            return None;
        }
        let second = self.second(now);
        second.calls += 1;
        second.failures += u32::from(!is_good);
        self.failures_in_a_row = if is_good { 0 } else { self.failures_in_a_row.saturating_add(1) };
        let is_bad = self.failures_in_a_row >= FAILURES_IN_A_ROW || (!is_good && self.has_bad_share(now));
        if is_bad { self.trip(now) } else { None }
    }

    /// Opens it at once, because the server is known to be away.
    pub(super) fn trip(&mut self, now: Instant) -> Option<BreakerChange> {
        if self.state != BreakerPhase::Closed {
            return None;
        }
        self.open(now, 0);
        Some(BreakerChange::Opened)
    }

    /// Notes that a probe went well. The last of those it takes lets calls pass again.
    pub(super) fn note_good_probe(&mut self, now: Instant) -> Option<BreakerChange> {
        let (gone_well, pauses) = match self.state {
            BreakerPhase::Closed => return None,
            BreakerPhase::Open { pauses, .. } => (1, pauses),
            BreakerPhase::HalfOpen { gone_well, pauses } => (gone_well + 1, pauses),
        };
        if gone_well < self.probes {
            self.state = BreakerPhase::HalfOpen { gone_well, pauses };
            return None;
        }
        self.state = BreakerPhase::Closed;
        self.closed_at = now;
        self.failures_in_a_row = 0;
        self.recent = [SecondStats::default(); WINDOW_SECS];
        Some(BreakerChange::Closed)
    }

    /// Notes that a probe failed: the next comes after a longer pause.
    pub(super) fn note_bad_probe(&mut self, now: Instant) {
        match self.state {
            BreakerPhase::Closed => {}
            BreakerPhase::Open { pauses, .. } | BreakerPhase::HalfOpen { pauses, .. } => {
                self.open(now, pauses.saturating_add(1));
            }
        }
    }

    fn open(&mut self, now: Instant, pauses: u32) {
        let (first, longest) = PAUSE;
        let pause = first.saturating_mul(1 << pauses.min(16)).min(longest);
        // Between half and the whole of it: nodes that lost a server together don't all come back together.
        let pause = pause / 2 + (pause / 2).mul_f64(self.roll());
        self.state = BreakerPhase::Open { probe_at: now + pause, pauses };
    }

    fn second(&mut self, now: Instant) -> &mut SecondStats {
        let number = now.saturating_duration_since(self.origin).as_secs();
        let second = &mut self.recent[place(number)];
        if second.number != number {
            *second = SecondStats { number, ..SecondStats::default() };
        }
        second
    }

    /// Whether half of the recent calls failed.
    fn has_bad_share(&self, now: Instant) -> bool {
        let number = now.saturating_duration_since(self.origin).as_secs();
        let recent =
            self.recent.iter().filter(|second| number - second.number.min(number) < WINDOW_SECS as u64);
        let (calls, failures) = recent
            .fold((0, 0), |(calls, failures), second| (calls + second.calls, failures + second.failures));
        calls >= FEWEST_CALLS && failures * 2 >= calls
    }

    /// A number from 0 up to 1, by xorshift.
    fn roll(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        f64::from(u32::try_from(self.dice >> 32).expect("half of 64 bits are 32")) / f64::from(u32::MAX)
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % WINDOW_SECS as u64).expect("it is below ten")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(1);

    fn closed(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(1, now, 7);
        assert_eq!(breaker.note_good_probe(now), Some(BreakerChange::Closed));
        breaker
    }

    #[test]
    fn a_new_breaker_lets_nobody_pass_until_its_probes_have_gone_well() {
        let now = Instant::now();
        let mut breaker = Breaker::new(2, now, 1);
        assert_eq!((breaker.state(), breaker.probe_at(now)), (BreakerState::Open, Some(now)));
        assert_eq!(breaker.note_good_probe(now), None);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.note_good_probe(now), Some(BreakerChange::Closed));
        assert_eq!((breaker.state(), breaker.probe_at(now)), (BreakerState::Closed, None));
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_one_success_between_them_does_not() {
        let now = Instant::now();
        let mut breaker = closed(now);
        for is_good in [false, false, false, false, true, false, false, false, false] {
            assert_eq!(breaker.note_call(now, now, is_good), None);
        }
        assert_eq!(breaker.note_call(now, now, false), Some(BreakerChange::Opened));
        assert_eq!(breaker.note_call(now, now, false), None);
    }

    #[test]
    fn half_of_the_recent_calls_failing_opens_it_and_old_failures_are_forgotten() {
        let now = Instant::now();
        let mut breaker = closed(now);
        let alternate = |breaker: &mut Breaker, now: Instant, calls: u32| {
            (0..calls).filter_map(|call| breaker.note_call(now, now, call % 2 == 0)).next()
        };
        assert_eq!(alternate(&mut breaker, now, 18), None);
        // Eleven seconds on those are no longer recent.
        let later = now + Duration::from_secs(11);
        assert_eq!(alternate(&mut breaker, later, 18), None);
        assert_eq!(alternate(&mut breaker, later, 2), Some(BreakerChange::Opened));
    }

    #[test]
    fn what_began_before_it_closed_says_nothing_about_the_server_now() {
        let now = Instant::now();
        let mut breaker = closed(now + TICK);
        for _ in 0..100 {
            assert_eq!(breaker.note_call(now, now + TICK, false), None);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn pauses_grow_from_a_tenth_of_a_second_to_two_and_begin_anew_after_recovery() {
        let mut now = Instant::now();
        let mut breaker = closed(now);
        breaker.trip(now);
        for pause in [100, 200, 400, 800, 1600, 2000, 2000] {
            let probe_at = breaker.probe_at(now).expect("it is open");
            let pause = Duration::from_millis(pause);
            assert!((pause / 2..=pause).contains(&(probe_at - now)), "{:?}", probe_at - now);
            now = probe_at;
            breaker.note_bad_probe(now);
        }
        assert_eq!(breaker.note_good_probe(now), Some(BreakerChange::Closed));
        breaker.trip(now);
        assert!(breaker.probe_at(now).expect("it is open") - now <= Duration::from_millis(100));
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
        fn it_never_sticks_and_tells_every_change_once(events in events(), probes in 1_u32..4, seed: u64) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(probes, now, seed);
            let mut passes = false;
            let mut good_probes = 0;
            for event in events {
                let change = match event {
                    BreakerEvent::Call(is_good) => breaker.note_call(now, now, is_good),
                    BreakerEvent::Trip => breaker.trip(now),
                    BreakerEvent::Pass(millis) => {
                        now += Duration::from_millis(millis.into());
                        None
                    }
                    BreakerEvent::Probe(true) => {
                        good_probes += 1;
                        breaker.note_good_probe(now)
                    }
                    BreakerEvent::Probe(false) => {
                        breaker.note_bad_probe(now);
                        None
                    }
                };
                match change {
                    Some(BreakerChange::Opened) => {
                        prop_assert!(passes);
                        passes = false;
                    }
                    Some(BreakerChange::Closed) => {
                        prop_assert!(!passes && good_probes >= probes);
                        passes = true;
                    }
                    None => {}
                }
                if passes || matches!(event, BreakerEvent::Probe(false)) {
                    good_probes = 0;
                }
                prop_assert_eq!(breaker.state() == BreakerState::Closed, passes);
                // However it came to be open, a probe is due within two seconds.
                let probe_at = breaker.probe_at(now);
                prop_assert_eq!(probe_at.is_none(), passes);
                if let Some(probe_at) = probe_at {
                    prop_assert!(probe_at <= now + PAUSE.1);
                }
            }
            // As many good probes as it takes always close it.
            for _ in 0..probes {
                breaker.note_good_probe(now);
            }
            prop_assert_eq!(breaker.state(), BreakerState::Closed);
        }
    }
}
