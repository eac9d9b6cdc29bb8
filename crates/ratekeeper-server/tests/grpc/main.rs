//! The gRPC listener as clients see it: every method, in process, with a manual clock.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

#[path = "../support/alone.rs"]
mod alone;
mod checks;
mod degraded;
mod envoy;
mod generated;
mod manners;
mod raw;
mod server;
mod streams;
