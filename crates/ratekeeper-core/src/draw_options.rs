//! The options of a draw: what its rule says besides the limit.

use std::num::NonZeroU16;

/// The options of a draw: how exact it is across nodes, and what happens if the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawOptions {
    /// Whether this is a shadow draw: it takes units if the request is allowed, but never denies the request.
    pub is_shadow: bool,
    /// How exact the limit is across nodes.
    pub consistency: Consistency,
    /// What happens if the store does not answer.
    pub on_failure: FailureMode,
    /// The timeout of the store in milliseconds; `None` uses the default of the store.
    pub timeout_ms: Option<NonZeroU16>,
}

impl DrawOptions {
    /// The defaults, except that every check reaches the store.
    pub const EXACT: DrawOptions = DrawOptions {
        is_shadow: false,
        consistency: Consistency::Exact,
        on_failure: FailureMode::Local,
        timeout_ms: None,
    };
}

/// What to decide when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailureMode {
    /// Allow the request and mark the decision as degraded.
    Open,
    /// Deny the request.
    Closed,
    /// Each node enforces its share of the limit from memory.
    #[default]
    Local,
}

impl FailureMode {
    /// Returns the name used in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            FailureMode::Open => "open",
            FailureMode::Closed => "closed",
            FailureMode::Local => "local",
        }
    }
}

/// How exact a limit is across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Every check reaches the store.
    Exact,
    /// A node leases prepaid units and decides from memory; all nodes together never admit more than the limit
    /// allows. Limits that can't be leased are exact.
    #[default]
    Leased,
    /// Each node enforces the whole limit on its own.
    Local,
}

impl Consistency {
    /// Returns the name used in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Consistency::Exact => "exact",
            Consistency::Leased => "leased",
            Consistency::Local => "local",
        }
    }
}
