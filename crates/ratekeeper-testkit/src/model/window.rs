//! Fixed windows: every grant with its time and the end of its window; grants with the same end share a window.

use super::{AlgorithmModel, calendar};
use ratekeeper_core::{Algorithm, Align, Limit, MAX_CLOCK_STEP_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct Windows {
    limit: Limit,
    /// The time, the window's end and the units of each grant.
    grants: Vec<(Micros, Micros, u32)>,
}

impl Windows {
    pub(super) fn new(limit: &Limit) -> Windows {
        Windows { limit: *limit, grants: Vec::new() }
    }

    fn window_end(&self, now: Micros) -> Micros {
        let per = self.limit.quota().per();
        match self.limit.algorithm() {
            Algorithm::FixedWindow(Align::FirstHit) => now.plus(per),
            Algorithm::FixedWindow(Align::WallClock(zone))
                if [Span::DAY, Span::WEEK, Span::MONTH].contains(&per) =>
            {
                calendar::period_end(now, per, zone)
            }
            _ => Micros::new(now.get() - now.get() % per.get()).plus(per),
        }
    }

    /// The end of the window that is open at `now`, or `None`.
    fn open_window_end(&self, now: Micros) -> Option<Micros> {
        self.grants.last().map(|(_, end, _)| *end).filter(|end| now < *end)
    }

    fn used(&self, now: Micros) -> u64 {
        let Some(open) = self.open_window_end(now) else { return 0 };
        self.grants.iter().filter(|(_, end, _)| *end == open).map(|(_, _, units)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for Windows {
    /// If the clock stepped back further than any window is long, moves the grants to the current window.
    fn advance(&mut self, now: Micros) {
        let Some(open) = self.open_window_end(now).filter(|_| self.used(now) > 0) else { return };
        let (per, hour) = (self.limit.quota().per(), Span::HOUR.get());
        let longer = match (self.limit.algorithm(), per) {
            (Algorithm::FixedWindow(Align::WallClock(_)), Span::DAY | Span::WEEK) => 2 * hour,
            (Algorithm::FixedWindow(Align::WallClock(_)), Span::MONTH) => 26 * hour,
            _ => 0,
        };
        if open.since(now).get() > per.get() + longer + MAX_CLOCK_STEP_BACK.get() {
            let end = self.window_end(now);
            self.grants.retain(|(_, other, _)| *other == open);
            self.grants.iter_mut().for_each(|(_, other, _)| *other = end);
        }
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()) - self.used(now)
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            let end = self.open_window_end(now).unwrap_or_else(|| self.window_end(now));
            // An ended window stays ended, even if the clock steps back into it.
            self.grants.retain(|(_, other, _)| *other == end);
            self.grants.push((now, end, units));
        }
    }

    fn refund(&mut self, now: Micros, mut units: u32, _permit: PermitId) {
        let Some(open) = self.open_window_end(now) else { return self.grants.clear() };
        for (_, _, taken) in self.grants.iter_mut().rev().filter(|(_, end, _)| *end == open) {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.grants.retain(|(_, _, units)| *units > 0);
    }

    fn change_quota(&mut self, limit: &Limit, now: Micros) {
        let (used, open, before) = (self.used(now), self.open_window_end(now), self.limit);
        *self = Windows::new(limit);
        // Windows that start at the first hit belong to one quota.
        let is_same_window = (before.algorithm(), before.quota().per())
            == (limit.algorithm(), limit.quota().per())
            && limit.algorithm() != Algorithm::FixedWindow(Align::FirstHit);
        let end = open.filter(|_| is_same_window).unwrap_or_else(|| self.window_end(now));
        let used = used.min(u64::from(limit.quota().amount()));
        self.grants.push((now, end, u32::try_from(used).expect("at most the amount")));
    }

    fn boxed_clone(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
