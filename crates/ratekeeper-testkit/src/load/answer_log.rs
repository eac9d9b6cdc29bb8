//! The log of all answers, and bounds that follow from it for certain.

use crate::stall_watch::overlap;
use std::ops::Range;
use std::time::Duration;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The request was allowed.
    Allowed,
    /// The request was denied.
    Denied,
    /// Unknown: there was no answer, or one without a decision.
    Failed,
}

/// One request and its answer. Times are since the start of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedAnswer {
    /// The index of the target.
    pub target: usize,
    /// The index of the endpoint.
    pub endpoint: usize,
    /// The number of the key.
    pub key: u64,
    /// When the request should have been sent: earlier than it was, if the client still waited for an answer.
    pub due: Duration,
    /// When the request was sent. It was decided no earlier.
    pub sent: Duration,
    /// When the answer arrived. It was decided no later.
    pub answered: Duration,
    /// The outcome.
    pub kind: AnswerKind,
    /// Whether the answer says that it was decided without the store.
    pub is_degraded: bool,
}

impl TimedAnswer {
    /// The latency as the caller sees it: from when the request was due.
    pub fn latency(&self) -> Duration {
        self.answered.saturating_sub(self.due)
    }
}

/// All answers of all clients, in order of arrival.
#[derive(Clone, Debug)]
pub struct AnswerLog {
    answers: Vec<TimedAnswer>,
    stalls: Vec<Range<Duration>>,
    elapsed: Duration,
}

impl AnswerLog {
    pub(crate) fn new(
        mut answers: Vec<TimedAnswer>,
        stalls: Vec<Range<Duration>>,
        elapsed: Duration,
    ) -> AnswerLog {
        answers.sort_by_key(|answer| answer.answered);
        AnswerLog { answers, stalls, elapsed }
    }

    /// Every answer.
    pub fn answers(&self) -> &[TimedAnswer] {
        &self.answers
    }

    /// The duration of the load.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The number of allowed requests.
    pub fn allowed(&self) -> usize {
        self.count(AnswerKind::Allowed)
    }

    /// The number of denied requests.
    pub fn denied(&self) -> usize {
        self.count(AnswerKind::Denied)
    }

    /// The number of requests without a decision.
    pub fn failed(&self) -> usize {
        self.count(AnswerKind::Failed)
    }

    /// The number of requests decided without the store.
    pub fn degraded(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_degraded).count()
    }

    /// When the machine stalled. Empty for a load without a rate, which has no stall watch.
    pub fn stalls(&self) -> &[Range<Duration>] {
        &self.stalls
    }

    fn count(&self, kind: AnswerKind) -> usize {
        self.answers.iter().filter(|answer| answer.kind == kind).count()
    }

    /// Only the answers for which `holds` is true.
    #[must_use]
    pub fn filter(&self, holds: impl Fn(&TimedAnswer) -> bool) -> AnswerLog {
        let answers = self.answers.iter().filter(|answer| holds(answer)).copied().collect();
        AnswerLog { answers, stalls: self.stalls.clone(), elapsed: self.elapsed }
    }

    /// Only the answers of one target.
    #[must_use]
    pub fn from_target(&self, target: usize) -> AnswerLog {
        self.filter(|answer| answer.target == target)
    }

    /// Only the answers for one endpoint.
    #[must_use]
    pub fn for_endpoint(&self, endpoint: usize) -> AnswerLog {
        self.filter(|answer| answer.endpoint == endpoint)
    }

    /// Only the answers for one key.
    #[must_use]
    pub fn for_key(&self, key: u64) -> AnswerLog {
        self.filter(|answer| answer.key == key)
    }

    /// Only the requests that were both sent and answered in this time, and so were decided in it.
    #[must_use]
    pub fn during(&self, time: Range<Duration>) -> AnswerLog {
        self.filter(|answer| answer.sent >= time.start && answer.answered <= time.end)
    }

    /// The most requests that were certainly allowed within any interval of this length. A limit below it was exceeded,
    /// however long answers took.
    pub fn max_allowed_within(&self, span: Duration) -> usize {
        let allowed: Vec<_> =
            self.answers.iter().filter(|answer| answer.kind == AnswerKind::Allowed).collect();
        // Each answer has a rank by its arrival. Going from the request sent last to the one sent first, ranks are
        // added to a Fenwick tree; those below the rank of the interval's end lie in the interval.
        let ends: Vec<_> = allowed.iter().map(|answer| answer.answered).collect();
        let mut places: Vec<_> = (0..allowed.len()).collect();
        places.sort_by_key(|place| allowed[*place].sent);
        let mut filled = PrefixCounts::new(allowed.len());
        let most = places.iter().rev().map(|place| {
            filled.add(*place);
            let end = allowed[*place].sent + span;
            filled.count_below(ends.partition_point(|answered| *answered <= end))
        });
        most.max().unwrap_or(0)
    }

    /// The longest time without a decision, including the time before the first and after the last.
    pub fn longest_gap(&self) -> Duration {
        let decided = self.answers.iter().filter(|answer| answer.kind != AnswerKind::Failed);
        let (mut last, mut longest) = (Duration::ZERO, Duration::ZERO);
        for at in decided.map(|answer| answer.answered).chain([self.elapsed]) {
            longest = longest.max(at.saturating_sub(last));
            last = at;
        }
        longest
    }

    /// The answers that took longer than `bar`, not counting the time that the machine stalled while they waited.
    pub fn slower_than(&self, bar: Duration) -> Vec<TimedAnswer> {
        let is_slow = |answer: &&TimedAnswer| {
            let latency = answer.latency();
            latency > bar && latency - self.stalled_during(answer.due..answer.answered) > bar
        };
        self.answers.iter().filter(is_slow).copied().collect()
    }

    /// How long the machine was stalled during this time.
    pub fn stalled_during(&self, time: Range<Duration>) -> Duration {
        overlap(&self.stalls, time)
    }

    /// The latency quantile of all decisions, without failed requests: `latency(0.99)`.
    pub fn latency(&self, share: f64) -> Duration {
        let decided = self.answers.iter().filter(|answer| answer.kind != AnswerKind::Failed);
        let mut times: Vec<_> = decided.map(TimedAnswer::latency).collect();
        times.sort_unstable();
        // Compares ranks as floats of the same size, so that no integer conversion truncates.
        let rank = times
            .iter()
            .zip(1_u32..)
            .take_while(|(_, rank)| f64::from(*rank) <= share * len_as_f64(&times))
            .count();
        times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

fn len_as_f64(times: &[Duration]) -> f64 {
    f64::from(u32::try_from(times.len()).unwrap_or(u32::MAX))
}

/// A Fenwick tree of counts by rank: adding a rank and counting all below another take logarithmic time.
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

    /// How many of the added ranks are below this one.
    fn count_below(&self, place: usize) -> usize {
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

    fn log_of(times: &[(u64, u64)]) -> AnswerLog {
        let answers = times.iter().map(|(asked, took)| TimedAnswer {
            target: 0,
            endpoint: 0,
            key: 0,
            due: Duration::from_millis(*asked),
            sent: Duration::from_millis(*asked),
            answered: Duration::from_millis(asked + took),
            kind: AnswerKind::Allowed,
            is_degraded: false,
        });
        AnswerLog::new(answers.collect(), Vec::new(), Duration::from_millis(1000))
    }

    proptest! {
        #[test]
        fn most_allowed_within_equals_counting_every_interval(
            times in prop::collection::vec((0_u64..100, 0_u64..20), 0..40),
            span in 0_u64..60,
        ) {
            let log = log_of(&times);
            let span = Duration::from_millis(span);
            let inside = |start: Duration| log.during(start..start + span).allowed();
            let slow = log.answers().iter().map(|answer| inside(answer.sent)).max().unwrap_or(0);
            prop_assert_eq!(log.max_allowed_within(span), slow);
        }
    }

    #[test]
    fn stalled_time_does_not_count_as_latency() {
        let mut log = log_of(&[(0, 100), (200, 100), (400, 100), (600, 20)]);
        let stall = |from, to| Duration::from_millis(from)..Duration::from_millis(to);
        log.stalls = vec![stall(90, 210), stall(420, 430), stall(440, 470), stall(600, 620)];
        assert_eq!(log.slower_than(Duration::from_millis(75)), log.answers()[..2]);
    }

    #[test]
    fn longest_gap_and_latency() {
        let log = log_of(&[(0, 10), (100, 20), (700, 40)]);
        assert_eq!(log.longest_gap(), Duration::from_millis(620));
        assert_eq!(log.latency(0.5), Duration::from_millis(10));
        assert_eq!(log.latency(1.0), Duration::from_millis(40));
    }
}
