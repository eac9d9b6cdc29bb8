//! The sliding log: every unit with its time, counted one stretch at a time.

use super::Slow;
use tollgate_core::{Limit, Micros, PermitId};

#[derive(Clone)]
pub(super) struct Units {
    limit: Limit,
    units: Vec<(Micros, u32)>,
}

impl Units {
    pub(super) fn new(limit: &Limit) -> Units {
        Units { limit: *limit, units: Vec::new() }
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

impl Slow for Units {
    fn settle(&mut self, now: Micros) {
        let (now, per) = (self.time(now), self.limit.quota().per());
        self.units.retain(|(at, units)| at.plus(per) > now && *units > 0);
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()).saturating_sub(self.used(now))
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            self.units.push((self.time(now), units));
        }
    }

    fn give(&mut self, _now: Micros, mut units: u32, _permit: PermitId) {
        for (_, taken) in self.units.iter_mut().rev() {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.units.retain(|(_, units)| *units > 0);
    }

    fn change(&mut self, limit: &Limit, now: Micros) {
        self.settle(now);
        self.limit = *limit;
    }

    fn copy(&self) -> Box<dyn Slow> {
        Box::new(self.clone())
    }
}
