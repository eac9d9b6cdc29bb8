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
    /// Until when draws are denied without asking the store, if they need more than `denied_above` units from it.
    pub(super) denied_until: Micros,
    /// Draws that need at most this many units from the store are not denied here.
    pub(super) denied_above: u32,
    pub(super) phase: LeasePhase,
    /// Units of the lease that are set aside for requests that the store is deciding.
    pub(super) claimed: u32,
    /// Identifies the lease: the serial number at its start. A claim on another lease is not put back.
    pub(super) lease_id: u32,
    /// The store's time of the last state that it sent. `None` if it has not sent any.
    pub(super) store_state_at: Option<Micros>,
    /// Whether the store had too few units left at the last renewal.
    pub(super) is_exhausted: bool,
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
            denied_until: Micros::EPOCH,
            denied_above: 0,
            phase: LeasePhase::Ready,
            claimed: 0,
            lease_id: 0,
            store_state_at: None,
            is_exhausted: false,
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
