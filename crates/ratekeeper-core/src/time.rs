//! Instants and spans, in whole microseconds below 2^53.
//!
//! A double holds every such number exactly, so a store that computes in doubles agrees with this crate to the last
//! bit. Arithmetic saturates instead of wrapping: a clock at the end of time stands still, it does not start over.

use std::fmt;
use std::time::Duration;

/// The largest whole number below which every integer has a double of its own.
pub(crate) const EXACT: u64 = (1 << 53) - 1;

/// How far a clock may step back before what was stored under the later time is counted from the new time on.
///
/// Up to here a step back pauses a refill and neither lends nor takes anything. It is more than servers that are kept
/// in time differ by, so that a failover stays below it, and short enough to be waited out. Beyond it, waiting for the
/// clock to come back could take as long as the clock was wrong.
pub const MOST_BACK: Span = Span::secs(5);

/// An instant: microseconds since the Unix epoch, good until the year 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The Unix epoch.
    pub const EPOCH: Micros = Micros(0);
    /// The last instant there is.
    pub const MAX: Micros = Micros(EXACT);

    /// An instant so many microseconds after the epoch; [`Micros::MAX`] if that is past the end of time.
    #[inline]
    pub const fn new(micros: u64) -> Micros {
        Micros(if micros > EXACT { EXACT } else { micros })
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is not after it.
    #[inline]
    pub const fn since(self, earlier: Micros) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// This instant, `span` later.
    #[inline]
    pub const fn plus(self, span: Span) -> Micros {
        Micros::new(self.0 + span.0)
    }

    /// This instant, `span` earlier, or the epoch.
    #[inline]
    pub const fn less(self, span: Span) -> Micros {
        Micros(self.0.saturating_sub(span.0))
    }
}

/// A length of time in whole microseconds, at most 285 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
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
    /// Thirty days. A calendar month is a matter of [`Align`](crate::Align).
    pub const MONTH: Span = Span(30 * Span::DAY.0);
    /// 365 days.
    pub const YEAR: Span = Span(365 * Span::DAY.0);
    /// The longest span there is.
    pub const MAX: Span = Span(EXACT);

    /// So many microseconds, at most [`Span::MAX`].
    #[inline]
    pub const fn micros(micros: u64) -> Span {
        Span(if micros > EXACT { EXACT } else { micros })
    }

    /// So many milliseconds, at most [`Span::MAX`].
    pub const fn millis(millis: u64) -> Span {
        Span::micros(millis.saturating_mul(1_000))
    }

    /// So many seconds, at most [`Span::MAX`].
    pub const fn secs(secs: u64) -> Span {
        Span::micros(secs.saturating_mul(1_000_000))
    }

    /// Its length in microseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Its length in seconds, rounded up: what a `Retry-After` header may say without being early.
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whether it is no time at all.
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
        Span(u64::try_from(micros).map_or(EXACT, |micros| micros.min(EXACT)))
    }
}

/// The units a span is written in, largest first: how one is written alone, how several are, and its length.
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

/// Written in the largest unit that measures it exactly: `90s`, `1h`, `2 weeks`.
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

/// Where the time comes from. A store reads its clock once for each call, however many draws the call carries.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// The time now. It may stand still or step back: that may delay a refill but never lends or takes units.
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
        assert_eq!(Micros::new(5).less(Span::SECOND), Micros::EPOCH);
        assert_eq!(Micros::new(5).less(Span::micros(2)), Micros::new(3));
        assert_eq!(Micros::new(5).since(Micros::new(9)), Span::ZERO);
    }

    #[test]
    fn a_duration_rounds_up_and_never_overflows() {
        assert_eq!(Span::from(Duration::from_nanos(1)), Span::micros(1));
        assert_eq!(Span::from(Duration::from_micros(7)), Span::micros(7));
        assert_eq!(Span::from(Duration::MAX), Span::MAX);
        assert_eq!(Duration::from(Span::millis(3)), Duration::from_millis(3));
        assert_eq!(Span::micros(1).secs_up(), 1);
        assert_eq!(Span::SECOND.secs_up(), 1);
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
