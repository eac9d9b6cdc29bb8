//! The calendar, counted day by day: in universal time, and in Berlin, where clocks change twice a year.

use ratekeeper_core::{Micros, Span, Zone};

const DAY: u64 = Span::DAY.get();
const HOUR: u64 = Span::HOUR.get();

/// When the day, week or month that `now` falls into ends.
pub(super) fn end(now: Micros, per: Span, zone: Zone) -> Micros {
    let day = (now.get() + ahead(zone, now.get())) / DAY;
    let end = match per {
        Span::DAY => day + 1,
        // The epoch was a Thursday.
        Span::WEEK => day + 7 - (day + 3) % 7,
        _ => month_of(day).end,
    };
    // Clocks change in the small hours: an hour before midnight they show what they do at midnight.
    let midnight = end * DAY;
    Micros::new(midnight - ahead(zone, midnight - HOUR))
}

/// By how much the clocks of a zone are ahead of universal time at an instant.
fn ahead(zone: Zone, at: u64) -> u64 {
    match zone.name() {
        "UTC" => 0,
        "Europe/Berlin" if is_summer(at) => 2 * HOUR,
        "Europe/Berlin" => HOUR,
        other => panic!("the models know no calendar of {other}"),
    }
}

/// From the last Sunday in March to that in October, from one in the morning of universal time.
fn is_summer(at: u64) -> bool {
    let month = month_of(at / DAY);
    // The epoch was a Thursday.
    let last_sunday = (0..month.end).rev().find(|day| (day + 4) % 7 == 0).unwrap_or(0);
    let change = last_sunday * DAY + HOUR;
    match month.number {
        3 => at >= change,
        10 => at < change,
        number => (4..10).contains(&number),
    }
}

/// A month: which of its year, and the first day after it.
struct Month {
    number: u64,
    end: u64,
}

/// The month that a day falls into, walking there from 1970.
fn month_of(day: u64) -> Month {
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
    unreachable!("every day falls into a month")
}
