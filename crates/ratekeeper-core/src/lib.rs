//! The arithmetic of Ratekeeper: values and laws, and nothing that touches the world.
//!
//! A *quota* is how much per how long; a *law* is the algorithm; a *limit* is a quota under a law. A *draw* asks a
//! limit for units under a key; a *reading* is what that limit said; a *decision* is what the client hears.
//!
//! This crate does no I/O, reads no clock and starts no thread. Every number is an integer below 2^53, so that the
//! same step runs unchanged inside a store whose only number is a double. What could overflow is refused when a
//! [`Limit`] is built; afterwards nothing can fail.
//!
//! ```
//! use ratekeeper_core::{Ask, Law, Limit, Micros, Quota};
//!
//! let quota: Quota = "10/s burst 3".parse()?;
//! let limit = Limit::new(Law::TokenBucket, quota)?;
//! let now = Micros::new(1_700_000_000_000_000);
//!
//! let step = limit.step(None, now, Ask::exactly(2));
//! assert_eq!(step.granted, Some(2));
//! assert_eq!(limit.read(step, now, Ask::exactly(2)).remaining(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algorithm;
mod decision;
mod draw;
mod draw_options;
mod key;
mod lease;
mod limit;
mod op;
mod params;
mod prior_states;
mod quota;
mod state;
mod status;
mod time;

pub use algorithm::{
    Algorithm, Align, Holders, Leak, ListState, Log, LogSize, PriorRetention, Zone, ZoneError,
};
pub use decision::Decision;
pub use draw::{Draw, Draws, MAX_DRAWS, StoreFailure};
pub use draw_options::{Consistency, DrawOptions, FailureMode};
pub use key::{Key, KeyError, KeyRef, MAX_KEY_BYTES, MAX_KEY_PARTS, Scope};
pub use lease::{LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits, TERM};
pub use limit::{Limit, LimitError, Step};
pub use op::{Amount, Op, PermitId};
pub use params::{LimitParams, WindowStart};
pub use prior_states::PriorStates;
pub use quota::{Quota, QuotaError};
pub use state::State;
pub use status::{DrawOutcome, DrawResult, Forecast, LimitStatus, Retry};
pub use time::{Clock, MOST_BACK, Micros, Span};
