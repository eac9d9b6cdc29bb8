//! Why a limit can't be built.

use super::Limit;
use crate::algorithm::Zone;
use crate::quota::Quota;
use crate::time::Span;

/// Why an algorithm can't enforce a quota. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// Exact arithmetic would exceed 2^53.
    #[error(
        "{quota} is too fine to be counted exactly: round the amount (to a multiple of 1000, say), \
         shorten the period or lower the burst"
    )]
    TooFine {
        /// The rejected quota.
        quota: Quota,
    },
    /// The limit would take more than a century to reach full capacity.
    #[error(
        "{quota} would take {} years to be full again, and at most 100 can be counted: lower the burst or shorten the \
         period", takes.get() / Span::YEAR.get()
    )]
    TooSlow {
        /// The rejected quota.
        quota: Quota,
        /// How long it would take.
        takes: Span,
    },
    /// The algorithm has no burst.
    #[error("{algorithm} has no burst, but the quota is {quota}: leave the burst out, or use token_bucket")]
    BurstUnused {
        /// The name of the algorithm.
        algorithm: &'static str,
        /// The rejected quota.
        quota: Quota,
    },
    /// A log of this size takes much memory per key.
    #[error(
        "a log of {} units for each key is long (the usual bound is {}): use sliding_window_counter, \
         or say that the log may be large", quota.amount(), Limit::STANDARD_LOG_UNITS
    )]
    LogTooLong {
        /// The rejected quota.
        quota: Quota,
    },
    /// A time zone only affects days, weeks and months.
    #[error(
        "the time zone {zone} has no effect on windows of {per}: leave it out, or use a day, a week or a month"
    )]
    ZoneWithoutCalendar {
        /// The time zone.
        zone: Zone,
        /// The period.
        per: Span,
    },
    /// The window of a sliding window counter is too short to be numbered.
    #[error("a sliding window of {per} is too short: write at least {shortest}, or use token_bucket")]
    WindowTooShort {
        /// The period.
        per: Span,
        /// The shortest supported period.
        shortest: Span,
    },
}
