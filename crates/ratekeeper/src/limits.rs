//! The limits that a limiter enforces, however they are written.

use ratekeeper_core::{Algorithm, Limit, LimitError, MAX_DRAWS, Quota, QuotaError};

/// Whatever can be read as limits: a quota or its text (under the token bucket), a limit, or a list of these.
///
/// ```
/// use ratekeeper::{Law, Limit, Limiter, Quota};
///
/// let one = Limiter::new("100/s burst 20")?;
/// let several = Limiter::new(["100/s", "10_000/h"])?;
/// let by_law = Limiter::new(Limit::new(Law::SlidingWindowCounter, Quota::per_minute(600))?)?;
/// # Ok::<(), ratekeeper::LimitsError>(())
/// ```
pub trait IntoLimits {
    /// The limits.
    ///
    /// # Errors
    /// If one of them can't be read or honoured.
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
            0 => Err(LimitsError::None),
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

/// Why limits can't be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// A quota's text can't be read.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A law can't honour a quota.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// There are none.
    #[error("a limiter without limits allows everything: give it at least one, like \"100/s\"")]
    None,
    /// There are too many.
    #[error("a request can pass at most {MAX_DRAWS} limits, not {count}: leave out those that others imply")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        let bucket = |text: &str| Limit::new(Algorithm::TokenBucket, text.parse().unwrap()).unwrap();
        assert_eq!("100/s".into_limits(), Ok(vec![bucket("100/s")]));
        assert_eq!(["100/s", "9/h burst 3"].into_limits(), Ok(vec![bucket("100/s"), bucket("9/h burst 3")]));
        assert_eq!(vec![bucket("1/s")].into_limits(), Ok(vec![bucket("1/s")]));
        assert!(matches!("fast".into_limits(), Err(LimitsError::Quota(_))));
        assert!(matches!("4294967291/285y".into_limits(), Err(LimitsError::Limit(_))));
        assert_eq!(Vec::<Limit>::new().into_limits(), Err(LimitsError::None));
        assert_eq!(vec!["1/s"; 17].into_limits(), Err(LimitsError::TooMany { count: 17 }));
        assert!(vec!["1/s"; 16].into_limits().is_ok());
    }
}
