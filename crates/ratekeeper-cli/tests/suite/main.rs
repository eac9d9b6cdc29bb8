//! The real binary, from outside: its commands, its protocols and its settings.
//!
//! One test program, because linking one takes as long as linking any of its parts would.

#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test helper fails the test")]

mod admin;
mod api;
#[cfg(unix)]
mod bounds;
mod check;
mod command;
mod flood;
mod forward;
mod headers;
mod import;
mod lifecycle;
#[cfg(unix)]
mod log_sink;
mod matching;
mod reload;
mod resp;
mod rules;
mod serve;
mod store;
mod support;
mod tls;
