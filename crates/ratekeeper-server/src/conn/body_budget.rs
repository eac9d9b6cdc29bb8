//! A memory budget for all unfinished request bodies of a server.
//!
//! The size of each body is bounded, but an HTTP/2 client sends many at once, and there are many clients. A body that
//! arrives in one piece, as nearly all do, never counts. A body that has to be awaited counts until it is complete. If
//! the budget is exhausted, the request is rejected and the rest of its body discarded.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The bytes held by all unfinished bodies, and their maximum.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max_bytes: usize,
    held: AtomicUsize,
    rejected: AtomicU64,
}

impl Default for BodyBudget {
    fn default() -> BodyBudget {
        BodyBudget::new(BodyBudget::DEFAULT_BYTES)
    }
}

impl BodyBudget {
    /// Enough for a thousand of the largest checks, or sixteen of the largest batches.
    pub(crate) const DEFAULT_BYTES: usize = 64 << 20;

    pub(crate) fn new(max_bytes: usize) -> BodyBudget {
        BodyBudget { max_bytes, held: AtomicUsize::new(0), rejected: AtomicU64::new(0) }
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// The number of bodies rejected so far.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// Counts a rejected body.
    pub(crate) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }
}

/// The bytes of the budget that one body holds, released on drop.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> HeldBytes {
        HeldBytes { budget, bytes: 0 }
    }

    /// Grows to `bytes` in total. Returns `false`, and holds no more than before, if the budget would be exceeded.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let BodyBudget { max_bytes: most, held, .. } = &*self.budget;
        let fits = |held: usize| held.checked_add(more).filter(|held| held <= most);
        let has_grown = held.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if has_grown {
            self.bytes = bytes;
        }
        has_grown
    }

    /// Returns all bytes to the budget.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.bytes > 0 {
            self.budget.held.fetch_sub(self.bytes, Relaxed);
            self.bytes = 0;
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_stay_within_the_budget_and_are_released() {
        let budget = Arc::new(BodyBudget::new(100));
        let [mut one, mut other] = [(); 2].map(|()| HeldBytes::new(Arc::clone(&budget)));
        assert!(one.grow_to(60) && one.grow_to(40) && other.grow_to(40));
        assert_eq!(budget.held(), 100);
        assert!(!other.grow_to(41) && !other.grow_to(usize::MAX));
        one.release();
        assert!(other.grow_to(100));
        drop((one, other));
        assert_eq!(budget.held(), 0);
    }
}
