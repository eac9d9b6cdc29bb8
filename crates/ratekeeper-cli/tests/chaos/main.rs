//! Store outages, with real nodes, real Redis servers and clients that never stop.
//!
//! Every trial makes the same assertions: see [`report`].

#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test helper fails the test")]
#![expect(clippy::print_stdout, reason = "tests print by how much they pass or fail")]

mod admin_commands;
mod cluster;
mod kill;
mod log_sink;
mod memory;
mod network;
mod node_group;
mod node_log;
mod partition;
mod pause;
mod report;
mod sentinel;
mod sharded;
mod start_stop;
mod store_errors;
mod trial;
