//! Quotas and their text form.
//!
//! The text form is written by people and round-trips: `100/s`, `5000/h burst 200`, `3 per 90s`.

use crate::time::{Span, UNITS};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// An amount of units per period: `100/s`, `5000/h burst 200`, `3 per 90s`.
///
/// A quota does not name an algorithm; a [`Limit`](crate::Limit) is a quota under an algorithm. `burst` is how many
/// units may be taken at once under the bucket algorithms; without it, each algorithm has its own default.
///
/// ```
/// use ratekeeper_core::{Quota, Span};
///
/// let quota: Quota = "5000 per hour burst 200".parse()?;
/// assert_eq!(quota, Quota::new(5000, Span::HOUR)?.with_burst(200)?);
/// assert_eq!(quota.to_string(), "5000/h burst 200");
/// # Ok::<(), ratekeeper_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    amount: NonZeroU32,
    burst: Option<NonZeroU32>,
    per: Span,
}

impl Quota {
    /// Creates a quota of `amount` units per period `per`.
    ///
    /// # Errors
    /// Returns an error if either is zero.
    pub const fn new(amount: u32, per: Span) -> Result<Quota, QuotaError> {
        let Some(amount) = NonZeroU32::new(amount) else { return Err(QuotaError::ZeroAmount) };
        if per.is_zero() {
            return Err(QuotaError::ZeroPeriod);
        }
        Ok(Quota { amount, per, burst: None })
    }

    /// Creates a quota of `amount` units per second, for use with literals.
    ///
    /// # Panics
    /// Panics if `amount` is zero.
    pub const fn per_second(amount: u32) -> Quota {
        Quota::literal(amount, Span::SECOND)
    }

    /// Creates a quota of `amount` units per minute, for use with literals.
    ///
    /// # Panics
    /// Panics if `amount` is zero.
    pub const fn per_minute(amount: u32) -> Quota {
        Quota::literal(amount, Span::MINUTE)
    }

    /// Creates a quota of `amount` units per hour, for use with literals.
    ///
    /// # Panics
    /// Panics if `amount` is zero.
    pub const fn per_hour(amount: u32) -> Quota {
        Quota::literal(amount, Span::HOUR)
    }

    const fn literal(amount: u32, per: Span) -> Quota {
        match NonZeroU32::new(amount) {
            Some(amount) => Quota { amount, per, burst: None },
            None => panic!("a quota needs an amount of at least 1"),
        }
    }

    /// Returns the same quota with a burst of up to `burst` units at once.
    ///
    /// # Errors
    /// Returns an error if `burst` is zero.
    pub const fn with_burst(self, burst: u32) -> Result<Quota, QuotaError> {
        match NonZeroU32::new(burst) {
            Some(burst) => Ok(Quota { burst: Some(burst), ..self }),
            None => Err(QuotaError::ZeroBurst),
        }
    }

    /// Returns the number of units per period.
    #[inline]
    pub const fn amount(&self) -> u32 {
        self.amount.get()
    }

    /// Returns the period.
    #[inline]
    pub const fn per(&self) -> Span {
        self.per
    }

    /// Returns how many units may be taken at once, or `None` if the quota does not say.
    #[inline]
    pub const fn burst(&self) -> Option<u32> {
        match self.burst {
            Some(burst) => Some(burst.get()),
            None => None,
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, _, unit)| *unit == self.per) {
            Some((one, _, _)) => write!(f, "{}/{one}", self.amount)?,
            None => write!(f, "{} per {}", self.amount, self.per)?,
        }
        match self.burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Quota, QuotaError> {
        let (rate, burst) = match text.split_once("burst") {
            Some((rate, burst)) => (rate, Some(burst)),
            None => (text, None),
        };
        let (amount, per) = rate
            .split_once('/')
            .or_else(|| rate.split_once(" per "))
            .ok_or_else(|| QuotaError::InvalidFormat { text: excerpt(text) })?;
        let quota = Quota::new(parse_count("amount", amount)?, parse_period(per)?)?;
        match burst {
            Some(burst) => quota.with_burst(parse_count("burst", burst)?),
            None => Ok(quota),
        }
    }
}

/// Parses a whole number; `_` may separate its digits.
fn parse_count<N: FromStr>(what: &'static str, text: &str) -> Result<N, QuotaError> {
    let text = text.trim();
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let is_number =
        digits.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number {
        return Err(QuotaError::NotANumber { what, text: excerpt(text) });
    }
    digits.parse().map_err(|_| QuotaError::TooLarge { what, text: excerpt(text) })
}

/// Parses a period such as `s`, `90s`, `hour` or `2 weeks`.
fn parse_period(text: &str) -> Result<Span, QuotaError> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "us" | "µs" | "microsecond" | "microseconds" => Span::micros(1),
        "ms" | "millisecond" | "milliseconds" => Span::millis(1),
        "s" | "sec" | "secs" | "second" | "seconds" => Span::SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => Span::MINUTE,
        "h" | "hr" | "hour" | "hours" => Span::HOUR,
        "d" | "day" | "days" => Span::DAY,
        "w" | "week" | "weeks" => Span::WEEK,
        "mo" | "month" | "months" => Span::MONTH,
        "y" | "year" | "years" => Span::YEAR,
        _ => return Err(QuotaError::InvalidPeriod { text: excerpt(text) }),
    };
    let count: u64 = if count.is_empty() { 1 } else { parse_count("period", count)? };
    match count.checked_mul(unit.get()).map(|micros| (micros, Span::micros(micros))) {
        Some((micros, span)) if span.get() == micros => Ok(span),
        _ => Err(QuotaError::TooLarge { what: "period", text: excerpt(text) }),
    }
}

/// Returns the first 40 characters of the input, so that an error message never carries a megabyte of it.
fn excerpt(text: &str) -> String {
    let mut shown: String = text.trim().chars().take(40).collect();
    if text.trim().chars().nth(40).is_some() {
        shown.push('…');
    }
    shown
}

/// An invalid quota. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The text does not have the form of a quota.
    #[error(
        "cannot read {text:?} as a quota: write an amount and a period, like 100/s, 5000/h burst 200 or 3 per 90s"
    )]
    InvalidFormat {
        /// The text as written, shortened.
        text: String,
    },
    /// A number is not a whole number.
    #[error("{what} {text:?} is not a whole number: write digits only, like 100 or 10_000")]
    NotANumber {
        /// Which number: the amount, the period or the burst.
        what: &'static str,
        /// The text as written, shortened.
        text: String,
    },
    /// A number is too large.
    #[error(
        "{what} {text:?} is too large: an amount or a burst goes up to 4294967295, a period up to 285 years"
    )]
    TooLarge {
        /// Which number: the amount, the period or the burst.
        what: &'static str,
        /// The text as written, shortened.
        text: String,
    },
    /// The period has no known unit.
    #[error(
        "cannot read {text:?} as a period: write us, ms, s, min, h, day, week, month or year, \
         with a count if need be, like 90s"
    )]
    InvalidPeriod {
        /// The text as written, shortened.
        text: String,
    },
    /// The amount is zero.
    #[error("an amount of 0 would deny everything: write at least 1, or put the key on a deny list")]
    ZeroAmount,
    /// The period is zero.
    #[error("a period of 0 has no rate: write at least 1us, like 100/s")]
    ZeroPeriod,
    /// The burst is zero.
    #[error("a burst of 0 would deny everything: write at least 1, or leave the burst out")]
    ZeroBurst,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_accepts_what_people_write() {
        let cases = [
            ("100/s", "100/s"),
            ("100 / second", "100/s"),
            ("5000/h burst 200", "5000/h burst 200"),
            (" 5000 per hour  burst 200 ", "5000/h burst 200"),
            ("3 per 90s", "3 per 90s"),
            ("3/90s", "3 per 90s"),
            ("10_000/day", "10000/day"),
            ("1/month", "1/month"),
            ("7/2 weeks", "7 per 2 weeks"),
            ("7 per 120s", "7 per 2min"),
            ("1/w", "1/week"),
            ("2/y", "2/year"),
            ("10000000/s", "10000000/s"),
            ("5/100ms", "5 per 100ms"),
            ("5/us", "5/us"),
            ("5/mo", "5/month"),
        ];
        for (written, canonical) in cases {
            let quota: Quota = written.parse().expect(written);
            assert_eq!(quota.to_string(), canonical);
            assert_eq!(canonical.parse::<Quota>(), Ok(quota));
        }
    }

    #[test]
    fn an_invalid_quota_says_what_to_write_instead() {
        let cases = [
            ("", "write an amount and a period"),
            ("100", "write an amount and a period"),
            ("100 s", "write an amount and a period"),
            ("/s", "is not a whole number"),
            ("-1/s", "is not a whole number"),
            ("1.5/s", "is not a whole number"),
            ("_/s", "is not a whole number"),
            ("0/s", "an amount of 0"),
            ("1/0s", "a period of 0"),
            ("1/s burst 0", "a burst of 0"),
            ("1/s burst", "is not a whole number"),
            ("1/s burst x", "is not a whole number"),
            ("4294967296/s", "is too large"),
            ("1/s burst 4294967296", "is too large"),
            ("1/fortnight", "write us, ms, s"),
            ("1/", "write us, ms, s"),
            ("1/90", "write us, ms, s"),
            ("1/999999999999s", "is too large"),
            ("1/4294967295y", "is too large"),
            ("1/286y", "is too large"),
        ];
        for (written, expected) in cases {
            let error = written.parse::<Quota>().expect_err(written).to_string();
            assert!(error.contains(expected), "{written:?}: {error:?}");
        }
    }

    #[test]
    fn an_error_never_carries_the_whole_input() {
        let error = " 100 z ".parse::<Quota>().expect_err("no period").to_string();
        assert!(error.starts_with("cannot read \"100 z\" as a quota"), "{error}");
        let error = "9".repeat(1 << 20).parse::<Quota>().expect_err("no period").to_string();
        assert!(error.len() < 300 && error.contains("999…"), "{error}");
        let error = format!("{}/s", "9".repeat(1 << 20)).parse::<Quota>().expect_err("too large").to_string();
        assert!(error.len() < 300);
    }
}
