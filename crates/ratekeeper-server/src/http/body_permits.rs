//! Room for bodies that are larger than most.
//!
//! Small bodies are bounded by the number of connections. Larger ones, of which each may take megabytes, share a fixed
//! number of places: who finds none is told to come back, and the server's memory stays what it is.

use super::body_budget::{BodyBudget, HeldBytes};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of a body that needs no place.
pub(crate) const SMALL_BYTES: usize = 64 * 1024;
/// How many larger bodies there may be at once.
const PLACES: usize = 64;

/// Room for larger bodies, shared by all connections of a port, and the budget that all of a server's bodies share.
#[derive(Clone, Debug)]
pub(crate) struct BodyPermits {
    places: Arc<Semaphore>,
    budget: Arc<BodyBudget>,
}

impl Default for BodyPermits {
    fn default() -> BodyPermits {
        BodyPermits::new(Arc::default())
    }
}

/// A place for one of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    _permit: OwnedSemaphorePermit,
}

impl BodyPermits {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> BodyPermits {
        BodyPermits { places: Arc::new(Semaphore::new(PLACES)), budget }
    }

    /// What a body that has to be waited for counts by: nothing yet.
    pub(crate) fn hold(&self) -> HeldBytes {
        HeldBytes::new(Arc::clone(&self.budget))
    }

    /// Counts a body for which there was no room in the budget.
    pub(crate) fn refuse(&self) {
        self.budget.refuse();
    }

    /// A place, if one is free.
    pub(crate) fn place(&self) -> Option<BodyPermit> {
        Arc::clone(&self.places).try_acquire_owned().ok().map(|permit| BodyPermit { _permit: permit })
    }
}
