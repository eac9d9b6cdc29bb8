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
//! The arithmetic is in `ratekeeper-core`, whose types are named here again: [`Quota`] (how much per how long), [`Algorithm`]
//! (the algorithm), [`Limit`] (a quota under a law), [`Decision`] (what the client hears).

mod clock;
mod duration_histogram;
mod health;
#[cfg(any(feature = "redis", feature = "simulation"))]
mod lease;
mod limiter;
mod limits;
mod memory;
mod permit;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "rules")]
mod rule_limiter;
mod store;

/// Nodes and a store in a time of their own: for measuring leases, and for nothing else.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::lease::sim::{CaseRow, KeyPopulation, SeedSpread, SimCase, cases, combined_cases};
}

pub use clock::{ManualClock, SystemClock};
pub use duration_histogram::{DURATION_BOUNDS_MICROS, DurationHistogram};
pub use health::{
    BreakerState, ClockDrift, KeyLease, LeaseCounts, ServerReport, StoreCounts, StoreErrorCause,
    StoreErrorCounts, StoreFailureCounts, StoreHealth, StoreReport, Topology,
};
pub use limiter::{AcquireError, KeyedRequest, Limiter};
pub use limits::{IntoLimits, LimitsError};
pub use memory::{Capacity, CapacityError, MemoryStats, MemoryStore};
pub use permit::Permit;
pub use ratekeeper_core::{
    Algorithm, Align, Amount, Clock, Consistency, Decision, Draw, DrawOptions, DrawOutcome, DrawResult,
    Draws, FailureMode, Forecast, Key, KeyError, KeyRef, Leak, Limit, LimitError, LimitStatus, LogSize,
    MAX_DRAWS, MAX_KEY_BYTES, Micros, Op, PermitId, Quota, QuotaError, Retry, Scope, Span, StoreFailure,
    Zone, ZoneError,
};
/// Rules: what people write, and what a request is held to.
#[cfg(feature = "rules")]
pub use ratekeeper_rules as rules;
#[cfg(feature = "rules")]
pub use rule_limiter::{
    AppliedLimit, BindingLimit, CheckBatch, DecisionCounts, EmergencyLimit, Policy, Reason, RuleDecision,
    RuleDecisionCounts, RuleLimiter,
};
pub use store::Store;
