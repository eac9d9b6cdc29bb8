//! A lower bound for the cost of a check on this machine: one hash, one clock read, one cache line, one
//! compare-and-swap.
//!
//! It is not a usable limiter: it can't grow, sweep, evict, distinguish algorithms or compute a retry time, and two
//! keys with the same 64-bit hash share a count. It shows how much of a check's cost is the hardware's, and so how much
//! could still be gained.

use crate::subject::{Allowance, Subject};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Each slot has 16 bytes: the fingerprint of the key, and the time at which its debt is paid, in nanoseconds since the
/// start.
pub(crate) struct Floor {
    slots: Box<[[AtomicU64; 2]]>,
    hasher: SipHasher13,
    clock: quanta::Clock,
    origin: u64,
    interval_ns: u64,
    tolerance_ns: u64,
}

impl Floor {
    /// Half of the slots stay empty, so a key is found in its first slot or on the same cache line.
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

    /// Finds the slot of a fingerprint, or claims the first free one.
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
