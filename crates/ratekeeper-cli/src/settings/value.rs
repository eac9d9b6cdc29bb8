//! Setting values: parsing from text, with errors that say what to write instead.
//!
//! Flags, variables and config files all provide text, and every type of value is parsed in one place, so a setting
//! means the same wherever it is written.

use clap::builder::PossibleValue;
use clap::{ValueEnum, ValueHint};
use ratekeeper::rules::{Cidr, closest_name};
use ratekeeper::{FailureMode, Quota};
use ratekeeper_server::{AllowedOrigins, KeySources};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// A type that a setting can have.
pub(crate) trait SettingValue: Sized {
    const SHAPE: ValueShape;

    /// Parses the text, or returns what is wrong with it and what to write instead.
    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<Self, String>;

    /// The value of an unset setting without a default. Returns `None` if the setting is required.
    fn absent() -> Option<Self> {
        None
    }
}

/// How values of a type are written.
#[derive(Debug)]
pub(crate) struct ValueShape {
    /// The placeholder in help texts.
    pub(crate) placeholder: &'static str,
    pub(crate) hint: ValueHint,
    /// The possible values, if they are a fixed set of words.
    pub(crate) choices: fn() -> Vec<PossibleValue>,
    /// Whether it is a list, separated by commas.
    pub(crate) is_list: bool,
    /// Whether it is secret: never shown, and read only from the environment.
    pub(crate) is_secret: bool,
    /// Formats the text for display, without secret parts.
    pub(crate) show: fn(&str) -> String,
}

impl ValueShape {
    pub(super) const fn word(placeholder: &'static str) -> ValueShape {
        ValueShape {
            placeholder,
            hint: ValueHint::Other,
            choices: Vec::new,
            is_list: false,
            is_secret: false,
            show: str::to_owned,
        }
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const SHAPE: ValueShape = T::SHAPE;

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<Option<T>, String> {
        T::read(text, range).map(Some)
    }

    fn absent() -> Option<Option<T>> {
        Some(None)
    }
}

impl SettingValue for PathBuf {
    const SHAPE: ValueShape = ValueShape { hint: ValueHint::FilePath, ..ValueShape::word("FILE") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<PathBuf, String> {
        match text {
            "" => Err("empty file name: write one, or remove the setting".to_owned()),
            text => Ok(text.into()),
        }
    }
}

/// A secret. It is only ever shown as `(hidden)`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HiddenText(String);

impl HiddenText {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl SettingValue for HiddenText {
    const SHAPE: ValueShape = ValueShape { is_secret: true, ..ValueShape::word("TOKEN") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<HiddenText, String> {
        Ok(HiddenText(text.to_owned()))
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Off,
    /// An address or a host name, and a port.
    At(String),
}

impl SettingValue for Listen {
    const SHAPE: ValueShape = ValueShape { hint: ValueHint::Hostname, ..ValueShape::word("ADDR") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<Listen, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let names_host = text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && host.chars().all(is_name) && port.parse::<u16>().is_ok()
        });
        if names_host || text.parse::<SocketAddr>().is_ok() {
            Ok(Listen::At(text.to_owned()))
        } else {
            Err(format!(
                "cannot listen on {text}: write an address and a port, like 127.0.0.1:8080, [::1]:8080 \
                 or 0.0.0.0:8080, or off"
            ))
        }
    }
}

impl SettingValue for u32 {
    const SHAPE: ValueShape = ValueShape::word("N");

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<u32, String> {
        parse_number(text, range).map(|number| u32::try_from(number).expect("the range ends below 2^32"))
    }
}

impl SettingValue for usize {
    const SHAPE: ValueShape = ValueShape::word("N");

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<usize, String> {
        parse_number(text, range).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }
}

fn parse_number(text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let (min, max) = (range.start(), range.end());
    parse_digits(text).filter(|number| range.contains(number)).ok_or_else(|| {
        format!("invalid number {text:?}: write a whole number from {min} to {max}; _ may separate digits")
    })
}

/// Parses a whole number; `_` may separate its digits.
fn parse_digits(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let is_number =
        text.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Splits a number and its unit: `4 MiB` and `4MiB` are 4 and `MiB`.
fn split_unit(text: &str) -> (Option<u64>, &str) {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    (parse_digits(&text[..text.len() - unit.len()]), unit.trim())
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl SettingValue for Bytes {
    const SHAPE: ValueShape = ValueShape::word("BYTES");

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<Bytes, String> {
        let (number, unit) = split_unit(text);
        let unit = match unit {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        bytes.filter(|bytes| range.contains(bytes)).map(Bytes).ok_or_else(|| {
            let (min, max) = (range.start(), range.end());
            format!("invalid size {text:?}: write {min} to {max} bytes, like 65536, 64KiB or 4MiB")
        })
    }
}

/// A duration; its range is in milliseconds.
impl SettingValue for Duration {
    const SHAPE: ValueShape = ValueShape::word("TIME");

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<Duration, String> {
        let (number, unit) = split_unit(text);
        let unit_ms = match unit {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" | "min" => Some(60_000),
            "h" => Some(3_600_000),
            // Zero needs no unit.
            "" if number == Some(0) => Some(1),
            _ => None,
        };
        let ms = number.zip(unit_ms).and_then(|(number, unit)| number.checked_mul(unit));
        ms.filter(|ms| range.contains(ms)).map(Duration::from_millis).ok_or_else(|| {
            let [min, max] = [range.start(), range.end()].map(|ms| Duration::from_millis(*ms));
            format!(
                "invalid duration {text:?}: write {min:?} to {max:?} with a unit, like 500ms, 10s or 2min"
            )
        })
    }
}

impl SettingValue for Quota {
    const SHAPE: ValueShape = ValueShape::word("QUOTA");

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<Quota, String> {
        text.parse().map_err(|error: ratekeeper::QuotaError| error.to_string())
    }
}

impl SettingValue for KeySources {
    const SHAPE: ValueShape = ValueShape { is_list: true, ..ValueShape::word("SOURCE") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<KeySources, String> {
        text.parse().map_err(|error: ratekeeper_server::KeySourcesError| error.to_string())
    }
}

/// A list of networks, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(pub(crate) Vec<Cidr>);

impl Networks {
    /// The maximum number of networks. Each is compared for every request from a proxy.
    const MAX: usize = 256;
}

impl SettingValue for Networks {
    const SHAPE: ValueShape = ValueShape { is_list: true, ..ValueShape::word("NETWORK") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<Networks, String> {
        if text == "none" {
            return Ok(Networks(Vec::new()));
        }
        let read =
            |word: &str| word.parse().map_err(|error| format!("invalid network {word:?}: {error}, or none"));
        let networks = text.split(',').map(str::trim).map(read).collect::<Result<Vec<Cidr>, String>>()?;
        if networks.len() <= Networks::MAX {
            Ok(Networks(networks))
        } else {
            Err(format!("more than {} networks: merge some of them", Networks::MAX))
        }
    }
}

/// The origins whose pages may call the API, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origins(pub(crate) AllowedOrigins);

impl SettingValue for Origins {
    const SHAPE: ValueShape = ValueShape { is_list: true, ..ValueShape::word("ORIGIN") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<Origins, String> {
        let words = text.split(',').map(str::trim).filter(|_| text != "none");
        AllowedOrigins::new(words).map(Origins).map_err(|error| format!("{error}; or none"))
    }
}

/// A valid log filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

impl LogFilter {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

    pub(crate) fn to_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl SettingValue for LogFilter {
    const SHAPE: ValueShape = ValueShape::word("FILTER");

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<LogFilter, String> {
        let advice = "write a level, like info, or levels per target, like warn,ratekeeper=debug";
        EnvFilter::try_new(text)
            .map_err(|error| format!("invalid log filter {text:?}: {error}: {advice}"))?;
        for part in text.split(',').map(str::trim) {
            // A single word that is not a level enables all logs of a target of that name. A misspelled level would do
            // so too.
            let is_level = LogFilter::LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
            let near = closest_name(part, LogFilter::LEVELS).filter(|_| !is_level && !part.contains('='));
            if let Some(level) = near {
                return Err(format!(
                    "unknown log level {part:?}: write {level}, or {part}=trace for all logs of that target"
                ));
            }
        }
        Ok(LogFilter(text.to_owned()))
    }
}

/// A value that is one of a fixed set of words, whose help is in the comments on its variants.
pub(crate) trait Choice: ValueEnum + PartialEq + 'static {
    /// The placeholder in help texts.
    const PLACEHOLDER: &'static str;

    fn find(word: &str) -> Result<Self, String> {
        Self::from_str(word, false).map_err(|_| unknown_choice(word, &Self::possible_values()))
    }

    fn possible_values() -> Vec<PossibleValue> {
        Self::value_variants().iter().filter_map(Self::to_possible_value).collect()
    }
}

fn unknown_choice(word: &str, choices: &[PossibleValue]) -> String {
    let words: Vec<_> = choices.iter().map(PossibleValue::get_name).collect();
    format!("invalid value {word:?}: write one of {}", words.join(", "))
}

impl<T: Choice> SettingValue for T {
    const SHAPE: ValueShape = ValueShape { choices: T::possible_values, ..ValueShape::word(T::PLACEHOLDER) };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<T, String> {
        T::find(text)
    }
}

impl<T: Choice> SettingValue for Vec<T> {
    const SHAPE: ValueShape =
        ValueShape { choices: T::possible_values, is_list: true, ..ValueShape::word(T::PLACEHOLDER) };

    /// Removes duplicates and keeps the order.
    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<Vec<T>, String> {
        let mut chosen = Vec::new();
        for word in text.split(',').map(str::trim) {
            let value = T::find(word)?;
            if !chosen.contains(&value) {
                chosen.push(value);
            }
        }
        Ok(chosen)
    }
}

/// Another crate's type, so it can't derive `ValueEnum`.
impl SettingValue for FailureMode {
    const SHAPE: ValueShape = ValueShape { choices: failure_modes, ..ValueShape::word("MODE") };

    fn read(text: &str, _: &RangeInclusive<u64>) -> Result<FailureMode, String> {
        let modes = [FailureMode::Local, FailureMode::Open, FailureMode::Closed];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| unknown_choice(text, &failure_modes()))
    }
}

fn failure_modes() -> Vec<PossibleValue> {
    let choice = |mode: FailureMode, help| PossibleValue::new(mode.name()).help(help);
    vec![
        choice(FailureMode::Local, "each node enforces its share of the limit from memory"),
        choice(FailureMode::Open, "requests are allowed and marked as degraded"),
        choice(FailureMode::Closed, "requests are denied"),
    ]
}

/// A listener of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListenerChoice {
    /// the HTTP API
    Http,
    /// the gRPC API and Envoy's rate limit service
    Grpc,
    /// RESP, for Redis clients
    Resp,
    /// the admin API
    Admin,
}

impl Choice for ListenerChoice {
    const PLACEHOLDER: &'static str = "LISTENER";
}

/// A set of rate limit response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderProfile {
    /// X-RateLimit-Limit, -Remaining and -Reset
    #[value(name = "x-ratelimit")]
    XRateLimit,
    /// RateLimit and RateLimit-Policy, as in the current IETF draft
    Ietf,
    /// RateLimit with limit=, remaining= and reset=, as in draft 7
    #[value(name = "draft-7")]
    Draft7,
    /// RateLimit-Limit, -Remaining and -Reset, as in draft 6
    #[value(name = "draft-6")]
    Draft6,
    /// no rate limit headers; Retry-After is always sent with a denial
    None,
}

impl Choice for HeaderProfile {
    const PLACEHOLDER: &'static str = "PROFILE";
}

/// The header profiles of responses, at most one per header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headers(pub(crate) Vec<HeaderProfile>);

impl SettingValue for Headers {
    const SHAPE: ValueShape = Vec::<HeaderProfile>::SHAPE;

    fn read(text: &str, range: &RangeInclusive<u64>) -> Result<Headers, String> {
        let chosen = Vec::<HeaderProfile>::read(text, range)?;
        let has = |profile| chosen.contains(&profile);
        if has(HeaderProfile::Ietf) && has(HeaderProfile::Draft7) {
            return Err("ietf and draft-7 both set the RateLimit header: keep one of them".to_owned());
        }
        match chosen.as_slice() {
            [HeaderProfile::None] => Ok(Headers(Vec::new())),
            chosen if chosen.contains(&HeaderProfile::None) => {
                Err("none can't be combined with other profiles: remove it, or the others".to_owned())
            }
            _ => Ok(Headers(chosen)),
        }
    }
}

/// The header in which proxies send a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientAddress {
    /// X-Forwarded-For, to which every proxy appends
    XForwardedFor,
    /// X-Real-IP, set by the outermost proxy
    XRealIp,
    /// Forwarded (RFC 7239)
    Forwarded,
}

impl Choice for ClientAddress {
    const PLACEHOLDER: &'static str = "HEADER";
}

/// The form of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reset {
    /// Unix time in seconds at which the full quota is available
    Epoch,
    /// seconds until the full quota is available
    Delta,
}

impl Choice for Reset {
    const PLACEHOLDER: &'static str = "FORM";
}

/// The HTTP status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DenyStatus {
    /// OK: the body has the denial
    #[value(name = "200")]
    Ok,
    /// Too Many Requests, for callers that pass the response on
    #[value(name = "429")]
    TooManyRequests,
    /// Forbidden, which nginx's auth_request treats as a denial
    #[value(name = "403")]
    Forbidden,
}

impl Choice for DenyStatus {
    const PLACEHOLDER: &'static str = "STATUS";
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// human-readable
    Text,
    /// one JSON object per line
    Json,
}

impl Choice for LogFormat {
    const PLACEHOLDER: &'static str = "FORMAT";
}
