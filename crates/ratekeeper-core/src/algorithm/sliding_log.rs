//! The sliding window log: exact, at the price of remembering every admitted unit.
//!
//! A unit admitted at `t` counts until just before `t + per`. Units admitted at the same microsecond share a run, so
//! none is lost and a burst costs one entry.
//!
//! Where quotas of different periods take turns, units that the current one no longer counts are kept for as long as an
//! earlier one would count them: else a quota of a second would make one of an hour forget.

use crate::op::Amount;
use crate::status::{Forecast, Retry};
use crate::time::{MOST_BACK, Micros, Span};
use std::collections::VecDeque;

/// A sliding log's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) amount: u32,
    pub(crate) per: Span,
}

/// The units a sliding log remembers, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    runs: VecDeque<(Micros, u32)>,
    used: u32,
    /// Units that are out of sight, but not for an earlier quota, oldest first.
    past: VecDeque<(Micros, u32)>,
    past_units: u32,
    earlier: Option<PriorRetention>,
}

/// What must be kept for the quotas before the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorRetention {
    /// The longest of their periods.
    pub per: Span,
    /// How many units were in their sight when they were last in force: as many of the newest are enough, since none of
    /// them has admitted more.
    pub units: u32,
    /// When the last of those units is out of their sight.
    pub until: Micros,
}

impl Log {
    /// How many entries it holds: what its memory grows with.
    pub fn entries(&self) -> usize {
        self.past.len() + self.runs.len()
    }

    /// When units were admitted, and how many, oldest first, those that are kept for an earlier quota included.
    pub fn runs(&self) -> impl Iterator<Item = (Micros, u32)> {
        self.past.iter().chain(&self.runs).copied()
    }

    /// What is kept for earlier quotas.
    pub fn earlier(&self) -> Option<PriorRetention> {
        self.earlier
    }

    /// Has the newest run take in the one before it, as if all of its units had been admitted with the newest. They then
    /// count for longer, and never for less long. One that was kept for an earlier quota only counts under this one too, so
    /// more than its amount may be used. Returns `false` if there is none before it.
    pub fn join_newest(&mut self) -> bool {
        let last = self.runs.len().saturating_sub(1);
        let before = match last {
            0 => self.past.back().copied(),
            last => Some(self.runs[last - 1]),
        };
        let (Some((at, run)), Some((_, earlier))) = (self.runs.back().copied(), before) else { return false };
        let (Some(run), Some(used)) = (run.checked_add(earlier), self.used.checked_add(earlier)) else {
            return false;
        };
        self.runs.pop_back();
        if self.runs.pop_back().is_none() {
            self.past.pop_back();
            self.past_units -= earlier;
            self.used = used;
        }
        self.runs.push_back((at, run));
        true
    }

    pub(super) fn shrink(&mut self) {
        super::shrink(&mut self.runs);
        super::shrink(&mut self.past);
    }

    fn newest(&self) -> Option<Micros> {
        self.runs.back().or(self.past.back()).map(|(at, _)| *at)
    }

    /// The time that it is at `now`. It never runs back past the newest unit, unless the clock was set back too far to wait
    /// for it: then all units are moved, so that the newest was admitted now.
    fn reach(&mut self, now: Micros) -> Micros {
        let Some(newest) = self.newest() else { return now };
        let back = newest.since(now);
        if back <= MOST_BACK {
            return newest.max(now);
        }
        for (at, _) in self.past.iter_mut().chain(&mut self.runs) {
            *at = at.less(back);
        }
        if let Some(earlier) = &mut self.earlier {
            earlier.until = earlier.until.less(back);
        }
        now
    }

    /// Forgets the last `units` admitted.
    pub(crate) fn take_back(&mut self, mut units: u32) {
        while let Some((_, run)) = self.runs.back_mut().filter(|_| units > 0) {
            let taken = units.min(*run);
            *run -= taken;
            self.used -= taken;
            units -= taken;
            if *run == 0 {
                self.runs.pop_back();
            }
        }
        self.forget_earlier();
    }

    /// Where no unit is left, none need be kept.
    fn forget_earlier(&mut self) {
        if self.entries() == 0 {
            self.earlier = None;
        }
    }
}

impl SlidingLog {
    /// Forgets what has passed out of sight, then admits as much of `ask` as still fits.
    pub(crate) fn draw(&self, log: &mut Log, now: Micros, ask: Amount) -> Option<u32> {
        self.age(log, now);
        let room = self.amount.saturating_sub(log.used);
        if ask.at_least() > room {
            return None;
        }
        let granted = ask.at_most().min(room);
        if granted > 0 {
            // A clock stepping back may not put a unit before an older one.
            let at = log.newest().map_or(now, |newest| newest.max(now));
            match log.runs.back_mut().filter(|(newest, _)| *newest == at) {
                Some((_, run)) => *run += granted,
                None => log.runs.push_back((at, granted)),
            }
            log.used += granted;
        }
        Some(granted)
    }

    /// Forgets what has passed out of sight, of this quota and of those before it.
    pub(crate) fn age(&self, log: &mut Log, now: Micros) {
        let now = log.reach(now);
        if !log.past.is_empty() {
            self.look_back(log, now);
        }
        while let Some((at, run)) = log.runs.pop_front_if(|(at, _)| at.plus(self.per) <= now) {
            log.used -= run;
            if log.earlier.is_some() {
                log.past.push_back((at, run));
                log.past_units += run;
            }
        }
        if let Some(earlier) = log.earlier {
            SlidingLog::age_past(log, earlier, now);
        }
    }

    /// Counts again what is kept for an earlier quota and is in sight of this one.
    #[cold]
    fn look_back(&self, log: &mut Log, now: Micros) {
        while let Some((at, run)) = log.past.pop_back_if(|(at, _)| at.plus(self.per) > now) {
            log.runs.push_front((at, run));
            log.past_units -= run;
            log.used += run;
        }
    }

    #[cold]
    fn age_past(log: &mut Log, earlier: PriorRetention, now: Micros) {
        if earlier.until <= now {
            (log.earlier, log.past_units) = (None, 0);
            log.past.clear();
            return;
        }
        // Units of this instant may yet be given back, because another limit of the same request refuses.
        let settled = log.used - log.runs.back().map_or(0, |(at, run)| if *at == now { *run } else { 0 });
        while let Some((at, run)) = log.past.front().copied() {
            let is_enough = log.past_units - run + settled >= earlier.units;
            if at.plus(earlier.per) > now && !is_enough {
                break;
            }
            log.past.pop_front();
            log.past_units -= run;
        }
        log.forget_earlier();
    }

    /// Goes on with a log that `before` wrote. All units are kept with their times, and counted if they are in this
    /// quota's sight; what only `before` would count is kept for it until it would not.
    pub(crate) fn take_over(&self, log: &mut Log, before: &SlidingLog, now: Micros) {
        before.age(log, now);
        if self.per == before.per {
            return;
        }
        let now = log.reach(now);
        if let Some(newest) = log.runs.back().map(|(at, _)| *at) {
            let left = PriorRetention { per: before.per, units: log.used, until: newest.plus(before.per) };
            log.earlier = Some(log.earlier.map_or(left, |earlier| PriorRetention {
                per: earlier.per.max(left.per),
                units: earlier.units.max(left.units),
                until: earlier.until.max(left.until),
            }));
        }
        self.look_back(log, now);
        // A quota that sees farther keeps all that the others need.
        if log.earlier.is_some_and(|earlier| earlier.per <= self.per) {
            log.earlier = None;
            log.past.clear();
            log.past_units = 0;
        }
        self.age(log, now);
    }

    /// What the log promises: `ask` was answered with `granted` at `now`.
    pub(crate) fn outlook(&self, log: &Log, now: Micros, ask: Amount, granted: Option<u32>) -> Forecast {
        let freed = |at: Micros| at.plus(self.per).since(now);
        Forecast {
            remaining: self.amount.saturating_sub(log.used),
            reset: log.newest().map_or(Span::ZERO, freed),
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(log, now, ask)) } else { None },
        }
    }

    /// When the oldest units will have made room.
    fn retry(&self, log: &Log, now: Micros, ask: Amount) -> Retry {
        let Some(room) = self.amount.checked_sub(ask.at_least()) else { return Retry::Never };
        let mut left = log.used;
        let last_in_the_way = log.runs.iter().find(|(_, run)| {
            left -= run;
            left <= room
        });
        Retry::After(last_in_the_way.map_or(Span::ZERO, |(at, _)| at.plus(self.per).since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::ListState;

    #[test]
    fn joined_runs_count_as_long_as_the_newest() {
        let law = |amount, per| SlidingLog { amount, per };
        let (hourly, quick) = (law(4, Span::HOUR), law(4, Span::SECOND));
        let mut log = Log::default();
        assert!(!log.join_newest());
        for at in [0, 1] {
            assert_eq!(hourly.draw(&mut log, Micros::new(at), Amount::exactly(2)), Some(2));
        }
        let later = Micros::new(2_000_000);
        quick.take_over(&mut log, &hourly, later);
        assert!(!log.join_newest(), "only what is in sight takes others in");
        assert_eq!(quick.draw(&mut log, later, Amount::exactly(3)), Some(3));
        assert!(log.join_newest());
        assert_eq!((log.used, log.past_units, log.entries()), (5, 2, 2));
        assert_eq!(quick.draw(&mut log, later, Amount::exactly(1)), None, "more than the amount is used");
        assert!(log.join_newest() && !log.join_newest());
        assert_eq!(log.runs().collect::<Vec<_>>(), [(later, 7)]);
        hourly.take_over(&mut log, &quick, Micros::new(4_000_000));
        assert_eq!(hourly.draw(&mut log, Micros::new(4_000_000), Amount::exactly(1)), None);
    }

    #[test]
    fn a_log_that_has_drained_gives_its_memory_back() {
        let runs = (0..1000).map(|at| (Micros::new(at), 1)).collect();
        let mut roll = ListState::Log(Log { runs, used: 1000, ..Log::default() });
        let ListState::Log(log) = &mut roll else { return };
        SlidingLog { amount: 1000, per: Span::micros(10) }.age(log, Micros::new(1008));
        assert_eq!((log.entries(), log.used), (1, 1));
        roll.shrink();
        assert!(matches!(&roll, ListState::Log(log) if log.runs.capacity() < 100));
    }
}
