//! Demand for a key: the rate of draws on this node and on all nodes.
//!
//! The local rate is measured over the last [`demand_draws`](LeasePolicy::demand_draws), or over more if those came
//! within a few milliseconds. So a busy key is recognised within milliseconds and a quiet one after minutes. The global rate
//! is the difference between the units that the store has left and what its refill alone would explain.

use super::estimate;
use super::parameters::LeasePolicy;
use ratekeeper_core::{Amount, DrawOutcome, DrawResult, Limit, LimitStatus, Micros, State};

/// Everything older than about this many seconds is forgotten: a few terms of a lease.
const MEMORY_SECONDS: f32 = 120.0;
/// The global rate covers at least this many grants. A grant is taken at once and spent over a while, so a single one
/// would look like a burst of demand.
const MIN_GRANTS: f32 = 4.0;
/// Upper bound of the share of denied units. A share of 1 would say nothing about how little is granted.
const MAX_DENIED_SHARE: f32 = 0.95;

/// Estimated demand for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Units drawn on this node.
    units: f32,
    /// The draws of these units.
    draws: f32,
    /// The time of these draws, in seconds.
    seconds: f32,
    /// Units that all nodes took from the store.
    taken_units: f32,
    /// How many times some were taken.
    takes: f32,
    /// Over how many seconds they were taken.
    taken_seconds: f32,
    /// Units drawn most recently on this node, about as many as the limit allows at once.
    recent_units: f32,
    /// Denied units among them.
    denied_units: f32,
    /// Until when draws are counted.
    counted_at: Micros,
    /// The entry's counters at that time.
    counted_draws: DrawCounters,
    /// Draws to subtract at the next update.
    cancelled: DrawCounters,
}

/// Draws of a key and their units, since the key has an entry. Both wrap around: only differences are used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DrawCounters {
    pub(super) draws: u32,
    pub(super) units: u32,
}

impl Demand {
    /// The demand of a new key. The key is assumed to have been quiet for a second: otherwise two draws in a row,
    /// which every client makes at some time, would look like a busy key.
    pub(super) fn new(now: Micros) -> Demand {
        Demand {
            units: 0.0,
            draws: 0.0,
            seconds: 1.0,
            taken_units: 0.0,
            takes: 0.0,
            taken_seconds: 0.0,
            recent_units: 0.0,
            denied_units: 0.0,
            counted_at: now,
            counted_draws: DrawCounters::default(),
            cancelled: DrawCounters::default(),
        }
    }

    /// Counts the draws since the last update. The share of denied units is measured over about `capacity` units: over
    /// a whole window, which is alternately full and not.
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    pub(super) fn update(&mut self, policy: &LeasePolicy, counts: DrawCounters, capacity: u32, now: Micros) {
        let cancelled = std::mem::take(&mut self.cancelled);
        let drawn = counts.units.wrapping_sub(self.counted_draws.units) as f32 - cancelled.units as f32;
        let draws = counts.draws.wrapping_sub(self.counted_draws.draws) as f32 - cancelled.draws as f32;
        // A cancelled draw may already have been counted by the last update.
        self.units = (self.units + drawn).max(0.0);
        self.recent_units = (self.recent_units + drawn).max(0.0);
        self.draws = (self.draws + draws).max(0.0);
        self.seconds += estimate::seconds(now.since(self.counted_at));
        (self.counted_at, self.counted_draws) = (self.counted_at.max(now), counts);
        while self.draws > policy.demand_draws && self.seconds > policy.demand_seconds
            || self.seconds > MEMORY_SECONDS
        {
            (self.draws, self.units, self.seconds) = (self.draws / 2.0, self.units / 2.0, self.seconds / 2.0);
        }
        while self.recent_units > capacity as f32 {
            (self.recent_units, self.denied_units) = (self.recent_units / 2.0, self.denied_units / 2.0);
        }
    }

    /// Derives from two states of the store how many units all nodes took in between.
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    pub(super) fn observe_store(
        &mut self,
        policy: &LeasePolicy,
        limit: &Limit,
        before: (State, Micros),
        after: (State, Micros),
    ) {
        let left = remaining(limit, after.0, after.1);
        let taken = remaining(limit, before.0, after.1).saturating_sub(left);
        self.taken_units += taken as f32;
        self.takes += if taken > 0 { 1.0 } else { 0.0 };
        self.taken_seconds += estimate::seconds(after.1.since(before.1));
        // About as far back as local draws are counted.
        let enough = 2.0 * self.seconds.max(policy.demand_seconds);
        while self.taken_seconds > enough && self.takes > MIN_GRANTS || self.taken_seconds > MEMORY_SECONDS {
            (self.taken_units, self.takes, self.taken_seconds) =
                (self.taken_units / 2.0, self.takes / 2.0, self.taken_seconds / 2.0);
        }
    }

    /// Counts units that were granted to this node and that the store's next state will not show.
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    pub(super) fn add_grant(&mut self, granted: u32) {
        self.taken_units += granted as f32;
    }

    /// Counts denied units.
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    pub(super) fn add_denied(&mut self, units: u32) {
        self.denied_units += units as f32;
    }

    /// Removes a draw that another limit of its request denied.
    pub(super) fn cancel_draw(&mut self, units: u32) {
        self.cancelled.draws = self.cancelled.draws.saturating_add(1);
        self.cancelled.units = self.cancelled.units.saturating_add(units);
    }

    /// The share of drawn units that is denied.
    pub(super) fn denied_share(&self) -> f32 {
        (self.denied_units / self.recent_units.max(1.0)).clamp(0.0, MAX_DENIED_SHARE)
    }

    /// The draws that the rate is measured over.
    pub(super) fn measured_draws(&self) -> f32 {
        self.draws
    }

    /// Units per second on this node.
    pub(super) fn local_rate(&self) -> f32 {
        self.units / self.seconds.max(0.000_1)
    }

    /// Mean cost of a draw, at least one unit. Leases are sized in whole draws, because less than one draw is of
    /// no use.
    pub(super) fn mean_cost(&self) -> f32 {
        if self.draws >= 1.0 { (self.units / self.draws).max(1.0) } else { 1.0 }
    }

    /// Draws per second on this node.
    pub(super) fn local_draw_rate(&self) -> f32 {
        self.local_rate() / self.mean_cost()
    }

    /// Units per second taken by all nodes. Until that is known, every node is assumed to take as much as this
    /// one.
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    pub(super) fn global_rate(&self, nodes: u32) -> f32 {
        if self.taken_seconds > 0.0 && nodes > 1 {
            (self.taken_units / self.taken_seconds).max(self.local_rate())
        } else {
            self.local_rate() * nodes as f32
        }
    }

    /// When draws were last counted, which is when units were last requested from the store.
    pub(super) fn counted_at(&self) -> Micros {
        self.counted_at
    }
}

/// The units left in a state at the store's time `at`.
pub(super) fn remaining(limit: &Limit, state: State, at: Micros) -> u32 {
    let result = DrawResult::from_state(DrawOutcome::WouldGrant, at, state);
    LimitStatus::new(limit, Amount::ZERO, result).remaining()
}
