//! The gRPC port as clients meet it: every method, in process, by a clock that stands still.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

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
