//! Places held under a concurrency limit.

use crate::limiter::LimiterInner;
use crate::store::Store;
use ratekeeper_core::{Decision, Key, KeyRef, PermitId};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Places held under a concurrency limit, freed when this is dropped.
///
/// It owns what it needs, so it can move into the task that does the work. A permit whose process dies lapses by
/// itself after the limit's period.
#[derive(Debug)]
#[must_use = "the places are freed as soon as the permit is dropped"]
pub struct Permit<S: Store> {
    shared: Arc<LimiterInner<S>>,
    key: Key,
    id: PermitId,
    decision: Decision,
}

impl<S: Store> Permit<S> {
    pub(crate) fn new(
        shared: Arc<LimiterInner<S>>,
        key: KeyRef<'_>,
        id: PermitId,
        decision: Decision,
    ) -> Permit<S> {
        Permit { shared, key: key.to_key(), id, decision }
    }

    /// What was decided when the places were taken.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

impl<S: Store> Drop for Permit<S> {
    fn drop(&mut self) {
        self.shared.release(&self.key, self.id);
    }
}

/// Names for permits that no other process will choose: a keyed hash of a counter.
#[derive(Debug)]
pub(crate) struct PermitIds {
    next: AtomicU64,
    random: RandomState,
}

impl PermitIds {
    pub(crate) fn random() -> PermitIds {
        PermitIds { next: AtomicU64::new(0), random: RandomState::new() }
    }

    pub(crate) fn next(&self) -> PermitId {
        PermitId(self.random.hash_one(self.next.fetch_add(1, Relaxed)))
    }
}
