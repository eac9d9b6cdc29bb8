//! A simulated node: its leases, its clock, and whether it is stalled.

use super::super::Leases;
use super::rng::SimRng;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::Micros;

/// A simulated node. After a crash it restarts at once, without its leases.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) leases: Leases,
    /// The number of restarts. Replies to an earlier incarnation are dropped.
    pub(super) incarnation: u32,
    /// Until when the node does nothing although time passes.
    pub(super) stalled_until: u64,
    clock: SimClock,
    max_keys: usize,
    node_count: u32,
    /// Counts of earlier incarnations: lease misses, and draws granted from leases.
    past_counts: (u64, u64),
}

/// A clock with an offset and a drift.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimClock {
    offset: u64,
    /// The fraction by which the clock is slow; fast if negative.
    drift: f64,
}

impl SimClock {
    /// A clock that is off by up to a day and drifts by at most `max_drift`.
    pub(super) fn random(rng: &mut SimRng, max_drift: f64) -> SimClock {
        SimClock { offset: rng.below(86_400_000_000) as u64, drift: rng.uniform(-max_drift, max_drift) }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a simulation lasts for minutes"
    )]
    fn read(&self, begin: u64, now: u64) -> Micros {
        let elapsed = (now - begin) as f64 * (1.0 - self.drift);
        Micros::new(begin + self.offset + elapsed as u64)
    }
}

impl SimNode {
    pub(super) fn new(max_keys: usize, node_count: u32, clock: SimClock) -> SimNode {
        let leases = Leases::new(max_keys);
        leases.set_node_count(node_count);
        SimNode { leases, incarnation: 0, stalled_until: 0, clock, max_keys, node_count, past_counts: (0, 0) }
    }

    /// Reads the node's clock.
    pub(super) fn read_clock(&self, begin: u64, now: u64) -> Micros {
        self.clock.read(begin, now)
    }

    /// Restarts the node. Its leases are lost.
    pub(super) fn restart(&mut self, clock: SimClock) {
        let counts = self.leases.counts();
        self.past_counts = (self.past_counts.0 + counts.misses, self.past_counts.1 + counts.granted);
        self.leases = Leases::new(self.max_keys);
        self.leases.set_node_count(self.node_count);
        self.incarnation += 1;
        self.clock = clock;
    }

    /// Draws granted from leases, in all incarnations.
    #[cfg(test)]
    pub(super) fn draws_from_leases(&self) -> u64 {
        self.past_counts.1 + self.leases.counts().granted
    }
}

/// The hash of a key under one of its limits, by their index.
pub(super) fn key_hash(index: usize) -> KeyHash {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KeyHash {
        fingerprint: mixed.max(1),
        shard_bits: mixed.rotate_left(32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20,
    }
}
