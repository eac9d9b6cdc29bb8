//! The largest excess of admitted units over the refill, over all intervals.

use ratekeeper_testkit::load::TimedAnswer;
use std::time::Duration;

/// Returns the largest number of units certainly admitted in any interval minus the refill in that interval. Only
/// intervals that begin at a request and end at a response matter.
pub(crate) fn most_excess(allowed: &[TimedAnswer], units_per_second: u32) -> f64 {
    let mut starts: Vec<Duration> = allowed.iter().map(|answer| answer.sent).collect();
    starts.sort_unstable();
    let mut by_end: Vec<&TimedAnswer> = allowed.iter().collect();
    by_end.sort_unstable_by_key(|answer| answer.answered);
    // Per interval start, in billionths of a unit: the units admitted since, plus the refill before it.
    let refilled = |time: Duration| i64::try_from(time.as_nanos()).unwrap() * i64::from(units_per_second);
    let mut tree = PrefixMaxTree::new(starts.len());
    let mut most = 0;
    for answer in by_end {
        let start = starts.partition_point(|start| *start < answer.sent);
        tree.add_to_prefix(start, 1_000_000_000);
        tree.activate(start, refilled(answer.sent));
        most = most.max(tree.max() - refilled(answer.answered));
    }
    most as f64 / 1e9
}

/// A segment tree with prefix addition and a global maximum, both in logarithmic time.
struct PrefixMaxTree {
    leaves: usize,
    added: Vec<i64>,
    max: Vec<i64>,
}

/// Marks an interval start that is not in use yet: smaller than any real value.
const INACTIVE: i64 = i64::MIN / 4;

impl PrefixMaxTree {
    fn new(count: usize) -> PrefixMaxTree {
        let leaves = count.max(1).next_power_of_two();
        PrefixMaxTree { leaves, added: vec![0; 2 * leaves], max: vec![INACTIVE; 2 * leaves] }
    }

    fn max(&self) -> i64 {
        self.max[1]
    }

    /// Adds `by` to all entries up to and including `last`.
    fn add_to_prefix(&mut self, last: usize, by: i64) {
        let mut place = last + self.leaves;
        self.add_to_node(place, by);
        while place > 1 {
            if place % 2 == 1 {
                self.add_to_node(place - 1, by);
            }
            place /= 2;
            self.recompute(place);
        }
    }

    /// Brings an entry into use with the initial value `with`, unless it already is.
    fn activate(&mut self, place: usize, with: i64) {
        let mut place = place + self.leaves;
        if self.max[place] > INACTIVE / 2 {
            return;
        }
        self.max[place] = self.added[place] + with;
        while place > 1 {
            place /= 2;
            self.recompute(place);
        }
    }

    fn add_to_node(&mut self, place: usize, by: i64) {
        self.added[place] += by;
        self.max[place] += by;
    }

    fn recompute(&mut self, place: usize) {
        self.max[place] = self.added[place] + self.max[2 * place].max(self.max[2 * place + 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_testkit::load::AnswerKind;
    use ratekeeper_testkit::random_f64;

    fn answer(number: u64) -> TimedAnswer {
        let sent = Duration::from_secs_f64(3.0 * random_f64(1, number));
        let answered = sent + Duration::from_secs_f64(0.7 * random_f64(2, number));
        let kind = AnswerKind::Allowed;
        TimedAnswer { target: 0, endpoint: 0, key: 0, due: sent, sent, answered, kind, is_degraded: false }
    }

    #[test]
    fn the_tree_agrees_with_a_check_of_every_interval() {
        for round in 0..200 {
            let answers: Vec<TimedAnswer> = (0..12).map(|number| answer(12 * round + number)).collect();
            let mut most = 0.0_f64;
            for first in &answers {
                for last in &answers {
                    let (from, to) = (first.sent, last.answered);
                    let inside = |answer: &&TimedAnswer| answer.sent >= from && answer.answered <= to;
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
