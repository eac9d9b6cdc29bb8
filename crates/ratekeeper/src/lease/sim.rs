//! Many nodes and one store, in one process and in a time of their own.
//!
//! The nodes are [`Leases`](super::Leases) as they are shipped, and the store is made of the laws as they are. What is made
//! up is what lies between them: who comes when, how long words take, which are lost, who stops or dies, how clocks run.
//! A seed decides all of it, so whatever happens can be made to happen again. In [foul weather](faults) the limit has to
//! hold, for every stretch of time; in [fair weather](tables) it is counted how many are refused who need not be, and how
//! often the store is asked.

mod bound;
#[cfg(test)]
mod faults;
mod node;
mod rng;
mod simulation;
mod store;
#[cfg_attr(
    not(feature = "simulation"),
    expect(unreachable_pub, dead_code, reason = "benches read all of it, tests need not")
)]
mod tables;

#[cfg(feature = "simulation")]
pub use tables::{CaseRow, KeyPopulation, SeedSpread, SimCase, cases, combined_cases};
