//! Units that a store lends ahead, to be spent by a node without asking.
//!
//! What is lent is paid for when it is lent: it counts against the limit from then on, until the node reports it as spent,
//! gives it back, or the lease lapses. `ALGORITHMS.md` shows why a limit holds for all nodes together if they keep to
//! this. Under laws with windows a lease ends with its window, and what is lent is simply used. A bucket has no such end,
//! so it remembers beside its debt how much is lent, by *terms* of the store's clock: a lease lapses at the end of the
//! term after its own.

use crate::state::State;
use crate::time::{Micros, Span};

/// How long a term of a bucket's leases lasts. A lease is good for one to two of these.
///
/// Longer terms have keys that are seldom asked for answered from memory; but what a node takes with it when it dies
/// stays lent for as long.
pub const TERM: Span = Span::secs(30);

/// What a limit remembers of a key from which units may be lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedState {
    /// What it remembers apart from that.
    pub state: Option<State>,
    /// What is lent.
    pub lent: LentUnits,
}

/// How many units are lent and not known to be spent. Which term they were lent in, the state's time tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentUnits {
    /// In the term before, to lapse at the end of this one.
    pub older: u32,
    /// In this term.
    pub recent: u32,
}

impl LentUnits {
    /// All of them.
    pub fn units(self) -> u32 {
        // Both were lent out of one capacity, which is as wide as their sum.
        self.older.saturating_add(self.recent)
    }
}

/// What a node says of the units that it was lent in a term. Of each unit it says something once and never again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// The term that they were lent in, or last reported as kept.
    pub term: u64,
    /// Those that it has spent.
    pub spent: u32,
    /// Those that it keeps, to be lent anew from now on.
    pub kept: u32,
    /// Those that it gives back.
    pub back: u32,
}

impl LeaseReport {
    /// How many units it is about.
    pub fn units(&self) -> u32 {
        self.spent.saturating_add(self.kept).saturating_add(self.back)
    }
}

/// How much a node would like to be lent.
///
/// What is spent at once can hardly be missed elsewhere, so that may be a good part of what is left. What lies in hand for
/// long may be, so that is a small part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// So many units, which it will spend within a moment; but at most half of what is left.
    pub soon: u32,
    /// So many, to last for the whole lease; but at most one of [so many](LeaseRequest::one_of) equal parts of what is left.
    pub later: u32,
    /// See there.
    pub one_of: u32,
}

impl LeaseRequest {
    /// How many units it is granted of so many that are left: the more of both.
    pub fn of(&self, left: u32) -> u32 {
        self.soon.min(left / 2).max(self.later.min(left / self.one_of.max(1)))
    }
}

/// What was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// How many units more.
    pub units: u32,
    /// The term that these, and those that were kept, are lent in.
    pub term: u64,
    /// When they lapse, by the store's clock.
    pub until: Micros,
    /// Whether what the report was about had not lapsed before. If it had, what was kept is gone.
    pub is_known: bool,
}
