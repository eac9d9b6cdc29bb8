//! A simulation of many nodes and one server, in one thread and in virtual time.
//!
//! The nodes are the shipped [`Leased`](ratekeeper::Leased) store, driven through its public interface, and the server
//! uses the shipped algorithms. Simulated is everything between them: arrivals of requests, message delays and losses,
//! stalls, restarts and crashes, and clock errors. A seed determines all of it, so every run can be repeated.
//!
//! With [faults](FaultPlan) the limit has to hold over every period of time ([`Simulation::excess`]). Without faults
//! the simulation measures how many requests are [falsely denied](SimCase), and how often the server is asked.

mod arrivals;
mod bound;
mod cases;
mod client;
mod clock;
mod cluster;
mod faults;
mod node;
mod oracle;
mod population;
mod rng;
mod server;

pub use arrivals::ArrivalPattern;
pub use cases::{CaseRow, SeedSpread, SimCase, cases, combined_cases};
pub use cluster::{NodeCounts, SimDraw, SimSetup, Simulation, micros};
pub use faults::FaultPlan;
pub use population::KeyPopulation;
pub use rng::SimRng;
pub use server::MAX_LIMITS;
