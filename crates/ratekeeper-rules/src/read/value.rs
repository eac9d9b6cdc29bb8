//! Parses single values: booleans, numbers, durations, timestamps and choices.
//!
//! Numbers are parsed digit by digit, never as floats, so that 1.67 is exactly 167 hundredths.

use super::fields::FieldItem;
use crate::bounds::MAX_TIMEOUT_MS;
use crate::diagnostic::{Diagnostics, closest_name, quoted};
use crate::schema::field::FieldForm;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use ratekeeper_core::{Micros, Quota, QuotaError, Span};
use std::num::NonZeroU16;

/// The maximum number of decimal places.
const MAX_DECIMALS: usize = 6;

/// A positive number as a fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    pub(super) numerator: u64,
    pub(super) denominator: u64,
}

impl Ratio {
    /// Reduces `numerator / denominator`; neither may be zero.
    pub(super) fn new(numerator: u64, denominator: u64) -> Ratio {
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Ratio { numerator: numerator / a, denominator: denominator / a }
    }
}

impl FieldItem<'_> {
    /// Reads `true` or `false`.
    pub(super) fn boolean(&self, diagnostics: &mut Diagnostics) -> Option<bool> {
        debug_assert!(matches!(self.field.form, FieldForm::Boolean), "{} is not a boolean", self.field.name);
        match self.node.plain() {
            Some("true" | "True" | "TRUE") => return Some(true),
            Some("false" | "False" | "FALSE") => return Some(false),
            _ => {}
        }
        let Some(text) = self.node.text() else {
            self.report_wrong_kind("true or false", diagnostics);
            return None;
        };
        let message = match text {
            "true" | "false" => {
                format!("quotes turn {text} into text: write {}: {text} without quotes", self.name)
            }
            _ => format!(
                "{0} must be true or false, not {1}: write {0}: {2}",
                self.name,
                quoted(text),
                likely_boolean(text)
            ),
        };
        diagnostics.reject(self.place(), message)
    }

    /// Reads one of the words that the field accepts.
    pub(super) fn choice(&self, diagnostics: &mut Diagnostics) -> Option<&'static str> {
        let FieldForm::Choice(words) = self.field.form else {
            debug_assert!(false, "{} is not a choice", self.field.name);
            return None;
        };
        let text = self.text(diagnostics)?;
        if let Some(word) = words.iter().find(|word| **word == text) {
            return Some(word);
        }
        let known = words.join(", ");
        let advice = match closest_name(text, words.iter().copied()) {
            Some(near) => format!("did you mean {near}? The choices are {known}"),
            None => format!("write one of {known}"),
        };
        diagnostics.reject(self.place(), format!("unknown {} {}: {advice}", self.name, quoted(text)))
    }

    /// Reads a whole number; `_` may separate digits.
    pub(super) fn integer(&self, diagnostics: &mut Diagnostics) -> Option<u64> {
        let text = self.text(diagnostics)?;
        let (least, most) = integer_range(&self.field.form);
        let (name, shown) = (self.name, quoted(text));
        let message = match parse_decimal(text) {
            Ok((number, 1)) if most < 1_000 && !(least..=most).contains(&number) => {
                format!("{name} can't be {number}: write a number from {least} to {most}")
            }
            Ok((number, 1)) if number > most => format!("{name} {number} is too large: write at most {most}"),
            Ok((0, _)) if least == 1 && most == u64::from(u32::MAX) => {
                format!("{name} 0 would deny everything: write at least 1, or put the key on the blacklist")
            }
            Ok((number, 1)) if number < least => {
                format!("{name} {number} is too small: write at least {least}")
            }
            Ok((number, 1)) => return Some(number),
            Ok((number, scale)) => {
                let floor = number / scale;
                format!("{name} must be a whole number, not {text}: write {floor} or {}", floor + 1)
            }
            Err(DecimalError::Negative) => format!("{name} {shown} is negative: write at least {least}"),
            Err(DecimalError::TooLong) => format!("{name} {shown} is too large: write at most {most}"),
            Err(DecimalError::TooFine) => {
                format!("{name} must be a whole number, not {shown}: leave the decimals out")
            }
            Err(DecimalError::Other) => {
                format!(
                    "{name} {shown} is not a whole number: write digits only, like {}",
                    self.number_example()
                )
            }
        };
        diagnostics.reject(self.place(), message)
    }

    /// Reads a number of units; quotas count in `u32`.
    pub(super) fn amount(&self, diagnostics: &mut Diagnostics) -> Option<u32> {
        u32::try_from(self.integer(diagnostics)?).ok()
    }

    /// Reads a positive decimal number, exactly.
    pub(super) fn decimal(&self, diagnostics: &mut Diagnostics) -> Option<Ratio> {
        let text = self.text(diagnostics)?;
        let (name, shown) = (self.name, quoted(text));
        let message = match parse_decimal(text) {
            Ok((0, _)) => format!("{name} 0 would never add anything: write a number above 0, like 0.5"),
            Ok((number, scale)) => return Some(Ratio::new(number, scale)),
            Err(DecimalError::Negative) => {
                format!("{name} {shown} is negative: write a number above 0, like 0.5")
            }
            Err(DecimalError::TooLong) => format!("{name} {shown} is too large: write fewer digits"),
            Err(DecimalError::TooFine) => {
                format!("{name} {shown} has more than {MAX_DECIMALS} decimal places: round it")
            }
            Err(DecimalError::Other) => format!("{name} {shown} is not a number: write it like 1.67"),
        };
        diagnostics.reject(self.place(), message)
    }

    /// Reads a number of seconds, or text like `1h`.
    pub(super) fn span(&self, diagnostics: &mut Diagnostics) -> Option<Span> {
        let text = self.text(diagnostics)?;
        self.accept(parse_span(text), diagnostics)
    }

    /// Reads a timeout like `20ms`.
    pub(super) fn timeout_ms(&self, diagnostics: &mut Diagnostics) -> Option<NonZeroU16> {
        let text = self.text(diagnostics)?;
        let error = || {
            format!(
                "{} {} is not a time from 1ms to {MAX_TIMEOUT_MS}ms: write a number and its unit, like 20ms",
                self.name,
                quoted(text)
            )
        };
        self.accept(parse_timeout(text).ok_or_else(error), diagnostics)
    }

    /// Reads a date or a time.
    pub(super) fn timestamp(&self, diagnostics: &mut Diagnostics) -> Option<Micros> {
        let text = self.text(diagnostics)?;
        let error = |why| format!("{} {} {why}", self.name, quoted(text));
        self.accept(parse_timestamp(text.trim()).map_err(error), diagnostics)
    }

    fn number_example(&self) -> &'static str {
        if self.field.example.bytes().all(|byte| byte.is_ascii_digit()) { self.field.example } else { "100" }
    }
}

/// The boolean that another spelling stands for, for use in a message.
fn likely_boolean(text: &str) -> &'static str {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "y" | "on" | "1" | "true" | "enabled" => "true",
        "no" | "n" | "off" | "0" | "false" | "disabled" => "false",
        _ => "true or false",
    }
}

/// The smallest and the largest number that a field accepts.
fn integer_range(form: &FieldForm) -> (u64, u64) {
    match form {
        FieldForm::Integer(least, most) => (*least, *most),
        FieldForm::Either(first, _) => integer_range(first),
        other => {
            debug_assert!(false, "{other:?} is not a whole number");
            (0, u64::MAX)
        }
    }
}

/// Why a text is not a decimal number.
#[derive(Debug, PartialEq, Eq)]
enum DecimalError {
    Negative,
    TooLong,
    TooFine,
    Other,
}

/// Parses a decimal number into its digits as a whole number, and the power of ten to divide it by. `_` may separate
/// digits.
fn parse_decimal(text: &str) -> Result<(u64, u64), DecimalError> {
    let text = text.trim();
    let (text, is_negative) = match text.strip_prefix('-') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
    };
    if !is_digits(whole) || !is_digits(fraction) {
        return Err(DecimalError::Other);
    }
    if is_negative {
        return Err(DecimalError::Negative);
    }
    let fraction = fraction.trim_end_matches(['0', '_']);
    let decimals = fraction.bytes().filter(u8::is_ascii_digit).count();
    if decimals > MAX_DECIMALS {
        return Err(DecimalError::TooFine);
    }
    let mut number = 0_u64;
    for digit in whole.bytes().chain(fraction.bytes()).filter(u8::is_ascii_digit) {
        let more = number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit - b'0')));
        number = more.ok_or(DecimalError::TooLong)?;
    }
    let scale = (0..decimals).fold(1, |scale, _| scale * 10);
    Ok((number, scale))
}

fn parse_timeout(text: &str) -> Option<NonZeroU16> {
    let text = text.trim();
    let (number, unit_micros) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1_000),
        (None, Some(number)) => (number, 1_000_000),
        (None, None) => return None,
    };
    let (number, scale) = parse_decimal(number).ok()?;
    let micros = number.checked_mul(unit_micros)?;
    // Store timeouts have millisecond resolution.
    let millis = micros.is_multiple_of(1_000 * scale).then(|| micros / (1_000 * scale))?;
    let millis = u16::try_from(millis).ok().filter(|millis| *millis <= MAX_TIMEOUT_MS)?;
    NonZeroU16::new(millis)
}

fn parse_span(text: &str) -> Result<Span, String> {
    let micros = match parse_decimal(text) {
        // Six decimal places are microseconds, so this is exact.
        Ok((number, scale)) => number.checked_mul(1_000_000 / scale),
        Err(DecimalError::TooLong) => None,
        Err(DecimalError::TooFine) => {
            return Err(format!("the window {} is finer than a microsecond: round it", quoted(text)));
        }
        Err(DecimalError::Negative) => {
            return Err(format!("the window {} is negative: write its length, like 60 or 1h", quoted(text)));
        }
        Err(DecimalError::Other) => return parse_period(text),
    };
    match micros {
        Some(0) => Err("a window can't be 0: write its length, like 60 or 1h".to_owned()),
        Some(micros) if Span::micros(micros).get() == micros => Ok(Span::micros(micros)),
        _ => Err(format!("the window {} is too long: write at most 100 years", quoted(text))),
    }
}

/// Parses a period in the syntax of quotas.
fn parse_period(text: &str) -> Result<Span, String> {
    let unreadable = || {
        format!(
            "cannot read {} as a window: write seconds, like 60, or a period, like 90s or 1h",
            quoted(text)
        )
    };
    if text.contains(['/', '\n']) || text.contains("burst") {
        return Err(unreadable());
    }
    format!("1/{text}").parse().map(|quota: Quota| quota.per()).map_err(|error| match error {
        QuotaError::InvalidPeriod { .. } => unreadable(),
        error => error.to_string(),
    })
}

fn parse_timestamp(text: &str) -> Result<Micros, String> {
    let micros = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok().and_then(|seconds: u64| seconds.checked_mul(1_000_000))
    } else {
        let stamp = match text.parse::<Timestamp>() {
            Ok(stamp) => stamp,
            // A date has ten characters. Longer text has a time of day, which `Date` would drop.
            Err(_) if text.len() == 10 => {
                let midnight = text.parse::<Date>().and_then(|date| date.to_zoned(TimeZone::UTC));
                midnight.map_err(|_| invalid_timestamp())?.timestamp()
            }
            Err(_) => return Err(invalid_timestamp()),
        };
        let micros = stamp.as_microsecond();
        Some(u64::try_from(micros).map_err(|_| "is before 1970: leave out what has expired".to_owned())?)
    };
    match micros {
        Some(micros) if Micros::new(micros).get() == micros => Ok(Micros::new(micros)),
        _ => Err("is after the year 2255: write seconds since 1970, not milliseconds, or a date".to_owned()),
    }
}

fn invalid_timestamp() -> String {
    "is not a time: write it like 2030-01-31T12:00:00Z (ending in Z or an offset like +01:00), 2030-01-31, or as \
     seconds since 1970"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_are_seconds_or_periods() {
        let span = |text: &str| parse_span(text).map_err(|_| ());
        assert_eq!(span("60"), Ok(Span::MINUTE));
        assert_eq!(span("0.5"), Ok(Span::millis(500)));
        assert_eq!(span("60s"), Ok(Span::MINUTE));
        assert_eq!(span("2 weeks"), Ok(Span::micros(2 * Span::WEEK.get())));
        for bad in
            ["0", "-1", "1e3", "x", "60/s", "60s burst 3", "0.0000001", "99999999999999", "0s", "60s\n"]
        {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn timeouts_are_whole_milliseconds_with_their_unit() {
        let timeout = |text: &str| parse_timeout(text).map(NonZeroU16::get);
        for (text, millis) in
            [("20ms", 20), ("1ms", 1), ("1000ms", 1000), ("1s", 1000), (" 0.05 s ", 50), ("2.0ms", 2)]
        {
            assert_eq!(timeout(text), Some(millis), "{text}");
        }
        for bad in
            ["", "20", "0ms", "1001ms", "1.001s", "2s", "0.5ms", "-1ms", "ms", "s", "20us", "1min", "20 m s"]
        {
            assert_eq!(timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn timestamps_are_times_dates_or_seconds() {
        let moment =
            |text: &str| parse_timestamp(text).map(|moment| moment.get() / 1_000_000).map_err(|_| ());
        assert_eq!(moment("2030-01-31T12:00:00Z"), Ok(1_896_091_200));
        assert_eq!(moment("2030-01-31T13:00:00+01:00"), Ok(1_896_091_200));
        assert_eq!(moment("2030-01-31"), Ok(1_896_048_000));
        assert_eq!(moment("1896048000"), Ok(1_896_048_000));
        for bad in
            ["2030-01-31T12:00:00", "2030-02-30", "tomorrow", "1969-12-31", "1896048000000", "2300-01-01", ""]
        {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_decimal_is_exactly_what_is_written(whole in 0u32.., fraction in "[0-9]{0,6}") {
            let text = if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") };
            let (number, scale) = parse_decimal(&text).unwrap();
            // The parser drops trailing zeros: scaled to millionths, the number has the written digits again.
            let millionths: u64 = format!("{whole}{fraction:0<6}").parse().unwrap();
            prop_assert_eq!(number * (1_000_000 / scale), millionths);
            if number > 0 {
                let ratio = Ratio::new(number, scale);
                prop_assert_eq!(u128::from(ratio.numerator) * u128::from(scale), u128::from(number) * u128::from(ratio.denominator));
                prop_assert_eq!(1_000_000 % ratio.denominator, 0);
            }
        }

        #[test]
        fn a_seventh_decimal_is_rejected_unless_it_is_zero(whole in 0u32.., fraction in "[0-9]{6}", last in 1u8..=9) {
            let finer = format!("{whole}.{fraction}{last}");
            let padded = format!("{whole}.{fraction}0");
            prop_assert_eq!(parse_decimal(&finer), Err(DecimalError::TooFine));
            prop_assert!(parse_decimal(&padded).is_ok());
        }
    }
}
