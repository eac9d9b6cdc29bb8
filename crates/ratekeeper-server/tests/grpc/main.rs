//! The gRPC listener as clients see it: every method, in process, with a manual clock.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

mod checks;
mod degraded;
mod envoy;
mod generated;
mod listener;
mod raw;
mod server;
mod streams;
#[path = "../support/timed_out_store.rs"]
mod timed_out_store;
