//! The calendar in universal time, counted day by day.

use tollgate_core::{Micros, Span};

/// When the day, week or month that `now` falls into ends.
pub(super) fn end(now: Micros, per: Span) -> Micros {
    let day = now.get() / Span::DAY.get();
    let end = match per {
        Span::DAY => day + 1,
        // The epoch was a Thursday.
        Span::WEEK => day + 7 - (day + 3) % 7,
        _ => month_end(day),
    };
    Micros::new(end * Span::DAY.get())
}

/// The first day of the next month, walking there from 1970.
fn month_end(day: u64) -> u64 {
    let mut end = 0;
    for year in 1970.. {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for days in [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            end += days;
            if end > day {
                return end;
            }
        }
    }
    end
}
