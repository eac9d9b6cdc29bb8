//! Conversions into the limits that a limiter enforces.

use ratekeeper_core::{Algorithm, Limit, LimitError, MAX_DRAWS, Quota, QuotaError};

/// A value that converts into limits: a quota or its text (under the token bucket), a limit, or a list of these.
///
/// ```
/// use ratekeeper::{Algorithm, Limit, Limiter, Quota};
///
/// let one = Limiter::new("100/s burst 20")?;
/// let several = Limiter::new(["100/s", "10_000/h"])?;
/// let window = Limiter::new(Limit::new(Algorithm::SlidingWindowCounter, Quota::per_minute(600))?)?;
/// # Ok::<(), ratekeeper::LimitsError>(())
/// ```
pub trait IntoLimits {
    /// Converts `self` into limits.
    ///
    /// # Errors
    /// Returns an error if a quota is invalid, if an algorithm can't enforce it, or if there are no limits or more
    /// than [`MAX_DRAWS`].
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError>;
}

impl IntoLimits for Limit {
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError> {
        Ok(vec![self])
    }
}

impl IntoLimits for Quota {
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError> {
        Ok(vec![Limit::new(Algorithm::TokenBucket, self)?])
    }
}

impl IntoLimits for &str {
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError> {
        self.parse::<Quota>()?.into_limits()
    }
}

impl<T: IntoLimits> IntoLimits for Vec<T> {
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError> {
        let nested = self.into_iter().map(T::into_limits).collect::<Result<Vec<_>, _>>()?;
        let limits = nested.concat();
        match limits.len() {
            0 => Err(LimitsError::Empty),
            1..=MAX_DRAWS => Ok(limits),
            count => Err(LimitsError::TooMany { count }),
        }
    }
}

impl<T: IntoLimits, const N: usize> IntoLimits for [T; N] {
    fn into_limits(self) -> Result<Vec<Limit>, LimitsError> {
        Vec::from(self).into_limits()
    }
}

/// Why values don't convert into limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The text of a quota is invalid.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// An algorithm can't enforce a quota.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// There are no limits.
    #[error("a limiter without limits allows everything: give it at least one, like \"100/s\"")]
    Empty,
    /// There are more than [`MAX_DRAWS`] limits.
    #[error(
        "at most {MAX_DRAWS} limits can apply to a request, not {count}: leave out limits that others imply"
    )]
    TooMany {
        /// The number of limits.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_built_from_every_supported_form() {
        let bucket = |text: &str| Limit::new(Algorithm::TokenBucket, text.parse().unwrap()).unwrap();
        assert_eq!("100/s".into_limits(), Ok(vec![bucket("100/s")]));
        assert_eq!(["100/s", "9/h burst 3"].into_limits(), Ok(vec![bucket("100/s"), bucket("9/h burst 3")]));
        assert_eq!(vec![bucket("1/s")].into_limits(), Ok(vec![bucket("1/s")]));
        assert!(matches!("fast".into_limits(), Err(LimitsError::Quota(_))));
        assert!(matches!("4294967291/285y".into_limits(), Err(LimitsError::Limit(_))));
        assert_eq!(Vec::<Limit>::new().into_limits(), Err(LimitsError::Empty));
        assert_eq!(vec!["1/s"; 17].into_limits(), Err(LimitsError::TooMany { count: 17 }));
        assert!(vec!["1/s"; 16].into_limits().is_ok());
    }
}
