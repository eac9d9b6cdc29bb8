//! Checks an algorithm's guarantee against the answers that clients saw.
//!
//! A client knows only that an answer was decided between its request and its response. For any interval this gives
//! the number of units *certainly* admitted in it and the number *possibly* admitted. A limit is exceeded if more
//! units were certain than it admits. A denial claims that the limit was used up, so it is false if fewer units were
//! possible.

use super::excess::most_excess;
use super::limit_case::{BoundKind, LimitCase};
use ratekeeper_testkit::load::{AnswerKind, AnswerLog, TimedAnswer};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How much earlier or later the store's clock may see a window boundary than the clients' clock: the two are not
/// read at the same instant.
const CLOCK_ERROR: Duration = Duration::from_millis(2);

/// All answers for one key under one limit.
pub(crate) struct KeyAnswers {
    answer_log: AnswerLog,
    epoch: Duration,
    /// Sorted by request time.
    allowed: Vec<TimedAnswer>,
    denied: Vec<TimedAnswer>,
    /// The response times of the allowed answers, sorted.
    answered: Vec<Duration>,
}

impl KeyAnswers {
    pub(crate) fn of(tally: &AnswerLog, epoch: Duration) -> KeyAnswers {
        let only = |kind| {
            let mut answers = tally.filter(|answer| answer.kind == kind).answers().to_vec();
            answers.sort_by_key(|answer| answer.sent);
            answers
        };
        let (allowed, denied) = (only(AnswerKind::Allowed), only(AnswerKind::Denied));
        let mut answered: Vec<_> = allowed.iter().map(|answer| answer.answered).collect();
        answered.sort_unstable();
        KeyAnswers { answer_log: tally.clone(), epoch, allowed, denied, answered }
    }

    /// Whether at least one request was denied.
    pub(crate) fn has_denials(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Fails unless the limit admitted neither too much nor too little. Returns the admitted share of the available
    /// units.
    #[track_caller]
    pub(crate) fn assert_bounds(&self, case: &LimitCase) -> f64 {
        match case.kind {
            BoundKind::Bucket => self.assert_bucket(case),
            BoundKind::FixedWindow | BoundKind::SlidingCounter => self.assert_windows(case),
            BoundKind::SlidingLog => self.assert_sliding_log(case),
        }
    }

    /// Fails if more units were admitted than the limit allows in any interval.
    #[track_caller]
    pub(crate) fn assert_never_exceeds(&self, case: &LimitCase) {
        match case.kind {
            BoundKind::Bucket => {
                let excess = most_excess(&self.allowed, case.amount / case.period_seconds);
                println!("{}: at most {excess:.2} of {} units were in use", case.name, case.burst);
                assert!(excess <= f64::from(case.burst) + 1e-6, "{case:?}: {excess} units were in use");
            }
            BoundKind::FixedWindow | BoundKind::SlidingCounter => self.assert_windows_not_exceeded(case),
            BoundKind::SlidingLog => {
                let length = Duration::from_secs(case.period_seconds.into()) - Duration::from_micros(1);
                let found = self.answer_log.max_allowed_within(length);
                assert!(
                    found <= case.amount as usize,
                    "{case:?}: {found} units were admitted within {length:?}"
                );
            }
        }
    }

    #[track_caller]
    fn assert_windows_not_exceeded(&self, case: &LimitCase) {
        let (amount, length) = (f64::from(case.amount), Duration::from_secs(case.period_seconds.into()));
        if case.kind == BoundKind::SlidingCounter {
            let found = count_to_f64(self.answer_log.max_allowed_within(length));
            assert!(found <= 2.0 * amount - 1.0, "{case:?}: {found} units were admitted within {length:?}");
        }
        let mut certain: BTreeMap<u64, usize> = BTreeMap::new();
        for window in self.allowed.iter().filter_map(|answer| self.window(answer, length)) {
            *certain.entry(window).or_default() += 1;
        }
        for (window, found) in &certain {
            assert!(
                count_to_f64(*found) <= amount,
                "{case:?}: {found} units were admitted in window {window}"
            );
        }
    }

    fn assert_bucket(&self, case: &LimitCase) -> f64 {
        for span in
            [1, 10, 100, 1000, 5000].map(Duration::from_millis).into_iter().chain([self.answer_log.elapsed()])
        {
            let most = f64::from(case.burst) + case.units_per_second() * span.as_secs_f64();
            let found = count_to_f64(self.answer_log.max_allowed_within(span));
            assert!(found <= most, "{case:?}: {found} units were admitted in {span:?}, of at most {most}");
        }
        for denial in self.sampled_denials() {
            // At a denial, less than one unit may be left of the burst plus the refill since some moment when the
            // bucket was full.
            let excess = self.most_excess(case, denial);
            let most = f64::from(case.burst);
            assert!(
                excess > most - 1.0 - 1e-6,
                "{case:?}: {excess} of {most} units were in use at {denial:?}"
            );
        }
        let (Some(first), Some(denial)) = (self.first_admitted(), self.denied.last()) else { return 1.0 };
        let since = denial.sent.saturating_sub(first).as_secs_f64();
        let available = f64::from(case.burst) + case.units_per_second() * since;
        count_to_f64(self.possibly_admitted(Duration::ZERO, denial.answered)) / available
    }

    /// The most units possibly admitted in any interval that ends at `answer`, minus the refill in that interval.
    fn most_excess(&self, case: &LimitCase, answer: &TimedAnswer) -> f64 {
        let before = self.allowed.partition_point(|allowed| allowed.sent <= answer.answered);
        let mut most: f64 = 0.0;
        for first in &self.allowed[..before] {
            let others = self.answered.partition_point(|answered| *answered < first.sent);
            let passed = answer.sent.saturating_sub(first.answered).as_secs_f64();
            most = most.max(count_to_f64(before - others.min(before)) - case.units_per_second() * passed);
        }
        most
    }

    fn assert_windows(&self, case: &LimitCase) -> f64 {
        self.assert_windows_not_exceeded(case);
        let (amount, length) = (f64::from(case.amount), Duration::from_secs(case.period_seconds.into()));
        // The last denial seen in each window.
        let mut denials: BTreeMap<u64, TimedAnswer> = BTreeMap::new();
        for answer in &self.denied {
            denials.extend(self.window(answer, length).map(|window| (window, *answer)));
        }
        let (mut admitted, mut available) = (0.0, 0.0);
        for (window, denial) in &denials {
            let begins = self.window_start(*window, length);
            let found =
                count_to_f64(self.possibly_admitted(begins.saturating_sub(CLOCK_ERROR), denial.answered));
            let into = denial.sent.saturating_sub(begins).as_secs_f64() / length.as_secs_f64();
            let least = match case.kind {
                // The previous window is weighted by its remaining overlap, and holds at most the whole amount.
                BoundKind::SlidingCounter => amount * into - 1.0,
                BoundKind::Bucket | BoundKind::FixedWindow | BoundKind::SlidingLog => amount,
            };
            assert!(
                found >= least - 1e-6,
                "{case:?}: only {found} of {least} units were admitted at {denial:?}"
            );
            admitted += found;
            available += least;
        }
        if available > 0.0 { (admitted / available).min(1.0) } else { 1.0 }
    }

    fn assert_sliding_log(&self, case: &LimitCase) -> f64 {
        let (amount, length) =
            (count_to_f64(case.amount as usize), Duration::from_secs(case.period_seconds.into()));
        // A unit counts until just before the period ends, so a closed interval of the full period is one tick too
        // long.
        let found = count_to_f64(self.answer_log.max_allowed_within(length - Duration::from_micros(1)));
        assert!(found <= amount, "{case:?}: {found} units were admitted within {length:?}");
        let mut least = f64::INFINITY;
        for denial in self.sampled_denials() {
            let found =
                count_to_f64(self.possibly_admitted(denial.sent.saturating_sub(length), denial.answered));
            assert!(found >= amount, "{case:?}: only {found} of {amount} units were admitted at {denial:?}");
            least = least.min(found / amount);
        }
        least.min(1.0)
    }

    /// A sample of about 200 denials that includes the last: checking many thousands would take too long.
    fn sampled_denials(&self) -> impl Iterator<Item = &TimedAnswer> {
        let step = (self.denied.len() / 200).max(1);
        self.denied.iter().rev().step_by(step)
    }

    /// The latest time at which the first unit can have been admitted. `None` if no unit was.
    fn first_admitted(&self) -> Option<Duration> {
        self.answered.first().copied()
    }

    /// The number of units possibly admitted between two times.
    fn possibly_admitted(&self, from: Duration, to: Duration) -> usize {
        let sent_before = self.allowed.partition_point(|answer| answer.sent <= to);
        self.allowed[..sent_before].iter().filter(|answer| answer.answered >= from).count()
    }

    /// The wall-clock window in which an answer was decided. `None` if it may be one of two.
    fn window(&self, answer: &TimedAnswer, length: Duration) -> Option<u64> {
        let of = |time: Duration| u64::try_from((self.epoch + time).as_nanos() / length.as_nanos()).unwrap();
        let first = of(answer.sent.saturating_sub(CLOCK_ERROR));
        (first == of(answer.answered + CLOCK_ERROR)).then_some(first)
    }

    /// The start of a window by the clients' clock.
    fn window_start(&self, window: u64, length: Duration) -> Duration {
        (length * u32::try_from(window).unwrap()).saturating_sub(self.epoch)
    }
}

impl fmt::Display for KeyAnswers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} allowed, {} denied", self.allowed.len(), self.denied.len())
    }
}

fn count_to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("fewer than 2^32 requests"))
}
