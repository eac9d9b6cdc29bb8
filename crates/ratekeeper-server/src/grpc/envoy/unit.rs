//! Limits in Envoy's terms: so many in a second, a minute, an hour, a day, a week, a month or a year.

use ratekeeper::{Algorithm, Align, Limit, LimitError, Quota, Span, Zone};

/// Envoy's units by their numbers, the shortest first.
const UNITS: [(u64, Span); 7] = [
    (1, Span::SECOND),
    (2, Span::MINUTE),
    (3, Span::HOUR),
    (4, Span::DAY),
    (7, Span::WEEK),
    (5, Span::MONTH),
    (6, Span::YEAR),
];

/// What a limit is in Envoy's terms: so many, and the number of the unit.
///
/// A quota over a unit is told as it is written. Any other is told at the same rate over the next longer unit, rounded
/// down, and one over more than a year over a year: `3 per 90s` is 120 an hour. Of a share, it is what the share grants.
pub(super) fn told(limit: &Limit) -> (u32, u64) {
    let quota = limit.quota();
    let longest = UNITS[UNITS.len() - 1];
    let (unit, span) = UNITS.into_iter().find(|(_, span)| *span >= quota.per()).unwrap_or(longest);
    let periods = u128::from(quota.per().get()) * u128::from(limit.shares());
    let scaled = u128::from(quota.amount()) * u128::from(span.get()) / periods;
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

/// The period that a unit stands for, by its number; nothing if there is no such unit.
pub(super) fn period(number: u64) -> Option<Span> {
    UNITS.into_iter().find(|(unit, _)| *unit == number).map(|(_, span)| span)
}

/// The limit that a descriptor comes with: a window on the wall clock, as in Envoy's own rate limit service. Days, weeks
/// (from Monday) and months begin at midnight, UTC.
pub(super) fn stated(quota: Quota) -> Result<Limit, LimitError> {
    Limit::new(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), quota)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::generated::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

    #[track_caller]
    fn check(quota: &str, requests_per_unit: u32, unit: Unit) {
        let limit = Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap();
        assert_eq!(told(&limit), (requests_per_unit, unit as u64), "{quota}");
    }

    #[test]
    fn a_quota_is_told_in_a_unit() {
        check("100/s", 100, Unit::Second);
        check("100/min", 100, Unit::Minute);
        check("5000/h burst 200", 5000, Unit::Hour);
        check("7/day", 7, Unit::Day);
        check("7/week", 7, Unit::Week);
        check("7/month", 7, Unit::Month);
        check("7/year", 7, Unit::Year);
    }

    #[test]
    fn any_other_is_told_at_its_rate_and_never_above() {
        check("3 per 90s", 120, Unit::Hour);
        check("10 per 100ms", 100, Unit::Second);
        check("100 per 7s", 857, Unit::Minute);
        check("10 per 730 days", 5, Unit::Year);
        check("4000000000 per 100ms", u32::MAX, Unit::Second);
    }

    #[test]
    fn units_are_known_by_their_numbers() {
        let spans = [Span::SECOND, Span::MINUTE, Span::HOUR, Span::DAY, Span::MONTH, Span::YEAR, Span::WEEK];
        for (number, span) in (1..).zip(spans) {
            assert_eq!(period(number), Some(span));
            assert!(stated(Quota::new(u32::MAX, span).unwrap()).is_ok());
        }
        assert_eq!([period(0), period(8), period(u64::MAX)], [None; 3]);
    }
}
