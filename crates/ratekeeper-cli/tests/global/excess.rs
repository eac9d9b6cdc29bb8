//! By how much the most crowded stretch of time passes what flows back in it, over all stretches there are.

use ratekeeper_testkit::load::TimedAnswer;
use std::time::Duration;

/// Of those that were allowed, the most that were certainly admitted in any stretch of time, less what flows back in it, in
/// units. A stretch that matters begins when somebody asks and ends when somebody is answered.
pub(crate) fn most_excess(allowed: &[TimedAnswer], units_per_second: u32) -> f64 {
    let mut begins: Vec<Duration> = allowed.iter().map(|answer| answer.asked).collect();
    begins.sort_unstable();
    let mut by_end: Vec<&TimedAnswer> = allowed.iter().collect();
    by_end.sort_unstable_by_key(|answer| answer.answered);
    // For each beginning, in billionths of a unit: how many were admitted since, and what had flowed before.
    let flowed = |time: Duration| i64::try_from(time.as_nanos()).unwrap() * i64::from(units_per_second);
    let mut stretches = Stretches::new(begins.len());
    let mut most = 0;
    for answer in by_end {
        let begin = begins.partition_point(|begin| *begin < answer.asked);
        stretches.add(begin, 1_000_000_000);
        stretches.open(begin, flowed(answer.asked));
        most = most.max(stretches.most() - flowed(answer.answered));
    }
    most as f64 / 1e9
}

/// Numbers of which all up to one can be raised at once, and the greatest known: a tree of sums and greatest sums.
struct Stretches {
    leaves: usize,
    raised: Vec<i64>,
    most: Vec<i64>,
}

/// Less than anything that counts: it stands for a stretch that has not begun.
const CLOSED: i64 = i64::MIN / 4;

impl Stretches {
    fn new(count: usize) -> Stretches {
        let leaves = count.max(1).next_power_of_two();
        Stretches { leaves, raised: vec![0; 2 * leaves], most: vec![CLOSED; 2 * leaves] }
    }

    fn most(&self) -> i64 {
        self.most[1]
    }

    /// Raises all up to `last`.
    fn add(&mut self, last: usize, by: i64) {
        let mut place = last + self.leaves;
        self.raise(place, by);
        while place > 1 {
            if place % 2 == 1 {
                self.raise(place - 1, by);
            }
            place /= 2;
            self.renew(place);
        }
    }

    /// Has a stretch count, with so much more, if it does not yet.
    fn open(&mut self, place: usize, with: i64) {
        let mut place = place + self.leaves;
        if self.most[place] > CLOSED / 2 {
            return;
        }
        self.most[place] = self.raised[place] + with;
        while place > 1 {
            place /= 2;
            self.renew(place);
        }
    }

    fn raise(&mut self, place: usize, by: i64) {
        self.raised[place] += by;
        self.most[place] += by;
    }

    fn renew(&mut self, place: usize) {
        self.most[place] = self.raised[place] + self.most[2 * place].max(self.most[2 * place + 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_testkit::chance;
    use ratekeeper_testkit::load::AnswerKind;

    fn answer(number: u64) -> TimedAnswer {
        let asked = Duration::from_secs_f64(3.0 * chance(1, number));
        let answered = asked + Duration::from_secs_f64(0.7 * chance(2, number));
        let verdict = AnswerKind::Allowed;
        TimedAnswer {
            target: 0,
            endpoint: 0,
            key: 0,
            due: asked,
            asked,
            answered,
            verdict,
            is_degraded: false,
        }
    }

    #[test]
    fn the_tree_finds_what_looking_at_every_stretch_does() {
        for round in 0..200 {
            let answers: Vec<TimedAnswer> = (0..12).map(|number| answer(12 * round + number)).collect();
            let mut most = 0.0_f64;
            for first in &answers {
                for last in &answers {
                    let (from, to) = (first.asked, last.answered);
                    let inside = |answer: &&TimedAnswer| answer.asked >= from && answer.answered <= to;
                    let found = answers.iter().filter(inside).count() as f64;
                    if to >= from {
                        most = most.max(found - 3.0 * (to - from).as_secs_f64());
                    }
                }
            }
            assert!((most_excess(&answers, 3) - most).abs() < 1e-6);
        }
    }
}
