//! Test support for Ratekeeper: slow, obvious models of the algorithms, random traces to check them with, scenarios
//! written as text, a load generator, and real servers that fail on command.
//!
//! An [`Engine`] is anything that decides requests: a store, or [`KeyEngines`], which keeps one [`KeyEngine`] per key.
//! A [`Model`] is a key engine that keeps every timestamp and computes in wide integers; a [`SingleKeyStore`] runs the
//! real algorithms on one state. The same [`suite`] of scenarios, traces and requests runs through all of them and
//! expects the same replies. The [`servers`] are for tests that cross a network, and the [`simulation`] runs leasing nodes in
//! virtual time.

mod algorithms;
mod engine;
mod key_engines;
pub mod load;
mod model;
mod random;
mod request;
mod scenario;
pub mod servers;
pub mod simulation;
mod single_key_store;
mod stall_watch;
pub mod suite;
mod trace;
mod wait;

pub use engine::{Engine, EngineReply, KeyEngine};
pub use key_engines::KeyEngines;
pub use model::Model;
pub use random::{random_f64, random_index};
pub use single_key_store::SingleKeyStore;
pub use stall_watch::time_without_stalls;
pub use trace::Trace;
pub use wait::{TEST_TIMEOUT, try_wait_for, wait_for};
