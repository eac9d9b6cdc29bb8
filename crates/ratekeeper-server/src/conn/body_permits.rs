//! Permits for large request bodies.
//!
//! Small bodies are bounded by the number of connections. Larger ones may take megabytes each and share a fixed number
//! of permits: a request without one is rejected and told to retry, so memory stays bounded.

use super::body_budget::{BodyBudget, HeldBytes};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of a body that needs no permit.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1024;
/// The most larger bodies at once.
const MAX_LARGE_BODIES: usize = 64;

/// Permits for large bodies, shared by all connections of a listener, and the budget shared by all bodies of a server.
#[derive(Clone, Debug)]
pub(crate) struct BodyPermits {
    permits: Arc<Semaphore>,
    budget: Arc<BodyBudget>,
}

impl Default for BodyPermits {
    fn default() -> BodyPermits {
        BodyPermits::new(Arc::default())
    }
}

/// The permit for one large body, released on drop.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    _permit: OwnedSemaphorePermit,
}

impl BodyPermits {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> BodyPermits {
        BodyPermits { permits: Arc::new(Semaphore::new(MAX_LARGE_BODIES)), budget }
    }

    /// A share of the budget for one body, of 0 bytes at first.
    pub(crate) fn held_bytes(&self) -> HeldBytes {
        HeldBytes::new(Arc::clone(&self.budget))
    }

    /// Counts a body that was rejected because the budget was exhausted.
    pub(crate) fn count_rejected(&self) {
        self.budget.count_rejected();
    }

    /// Takes a permit. Returns `None` if none is free.
    pub(crate) fn try_acquire(&self) -> Option<BodyPermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok().map(|permit| BodyPermit { _permit: permit })
    }
}
