//! A node: its leases, its clock, and whether it is up.

use super::super::Leases;
use super::rng::SimRng;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::Micros;

/// A node. Dead ones start anew at once, with nothing.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) leases: Leases,
    /// How often it has started. What was meant for an earlier one is not for this.
    pub(super) life: u32,
    /// Until when it does nothing, though time passes.
    pub(super) stands_until: u64,
    clock: SimClock,
    cells: usize,
    fleet: u32,
    /// What it counted in earlier lives.
    past: (u64, u64),
}

/// A clock that shows something else than it should, and runs a little fast or slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimClock {
    offset: u64,
    /// By how many millionths it is slow; fast, if that is below nothing.
    slow: f64,
}

impl SimClock {
    /// One that is off by up to a day, and slow by at most so much.
    pub(super) fn wrong(dice: &mut SimRng, slow: f64) -> SimClock {
        SimClock { offset: dice.below(86_400_000_000) as u64, slow: dice.between(-slow, slow) }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a world lasts for minutes"
    )]
    fn read(&self, begin: u64, now: u64) -> Micros {
        let elapsed = (now - begin) as f64 * (1.0 - self.slow);
        Micros::new(begin + self.offset + elapsed as u64)
    }
}

impl SimNode {
    pub(super) fn new(cells: usize, fleet: u32, clock: SimClock) -> SimNode {
        let leases = Leases::new(cells);
        leases.set_nodes(fleet);
        SimNode { leases, life: 0, stands_until: 0, clock, cells, fleet, past: (0, 0) }
    }

    /// What its clock shows.
    pub(super) fn read_clock(&self, begin: u64, now: u64) -> Micros {
        self.clock.read(begin, now)
    }

    /// Starts anew. What it had, nobody has.
    pub(super) fn restart(&mut self, clock: SimClock) {
        let counts = self.leases.counts();
        self.past = (self.past.0 + counts.asked, self.past.1 + counts.granted);
        self.leases = Leases::new(self.cells);
        self.leases.set_nodes(self.fleet);
        self.life += 1;
        self.clock = clock;
    }

    /// Draws that were granted from hand, in all lives.
    #[cfg(test)]
    pub(super) fn granted(&self) -> u64 {
        self.past.1 + self.leases.counts().granted
    }
}

/// What stands for a key under one of its limits, by its number.
pub(super) fn tag(number: usize) -> KeyHash {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KeyHash { mark: mixed.max(1), spread: mixed.rotate_left(32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20 }
}
