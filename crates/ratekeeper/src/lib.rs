//! An embeddable rate limiter: given a key and a cost, it decides whether to allow a request, and reports how many
//! units are left and when to retry.
//!
//! ```
//! use ratekeeper::Limiter;
//!
//! let limiter = Limiter::new("100/s")?;
//! assert!(limiter.check_now("user:42").is_allowed());
//! # Ok::<(), ratekeeper::LimitsError>(())
//! ```
//!
//! A [`Limiter`] applies the same limits, one or several, to every key and keeps its state in a [`Store`]; the
//! default is the in-process [`MemoryStore`]. The memory store also decides synchronously, through the methods that
//! end in `_now`; the async methods work with every store.
//!
//! The algorithms are in `ratekeeper-core`, whose types are re-exported here: [`Quota`] (an amount per period),
//! [`Algorithm`] (how it is enforced), [`Limit`] (a quota under an algorithm), [`Decision`] (what the client
//! receives).

mod clock;
mod duration_histogram;
mod health;
mod lease;
mod limiter;
mod limits;
mod memory;
mod memory_stats;
#[cfg(feature = "rules")]
mod rule_limiter;
mod store;

pub use clock::{ManualClock, SystemClock};
pub use duration_histogram::{DURATION_BOUNDS_MICROS, DurationHistogram};
pub use health::{
    BreakerState, ClockDrift, KeyLease, LeaseCounts, RECENT_FAILURE, ServerReport, StoreCounts,
    StoreErrorCause, StoreErrorCounts, StoreFailureCounts, StoreReport, Topology,
};
pub use lease::{
    DrawDecision, KeyName, LeaseOptions, LeasePolicy, LeaseReply, LeaseRequests, Leased, LendOutcome,
    LendRequest, LendingStore, RenewalOwner,
};
pub use limiter::{AcquireError, KeyedRequest, Limiter, Permit};
pub use limits::{IntoLimits, LimitsError};
pub use memory::{Capacity, CapacityError, MemoryStore, RemoteCache};
pub use memory_stats::MemoryStats;
pub use ratekeeper_core::{
    Algorithm, Align, Amount, Clock, Consistency, Decision, Draw, DrawOptions, DrawOutcome, DrawResult,
    Draws, FailureMode, Forecast, Key, KeyError, KeyRef, Leak, LeaseGrant, LeaseReport, LeaseRequest, Limit,
    LimitError, LimitStatus, LogSize, MAX_DRAWS, MAX_KEY_BYTES, Micros, Op, PermitId, Quota, QuotaError,
    Retry, Scope, Span, State, StoreFailure, Zone, ZoneError,
};
/// Rules: the rule-file format, and the limits that apply to a request.
#[cfg(feature = "rules")]
pub use ratekeeper_rules as rules;
#[cfg(feature = "rules")]
pub use rule_limiter::{
    AppliedLimit, BindingLimit, CheckBatch, DecisionCounts, EmergencyLimit, Policy, Reason, RuleDecision,
    RuleDecisionCounts, RuleLimiter,
};
pub use store::Store;
