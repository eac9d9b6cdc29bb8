//! An account of answers, and what can be said for certain from it.

use std::ops::Range;
use std::time::Duration;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// It may go on.
    Allowed,
    /// It may not.
    Denied,
    /// Nobody knows: there was no answer, or none that decides.
    Failed,
}

/// One request and its answer. Times are since the clients began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedAnswer {
    /// Which of the targets was asked.
    pub target: usize,
    /// What it was about, of the endpoints.
    pub endpoint: usize,
    /// For which of the keys.
    pub key: u64,
    /// When it should have been sent: sooner than it was, if the client was still busy with its last.
    pub due: Duration,
    /// When it was sent: it was decided no sooner.
    pub asked: Duration,
    /// When the answer was there: it was decided no later.
    pub answered: Duration,
    /// What came of it.
    pub verdict: AnswerKind,
    /// Whether the answer said that it was given without the store.
    pub is_degraded: bool,
}

impl TimedAnswer {
    /// How long whoever asked had to wait.
    pub fn wait(&self) -> Duration {
        self.answered.saturating_sub(self.due)
    }
}

/// All answers of all clients, in the order in which they came.
#[derive(Clone, Debug)]
pub struct AnswerLog {
    answers: Vec<TimedAnswer>,
    stalls: Vec<Range<Duration>>,
    took: Duration,
}

/// Who waited too long.
#[derive(Clone, Debug)]
pub struct SlowAnswers {
    /// Because of whoever was asked.
    pub guilty: Vec<TimedAnswer>,
    /// Because the machine stood still: without that, it would not have been too long.
    pub excused: Vec<TimedAnswer>,
}

impl AnswerLog {
    pub(crate) fn new(
        mut answers: Vec<TimedAnswer>,
        stalls: Vec<Range<Duration>>,
        took: Duration,
    ) -> AnswerLog {
        answers.sort_by_key(|answer| answer.answered);
        AnswerLog { answers, stalls, took }
    }

    /// Every answer.
    pub fn answers(&self) -> &[TimedAnswer] {
        &self.answers
    }

    /// How long it took from the beginning to the end.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// How many were allowed.
    pub fn allowed(&self) -> usize {
        self.count(AnswerKind::Allowed)
    }

    /// How many were denied.
    pub fn denied(&self) -> usize {
        self.count(AnswerKind::Denied)
    }

    /// How many have no answer that decides.
    pub fn failed(&self) -> usize {
        self.count(AnswerKind::Failed)
    }

    /// How many were given without the store.
    pub fn degraded(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_degraded).count()
    }

    /// When the machine stood still, as far as it was watched: for a load with a rate.
    pub fn stalls(&self) -> &[Range<Duration>] {
        &self.stalls
    }

    fn count(&self, verdict: AnswerKind) -> usize {
        self.answers.iter().filter(|answer| answer.verdict == verdict).count()
    }

    /// Only those for which this holds.
    #[must_use]
    pub fn only(&self, holds: impl Fn(&TimedAnswer) -> bool) -> AnswerLog {
        let answers = self.answers.iter().filter(|answer| holds(answer)).copied().collect();
        AnswerLog { answers, stalls: self.stalls.clone(), took: self.took }
    }

    /// Only those that one of the targets gave.
    #[must_use]
    pub fn of(&self, target: usize) -> AnswerLog {
        self.only(|answer| answer.target == target)
    }

    /// Only those about one of the endpoints.
    #[must_use]
    pub fn about(&self, endpoint: usize) -> AnswerLog {
        self.only(|answer| answer.endpoint == endpoint)
    }

    /// Only those for one of the keys.
    #[must_use]
    pub fn for_key(&self, key: u64) -> AnswerLog {
        self.only(|answer| answer.key == key)
    }

    /// Only those that were both asked for and answered in this time, and so were decided in it.
    #[must_use]
    pub fn during(&self, time: Range<Duration>) -> AnswerLog {
        self.only(|answer| answer.asked >= time.start && answer.answered <= time.end)
    }

    /// The most requests that were allowed for certain within any stretch of time of this length. A limit that this
    /// exceeds was broken, however long answers took.
    pub fn most_allowed_within(&self, span: Duration) -> usize {
        let allowed: Vec<_> =
            self.answers.iter().filter(|answer| answer.verdict == AnswerKind::Allowed).collect();
        // In the order of the answers, each has a place; from the last asked to the first, places fill up, and those
        // filled up to where the stretch ends are the ones that lie in it.
        let ends: Vec<_> = allowed.iter().map(|answer| answer.answered).collect();
        let mut places: Vec<_> = (0..allowed.len()).collect();
        places.sort_by_key(|place| allowed[*place].asked);
        let mut filled = PrefixCounts::new(allowed.len());
        let most = places.iter().rev().map(|place| {
            filled.add(*place);
            let end = allowed[*place].asked + span;
            filled.before(ends.partition_point(|answered| *answered <= end))
        });
        most.max().unwrap_or(0)
    }

    /// The longest time without an answer that decides, the time before the first and after the last counted.
    pub fn longest_silence(&self) -> Duration {
        let decided = self.answers.iter().filter(|answer| answer.verdict != AnswerKind::Failed);
        let (mut last, mut longest) = (Duration::ZERO, Duration::ZERO);
        for at in decided.map(|answer| answer.answered).chain([self.took]) {
            longest = longest.max(at.saturating_sub(last));
            last = at;
        }
        longest
    }

    /// Who waited longer than this, and whose fault it was.
    pub fn slower_than(&self, bar: Duration) -> SlowAnswers {
        let slow = self.answers.iter().filter(|answer| answer.wait() > bar);
        let (guilty, excused) = slow.partition(|answer| answer.wait() - self.stood_still(answer) > bar);
        SlowAnswers { guilty, excused }
    }

    /// How long the machine stood still while a request waited.
    fn stood_still(&self, answer: &TimedAnswer) -> Duration {
        let first = self.stalls.partition_point(|stall| stall.end <= answer.due);
        let during = self.stalls[first..].iter().take_while(|stall| stall.start < answer.answered);
        during.map(|stall| stall.end.min(answer.answered) - stall.start.max(answer.due)).sum()
    }

    /// The time within which this share of all answers came, failed ones not counted: `latency(0.99)`.
    pub fn latency(&self, share: f64) -> Duration {
        let decided = self.answers.iter().filter(|answer| answer.verdict != AnswerKind::Failed);
        let mut times: Vec<_> = decided.map(TimedAnswer::wait).collect();
        times.sort_unstable();
        // As far along the list as the share says, by the list's own measure so that no number is cut short.
        let upto = times
            .iter()
            .zip(1_u32..)
            .take_while(|(_, rank)| f64::from(*rank) <= share * count_of(&times))
            .count();
        times.get(upto.saturating_sub(1)).copied().unwrap_or_default()
    }
}

fn count_of(times: &[Duration]) -> f64 {
    f64::from(u32::try_from(times.len()).unwrap_or(u32::MAX))
}

/// Counts of places, in which a place is added and all before another are summed up in few steps.
struct PrefixCounts(Vec<usize>);

impl PrefixCounts {
    fn new(places: usize) -> PrefixCounts {
        PrefixCounts(vec![0; places + 1])
    }

    fn add(&mut self, place: usize) {
        let mut at = place + 1;
        while at < self.0.len() {
            self.0[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    /// How many were added at places before this one.
    fn before(&self, place: usize) -> usize {
        let (mut at, mut sum) = (place, 0);
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tally(times: &[(u64, u64)]) -> AnswerLog {
        let answers = times.iter().map(|(asked, took)| TimedAnswer {
            target: 0,
            endpoint: 0,
            key: 0,
            due: Duration::from_millis(*asked),
            asked: Duration::from_millis(*asked),
            answered: Duration::from_millis(asked + took),
            verdict: AnswerKind::Allowed,
            is_degraded: false,
        });
        AnswerLog::new(answers.collect(), Vec::new(), Duration::from_millis(1000))
    }

    proptest! {
        #[test]
        fn the_most_within_a_stretch_is_what_counting_gives(
            times in prop::collection::vec((0_u64..100, 0_u64..20), 0..40),
            span in 0_u64..60,
        ) {
            let tally = tally(&times);
            let span = Duration::from_millis(span);
            let inside = |start: Duration| tally.during(start..start + span).allowed();
            let slow = tally.answers().iter().map(|answer| inside(answer.asked)).max().unwrap_or(0);
            prop_assert_eq!(tally.most_allowed_within(span), slow);
        }
    }

    #[test]
    fn only_as_much_is_excused_as_the_machine_stood_still() {
        let mut tally = tally(&[(0, 100), (200, 100), (400, 100), (600, 20)]);
        let stall = |from, to| Duration::from_millis(from)..Duration::from_millis(to);
        tally.stalls = vec![stall(90, 210), stall(420, 430), stall(440, 470), stall(600, 620)];
        let SlowAnswers { guilty, excused } = tally.slower_than(Duration::from_millis(75));
        assert_eq!(guilty, [tally.answers()[0], tally.answers()[1]]);
        assert_eq!(excused, [tally.answers()[2]]);
    }

    #[test]
    fn silence_and_latency() {
        let tally = tally(&[(0, 10), (100, 20), (700, 40)]);
        assert_eq!(tally.longest_silence(), Duration::from_millis(620));
        assert_eq!(tally.latency(0.5), Duration::from_millis(10));
        assert_eq!(tally.latency(1.0), Duration::from_millis(40));
    }
}
