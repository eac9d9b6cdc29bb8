//! For Tollgate's own tests: slow, obvious models of the laws, traces that try them, and scenarios written as text.
//!
//! An [`Engine`] is anything that decides draws: the [`Model`], which keeps every timestamp and computes in wide
//! integers; the [`Cell`], which is the laws themselves around one state; a store. The same traces and scenarios run
//! through all of them and must get the same replies.

mod cell;
mod engine;
mod model;
mod scenario;
mod trace;

pub use cell::Cell;
pub use engine::{Engine, Reply};
pub use model::Model;
pub use scenario::check;
pub use trace::{Op, Shift, Trace, replay, traces};
