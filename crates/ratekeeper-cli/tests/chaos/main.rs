//! What happens to those who ask when the store fails them, with real nodes, real servers and clients that never stop.
//!
//! Every trial is held to the same: see [`account`].

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]
#![expect(clippy::print_stdout, reason = "a test says by how much it passed or failed")]

mod account;
mod alone;
mod cluster;
mod fleet;
mod kill;
mod log;
mod log_sink;
mod memory;
mod network;
mod orders;
mod partition;
mod pause;
mod refusal;
mod sentinel;
mod sharded;
mod trial;
