//! Calendar days, weeks and months in named time zones, across daylight-saving changes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::{Algorithm, Align, Amount, Limit, Micros, Quota, Span, Zone};

/// Returns how many seconds after `at` (Unix seconds) the window that contains it ends.
fn seconds_left(quota: &str, zone: &str, at: u64) -> u64 {
    let zone: Zone = zone.parse().expect("the zone exists");
    let quota: Quota = quota.parse().expect("the quota is valid");
    let limit = Limit::new(Algorithm::FixedWindow(Align::WallClock(zone)), quota)
        .expect("the algorithm supports the quota");
    let now = Micros::new(at * 1_000_000);
    let (step, amount) = (limit.step(None, now, Amount::exactly(1)), Amount::exactly(1));
    limit.status(step, now, amount).reset().get() / 1_000_000
}

#[test]
fn a_day_ends_at_midnight_in_its_zone() {
    // 2024-06-15 12:00 in Berlin is 10:00 UTC.
    let noon_in_berlin = 1_718_445_600;
    assert_eq!(seconds_left("1/day", "Europe/Berlin", noon_in_berlin), 12 * 3600);
    assert_eq!(seconds_left("1/day", "UTC", noon_in_berlin), 14 * 3600);
    assert_eq!(seconds_left("1/day", "America/New_York", noon_in_berlin), 18 * 3600);
    assert_eq!(seconds_left("1/day", "Asia/Kolkata", noon_in_berlin), 8 * 3600 + 1800);
}

#[test]
fn day_length_follows_daylight_saving() {
    // Midnight in Berlin on 31 March 2024 (23 hours) and on 27 October 2024 (25 hours).
    assert_eq!(seconds_left("1/day", "Europe/Berlin", 1_711_839_600), 23 * 3600);
    assert_eq!(seconds_left("1/day", "Europe/Berlin", 1_729_980_000), 25 * 3600);
    // In Beirut the clock jumps at midnight itself: 31 March 2024 begins at 01:00.
    let saturday_noon = 1_711_792_800;
    assert_eq!(seconds_left("1/day", "Asia/Beirut", saturday_noon), 12 * 3600);
}

#[test]
fn weeks_begin_on_monday_and_months_on_the_first() {
    // Sunday, 31 March 2024, noon in Berlin: the week and the month end that midnight.
    let sunday_noon = 1_711_879_200;
    assert_eq!(seconds_left("1/week", "Europe/Berlin", sunday_noon), 12 * 3600);
    assert_eq!(seconds_left("1/month", "Europe/Berlin", sunday_noon), 12 * 3600);
    // 1 February 2024 (a leap year), midnight in Tokyo.
    assert_eq!(seconds_left("1/month", "Asia/Tokyo", 1_706_713_200), 29 * 86_400);
}

#[test]
fn the_last_window_ends_at_the_last_instant() {
    let limit =
        Limit::new(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "1/month".parse().unwrap()).unwrap();
    let step = limit.step(None, Micros::MAX, Amount::exactly(1));
    assert_eq!(step.granted, Some(1));
    assert_eq!(limit.status(step, Micros::MAX, Amount::exactly(1)).reset(), Span::ZERO);
}

#[test]
fn zones_are_parsed_by_name() {
    let berlin: Zone = "europe/berlin".parse().unwrap();
    assert_eq!(berlin.to_string(), "Europe/Berlin");
    assert_eq!("utc".parse(), Ok(Zone::UTC));
    assert_eq!(Zone::UTC.name(), "UTC");
    let error = "Mars/Olympus".parse::<Zone>().unwrap_err().to_string();
    assert!(error.contains("IANA name"), "{error}");
}
