//! The gRPC port as clients meet it: every method, in process, by a clock that stands still.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod checks;
mod envoy;
mod generated;
mod manners;
mod raw;
mod server;
mod streams;
