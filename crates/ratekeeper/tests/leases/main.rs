//! Leases, seen from outside: many simulated nodes that share a simulated server. The nodes are [`ratekeeper::Leased`]
//! stores; see [`ratekeeper_testkit::simulation`].
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod accuracy;
mod faults;
