//! How fast a key is drawn: on this node, and on all of them.
//!
//! The units of the last few dozen draws, and how long they took, or of more if they came in no time: a busy key is known within
//! milliseconds, a quiet one after minutes. What all nodes draw is what the store has less of than time alone explains.

use super::policy;
use ratekeeper_core::{Amount, DrawOutcome, DrawResult, Limit, LimitStatus, Micros, State};

/// Beyond so many draws, if they took so long, or beyond so many seconds, the past counts half.
const DRAWS: f32 = 32.0;
const DRAWS_SECONDS: f32 = 0.05;
const SECONDS: f32 = 120.0;

/// Over how many seconds it is counted, at least, what all nodes take, and over how many loans: each is taken at once, for a
/// while, and one alone would look like a rush.
const LOANS_SECONDS: f32 = 0.5;
const LOANS: f32 = 4.0;

/// What part of the latest units is most of them, and the greatest part that is reckoned with: if all of them were refused, it
/// could not be told how few there are.
const MOSTLY: f32 = 0.75;
const NEARLY_ALL: f32 = 0.95;

/// What is known of how fast a key is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Units drawn here, in so many draws, within so many seconds.
    units: f32,
    draws: f32,
    seconds: f32,
    /// Units that all nodes took from the store, in so many goes, within so many seconds.
    taken: f32,
    loans: f32,
    taken_seconds: f32,
    /// Of the last thousand units or more that were drawn here, those that were refused.
    latest: f32,
    refused: f32,
    /// Up to when the draws are counted in, and what the cell's counts were then.
    since: Micros,
    counted: DrawCounters,
    /// Draws to be taken out of the count.
    forgotten: DrawCounters,
}

/// How many draws there were and how many units they were for, since the key has a cell. Both start over when they are
/// full: only differences are looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DrawCounters {
    pub(super) draws: u32,
    pub(super) units: u32,
}

impl Demand {
    /// A key that comes for the first time. It is taken to have been quiet for a second: else two draws in a row, which
    /// everybody makes once, would look like a busy key.
    pub(super) fn new(now: Micros) -> Demand {
        Demand {
            units: 0.0,
            draws: 0.0,
            seconds: 1.0,
            taken: 0.0,
            loans: 0.0,
            taken_seconds: 0.0,
            latest: 0.0,
            refused: 0.0,
            since: now,
            counted: DrawCounters::default(),
            forgotten: DrawCounters::default(),
        }
    }

    /// Counts in what was drawn since the last time. What is refused is counted over so many units.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn count(&mut self, counts: DrawCounters, counted: f32, now: Micros) {
        let forgotten = std::mem::take(&mut self.forgotten);
        let drawn = counts.units.wrapping_sub(self.counted.units) as f32 - forgotten.units as f32;
        let draws = counts.draws.wrapping_sub(self.counted.draws) as f32 - forgotten.draws as f32;
        // A draw that is forgotten may have been counted the last time.
        self.units = (self.units + drawn).max(0.0);
        self.latest = (self.latest + drawn).max(0.0);
        self.draws = (self.draws + draws).max(0.0);
        self.seconds += policy::seconds(now.since(self.since));
        (self.since, self.counted) = (self.since.max(now), counts);
        while self.draws > DRAWS && self.seconds > DRAWS_SECONDS || self.seconds > SECONDS {
            (self.draws, self.units, self.seconds) = (self.draws / 2.0, self.units / 2.0, self.seconds / 2.0);
        }
        while self.latest > counted {
            (self.latest, self.refused) = (self.latest / 2.0, self.refused / 2.0);
        }
    }

    /// Learns what all nodes took between two answers of the store.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn learn(&mut self, limit: &Limit, before: (State, Micros), after: (State, Micros)) {
        let left = remaining(limit, after.0, after.1);
        let taken = remaining(limit, before.0, after.1).saturating_sub(left);
        self.taken += taken as f32;
        self.loans += if taken > 0 { 1.0 } else { 0.0 };
        self.taken_seconds += policy::seconds(after.1.since(before.1));
        // About as far back as the draws here are counted.
        let enough = 2.0 * self.seconds.max(LOANS_SECONDS);
        while self.taken_seconds > enough && self.loans > LOANS || self.taken_seconds > SECONDS {
            (self.taken, self.loans, self.taken_seconds) =
                (self.taken / 2.0, self.loans / 2.0, self.taken_seconds / 2.0);
        }
    }

    /// Counts in what this node was lent, where the store's next word won't show it.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn add(&mut self, lent: u32) {
        self.taken += lent as f32;
    }

    /// Counts in units that were refused.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn refuse(&mut self, units: u32) {
        self.refused += units as f32;
    }

    /// Takes a draw out of the count again, which another limit of its request denied.
    pub(super) fn forget(&mut self, units: u32) {
        self.forgotten.draws = self.forgotten.draws.saturating_add(1);
        self.forgotten.units = self.forgotten.units.saturating_add(units);
    }

    /// Whether so much more is drawn than there is that hardly anything stays in hand for long.
    pub(super) fn is_mostly_refused(&self) -> bool {
        self.refused > self.latest * MOSTLY
    }

    /// What share of what is drawn here is refused.
    pub(super) fn refused_share(&self) -> f32 {
        (self.refused / self.latest.max(1.0)).clamp(0.0, NEARLY_ALL)
    }

    /// Units drawn here each second.
    pub(super) fn here(&self) -> f32 {
        self.units / self.seconds.max(0.000_1)
    }

    /// What a draw costs, on the average. A lease is a number of draws: less than one is of no use.
    pub(super) fn cost(&self) -> f32 {
        if self.draws >= 1.0 { (self.units / self.draws).max(1.0) } else { 1.0 }
    }

    /// Draws here each second.
    pub(super) fn draws_here(&self) -> f32 {
        self.here() / self.cost()
    }

    /// Units taken by all nodes each second; as long as that is unknown, as much as if all were like this one.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn everywhere(&self, nodes: u32) -> f32 {
        match self.taken_seconds > 0.0 && nodes > 1 {
            true => (self.taken / self.taken_seconds).max(self.here()),
            false => self.here() * nodes as f32,
        }
    }

    /// When the draws were counted last, which is when the store was asked last.
    pub(super) fn since(&self) -> Micros {
        self.since
    }
}

/// How many units are left of a state, at the store's time.
pub(super) fn remaining(limit: &Limit, state: State, at: Micros) -> u32 {
    let outcome = DrawResult::of_state(DrawOutcome::Spared, at, state);
    LimitStatus::new(limit, Amount::PEEK, outcome).remaining()
}
