//! The sliding window log: every unit with its time, summed over the window at each request.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, MAX_CLOCK_STEP_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct UnitLog {
    limit: Limit,
    units: Vec<(Micros, u32)>,
    retention: Option<ModelRetention>,
}

/// How long units are kept for earlier quotas, how many of the newest, and until when that is needed.
#[derive(Clone, Copy)]
struct ModelRetention {
    per: Span,
    units: u64,
    until: Micros,
}

impl UnitLog {
    pub(super) fn new(limit: &Limit) -> UnitLog {
        UnitLog { limit: *limit, units: Vec::new(), retention: None }
    }

    fn effective_time(&self, now: Micros) -> Micros {
        self.units.last().map_or(now, |(newest, _)| now.max(*newest))
    }

    fn used(&self, now: Micros) -> u64 {
        let now = self.effective_time(now);
        let is_in_window = |at: Micros| at.plus(self.limit.quota().per()) > now;
        self.units.iter().filter(|(at, _)| is_in_window(*at)).map(|(_, units)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for UnitLog {
    fn advance(&mut self, now: Micros) {
        let back = self.units.last().map_or(Span::ZERO, |(newest, _)| newest.since(now));
        if back > MAX_CLOCK_STEP_BACK {
            self.units.iter_mut().for_each(|(at, _)| *at = at.minus(back));
            if let Some(earlier) = &mut self.retention {
                earlier.until = earlier.until.minus(back);
            }
        }
        let (now, per) = (self.effective_time(now), self.limit.quota().per());
        self.retention = self.retention.filter(|earlier| earlier.until > now);
        let earlier = self.retention.unwrap_or(ModelRetention { per, units: 0, until: now });
        let units = self.units.clone();
        // Units of this instant may yet be refunded.
        let newer = |index: usize| -> u64 {
            units[index + 1..].iter().filter(|(at, _)| *at < now).map(|(_, units)| u64::from(*units)).sum()
        };
        let is_kept = |(index, (at, _)): (usize, &(Micros, u32))| {
            at.plus(per) > now || at.plus(earlier.per) > now && newer(index) < earlier.units
        };
        self.units = units.iter().enumerate().filter(|unit| is_kept(*unit)).map(|(_, unit)| *unit).collect();
        self.retention = self.retention.filter(|_| !self.units.is_empty());
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()).saturating_sub(self.used(now))
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            // Units of the same microsecond are kept or dropped together.
            let at = self.effective_time(now);
            match self.units.last_mut().filter(|(newest, _)| *newest == at) {
                Some((_, newest)) => *newest += units,
                None => self.units.push((at, units)),
            }
        }
    }

    fn refund(&mut self, now: Micros, units: u32, _permit: PermitId) {
        // Units that only an earlier quota counts cannot be refunded under this one.
        let mut units = units.min(u32::try_from(self.used(now)).unwrap_or(u32::MAX));
        for (_, taken) in self.units.iter_mut().rev() {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.units.retain(|(_, units)| *units > 0);
        self.retention = self.retention.filter(|_| !self.units.is_empty());
    }

    fn change_quota(&mut self, limit: &Limit, now: Micros) {
        self.advance(now);
        let (per, units) = (self.limit.quota().per(), self.used(now));
        self.limit = *limit;
        if per != limit.quota().per() && units > 0 {
            let until = self.units.last().map_or(now, |(newest, _)| newest.plus(per));
            let old = self.retention.unwrap_or(ModelRetention { per, units, until });
            self.retention = Some(ModelRetention {
                per: old.per.max(per),
                units: old.units.max(units),
                until: old.until.max(until),
            });
        }
        // A longer period keeps everything that the earlier quotas need.
        if per != limit.quota().per() {
            self.retention = self.retention.filter(|earlier| earlier.per > limit.quota().per());
        }
    }

    fn boxed_clone(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
