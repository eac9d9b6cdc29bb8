//! Test support: an API on a manual clock.

use super::{Api, ApiOptions};
use crate::denial_log::DenialLog;
use ratekeeper::rules::{CheckRequest, RuleSet, Verb, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter};
use std::sync::Arc;

pub(crate) type TestApi = Api<MemoryStore<Arc<ManualClock>>>;

/// An API with these rules, and its clock, which starts at 1 700 000 000.25 s and stands still.
pub(crate) fn api(rules: &str, options: ApiOptions) -> (Arc<TestApi>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let rules = RuleSet::compile(&read(rules, Micros::EPOCH).spec.unwrap()).unwrap();
    let limiter = RuleLimiter::new(rules, store, Arc::clone(&clock));
    (Arc::new(Api::new(limiter, options, Arc::new(DenialLog::new(0)))), clock)
}

impl TestApi {
    /// The units that a client has left.
    pub(crate) async fn left(&self, client_key: &str) -> u32 {
        let batch = self.limiter.decide_one(Verb::Peek, &CheckRequest::new(client_key)).await;
        batch.decision(0).remaining()
    }
}
