//! The rate-limiting algorithms of Ratekeeper, as pure functions over plain values.
//!
//! A *quota* is an amount per period; an *algorithm* decides how it is enforced; a *limit* is a quota under an
//! algorithm. A *draw* requests units from a limit for a key; a *status* is that limit's answer; a *decision* is
//! what the client receives.
//!
//! This crate does no I/O, reads no clock and starts no thread. Every number is an integer below 2^53, so that the
//! same step gives the same result inside a store whose only number type is a double. [`Limit::new`] rejects quotas
//! that could overflow; after that, no operation can fail.
//!
//! ```
//! use ratekeeper_core::{Algorithm, Amount, Limit, Micros, Quota};
//!
//! let quota: Quota = "10/s burst 3".parse()?;
//! let limit = Limit::new(Algorithm::TokenBucket, quota)?;
//! let now = Micros::new(1_700_000_000_000_000);
//!
//! let step = limit.step(None, now, Amount::exactly(2));
//! assert_eq!(step.granted, Some(2));
//! assert_eq!(limit.status(step, now, Amount::exactly(2)).remaining(), 1);
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
pub use decision::{BindingDraw, Decision};
pub use draw::{Draw, Draws, MAX_DRAWS, StoreFailure};
pub use draw_options::{Consistency, DrawOptions, FailureMode};
pub use key::{Key, KeyError, KeyRef, MAX_KEY_BYTES, MAX_KEY_PARTS, Scope};
pub use lease::{LEASE_TERM, LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits};
pub use limit::{Limit, LimitError, Step};
pub use op::{Amount, Op, PermitId};
pub use params::{LimitParams, WindowStart};
pub use prior_states::PriorStates;
pub use quota::{Quota, QuotaError};
pub use state::State;
#[cfg(feature = "forecast-count")]
pub use status::forecast_count;
pub use status::{DrawOutcome, DrawResult, Forecast, LimitStatus, Retry};
pub use time::{Clock, MAX_CLOCK_STEP_BACK, Micros, Span};
