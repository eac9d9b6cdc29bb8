//! The least that a check can cost on this machine: a hash, a clock, one cache line, one swap.
//!
//! No limiter: it can't grow, sweep, evict, tell laws apart or say when to come back, and two keys of the same 64 bits
//! would be one. It shows how much of a check is the hardware's, and so how much is left to gain.

use crate::subject::{Allowance, Subject};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Sixteen bytes a slot: the key's fingerprint, and when its debt will be paid, in nanoseconds since the start.
pub(crate) struct Floor {
    slots: Box<[[AtomicU64; 2]]>,
    hasher: SipHasher13,
    clock: quanta::Clock,
    origin: u64,
    interval_ns: u64,
    tolerance_ns: u64,
}

impl Floor {
    /// Half of the slots stay empty: a key is found at its first slot, or on the same cache line.
    pub(crate) fn new(allowance: Allowance, keys: u64) -> Floor {
        let random = RandomState::new();
        let clock = quanta::Clock::new();
        let interval_ns = u64::from(allowance.per_secs) * 1_000_000_000 / u64::from(allowance.amount);
        Floor {
            slots: (0..2 * keys).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
            origin: clock.raw(),
            clock,
            interval_ns,
            tolerance_ns: interval_ns * u64::from(allowance.burst),
        }
    }

    #[inline]
    fn take(&self, key: &str, cost: u32) -> bool {
        let debt = self.debt(self.hasher.hash(key.as_bytes()).max(1));
        let now = self.clock.delta_as_nanos(self.origin, self.clock.raw());
        let mut before = debt.load(Relaxed);
        loop {
            let after = before.max(now) + self.interval_ns * u64::from(cost);
            if after - now > self.tolerance_ns {
                return false;
            }
            match debt.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(found) => before = found,
            }
        }
    }

    /// Where a fingerprint's debt is kept; it is given the first free slot if it has none.
    #[inline]
    fn debt(&self, fingerprint: u64) -> &AtomicU64 {
        let mut slot = ((u128::from(fingerprint) * self.slots.len() as u128) >> 64) as usize;
        loop {
            let [owner, debt] = &self.slots[slot];
            let found = match owner.load(Relaxed) {
                0 => owner.compare_exchange(0, fingerprint, Relaxed, Relaxed).err().unwrap_or(fingerprint),
                found => found,
            };
            if found == fingerprint {
                return debt;
            }
            slot = (slot + 1) % self.slots.len();
        }
    }
}

impl Subject for Floor {
    fn name(&self, _: usize) -> String {
        "floor".to_owned()
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        self.take(key, cost)
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        keys.iter().filter(|key| self.take(key, 1)).count()
    }
}
