//! The memory that all unfinished bodies of a server may take together.
//!
//! Each body has a bound of its own, but a client of HTTP/2 has many at once, and there are many clients. A body that comes in
//! one piece, as nearly all do, is never counted; one that has to be waited for counts for as long as that takes. If there
//! is no room for it, its request is refused and what comes of it is thrown away.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The bytes of all unfinished bodies.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    most: usize,
    held: AtomicUsize,
    refused: AtomicU64,
}

impl Default for BodyBudget {
    fn default() -> BodyBudget {
        BodyBudget::new(BodyBudget::DEFAULT_BYTES)
    }
}

impl BodyBudget {
    /// Some thousand of the largest checks, or sixteen of the largest batches.
    pub(crate) const DEFAULT_BYTES: usize = 64 << 20;

    pub(crate) fn new(most: usize) -> BodyBudget {
        BodyBudget { most, held: AtomicUsize::new(0), refused: AtomicU64::new(0) }
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many bytes are held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// How many bodies were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts a body that is refused.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }
}

/// The part of a budget that one body takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> HeldBytes {
        HeldBytes { budget, bytes: 0 }
    }

    /// Holds so many bytes in all, unless that is more than there is room for.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let BodyBudget { most, held, .. } = &*self.budget;
        let fits = |held: usize| held.checked_add(more).filter(|held| held <= most);
        let has_room = held.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if has_room {
            self.bytes = bytes;
        }
        has_room
    }

    /// Holds nothing any more.
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
    fn what_is_held_stays_within_the_budget_and_comes_back() {
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
