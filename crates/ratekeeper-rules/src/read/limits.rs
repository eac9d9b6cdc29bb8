//! Parses limits in each of their forms: as text, as a list, or as numbers (`params`).

use super::fields::{FieldItem, FieldReader};
use super::value::Ratio;
use crate::diagnostic::{Diagnostics, closest_name, quoted};
use crate::schema::table::{ALGORITHMS, OVERRIDE, PARAMS};
use crate::spec::{At, Position};
use crate::yaml::YamlValue;
use ratekeeper_core::{
    Algorithm, Align, Leak, Limit, LimitError, LogSize, Micros, Quota, QuotaError, Span, Zone, ZoneError,
};

/// The value of `limit` that means no limit.
const UNLIMITED: &str = "unlimited";
/// The fields that define limits, of which at most one may be present.
const LIMIT_FIELDS: [&str; 3] = ["limit", "limits", "params"];

/// The limit-related fields of a rule, a tier, a client or the default.
#[derive(Debug)]
pub(super) struct LimitFields {
    /// The algorithm. If it can't be read, this is a substitute, so that further errors can be found.
    pub(super) algorithm: Algorithm,
    /// Whether `algorithm` or one of its options (`zone`, `starts`, `large_log`) is given.
    pub(super) names_algorithm: bool,
    /// The limits without the invalid ones; `None` if no limit is given.
    pub(super) limits: Option<Vec<Limit>>,
    /// The numbers of the only limit, which an override inherits if it leaves them out.
    params: Option<LimitNumbers>,
}

impl LimitFields {
    /// Reads `algorithm`, `limit` and the related fields.
    pub(super) fn read(fields: &FieldReader<'_>, diagnostics: &mut Diagnostics) -> LimitFields {
        let algorithm = read_algorithm(fields, diagnostics);
        let [limit, limits, params] = LIMIT_FIELDS.map(|name| fields.find(name));
        let mut read = LimitFields {
            algorithm,
            names_algorithm: fields.has_any(&["algorithm", "zone", "starts", "large_log"]),
            limits: fields.has_any(&LIMIT_FIELDS).then(Vec::new),
            params: None,
        };
        if let Some(item) = limit {
            let limits = read_limit(&item, algorithm, diagnostics);
            read.params = limits.first().map(|limit| LimitNumbers::from_limit(limit, item.place()));
            read.limits = Some(limits);
            if item.is_unlimited() && read.names_algorithm && !fields.has_any(&["override"]) {
                let message = "unlimited requests are not counted, so they need no algorithm: leave it out";
                diagnostics.error(item.place(), message);
            }
        } else if let Some(item) = limits {
            read.limits = Some(read_list(&item, algorithm, diagnostics));
        } else if let Some(item) = params {
            read.params = LimitNumbers::read(&item, diagnostics);
            let limit = read.params.and_then(|params| params.limit(algorithm, diagnostics));
            read.limits = Some(limit.into_iter().collect());
        }
        read
    }

    /// Reads a limit given as text alone, like `100/min`; it uses the default algorithm.
    pub(super) fn from_text(item: &FieldItem<'_>, diagnostics: &mut Diagnostics) -> LimitFields {
        let limits = read_limit(item, Algorithm::TokenBucket, diagnostics);
        LimitFields {
            algorithm: Algorithm::TokenBucket,
            names_algorithm: false,
            limits: Some(limits),
            params: None,
        }
    }

    /// Reads an override: its limits and when they expire. It inherits what it leaves out.
    pub(super) fn read_override(
        &self,
        item: &FieldItem<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<(Vec<Limit>, Option<Micros>)> {
        if let YamlValue::Scalar { .. } = item.node.value {
            return Some((read_limit(item, self.algorithm, diagnostics), None));
        }
        let errors = diagnostics.errors();
        let fields = FieldReader::new(item.node, &OVERRIDE, diagnostics)?;
        let limits = self.override_limits(&fields, errors, diagnostics);
        let valid_until = fields.read("valid_until", diagnostics, FieldItem::timestamp);
        fields.finish();
        Some((limits, valid_until))
    }

    /// `errors` is the number of errors before the override. If the override added errors, a missing limit is not
    /// reported, since the invalid field may have been meant to be it.
    fn override_limits(
        &self,
        fields: &FieldReader<'_>,
        errors: usize,
        diagnostics: &mut Diagnostics,
    ) -> Vec<Limit> {
        let named = fields.read("algorithm", diagnostics, read_algorithm_name);
        let algorithm = named.map_or(self.algorithm, |name| algorithm_named(name, self.algorithm));
        let (limit, limits) = (fields.find("limit"), fields.find("limits"));
        let quota = limit.filter(FieldItem::is_quota);
        let own = LimitNumbers::from_fields(fields, limit.filter(|item| !item.is_quota()), diagnostics);
        if let Some(item) = limits {
            return read_list(&item, algorithm, diagnostics);
        }
        if let Some(item) = quota {
            if own.refill_rate.is_some() || own.window.is_some() {
                let message = "the limit already has a period: leave refill_rate and window out";
                diagnostics.error(item.place(), message);
            }
            return read_limit(&item, algorithm, diagnostics);
        }
        if diagnostics.errors() > errors {
            return Vec::new();
        }
        if own.is_empty() {
            diagnostics.error(fields.place, "the override has no limit: add one, like limit: 1000/min");
            return Vec::new();
        }
        let params = match self.params.filter(|_| algorithm == self.algorithm) {
            Some(rule) => own.or_inherit(&rule),
            None => own,
        };
        params.limit(algorithm, diagnostics).into_iter().collect()
    }
}

/// Reads `limits`: a list of texts or numbers.
fn read_list(item: &FieldItem<'_>, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Vec<Limit> {
    let items = item.list(diagnostics);
    if items.is_empty() && matches!(item.node.value, YamlValue::List(_)) {
        diagnostics.error(item.place(), "limits is empty: add some, like limits: [100/s, 10000/h]");
    }
    let limit = |item: &FieldItem<'_>| match item.node.value {
        YamlValue::Map(_) => LimitNumbers::read(item, diagnostics)?.limit(algorithm, diagnostics),
        _ => read_quota(item, algorithm, diagnostics),
    };
    items.iter().filter_map(limit).collect()
}

/// Reads `limit`. Returns no limit if it is `unlimited`, or if it is invalid, which is reported.
fn read_limit(item: &FieldItem<'_>, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Vec<Limit> {
    if item.is_unlimited() {
        Vec::new()
    } else {
        read_quota(item, algorithm, diagnostics).into_iter().collect()
    }
}

/// Reads a limit from text like `100/min burst 20`.
fn read_quota(item: &FieldItem<'_>, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Option<Limit> {
    if let (YamlValue::List(_), "limit") = (&item.node.value, item.name) {
        let message = "limit takes a single limit: write limits: [100/s, 10000/h] for several";
        return diagnostics.reject(item.place(), message);
    }
    let text = item.text(diagnostics)?;
    let quota = text.parse().map_err(|error: QuotaError| {
        if item.is_unlimited() {
            "unlimited can't be combined with other limits: write limit: unlimited instead, or leave it out"
                .to_owned()
        } else if means_unlimited(text) {
            format!("{} is not a limit: write unlimited", quoted(text))
        } else {
            error.to_string()
        }
    });
    build_limit(algorithm, item.accept(quota, diagnostics)?, item.place(), diagnostics)
}

fn build_limit(
    algorithm: Algorithm,
    quota: Quota,
    place: Position,
    diagnostics: &mut Diagnostics,
) -> Option<Limit> {
    let message = match Limit::new(algorithm, quota) {
        Ok(limit) => return Some(limit),
        Err(LimitError::LogTooLong { .. }) => format!(
            "sliding_window_log stores every unit, and {quota} exceeds the usual maximum of {} per key: lower the \
             amount, use sliding_window_counter, or write large_log: true",
            Limit::STANDARD_LOG_UNITS
        ),
        Err(error) => error.to_string(),
    };
    diagnostics.reject(place, message)
}

fn read_algorithm(fields: &FieldReader<'_>, diagnostics: &mut Diagnostics) -> Algorithm {
    let algorithm = fields.find("algorithm");
    let (zone, starts, large_log) = (fields.find("zone"), fields.find("starts"), fields.find("large_log"));
    let named = algorithm.map_or(Some("token_bucket"), |item| read_algorithm_name(&item, diagnostics));
    let zone_meant = fields.read("zone", diagnostics, read_zone);
    let start = starts.and_then(|item| item.choice(diagnostics));
    let is_large = large_log.and_then(|item| item.boolean(diagnostics)).unwrap_or(false);
    let Some(name) = named else { return Algorithm::TokenBucket };
    for (item, owner) in [(zone, "fixed_window"), (starts, "fixed_window"), (large_log, "sliding_window_log")]
    {
        if let Some(item) = item.filter(|_| owner != name) {
            let message = format!("{} is only for {owner}, but this is {name}: leave it out", item.name);
            diagnostics.error(item.name_place, message);
        }
    }
    if let (Some(item), Some("first_hit"), "fixed_window") = (zone, start, name) {
        diagnostics.error(
            item.name_place,
            "a window that starts with the first hit has no zone: leave out zone or starts",
        );
    }
    match name {
        "fixed_window" if start == Some("first_hit") => Algorithm::FixedWindow(Align::FirstHit),
        "fixed_window" => Algorithm::FixedWindow(Align::WallClock(zone_meant.unwrap_or(Zone::UTC))),
        "sliding_window_log" if is_large => Algorithm::SlidingWindowLog(LogSize::Large),
        name => algorithm_named(name, Algorithm::TokenBucket),
    }
}

/// The algorithm with this name. Returns `like`, including its options, if that has the name.
fn algorithm_named(name: &str, like: Algorithm) -> Algorithm {
    match name {
        name if name == like.name() => like,
        "leaky_bucket" => Algorithm::LeakyBucket(Leak::Meter),
        "fixed_window" => Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        "sliding_window_counter" => Algorithm::SlidingWindowCounter,
        "sliding_window_log" => Algorithm::SlidingWindowLog(LogSize::Standard),
        _ => Algorithm::TokenBucket,
    }
}

fn read_algorithm_name(item: &FieldItem<'_>, diagnostics: &mut Diagnostics) -> Option<&'static str> {
    if item.node.text() == Some(Algorithm::Concurrency.name()) {
        let message = format!(
            "concurrency counts requests in flight, and checks over HTTP can't release them yet: write one of {}",
            ALGORITHMS.join(", ")
        );
        return diagnostics.reject(item.place(), message);
    }
    item.choice(diagnostics)
}

fn read_zone(item: &FieldItem<'_>, diagnostics: &mut Diagnostics) -> Option<Zone> {
    let zone = item.text(diagnostics)?.parse().map_err(|error: ZoneError| error.to_string());
    item.accept(zone, diagnostics)
}

/// A limit given as numbers.
#[derive(Clone, Copy, Debug)]
struct LimitNumbers {
    place: Position,
    capacity: Option<At<u32>>,
    refill_rate: Option<At<Ratio>>,
    limit: Option<At<u32>>,
    window: Option<At<Span>>,
}

impl LimitNumbers {
    fn read(item: &FieldItem<'_>, diagnostics: &mut Diagnostics) -> Option<LimitNumbers> {
        let errors = diagnostics.errors();
        let fields = FieldReader::new(item.node, &PARAMS, diagnostics)?;
        let params = LimitNumbers::from_fields(&fields, fields.find("limit"), diagnostics);
        fields.finish();
        (diagnostics.errors() == errors).then_some(params)
    }

    fn from_fields(
        fields: &FieldReader<'_>,
        limit: Option<FieldItem<'_>>,
        diagnostics: &mut Diagnostics,
    ) -> LimitNumbers {
        let mut amount =
            |item: Option<FieldItem<'_>>| item.and_then(|item| Some(item.at(item.amount(diagnostics)?)));
        let (capacity, limit) = (amount(fields.find("capacity")), amount(limit));
        let refill_rate =
            fields.find("refill_rate").and_then(|item| Some(item.at(item.decimal(diagnostics)?)));
        let window = fields.find("window").and_then(|item| Some(item.at(item.span(diagnostics)?)));
        LimitNumbers { place: fields.place, capacity, refill_rate, limit, window }
    }

    /// The numbers that define the same limit.
    fn from_limit(limit: &Limit, place: Position) -> LimitNumbers {
        let at = |value| At { value, place };
        let quota = limit.quota();
        let none = LimitNumbers { place, capacity: None, refill_rate: None, limit: None, window: None };
        let window = Some(At { value: quota.per(), place });
        match (is_bucket(limit.algorithm()), quota.burst()) {
            (true, Some(burst)) => {
                let rate = Ratio::new(u64::from(quota.amount()) * 1_000_000, quota.per().get());
                let refill_rate = Some(At { value: rate, place });
                LimitNumbers { capacity: Some(at(burst)), refill_rate, ..none }
            }
            (true, None) => LimitNumbers { capacity: Some(at(quota.amount())), window, ..none },
            (false, _) => LimitNumbers { limit: Some(at(quota.amount())), window, ..none },
        }
    }

    fn is_empty(&self) -> bool {
        self.capacity.is_none() && self.refill_rate.is_none() && self.limit.is_none() && self.window.is_none()
    }

    /// These numbers, completed by those of the rule. A `limit` does not inherit a `refill_rate`: a rate does not say
    /// over which window to count.
    fn or_inherit(self, rule: &LimitNumbers) -> LimitNumbers {
        let has_amount = self.capacity.is_some() || self.limit.is_some();
        let has_rate = self.refill_rate.is_some() || self.window.is_some();
        let is_open = self.limit.is_some() && rule.refill_rate.is_some();
        let inherits_rate = !has_rate && !is_open;
        LimitNumbers {
            place: self.place,
            capacity: if has_amount { self.capacity } else { rule.capacity },
            limit: if has_amount { self.limit } else { rule.limit },
            refill_rate: if inherits_rate { rule.refill_rate } else { self.refill_rate },
            // If the rule has a refill rate, its window is redundant, so it is not inherited.
            window: if inherits_rate && rule.refill_rate.is_none() { rule.window } else { self.window },
        }
    }

    /// The limit that the numbers define under an algorithm.
    fn limit(&self, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Option<Limit> {
        let quota = if is_bucket(algorithm) {
            self.bucket(algorithm, diagnostics)
        } else {
            self.window(algorithm, diagnostics)
        };
        build_limit(algorithm, quota?, self.place, diagnostics)
    }

    fn bucket(&self, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Option<Quota> {
        let name = algorithm.name();
        let Some(capacity) = self.capacity.as_ref().or(self.limit.as_ref()) else {
            let message = format!(
                "{name} needs a capacity, which is how many may come at once: add it, like capacity: 100"
            );
            return diagnostics.reject(self.place, message);
        };
        let (quota, place) = match (&self.refill_rate, &self.window) {
            (Some(rate), window) => {
                if let Some(window) = window {
                    warn_if_rate_differs(capacity.value, &rate.value, window, diagnostics);
                }
                let Ok(amount) = u32::try_from(rate.value.numerator) else {
                    let message = "refill_rate has too many digits to be counted exactly: round it";
                    return diagnostics.reject(rate.place, message);
                };
                (Quota::new(amount, Span::secs(rate.value.denominator)), rate.place)
            }
            (None, Some(window)) => (Quota::new(capacity.value, window.value), window.place),
            (None, None) => {
                let message = format!(
                    "{name} needs a rate: add refill_rate: 1.67 (per second) or window: 60 (seconds)"
                );
                return diagnostics.reject(self.place, message);
            }
        };
        let quota = quota.and_then(|quota| match algorithm {
            // A token bucket's burst is its amount by default.
            Algorithm::TokenBucket if quota.amount() == capacity.value => Ok(quota),
            _ => quota.with_burst(capacity.value),
        });
        quota.map_err(|error| diagnostics.error(place, error.to_string())).ok()
    }

    fn window(&self, algorithm: Algorithm, diagnostics: &mut Diagnostics) -> Option<Quota> {
        let name = algorithm.name();
        let strays =
            [self.capacity.as_ref().map(|at| at.place), self.refill_rate.as_ref().map(|at| at.place)];
        for (place, field) in strays.into_iter().zip(["capacity", "refill_rate"]) {
            if let Some(place) = place {
                let message = format!(
                    "{name} does not use {field}: write limit: 100 and window: 60, or use token_bucket"
                );
                return diagnostics.reject(place, message);
            }
        }
        let (Some(limit), Some(window)) = (&self.limit, &self.window) else {
            let missing = if self.limit.is_none() { "limit: 100" } else { "window: 60" };
            let message = format!("{name} needs a limit and a window: add {missing}");
            return diagnostics.reject(self.place, message);
        };
        let quota = Quota::new(limit.value, window.value);
        quota.map_err(|error| diagnostics.error(window.place, error.to_string())).ok()
    }
}

fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket(_))
}

/// Warns if `window` and `refill_rate` disagree: beside a rate, a window is redundant.
fn warn_if_rate_differs(capacity: u32, rate: &Ratio, window: &At<Span>, diagnostics: &mut Diagnostics) {
    let by_window = u128::from(capacity) * 1_000_000 * u128::from(rate.denominator);
    let by_rate = u128::from(rate.numerator) * u128::from(window.value.get());
    if by_window.abs_diff(by_rate) * 20 > by_rate {
        let message = format!(
            "refill_rate adds {} in {}, not the capacity of {capacity}, and only refill_rate is used: make them \
             agree, or leave window out",
            by_rate / (u128::from(rate.denominator) * 1_000_000),
            window.value
        );
        diagnostics.warn(window.place, message);
    }
}

/// Whether the text looks like an attempt to write `unlimited`.
fn means_unlimited(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    closest_name(&text, [UNLIMITED]).is_some()
        || matches!(&*text, "none" | "no limit" | "infinite" | "infinity" | "inf" | ".inf" | "-1")
}

impl FieldItem<'_> {
    /// Whether the value is a limit as text: with a period, or `unlimited`.
    fn is_quota(&self) -> bool {
        let says_period = |text: &str| text.contains('/') || text.contains(" per ");
        self.node.text().is_some_and(says_period) || self.is_unlimited()
    }

    fn is_unlimited(&self) -> bool {
        self.node.text() == Some(UNLIMITED)
    }
}
