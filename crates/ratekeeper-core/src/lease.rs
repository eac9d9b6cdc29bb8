//! Leases: units that a store lends to a node ahead of time, for the node to spend without a store call.
//!
//! Lent units are charged when they are lent: they count against the limit until the node reports them as spent,
//! returns them, or the lease expires. `ALGORITHMS.md` shows why this keeps the limit exact for all nodes together.
//! Under window algorithms a lease ends with its window, and lent units simply count as used. A bucket has no such
//! end, so besides its debt it records how many units are lent, by *terms* of the store's clock: a lease expires at
//! the end of the term after its own.

use crate::state::State;
use crate::time::{Micros, Span};

/// The length of a lease term of a bucket. A lease is valid for one to two terms.
///
/// Longer terms let a node answer rarely used keys from memory; but units that a dead node held stay lent for as
/// long.
pub const LEASE_TERM: Span = Span::secs(30);

/// The state of a key from which units may be leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedState {
    /// The state apart from lent units; `None` if the key is new or its state has expired.
    pub state: Option<State>,
    /// The units lent.
    pub lent: LentUnits,
}

/// How many units are lent and not yet reported as spent. The time in the state tells which terms these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentUnits {
    /// Units lent in the previous term. They expire at the end of this term.
    pub older: u32,
    /// Units lent in this term.
    pub recent: u32,
}

impl LentUnits {
    /// Returns the total number of units lent.
    pub fn total(self) -> u32 {
        // Both were lent out of one capacity, which is a `u32`.
        self.older.saturating_add(self.recent)
    }
}

/// What a node reports about units that it was lent in one term. Each unit is reported once and never again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// The term in which the units were lent, or last reported as kept.
    pub term: u64,
    /// The units spent.
    pub spent: u32,
    /// The units kept. They are lent again from now on, in the current term.
    pub kept: u32,
    /// The units returned.
    pub returned: u32,
}

impl LeaseReport {
    /// Returns the total number of units reported.
    pub fn total(&self) -> u32 {
        self.spent.saturating_add(self.kept).saturating_add(self.returned)
    }
}

/// How many units a node requests for a lease, by how soon it will spend them.
///
/// Units that are spent at once can hardly be missing on other nodes, so the request may take a large part of those
/// left. Units kept for long may be, so only a small part is granted for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Units that will be spent within a moment; capped at half of the units left.
    pub short_horizon: u32,
    /// Units that will last for the whole lease; capped at `left / long_horizon_divisor`.
    pub long_horizon: u32,
    /// The divisor of the long-horizon cap. 0 counts as 1.
    pub long_horizon_divisor: u32,
}

impl LeaseRequest {
    /// Returns how many units to grant when `left` are left: the larger of the two capped numbers.
    pub fn grant_from(&self, left: u32) -> u32 {
        self.short_horizon.min(left / 2).max(self.long_horizon.min(left / self.long_horizon_divisor.max(1)))
    }
}

/// The answer of the store to a [`LeaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The additional units lent.
    pub units: u32,
    /// The term of these units and of those reported as kept.
    pub term: u64,
    /// When the lease expires, by the clock of the store.
    pub expires_at: Micros,
    /// Whether the reported lease was still valid. If not, the units reported as kept are gone.
    pub is_report_accepted: bool,
}
