//! The part of an entry that only the slow path reads.

use super::KeyName;
use super::counters::KeyCounters;
use super::demand::Demand;
use ratekeeper_core::{Micros, Span};
use std::sync::Arc;

/// The fields that only the slow path needs.
#[derive(Debug)]
pub(super) struct ColdFields {
    pub(super) demand: Demand,
    /// The term of the lease.
    pub(super) term: u64,
    pub(super) phase: LeasePhase,
    pub(super) supply: StoreSupply,
    /// Units of the lease that are set aside for requests that the store is deciding.
    pub(super) claimed: u32,
    /// Identifies the lease: the serial number at its start. A claim on another lease is not put back.
    pub(super) lease_id: u32,
    /// The store's time of the last state that it sent. `None` if it has not sent any.
    pub(super) store_state_at: Option<Micros>,
    /// Smoothed round-trip time of renewals.
    pub(super) round_trip: Span,
    /// The draw counter when the sweep last saw it change.
    pub(super) swept_draws: u32,
    /// When the sweep last saw it change.
    pub(super) active_at: Micros,
    pub(super) name: Option<Arc<KeyName>>,
    pub(super) counters: KeyCounters,
    /// Draws sent to the store since `misses_since`, which is at most one miss period ago.
    pub(super) misses: u32,
    /// Start of the current miss period.
    pub(super) misses_since: Micros,
    /// Whether the last state of the store was not yet taken for a local decision.
    pub(super) has_new_state: bool,
}

/// Whether a lease may be reported and renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeasePhase {
    /// A renewal may be sent.
    Ready,
    /// A renewal is in flight.
    Renewing,
    /// A renewal got no reply.
    Unacked,
}

/// Whether units are left at the store, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreSupply {
    /// There may be enough: draws that the lease does not cover are sent to the store.
    Ample,
    /// There were too few when the store was last asked. The node takes turns with the others, and denies in between.
    Exhausted(Backoff),
}

/// Until when draws are denied without asking the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backoff {
    pub(super) until: Micros,
    /// Draws that need at most this many units from the store are sent to it all the same.
    pub(super) allowed: u32,
}

impl StoreSupply {
    /// Exhausted, without a back-off: the last renewal still got what it asked for.
    pub(super) const LOW: StoreSupply = StoreSupply::Exhausted(Backoff { until: Micros::EPOCH, allowed: 0 });

    pub(super) fn is_exhausted(self) -> bool {
        self != StoreSupply::Ample
    }

    /// Until when draws are denied that need more units than are left. The epoch if they are not.
    pub(super) fn denied_until(self) -> Micros {
        match self {
            StoreSupply::Ample => Micros::EPOCH,
            StoreSupply::Exhausted(backoff) => backoff.until,
        }
    }

    /// Whether the store would most likely deny a draw that needs `missing` units from it.
    pub(super) fn denies(self, missing: u32, is_renewing: bool, now: Micros) -> bool {
        match self {
            StoreSupply::Ample => false,
            StoreSupply::Exhausted(backoff) => {
                (is_renewing || now < backoff.until) && missing > backoff.allowed
            }
        }
    }
}

impl ColdFields {
    /// Whether a renewal is in flight.
    pub(super) fn is_renewing(&self) -> bool {
        self.phase == LeasePhase::Renewing
    }

    /// When units were last requested from the store, or when the key was first drawn.
    pub(super) fn last_request_at(&self) -> Micros {
        self.demand.counted_at()
    }
}

impl Default for ColdFields {
    fn default() -> ColdFields {
        ColdFields {
            demand: Demand::new(Micros::EPOCH),
            term: 0,
            phase: LeasePhase::Ready,
            supply: StoreSupply::Ample,
            claimed: 0,
            lease_id: 0,
            store_state_at: None,
            round_trip: Span::ZERO,
            swept_draws: 0,
            active_at: Micros::EPOCH,
            name: None,
            counters: KeyCounters::default(),
            misses: 0,
            misses_since: Micros::EPOCH,
            has_new_state: false,
        }
    }
}
