//! Converts limits to and from Envoy's: requests per second, minute, hour, day, week, month or year.

use ratekeeper::{Algorithm, Align, Limit, LimitError, Quota, Span, Zone};

/// Envoy's units with their enum numbers, the shortest first.
const UNITS: [(u64, Span); 7] = [
    (1, Span::SECOND),
    (2, Span::MINUTE),
    (3, Span::HOUR),
    (4, Span::DAY),
    (7, Span::WEEK),
    (5, Span::MONTH),
    (6, Span::YEAR),
];

/// A limit as Envoy's `requests_per_unit` and the number of its unit.
///
/// A quota over one of the units is reported unchanged. Any other is scaled to the next longer unit and rounded down,
/// or to a year if it is over more than that: `3 per 90s` is 120 an hour. A node's share of a limit is reported as its
/// share.
pub(super) fn requests_per_unit(limit: &Limit) -> (u32, u64) {
    let quota = limit.quota();
    let longest = UNITS[UNITS.len() - 1];
    let (unit, span) = UNITS.into_iter().find(|(_, span)| *span >= quota.per()).unwrap_or(longest);
    let periods = u128::from(quota.per().get()) * u128::from(limit.share_count());
    let scaled = u128::from(quota.amount()) * u128::from(span.get()) / periods;
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

/// The length of a unit, by its number. Returns `None` if there is no such unit.
pub(super) fn period(number: u64) -> Option<Span> {
    UNITS.into_iter().find(|(unit, _)| *unit == number).map(|(_, span)| span)
}

/// The limit for a quota in a descriptor: a fixed window aligned to the wall clock, as in Envoy's own rate limit
/// service. Days, weeks (from Monday) and months begin at midnight, UTC.
pub(super) fn wall_clock_window(quota: Quota) -> Result<Limit, LimitError> {
    Limit::new(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), quota)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::generated::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

    #[track_caller]
    fn check(quota: &str, requests: u32, unit: Unit) {
        let limit = Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap();
        assert_eq!(requests_per_unit(&limit), (requests, unit as u64), "{quota}");
    }

    #[test]
    fn a_quota_over_a_unit_is_unchanged() {
        check("100/s", 100, Unit::Second);
        check("100/min", 100, Unit::Minute);
        check("5000/h burst 200", 5000, Unit::Hour);
        check("7/day", 7, Unit::Day);
        check("7/week", 7, Unit::Week);
        check("7/month", 7, Unit::Month);
        check("7/year", 7, Unit::Year);
    }

    #[test]
    fn other_quotas_are_scaled_and_rounded_down() {
        check("3 per 90s", 120, Unit::Hour);
        check("10 per 100ms", 100, Unit::Second);
        check("100 per 7s", 857, Unit::Minute);
        check("10 per 730 days", 5, Unit::Year);
        check("4000000000 per 100ms", u32::MAX, Unit::Second);
    }

    #[test]
    fn units_have_envoys_numbers() {
        let spans = [Span::SECOND, Span::MINUTE, Span::HOUR, Span::DAY, Span::MONTH, Span::YEAR, Span::WEEK];
        for (number, span) in (1..).zip(spans) {
            assert_eq!(period(number), Some(span));
            assert!(wall_clock_window(Quota::new(u32::MAX, span).unwrap()).is_ok());
        }
        assert_eq!([period(0), period(8), period(u64::MAX)], [None; 3]);
    }
}
