//! Permits of concurrency limits.

use super::LimiterInner;
use crate::store::Store;
use ratekeeper_core::{Decision, Key, KeyRef, PermitId};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Slots held under a concurrency limit. Dropping the permit frees them.
///
/// A permit borrows nothing, so it can move into the task that does the work. If its process dies, it expires after
/// the period of the limit.
#[derive(Debug)]
#[must_use = "the slots are freed as soon as the permit is dropped"]
pub struct Permit<S: Store> {
    limiter: Arc<LimiterInner<S>>,
    key: Key,
    id: PermitId,
    decision: Decision,
}

impl<S: Store> Permit<S> {
    pub(crate) fn new(
        limiter: Arc<LimiterInner<S>>,
        key: KeyRef<'_>,
        id: PermitId,
        decision: Decision,
    ) -> Permit<S> {
        Permit { limiter, key: key.to_key(), id, decision }
    }

    /// Returns the decision that granted the permit.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

impl<S: Store> Drop for Permit<S> {
    fn drop(&mut self) {
        self.limiter.release(&self.key, self.id);
    }
}

/// Generates permit ids that don't collide with those of other processes: a randomly keyed hash of a counter.
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
