//! What a law promises, held against what clients saw.
//!
//! A client knows that an answer was decided after it asked and before it heard of it, and no more. So of any stretch of time it
//! can be said how many units were admitted in it *for certain*, and how many *perhaps*. A limit is broken where more were
//! certain than it admits; and since a refusal says that all of it was taken, where fewer were possible than that.

use super::excess::most_excess;
use super::law::{Kind, Law};
use ratekeeper_testkit::load::{AnswerKind, AnswerLog, TimedAnswer};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How much earlier or later than the clients' clock the store's may see a window's edge: they are read one after the other.
const EDGE: Duration = Duration::from_millis(2);

/// All answers about one key under one law.
pub(crate) struct Bounds {
    tally: AnswerLog,
    epoch: Duration,
    /// In the order in which they were asked for.
    allowed: Vec<TimedAnswer>,
    denied: Vec<TimedAnswer>,
    /// When those that were allowed were answered, in order.
    answered: Vec<Duration>,
}

impl Bounds {
    pub(crate) fn of(tally: &AnswerLog, epoch: Duration) -> Bounds {
        let only = |verdict| {
            let mut answers = tally.only(|answer| answer.verdict == verdict).answers().to_vec();
            answers.sort_by_key(|answer| answer.asked);
            answers
        };
        let (allowed, denied) = (only(AnswerKind::Allowed), only(AnswerKind::Denied));
        let mut answered: Vec<_> = allowed.iter().map(|answer| answer.answered).collect();
        answered.sort_unstable();
        Bounds { tally: tally.clone(), epoch, allowed, denied, answered }
    }

    /// Whether somebody was refused.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Fails unless the law kept its promise, both ways. Gives how much was admitted of what there was.
    #[track_caller]
    pub(crate) fn hold_to(&self, law: &Law) -> f64 {
        match law.kind {
            Kind::Bucket => self.hold_to_bucket(law),
            Kind::FixedWindow | Kind::SlidingCounter => self.hold_to_windows(law),
            Kind::SlidingLog => self.hold_to_log(law),
        }
    }

    /// Fails if more was admitted than the law allows, in any stretch of time at all.
    #[track_caller]
    pub(crate) fn never_exceed(&self, law: &Law) {
        match law.kind {
            Kind::Bucket => {
                let excess = most_excess(&self.allowed, law.amount / law.period_seconds);
                println!("{}: at most {excess:.2} of {} were out", law.name, law.burst);
                assert!(excess <= f64::from(law.burst) + 1e-6, "{law:?}: {excess} were out");
            }
            Kind::FixedWindow | Kind::SlidingCounter => self.never_exceed_in_windows(law),
            Kind::SlidingLog => {
                let length = Duration::from_secs(law.period_seconds.into()) - Duration::from_micros(1);
                let found = self.tally.most_allowed_within(length);
                assert!(found <= law.amount as usize, "{law:?}: {found} were admitted within {length:?}");
            }
        }
    }

    #[track_caller]
    fn never_exceed_in_windows(&self, law: &Law) {
        let (amount, length) = (f64::from(law.amount), Duration::from_secs(law.period_seconds.into()));
        if law.kind == Kind::SlidingCounter {
            let found = number(self.tally.most_allowed_within(length));
            assert!(found <= 2.0 * amount - 1.0, "{law:?}: {found} were admitted within {length:?}");
        }
        let mut certain: BTreeMap<u64, usize> = BTreeMap::new();
        for window in self.allowed.iter().filter_map(|answer| self.window(answer, length)) {
            *certain.entry(window).or_default() += 1;
        }
        for (window, found) in &certain {
            assert!(number(*found) <= amount, "{law:?}: {found} were admitted in window {window}");
        }
    }

    fn hold_to_bucket(&self, law: &Law) -> f64 {
        for span in [1, 10, 100, 1000, 5000].map(Duration::from_millis).into_iter().chain([self.tally.took()])
        {
            let most = f64::from(law.burst) + law.units_per_second() * span.as_secs_f64();
            let found = number(self.tally.most_allowed_within(span));
            assert!(found <= most, "{law:?}: {found} were admitted in {span:?}, where {most} are");
        }
        for refused in self.some_denied() {
            // When it was refused, less than a unit was left of the burst and of all that had come back, since some moment at
            // which all of it was there.
            let excess = self.most_excess(law, refused);
            let most = f64::from(law.burst);
            assert!(excess > most - 1.0 - 1e-6, "{law:?}: {excess} of {most} were out, and {refused:?}");
        }
        let (Some(first), Some(refused)) = (self.first_admitted(), self.denied.last()) else { return 1.0 };
        let since = refused.asked.saturating_sub(first).as_secs_f64();
        let there = f64::from(law.burst) + law.units_per_second() * since;
        number(self.possible(Duration::ZERO, refused.answered)) / there
    }

    /// The most that may have been admitted before an answer beyond what came back meanwhile, since any moment.
    fn most_excess(&self, law: &Law, answer: &TimedAnswer) -> f64 {
        let before = self.allowed.partition_point(|allowed| allowed.asked <= answer.answered);
        let mut most: f64 = 0.0;
        for first in &self.allowed[..before] {
            let others = self.answered.partition_point(|answered| *answered < first.asked);
            let passed = answer.asked.saturating_sub(first.answered).as_secs_f64();
            most = most.max(number(before - others.min(before)) - law.units_per_second() * passed);
        }
        most
    }

    fn hold_to_windows(&self, law: &Law) -> f64 {
        self.never_exceed_in_windows(law);
        let (amount, length) = (f64::from(law.amount), Duration::from_secs(law.period_seconds.into()));
        // Since when a window has been refusing, at the latest, by when it was last seen to do so.
        let mut refusals: BTreeMap<u64, TimedAnswer> = BTreeMap::new();
        for answer in &self.denied {
            refusals.extend(self.window(answer, length).map(|window| (window, *answer)));
        }
        let (mut admitted, mut there) = (0.0, 0.0);
        for (window, refused) in &refusals {
            let begins = self.begins(*window, length);
            let found = number(self.possible(begins.saturating_sub(EDGE), refused.answered));
            let into = refused.asked.saturating_sub(begins).as_secs_f64() / length.as_secs_f64();
            let least = match law.kind {
                // The last window counts for as much as is still in sight of it, and that is at most all of the amount.
                Kind::SlidingCounter => amount * into - 1.0,
                Kind::Bucket | Kind::FixedWindow | Kind::SlidingLog => amount,
            };
            assert!(found >= least - 1e-6, "{law:?}: {found} were admitted of {least}, and {refused:?}");
            admitted += found;
            there += least;
        }
        if there > 0.0 { (admitted / there).min(1.0) } else { 1.0 }
    }

    fn hold_to_log(&self, law: &Law) -> f64 {
        let (amount, length) = (number(law.amount as usize), Duration::from_secs(law.period_seconds.into()));
        // A unit counts until just before the period is over, so a stretch that has both its ends is too long by a tick.
        let found = number(self.tally.most_allowed_within(length - Duration::from_micros(1)));
        assert!(found <= amount, "{law:?}: {found} were admitted within {length:?}");
        let mut least = f64::INFINITY;
        for refused in self.some_denied() {
            let found = number(self.possible(refused.asked.saturating_sub(length), refused.answered));
            assert!(found >= amount, "{law:?}: {found} were admitted of {amount}, and {refused:?}");
            least = least.min(found / amount);
        }
        least.min(1.0)
    }

    /// Some of those that were refused, the last one among them: to look at many thousands would take too long.
    fn some_denied(&self) -> impl Iterator<Item = &TimedAnswer> {
        let step = (self.denied.len() / 200).max(1);
        self.denied.iter().rev().step_by(step)
    }

    /// When the first was admitted, at the latest.
    fn first_admitted(&self) -> Option<Duration> {
        self.answered.first().copied()
    }

    /// How many may have been admitted between two moments.
    fn possible(&self, from: Duration, to: Duration) -> usize {
        let asked = self.allowed.partition_point(|answer| answer.asked <= to);
        self.allowed[..asked].iter().filter(|answer| answer.answered >= from).count()
    }

    /// The window of the wall clock in which an answer was decided, if that is certain.
    fn window(&self, answer: &TimedAnswer, length: Duration) -> Option<u64> {
        let of = |time: Duration| u64::try_from((self.epoch + time).as_nanos() / length.as_nanos()).unwrap();
        let first = of(answer.asked.saturating_sub(EDGE));
        (first == of(answer.answered + EDGE)).then_some(first)
    }

    /// When a window begins, by the clients' clock.
    fn begins(&self, window: u64, length: Duration) -> Duration {
        (length * u32::try_from(window).unwrap()).saturating_sub(self.epoch)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} allowed, {} denied", self.allowed.len(), self.denied.len())
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("there are not as many requests"))
}
