//! For Tollgate's own tests: slow, obvious models of the laws, traces that try them, scenarios written as text, and real
//! servers that fail on command.
//!
//! An [`Engine`] is anything that decides draws: the [`Model`], which keeps every timestamp and computes in wide
//! integers; the [`Cell`], which is the laws themselves around one state; a store. The same traces and scenarios run
//! through all of them and must get the same replies. The [`servers`] are for tests of what crosses a network.

mod cell;
mod dice;
mod engine;
pub mod load;
mod model;
mod patience;
mod scenario;
pub mod servers;
mod stalls;
mod trace;

pub use cell::Cell;
pub use engine::{Engine, Reply};
pub use model::Model;
pub use patience::{PATIENCE, try_within, within};
pub use scenario::check;
pub use stalls::despite_stalls;
pub use trace::{Op, Shift, Trace, replay, traces};
