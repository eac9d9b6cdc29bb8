//! Fixed windows: every unit with its time; a window is whatever units fall between the same two lines.

use super::{AlgorithmModel, calendar};
use ratekeeper_core::{Algorithm, Align, Limit, MOST_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct Windows {
    limit: Limit,
    /// When each grant came, in which window's end it lies, and its units.
    grants: Vec<(Micros, Micros, u32)>,
}

impl Windows {
    pub(super) fn new(limit: &Limit) -> Windows {
        Windows { limit: *limit, grants: Vec::new() }
    }

    fn end(&self, now: Micros) -> Micros {
        let per = self.limit.quota().per();
        match self.limit.law() {
            Algorithm::FixedWindow(Align::FirstHit) => now.plus(per),
            Algorithm::FixedWindow(Align::Wall(zone))
                if [Span::DAY, Span::WEEK, Span::MONTH].contains(&per) =>
            {
                calendar::end(now, per, zone)
            }
            _ => Micros::new(now.get() - now.get() % per.get()).plus(per),
        }
    }

    /// The end of the window that is open at `now`, if one is.
    fn open(&self, now: Micros) -> Option<Micros> {
        self.grants.last().map(|(_, end, _)| *end).filter(|end| now < *end)
    }

    fn used(&self, now: Micros) -> u64 {
        let Some(open) = self.open(now) else { return 0 };
        self.grants.iter().filter(|(_, end, _)| *end == open).map(|(_, _, units)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for Windows {
    /// If the clock was set back so far that no window lasts that long, the window is the one that it is in.
    fn settle(&mut self, now: Micros) {
        let Some(open) = self.open(now).filter(|_| self.used(now) > 0) else { return };
        let (per, hour) = (self.limit.quota().per(), Span::HOUR.get());
        let longer = match (self.limit.law(), per) {
            (Algorithm::FixedWindow(Align::Wall(_)), Span::DAY | Span::WEEK) => 2 * hour,
            (Algorithm::FixedWindow(Align::Wall(_)), Span::MONTH) => 26 * hour,
            _ => 0,
        };
        if open.since(now).get() > per.get() + longer + MOST_BACK.get() {
            let end = self.end(now);
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
            let end = self.open(now).unwrap_or_else(|| self.end(now));
            // A window that is over is over, even if the clock should step back into it.
            self.grants.retain(|(_, other, _)| *other == end);
            self.grants.push((now, end, units));
        }
    }

    fn give(&mut self, now: Micros, mut units: u32, _permit: PermitId) {
        let Some(open) = self.open(now) else { return self.grants.clear() };
        for (_, _, taken) in self.grants.iter_mut().rev().filter(|(_, end, _)| *end == open) {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.grants.retain(|(_, _, units)| *units > 0);
    }

    fn change(&mut self, limit: &Limit, now: Micros) {
        let (used, open, before) = (self.used(now), self.open(now), self.limit);
        *self = Windows::new(limit);
        // From the first hit, every quota has windows of its own.
        let is_same_window = (before.law(), before.quota().per()) == (limit.law(), limit.quota().per())
            && limit.law() != Algorithm::FixedWindow(Align::FirstHit);
        let end = open.filter(|_| is_same_window).unwrap_or_else(|| self.end(now));
        let used = used.min(u64::from(limit.quota().amount()));
        self.grants.push((now, end, u32::try_from(used).expect("at most the amount")));
    }

    fn copy(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
