//! The sliding log: every unit with its time, counted one stretch at a time.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, MOST_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct Units {
    limit: Limit,
    units: Vec<(Micros, u32)>,
    earlier: Option<ModelRetention>,
}

/// For how long units are kept for earlier quotas, how many of the newest, and until when that is needed.
#[derive(Clone, Copy)]
struct ModelRetention {
    per: Span,
    units: u64,
    until: Micros,
}

impl Units {
    pub(super) fn new(limit: &Limit) -> Units {
        Units { limit: *limit, units: Vec::new(), earlier: None }
    }

    fn time(&self, now: Micros) -> Micros {
        self.units.last().map_or(now, |(newest, _)| now.max(*newest))
    }

    fn used(&self, now: Micros) -> u64 {
        let now = self.time(now);
        let in_sight = |at: Micros| at.plus(self.limit.quota().per()) > now;
        self.units.iter().filter(|(at, _)| in_sight(*at)).map(|(_, units)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for Units {
    fn settle(&mut self, now: Micros) {
        let back = self.units.last().map_or(Span::ZERO, |(newest, _)| newest.since(now));
        if back > MOST_BACK {
            self.units.iter_mut().for_each(|(at, _)| *at = at.less(back));
            if let Some(earlier) = &mut self.earlier {
                earlier.until = earlier.until.less(back);
            }
        }
        let (now, per) = (self.time(now), self.limit.quota().per());
        self.earlier = self.earlier.filter(|earlier| earlier.until > now);
        let earlier = self.earlier.unwrap_or(ModelRetention { per, units: 0, until: now });
        let units = self.units.clone();
        // Units of this instant may yet be given back.
        let newer = |index: usize| -> u64 {
            units[index + 1..].iter().filter(|(at, _)| *at < now).map(|(_, units)| u64::from(*units)).sum()
        };
        let is_kept = |(index, (at, _)): (usize, &(Micros, u32))| {
            at.plus(per) > now || at.plus(earlier.per) > now && newer(index) < earlier.units
        };
        self.units = units.iter().enumerate().filter(|unit| is_kept(*unit)).map(|(_, unit)| *unit).collect();
        self.earlier = self.earlier.filter(|_| !self.units.is_empty());
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()).saturating_sub(self.used(now))
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            // Units of one microsecond are kept or dropped together.
            let at = self.time(now);
            match self.units.last_mut().filter(|(newest, _)| *newest == at) {
                Some((_, newest)) => *newest += units,
                None => self.units.push((at, units)),
            }
        }
    }

    fn give(&mut self, now: Micros, units: u32, _permit: PermitId) {
        // What only an earlier quota counts is not this one's to give back.
        let mut units = units.min(u32::try_from(self.used(now)).unwrap_or(u32::MAX));
        for (_, taken) in self.units.iter_mut().rev() {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.units.retain(|(_, units)| *units > 0);
        self.earlier = self.earlier.filter(|_| !self.units.is_empty());
    }

    fn change(&mut self, limit: &Limit, now: Micros) {
        self.settle(now);
        let (per, units) = (self.limit.quota().per(), self.used(now));
        self.limit = *limit;
        if per != limit.quota().per() && units > 0 {
            let until = self.units.last().map_or(now, |(newest, _)| newest.plus(per));
            let old = self.earlier.unwrap_or(ModelRetention { per, units, until });
            self.earlier = Some(ModelRetention {
                per: old.per.max(per),
                units: old.units.max(units),
                until: old.until.max(until),
            });
        }
        // A longer period keeps all that the others need.
        if per != limit.quota().per() {
            self.earlier = self.earlier.filter(|earlier| earlier.per > limit.quota().per());
        }
    }

    fn copy(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
