//! Instants and spans, in whole microseconds below 2^53.
//!
//! A double represents every such number exactly, so a store that computes in doubles agrees with this crate to the
//! last bit. Arithmetic saturates instead of wrapping: a clock at the last representable instant stands still
//! instead of starting over.

use std::fmt;
use std::time::Duration;

/// The largest integer up to which a double represents every integer exactly.
pub(crate) const MAX_EXACT: u64 = (1 << 53) - 1;

/// How far a clock may step back before stored states are rebased to the new time.
///
/// A smaller step back only pauses refills; it neither adds nor removes units. The value exceeds the clock
/// differences of servers with synchronised clocks, so a failover stays below it, and it is short enough to wait
/// out. For larger steps, waiting for the clock to catch up could take as long as the clock was wrong.
pub const MAX_CLOCK_STEP_BACK: Span = Span::secs(5);

/// An instant in microseconds since the Unix epoch, up to the year 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The Unix epoch.
    pub const EPOCH: Micros = Micros(0);
    /// The last representable instant.
    pub const MAX: Micros = Micros(MAX_EXACT);

    /// Creates an instant from microseconds since the epoch, at most [`Micros::MAX`].
    #[inline]
    pub const fn new(micros: u64) -> Micros {
        Micros(if micros > MAX_EXACT { MAX_EXACT } else { micros })
    }

    /// Returns the microseconds since the epoch.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Micros) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `span` later, at most [`Micros::MAX`].
    #[inline]
    pub const fn plus(self, span: Span) -> Micros {
        Micros::new(self.0 + span.0)
    }

    /// Returns the instant `span` earlier, or the epoch.
    #[inline]
    pub const fn minus(self, span: Span) -> Micros {
        Micros(self.0.saturating_sub(span.0))
    }
}

/// A length of time in whole microseconds, at most 285 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// A span of zero length.
    pub const ZERO: Span = Span(0);
    /// One second.
    pub const SECOND: Span = Span(1_000_000);
    /// One minute.
    pub const MINUTE: Span = Span(60 * Span::SECOND.0);
    /// One hour.
    pub const HOUR: Span = Span(60 * Span::MINUTE.0);
    /// Twenty-four hours. A calendar day may be longer or shorter: see [`Align`](crate::Align).
    pub const DAY: Span = Span(24 * Span::HOUR.0);
    /// Seven days.
    pub const WEEK: Span = Span(7 * Span::DAY.0);
    /// Thirty days. Calendar months vary: see [`Align`](crate::Align).
    pub const MONTH: Span = Span(30 * Span::DAY.0);
    /// 365 days.
    pub const YEAR: Span = Span(365 * Span::DAY.0);
    /// The longest representable span.
    pub const MAX: Span = Span(MAX_EXACT);

    /// Creates a span from microseconds, at most [`Span::MAX`].
    #[inline]
    pub const fn micros(micros: u64) -> Span {
        Span(if micros > MAX_EXACT { MAX_EXACT } else { micros })
    }

    /// Creates a span from milliseconds, at most [`Span::MAX`].
    pub const fn millis(millis: u64) -> Span {
        Span::micros(millis.saturating_mul(1_000))
    }

    /// Creates a span from seconds, at most [`Span::MAX`].
    pub const fn secs(secs: u64) -> Span {
        Span::micros(secs.saturating_mul(1_000_000))
    }

    /// Returns the length in microseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the length in seconds, rounded up: a `Retry-After` header with this value is never too early.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns whether the length is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        Duration::from_micros(span.0)
    }
}

/// Rounds up to the next microsecond, so that waiting for the span is never too short.
impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        let micros = duration.as_nanos().div_ceil(1_000);
        Span(u64::try_from(micros).map_or(MAX_EXACT, |micros| micros.min(MAX_EXACT)))
    }
}

/// The units that spans are written in, largest first: singular, plural suffix and length.
pub(crate) const UNITS: [(&str, &str, Span); 9] = [
    ("year", " years", Span::YEAR),
    ("month", " months", Span::MONTH),
    ("week", " weeks", Span::WEEK),
    ("day", " days", Span::DAY),
    ("h", "h", Span::HOUR),
    ("min", "min", Span::MINUTE),
    ("s", "s", Span::SECOND),
    ("ms", "ms", Span(1_000)),
    ("us", "us", Span(1)),
];

/// Writes the span in the largest unit that measures it exactly: `90s`, `1h`, `2 weeks`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: Span| self.0 >= unit.0 && self.0.is_multiple_of(unit.0);
        match UNITS.iter().find(|(_, _, unit)| fits(*unit)) {
            None => write!(f, "0s"),
            Some((one, several, unit)) => {
                let count = self.0 / unit.0;
                match (count, several.strip_prefix(' ')) {
                    (1, Some(_)) => write!(f, "1 {one}"),
                    _ => write!(f, "{count}{several}"),
                }
            }
        }
    }
}

/// A source of time. A store reads its clock once per call, regardless of the number of draws in it.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the current time. It may stand still or step back, which may delay a refill. A step back of at most
    /// [`MAX_CLOCK_STEP_BACK`] never adds or removes units.
    fn now(&self) -> Micros;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_at_both_ends() {
        assert_eq!(Micros::MAX.plus(Span::SECOND), Micros::MAX);
        assert_eq!(Micros::new(u64::MAX), Micros::MAX);
        assert_eq!(Micros::new(5).minus(Span::SECOND), Micros::EPOCH);
        assert_eq!(Micros::new(5).minus(Span::micros(2)), Micros::new(3));
        assert_eq!(Micros::new(5).since(Micros::new(9)), Span::ZERO);
    }

    #[test]
    fn a_duration_rounds_up_and_never_overflows() {
        assert_eq!(Span::from(Duration::from_nanos(1)), Span::micros(1));
        assert_eq!(Span::from(Duration::from_micros(7)), Span::micros(7));
        assert_eq!(Span::from(Duration::MAX), Span::MAX);
        assert_eq!(Duration::from(Span::millis(3)), Duration::from_millis(3));
        assert_eq!(Span::micros(1).secs_ceil(), 1);
        assert_eq!(Span::SECOND.secs_ceil(), 1);
        assert_eq!(Span::secs(u64::MAX), Span::MAX);
        assert_eq!(Span::millis(u64::MAX), Span::MAX);
    }

    #[test]
    fn spans_are_written_in_the_largest_exact_unit() {
        let written = [
            (Span::ZERO, "0s"),
            (Span::micros(1), "1us"),
            (Span::millis(250), "250ms"),
            (Span::secs(90), "90s"),
            (Span::MINUTE, "1min"),
            (Span::secs(5400), "90min"),
            (Span::DAY, "1 day"),
            (Span::secs(3 * 86_400), "3 days"),
            (Span::secs(14 * 86_400), "2 weeks"),
            (Span::MONTH, "1 month"),
            (Span::YEAR, "1 year"),
        ];
        for (span, text) in written {
            assert_eq!(span.to_string(), text);
        }
    }
}
