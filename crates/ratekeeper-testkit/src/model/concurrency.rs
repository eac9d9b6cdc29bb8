//! The concurrency limit: a list of the held permits, each with its units and its expiry.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, Micros, PermitId};

#[derive(Clone)]
pub(super) struct HeldPermits {
    limit: Limit,
    permits: Vec<(PermitId, u32, Micros)>,
}

impl HeldPermits {
    pub(super) fn new(limit: &Limit) -> HeldPermits {
        HeldPermits { limit: *limit, permits: Vec::new() }
    }

    fn used(&self, now: Micros) -> u64 {
        self.permits.iter().filter(|(_, _, until)| *until > now).map(|(_, units, _)| u64::from(*units)).sum()
    }
}

impl AlgorithmModel for HeldPermits {
    fn advance(&mut self, now: Micros) {
        self.permits.retain(|(_, _, until)| *until > now);
    }

    fn free(&self, now: Micros) -> u64 {
        u64::from(self.limit.quota().amount()).saturating_sub(self.used(now))
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.used(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, permit: PermitId) {
        if units > 0 {
            self.permits.push((permit, units, now.plus(self.limit.quota().per())));
        }
    }

    fn refund(&mut self, _now: Micros, _units: u32, permit: PermitId) {
        self.permits.retain(|(holder, _, _)| *holder != permit);
    }

    fn change_quota(&mut self, limit: &Limit, _now: Micros) {
        self.limit = *limit;
    }

    fn boxed_clone(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}
