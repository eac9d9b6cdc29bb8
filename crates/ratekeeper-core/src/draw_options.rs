//! On what terms a draw is made: what its rule says beside the limit.

use std::num::NonZeroU16;

/// What a rule says of its draws beside the limit: how exact they are across nodes, and what holds if the store gives no
/// answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawOptions {
    /// Whether the draw refuses nobody: it takes its units with the others, but its own refusal stops none of them.
    pub is_shadow: bool,
    /// How exact it is across nodes.
    pub consistency: Consistency,
    /// What holds if the store gives no answer.
    pub on_failure: FailureMode,
    /// How many milliseconds the store has to answer, if the rule has a word on that.
    pub deadline: Option<NonZeroU16>,
}

impl DrawOptions {
    /// What is usual, but that every check reaches the store.
    pub const EXACT: DrawOptions = DrawOptions {
        is_shadow: false,
        consistency: Consistency::Exact,
        on_failure: FailureMode::Local,
        deadline: None,
    };
}

/// What to answer when the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailureMode {
    /// Allow, marked as degraded.
    Open,
    /// Refuse.
    Closed,
    /// Each node enforces its share from memory.
    #[default]
    Local,
}

impl FailureMode {
    /// The name it is written by.
    pub const fn name(self) -> &'static str {
        match self {
            FailureMode::Open => "open",
            FailureMode::Closed => "closed",
            FailureMode::Local => "local",
        }
    }
}

/// How exact a rule is across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Every check reaches the store.
    Exact,
    /// A node takes prepaid units ahead and answers from memory, and no more is admitted than the limit allows. What can't be
    /// lent is exact.
    #[default]
    Leased,
    /// Each node by itself.
    Local,
}

impl Consistency {
    /// The name it is written by.
    pub const fn name(self) -> &'static str {
        match self {
            Consistency::Exact => "exact",
            Consistency::Leased => "leased",
            Consistency::Local => "local",
        }
    }
}
