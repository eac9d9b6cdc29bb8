//! A rate limiter to embed: given a key and a cost, it says allow or deny, how much is left, and when to come back.
//!
//! ```
//! use ratekeeper::Limiter;
//!
//! let limiter = Limiter::new("100/s")?;
//! assert!(limiter.check_now("user:42").is_allowed());
//! # Ok::<(), ratekeeper::LimitsError>(())
//! ```
//!
//! A [`Limiter`] binds every key to the same limits, one or several, and keeps its state in a [`Store`]: the
//! [`MemoryStore`] of this process unless told otherwise. The memory store answers at once, through the calls that end
//! in `_now`; every store answers through the calls that are awaited.
//!
//! The arithmetic is in `ratekeeper-core`, whose types are named here again: [`Quota`] (how much per how long), [`Law`]
//! (the algorithm), [`Limit`] (a quota under a law), [`Decision`] (what the client hears).

mod clock;
mod durations;
#[cfg(feature = "rules")]
mod gate;
mod health;
#[cfg(any(feature = "redis", feature = "simulation"))]
mod lease;
mod limiter;
mod limits;
mod memory;
mod permit;
#[cfg(feature = "redis")]
pub mod redis;
mod store;

/// Nodes and a store in a time of their own: for measuring leases, and for nothing else.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::lease::sim::{Case, Crowd, Figure, Row, cases, combined_cases};
}

pub use clock::{ManualClock, SystemClock};
pub use durations::{DURATION_BOUNDS_MICROS, Durations};
#[cfg(feature = "rules")]
pub use gate::{Binding, Cause, Docket, Emergency, Gate, HeldTo, Outcomes, Policy, RuleOutcomes, Verdict};
pub use health::{
    BreakerState, Drift, FailureCounts, KeyLease, LeaseCounts, ServerReport, StoreCounts, StoreErrorCause,
    StoreErrorCounts, StoreHealth, StoreReport, Topology,
};
pub use limiter::{AcquireError, Limiter, Request};
pub use limits::{IntoLimits, LimitsError};
pub use memory::{Cap, CapError, MemoryStats, MemoryStore};
pub use permit::Permit;
pub use ratekeeper_core::{
    Act, Align, Answer, Ask, Clock, Consistency, Decision, Draw, Draws, Failure, FailureMode, Key, KeyError,
    KeyRef, Law, Leak, Limit, LimitError, LogSize, MAX_DRAWS, MAX_KEY_BYTES, Micros, Outcome, Outlook,
    PermitId, Quota, QuotaError, Reading, Retry, Scope, Span, Terms, Zone, ZoneError,
};
/// Rules: what people write, and what a request is held to.
#[cfg(feature = "rules")]
pub use ratekeeper_rules as rules;
pub use store::Store;
