//! The sliding window log: exact, at the cost of recording every admitted unit.
//!
//! A unit admitted at `t` counts until just before `t + per`. Units admitted in the same microsecond form one run,
//! so that all of them count and a burst costs one entry.
//!
//! If quotas with different periods alternate, units that the current quota no longer counts are retained for as
//! long as a prior quota would count them. Otherwise a quota of one second would erase the state of a quota of one
//! hour.

use crate::op::Amount;
use crate::status::{Forecast, Retry};
use crate::time::{MAX_CLOCK_STEP_BACK, Micros, Span};
use std::collections::VecDeque;

/// The constants of a sliding window log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) amount: u32,
    pub(crate) per: Span,
}

/// The units that a sliding window log has recorded, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    runs: VecDeque<(Micros, u32)>,
    used: u32,
    /// Units that only a prior quota still counts, oldest first.
    retained: VecDeque<(Micros, u32)>,
    retained_units: u32,
    prior_retention: Option<PriorRetention>,
}

/// What must be retained for quotas before the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorRetention {
    /// The longest of their periods.
    pub per: Span,
    /// How many units they counted when they were last in use. Retaining that many of the newest units is enough,
    /// since no prior quota has admitted more.
    pub units: u32,
    /// When the last of those units stops counting.
    pub until: Micros,
}

impl Log {
    /// Returns the number of entries, which its memory use is proportional to.
    pub fn entries(&self) -> usize {
        self.retained.len() + self.runs.len()
    }

    /// Returns when units were admitted and how many, oldest first, including those retained for a prior quota.
    pub fn runs(&self) -> impl Iterator<Item = (Micros, u32)> {
        self.retained.iter().chain(&self.runs).copied()
    }

    /// Returns what is retained for prior quotas.
    pub fn prior_retention(&self) -> Option<PriorRetention> {
        self.prior_retention
    }

    /// Merges the run before the newest into the newest, as if its units had been admitted with the newest. They
    /// then count for longer, never for less. A run that was only retained for a prior quota then counts under this
    /// one too, so the used units may exceed the amount. Returns `false` if there is no run to merge.
    pub fn merge_newest_runs(&mut self) -> bool {
        let last = self.runs.len().saturating_sub(1);
        let before = match last {
            0 => self.retained.back().copied(),
            last => Some(self.runs[last - 1]),
        };
        let (Some((at, run)), Some((_, earlier))) = (self.runs.back().copied(), before) else { return false };
        let (Some(run), Some(used)) = (run.checked_add(earlier), self.used.checked_add(earlier)) else {
            return false;
        };
        self.runs.pop_back();
        if self.runs.pop_back().is_none() {
            self.retained.pop_back();
            self.retained_units -= earlier;
            self.used = used;
        }
        self.runs.push_back((at, run));
        true
    }

    pub(super) fn shrink(&mut self) {
        super::shrink(&mut self.runs);
        super::shrink(&mut self.retained);
    }

    fn newest_at(&self) -> Option<Micros> {
        self.runs.back().or(self.retained.back()).map(|(at, _)| *at)
    }

    /// Returns the effective current time. It is never before the newest unit, unless the clock was set back too
    /// far to wait for it: then all units are shifted so that the newest was admitted now.
    fn effective_now(&mut self, now: Micros) -> Micros {
        let Some(newest) = self.newest_at() else { return now };
        let back = newest.since(now);
        if back <= MAX_CLOCK_STEP_BACK {
            return newest.max(now);
        }
        for (at, _) in self.retained.iter_mut().chain(&mut self.runs) {
            *at = at.minus(back);
        }
        if let Some(earlier) = &mut self.prior_retention {
            earlier.until = earlier.until.minus(back);
        }
        now
    }

    /// Removes the last `units` admitted.
    pub(crate) fn refund(&mut self, mut units: u32) {
        while let Some((_, run)) = self.runs.back_mut().filter(|_| units > 0) {
            let taken = units.min(*run);
            *run -= taken;
            self.used -= taken;
            units -= taken;
            if *run == 0 {
                self.runs.pop_back();
            }
        }
        self.clear_retention_if_empty();
    }

    /// Without any unit nothing has to be retained.
    fn clear_retention_if_empty(&mut self) {
        if self.entries() == 0 {
            self.prior_retention = None;
        }
    }
}

impl SlidingLog {
    /// Drops expired units, then admits as much of `amount` as fits.
    pub(crate) fn take(&self, log: &mut Log, now: Micros, amount: Amount) -> Option<u32> {
        self.age(log, now);
        let remaining = self.amount.saturating_sub(log.used);
        if amount.at_least() > remaining {
            return None;
        }
        let granted = amount.at_most().min(remaining);
        if granted > 0 {
            // A clock that steps back must not put a unit before an older one.
            let at = log.newest_at().map_or(now, |newest| newest.max(now));
            match log.runs.back_mut().filter(|(newest, _)| *newest == at) {
                Some((_, run)) => *run += granted,
                None => log.runs.push_back((at, granted)),
            }
            log.used += granted;
        }
        Some(granted)
    }

    /// Drops units that neither this quota nor a prior one counts.
    pub(crate) fn age(&self, log: &mut Log, now: Micros) {
        let now = log.effective_now(now);
        if !log.retained.is_empty() {
            self.restore_retained(log, now);
        }
        while let Some((at, run)) = log.runs.pop_front_if(|(at, _)| at.plus(self.per) <= now) {
            log.used -= run;
            if log.prior_retention.is_some() {
                log.retained.push_back((at, run));
                log.retained_units += run;
            }
        }
        if let Some(earlier) = log.prior_retention {
            SlidingLog::age_retained(log, earlier, now);
        }
    }

    /// Counts retained units again that fall within the period of this quota.
    #[cold]
    fn restore_retained(&self, log: &mut Log, now: Micros) {
        while let Some((at, run)) = log.retained.pop_back_if(|(at, _)| at.plus(self.per) > now) {
            log.runs.push_front((at, run));
            log.retained_units -= run;
            log.used += run;
        }
    }

    #[cold]
    fn age_retained(log: &mut Log, earlier: PriorRetention, now: Micros) {
        if earlier.until <= now {
            (log.prior_retention, log.retained_units) = (None, 0);
            log.retained.clear();
            return;
        }
        // Units of this instant may still be removed because another limit of the same request denies.
        let committed = log.used - log.runs.back().map_or(0, |(at, run)| if *at == now { *run } else { 0 });
        while let Some((at, run)) = log.retained.front().copied() {
            let is_enough = log.retained_units - run + committed >= earlier.units;
            if at.plus(earlier.per) > now && !is_enough {
                break;
            }
            log.retained.pop_front();
            log.retained_units -= run;
        }
        log.clear_retention_if_empty();
    }

    /// Continues a log that `before` wrote. All units keep their times and count if they fall within the period of
    /// this quota; units that only `before` would count are retained for it until they expire.
    pub(crate) fn adopt(&self, log: &mut Log, before: &SlidingLog, now: Micros) {
        before.age(log, now);
        if self.per == before.per {
            return;
        }
        let now = log.effective_now(now);
        if let Some(newest) = log.runs.back().map(|(at, _)| *at) {
            let left = PriorRetention { per: before.per, units: log.used, until: newest.plus(before.per) };
            log.prior_retention = Some(log.prior_retention.map_or(left, |earlier| PriorRetention {
                per: earlier.per.max(left.per),
                units: earlier.units.max(left.units),
                until: earlier.until.max(left.until),
            }));
        }
        self.restore_retained(log, now);
        // A quota with the longest period keeps all units that the others need.
        if log.prior_retention.is_some_and(|earlier| earlier.per <= self.per) {
            log.prior_retention = None;
            log.retained.clear();
            log.retained_units = 0;
        }
        self.age(log, now);
    }

    /// Returns the forecast after a draw of `amount` at `now` that got `granted`.
    pub(crate) fn forecast(&self, log: &Log, now: Micros, amount: Amount, granted: Option<u32>) -> Forecast {
        let freed = |at: Micros| at.plus(self.per).since(now);
        Forecast {
            remaining: self.amount.saturating_sub(log.used),
            reset: log.newest_at().map_or(Span::ZERO, freed),
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(log, now, amount)) } else { None },
        }
    }

    /// Returns when enough of the oldest units will have expired.
    fn retry(&self, log: &Log, now: Micros, amount: Amount) -> Retry {
        let Some(allowed) = self.amount.checked_sub(amount.at_least()) else { return Retry::Never };
        let mut left = log.used;
        let last_blocking = log.runs.iter().find(|(_, run)| {
            left -= run;
            left <= allowed
        });
        Retry::After(last_blocking.map_or(Span::ZERO, |(at, _)| at.plus(self.per).since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::ListState;

    #[test]
    fn merged_runs_count_as_long_as_the_newest() {
        let window = |amount, per| SlidingLog { amount, per };
        let (hourly, short) = (window(4, Span::HOUR), window(4, Span::SECOND));
        let mut log = Log::default();
        assert!(!log.merge_newest_runs());
        for at in [0, 1] {
            assert_eq!(hourly.take(&mut log, Micros::new(at), Amount::exactly(2)), Some(2));
        }
        let later = Micros::new(2_000_000);
        short.adopt(&mut log, &hourly, later);
        assert!(!log.merge_newest_runs(), "only a run that counts can absorb another");
        assert_eq!(short.take(&mut log, later, Amount::exactly(3)), Some(3));
        assert!(log.merge_newest_runs());
        assert_eq!((log.used, log.retained_units, log.entries()), (5, 2, 2));
        assert_eq!(short.take(&mut log, later, Amount::exactly(1)), None, "more than the amount is used");
        assert!(log.merge_newest_runs() && !log.merge_newest_runs());
        assert_eq!(log.runs().collect::<Vec<_>>(), [(later, 7)]);
        hourly.adopt(&mut log, &short, Micros::new(4_000_000));
        assert_eq!(hourly.take(&mut log, Micros::new(4_000_000), Amount::exactly(1)), None);
    }

    #[test]
    fn an_expired_log_frees_its_memory() {
        let runs = (0..1000).map(|at| (Micros::new(at), 1)).collect();
        let mut list = ListState::Log(Log { runs, used: 1000, ..Log::default() });
        let ListState::Log(log) = &mut list else { return };
        SlidingLog { amount: 1000, per: Span::micros(10) }.age(log, Micros::new(1008));
        assert_eq!((log.entries(), log.used), (1, 1));
        list.shrink();
        assert!(matches!(&list, ListState::Log(log) if log.runs.capacity() < 100));
    }
}
