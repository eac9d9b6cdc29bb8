//! A simulation of many nodes and one store, in one process and in simulated time.
//!
//! The nodes are the shipped [`Leases`](super::Leases), and the store uses the shipped algorithms. Simulated is
//! everything between them: arrivals of requests, message delays and losses, stalls, restarts and crashes, and
//! clock errors. A seed determines all of it, so every run can be repeated. Under [faults](faults) the limit has
//! to hold over every period of time. [Without faults](tables) the simulation measures how many requests are
//! falsely denied, and how often the store is asked.

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
