//! The concurrency limit: a list of who is inside and until when.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, Micros, PermitId};

#[derive(Clone)]
pub(super) struct HeldPermits {
    limit: Limit,
    inside: Vec<(PermitId, u32, Micros)>,
}

impl HeldPermits {
    pub(super) fn new(limit: &Limit) -> HeldPermits {
        HeldPermits { limit: *limit, inside: Vec::new() }
    }

    fn used(&self, now: Micros) -> u64 {
        self.inside.iter().filter(|(_, _, until)| *until > now).map(|(_, units, _)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for HeldPermits {
    fn settle(&mut self, now: Micros) {
        self.inside.retain(|(_, _, until)| *until > now);
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()).saturating_sub(self.used(now))
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, permit: PermitId) {
        if units > 0 {
            self.inside.push((permit, units, now.plus(self.limit.quota().per())));
        }
    }

    fn give(&mut self, _now: Micros, _units: u32, permit: PermitId) {
        self.inside.retain(|(holder, _, _)| *holder != permit);
    }

    fn change(&mut self, limit: &Limit, _now: Micros) {
        self.limit = *limit;
    }

    fn copy(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
