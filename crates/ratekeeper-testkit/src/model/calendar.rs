//! The calendar, counted day by day, in UTC and in Berlin, which has daylight saving time.

use ratekeeper_core::{Micros, Span, Zone};

const DAY: u64 = Span::DAY.get();
const HOUR: u64 = Span::HOUR.get();

/// The end of the day, week or month that contains `now`.
pub(super) fn period_end(now: Micros, per: Span, zone: Zone) -> Micros {
    let day = (now.get() + utc_offset(zone, now.get())) / DAY;
    let end = match per {
        Span::DAY => day + 1,
        // The epoch was a Thursday.
        Span::WEEK => day + 7 - (day + 3) % 7,
        _ => month_containing(day).end,
    };
    // Clocks change in the small hours, so the offset an hour before midnight is the one at midnight.
    let midnight = end * DAY;
    Micros::new(midnight - utc_offset(zone, midnight - HOUR))
}

/// The offset of a zone from UTC at an instant.
fn utc_offset(zone: Zone, at: u64) -> u64 {
    match zone.name() {
        "UTC" => 0,
        "Europe/Berlin" if is_daylight_saving(at) => 2 * HOUR,
        "Europe/Berlin" => HOUR,
        other => panic!("the models have no calendar for {other}"),
    }
}

/// Whether Berlin has daylight saving time: from the last Sunday in March to the last in October, both at 01:00 UTC.
fn is_daylight_saving(at: u64) -> bool {
    let month = month_containing(at / DAY);
    // The epoch was a Thursday.
    let last_sunday = (0..month.end).rev().find(|day| (day + 4) % 7 == 0).unwrap_or(0);
    let change = last_sunday * DAY + HOUR;
    match month.number {
        3 => at >= change,
        10 => at < change,
        number => (4..10).contains(&number),
    }
}

/// A month: its number in the year, and the first day after it.
struct Month {
    number: u64,
    end: u64,
}

/// The month that contains a day, counting from 1970.
fn month_containing(day: u64) -> Month {
    let mut end = 0;
    for year in 1970.. {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let lengths = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (number, days) in (1..).zip(lengths) {
            end += days;
            if end > day {
                return Month { number, end };
            }
        }
    }
    unreachable!("every day is in a month")
}
