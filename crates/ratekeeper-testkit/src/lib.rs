//! For Ratekeeper's own tests: slow, obvious models of the laws, traces that try them, scenarios written as text, and real
//! servers that fail on command.
//!
//! An [`Engine`] is anything that decides requests: a store, or [`KeyEngines`] of which each is a [`Model`], which keeps every
//! timestamp and computes in wide integers, or a [`Cell`], which is the laws themselves around one state. The same [`suite`]
//! of scenarios, traces and requests runs through all of them and must get the same replies. The [`servers`] are for tests
//! of what crosses a network.

mod cell;
mod dice;
mod engine;
mod key_engine;
pub mod load;
mod model;
mod patience;
mod request;
mod scenario;
pub mod servers;
mod stall_watch;
pub mod suite;
mod trace;

pub use cell::Cell;
pub use dice::{chance, pick};
pub use engine::{Engine, EngineReply};
pub use key_engine::{KeyEngine, KeyEngines};
pub use model::Model;
pub use patience::{PATIENCE, try_within, within};
pub use stall_watch::despite_stalls;
pub use trace::Trace;
