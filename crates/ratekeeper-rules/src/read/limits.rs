//! Limits, whichever way they are written: as text, as several texts, or in numbers.

use super::fields::{FieldItem, FieldReader};
use super::value::Ratio;
use crate::diagnostic::{Diagnostics, near, quoted};
use crate::schema::table::{ALGORITHMS, OVERRIDE, PARAMS};
use crate::spec::{At, Position};
use crate::yaml::YamlValue;
use ratekeeper_core::{
    Algorithm, Align, Leak, Limit, LimitError, LogSize, Micros, Quota, QuotaError, Span, Zone,
};

/// What is written where nothing is to be limited.
const UNLIMITED: &str = "unlimited";
/// The fields that limits are written with.
const LIMIT_FIELDS: [&str; 3] = ["limit", "limits", "params"];

/// Limits as they are written in one place.
#[derive(Debug)]
pub(super) struct LimitFields {
    /// The law that they follow. If it can't be read, it is one to find more mistakes with.
    pub(super) law: Algorithm,
    /// Whether the law was named.
    pub(super) names_law: bool,
    /// The limits, if there are any; those that are out of order are missing.
    pub(super) limits: Option<Vec<Limit>>,
    /// The numbers of the only limit, which an override may leave out.
    params: Option<LimitNumbers>,
}

impl LimitFields {
    /// Reads `algorithm`, `limit` and their kin.
    pub(super) fn read(fields: &FieldReader<'_>, complaints: &mut Diagnostics) -> LimitFields {
        let law = read_law(fields, complaints);
        let [limit, limits, params] = LIMIT_FIELDS.map(|name| fields.find(name));
        let mut terms = LimitFields {
            law,
            names_law: fields.has_any(&["algorithm", "zone", "starts", "large_log"]),
            limits: fields.has_any(&LIMIT_FIELDS).then(Vec::new),
            params: None,
        };
        if let Some(item) = limit {
            let limits = read_limit(&item, law, complaints);
            terms.params = limits.first().map(|limit| LimitNumbers::of(limit, item.place()));
            terms.limits = Some(limits);
            if item.is_unlimited() && terms.names_law && !fields.has_any(&["override"]) {
                let said = "what is unlimited is not counted, so it needs no algorithm: leave that out";
                complaints.error(item.place(), said);
            }
        } else if let Some(item) = limits {
            terms.limits = Some(read_list(&item, law, complaints));
        } else if let Some(item) = params {
            terms.params = LimitNumbers::read(&item, complaints);
            let limit = terms.params.and_then(|params| params.limit(law, complaints));
            terms.limits = Some(limit.into_iter().collect());
        }
        terms
    }

    /// What a text alone says: `100/min`, under the usual law.
    pub(super) fn of_text(item: &FieldItem<'_>, complaints: &mut Diagnostics) -> LimitFields {
        let limits = read_limit(item, Algorithm::TokenBucket, complaints);
        LimitFields { law: Algorithm::TokenBucket, names_law: false, limits: Some(limits), params: None }
    }

    /// Other limits for one client key and until when they hold. They may leave out what these terms say.
    pub(super) fn read_override(
        &self,
        item: &FieldItem<'_>,
        complaints: &mut Diagnostics,
    ) -> Option<(Vec<Limit>, Option<Micros>)> {
        if let YamlValue::Scalar { .. } = item.node.value {
            return Some((read_limit(item, self.law, complaints), None));
        }
        let errors = complaints.errors();
        let fields = FieldReader::read(item.node, &OVERRIDE, complaints)?;
        let limits = self.override_limits(&fields, errors, complaints);
        let valid_until = fields.find("valid_until").and_then(|item| item.moment(complaints));
        fields.finish();
        Some((limits, valid_until))
    }

    /// There were so many `errors` before the override: if it has some, what it lacks may be what it got wrong.
    fn override_limits(
        &self,
        fields: &FieldReader<'_>,
        errors: usize,
        complaints: &mut Diagnostics,
    ) -> Vec<Limit> {
        let named = fields.find("algorithm").and_then(|item| read_algorithm(&item, complaints));
        let law = named.map_or(self.law, |name| law_of(name, self.law));
        let (limit, limits) = (fields.find("limit"), fields.find("limits"));
        let quota = limit.filter(FieldItem::is_quota);
        let own = LimitNumbers::of_fields(fields, limit.filter(|item| !item.is_quota()), complaints);
        if let Some(item) = limits {
            return read_list(&item, law, complaints);
        }
        if let Some(item) = quota {
            if own.refill_rate.is_some() || own.window.is_some() {
                let said = "the limit says how long it is for already: leave refill_rate and window out";
                complaints.error(item.place(), said);
            }
            return read_limit(&item, law, complaints);
        }
        if complaints.errors() > errors {
            return Vec::new();
        }
        if own.is_empty() {
            complaints.error(fields.place, "the override has no limit: add one, like limit: 1000/min");
            return Vec::new();
        }
        let params = match self.params.filter(|_| law == self.law) {
            Some(rule) => own.or(&rule),
            None => own,
        };
        params.limit(law, complaints).into_iter().collect()
    }
}

/// Limits under a law, from a list of texts or numbers.
fn read_list(item: &FieldItem<'_>, law: Algorithm, complaints: &mut Diagnostics) -> Vec<Limit> {
    let items = item.list(complaints);
    if items.is_empty() && matches!(item.node.value, YamlValue::List(_)) {
        complaints.error(item.place(), "limits is empty: write some, like limits: [100/s, 10000/h]");
    }
    let limit = |item: &FieldItem<'_>| match item.node.value {
        YamlValue::Map(_) => LimitNumbers::read(item, complaints)?.limit(law, complaints),
        _ => read_quota(item, law, complaints),
    };
    items.iter().filter_map(limit).collect()
}

/// What a `limit` says: one, or none if it is unlimited. If it can't be read there is none either, and a complaint.
fn read_limit(item: &FieldItem<'_>, law: Algorithm, complaints: &mut Diagnostics) -> Vec<Limit> {
    match item.is_unlimited() {
        true => Vec::new(),
        false => read_quota(item, law, complaints).into_iter().collect(),
    }
}

/// A limit from text like `100/min burst 20`.
fn read_quota(item: &FieldItem<'_>, law: Algorithm, complaints: &mut Diagnostics) -> Option<Limit> {
    if let (YamlValue::List(_), "limit") = (&item.node.value, item.name) {
        complaints.error(item.place(), "limit is a single one: write limits: [100/s, 10000/h] for several");
        return None;
    }
    let text = item.text(complaints)?;
    match text.parse() {
        Ok(quota) => build(law, quota, item.place(), complaints),
        Err(_) if item.is_unlimited() => {
            let said = "unlimited is no limit among others: write limit: unlimited instead, or leave it out";
            complaints.error(item.place(), said);
            None
        }
        Err(_) if means_unlimited(text) => {
            complaints.error(item.place(), format!("{} is no limit: write unlimited", quoted(text)));
            None
        }
        Err(error) => {
            let error: QuotaError = error;
            complaints.error(item.place(), error.to_string());
            None
        }
    }
}

fn build(law: Algorithm, quota: Quota, place: Position, complaints: &mut Diagnostics) -> Option<Limit> {
    let said = match Limit::new(law, quota) {
        Ok(limit) => return Some(limit),
        Err(LimitError::LogTooLong { .. }) => format!(
            "sliding_window_log remembers every unit, and {quota} is more than the {} a key it usually may: \
             lower the \
             amount, use sliding_window_counter, or write large_log: true",
            Limit::MODEST_LOG
        ),
        Err(error) => error.to_string(),
    };
    complaints.error(place, said);
    None
}

fn read_law(fields: &FieldReader<'_>, complaints: &mut Diagnostics) -> Algorithm {
    let algorithm = fields.find("algorithm");
    let (zone, starts, large_log) = (fields.find("zone"), fields.find("starts"), fields.find("large_log"));
    let named = algorithm.map_or(Some("token_bucket"), |item| read_algorithm(&item, complaints));
    let zone_meant = zone.and_then(|item| read_zone(&item, complaints));
    let start = starts.and_then(|item| item.choice(complaints));
    let is_large = large_log.and_then(|item| item.flag(complaints)).unwrap_or(false);
    let Some(name) = named else { return Algorithm::TokenBucket };
    for (item, owner) in [(zone, "fixed_window"), (starts, "fixed_window"), (large_log, "sliding_window_log")]
    {
        if let Some(item) = item.filter(|_| owner != name) {
            let said = format!("{} is for {owner} only, and this is {name}: leave it out", item.name);
            complaints.error(item.named_at, said);
        }
    }
    if let (Some(item), Some("first_hit"), "fixed_window") = (zone, start, name) {
        complaints.error(
            item.named_at,
            "a window that starts with the first hit needs no zone: leave one of them out",
        );
    }
    match name {
        "fixed_window" if start == Some("first_hit") => Algorithm::FixedWindow(Align::FirstHit),
        "fixed_window" => Algorithm::FixedWindow(Align::Wall(zone_meant.unwrap_or(Zone::UTC))),
        "sliding_window_log" if is_large => Algorithm::SlidingWindowLog(LogSize::Large),
        name => law_of(name, Algorithm::TokenBucket),
    }
}

/// The law of a name; `like`, with all that was said of it, if it has the name.
fn law_of(name: &str, like: Algorithm) -> Algorithm {
    match name {
        name if name == like.name() => like,
        "leaky_bucket" => Algorithm::LeakyBucket(Leak::Meter),
        "fixed_window" => Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        "sliding_window_counter" => Algorithm::SlidingWindowCounter,
        "sliding_window_log" => Algorithm::SlidingWindowLog(LogSize::Modest),
        _ => Algorithm::TokenBucket,
    }
}

fn read_algorithm(item: &FieldItem<'_>, complaints: &mut Diagnostics) -> Option<&'static str> {
    if item.node.text() == Some(Algorithm::Concurrency.name()) {
        let said = format!(
            "concurrency counts what is in flight, and a check over HTTP has no release yet: write one of {}",
            ALGORITHMS.join(", ")
        );
        complaints.error(item.place(), said);
        return None;
    }
    item.choice(complaints)
}

fn read_zone(item: &FieldItem<'_>, complaints: &mut Diagnostics) -> Option<Zone> {
    let zone = item.text(complaints)?.parse::<Zone>();
    zone.map_err(|error| complaints.error(item.place(), error.to_string())).ok()
}

/// A limit in numbers.
#[derive(Clone, Copy, Debug)]
struct LimitNumbers {
    place: Position,
    capacity: Option<At<u32>>,
    refill_rate: Option<At<Ratio>>,
    limit: Option<At<u32>>,
    window: Option<At<Span>>,
}

impl LimitNumbers {
    fn read(item: &FieldItem<'_>, complaints: &mut Diagnostics) -> Option<LimitNumbers> {
        let errors = complaints.errors();
        let fields = FieldReader::read(item.node, &PARAMS, complaints)?;
        let params = LimitNumbers::of_fields(&fields, fields.find("limit"), complaints);
        fields.finish();
        (complaints.errors() == errors).then_some(params)
    }

    fn of_fields(
        fields: &FieldReader<'_>,
        limit: Option<FieldItem<'_>>,
        complaints: &mut Diagnostics,
    ) -> LimitNumbers {
        let mut amount =
            |item: Option<FieldItem<'_>>| item.and_then(|item| Some(item.at(item.amount(complaints)?)));
        let (capacity, limit) = (amount(fields.find("capacity")), amount(limit));
        let refill_rate =
            fields.find("refill_rate").and_then(|item| Some(item.at(item.decimal(complaints)?)));
        let window = fields.find("window").and_then(|item| Some(item.at(item.span(complaints)?)));
        LimitNumbers { place: fields.place, capacity, refill_rate, limit, window }
    }

    /// The numbers that would say the same as a limit.
    fn of(limit: &Limit, place: Position) -> LimitNumbers {
        let at = |value| At { value, place };
        let quota = limit.quota();
        let mut params = LimitNumbers { place, capacity: None, refill_rate: None, limit: None, window: None };
        match (is_bucket(limit.law()), quota.burst()) {
            (true, Some(burst)) => {
                let rate = Ratio::new(u64::from(quota.amount()) * 1_000_000, quota.per().get());
                params.capacity = Some(at(burst));
                params.refill_rate = Some(At { value: rate, place });
            }
            (true, None) => {
                params.capacity = Some(at(quota.amount()));
                params.window = Some(At { value: quota.per(), place });
            }
            (false, _) => {
                params.limit = Some(at(quota.amount()));
                params.window = Some(At { value: quota.per(), place });
            }
        }
        params
    }

    fn is_empty(&self) -> bool {
        self.capacity.is_none() && self.refill_rate.is_none() && self.limit.is_none() && self.window.is_none()
    }

    /// These numbers, and the rule's for those that are missing. How many in all is left open where the rule's rate
    /// does not tell for how long.
    fn or(self, rule: &LimitNumbers) -> LimitNumbers {
        let has_amount = self.capacity.is_some() || self.limit.is_some();
        let has_rate = self.refill_rate.is_some() || self.window.is_some();
        let is_open = self.limit.is_some() && rule.refill_rate.is_some();
        let inherits_rate = !has_rate && !is_open;
        LimitNumbers {
            place: self.place,
            capacity: if has_amount { self.capacity } else { rule.capacity },
            limit: if has_amount { self.limit } else { rule.limit },
            refill_rate: if inherits_rate { rule.refill_rate } else { self.refill_rate },
            // Beside a rate of the rule, its window is only a remark.
            window: if inherits_rate && rule.refill_rate.is_none() { rule.window } else { self.window },
        }
    }

    /// The limit that the numbers stand for under a law.
    fn limit(&self, law: Algorithm, complaints: &mut Diagnostics) -> Option<Limit> {
        let quota = if is_bucket(law) { self.bucket(law, complaints) } else { self.window(law, complaints) };
        build(law, quota?, self.place, complaints)
    }

    fn bucket(&self, law: Algorithm, complaints: &mut Diagnostics) -> Option<Quota> {
        let name = law.name();
        let Some(capacity) = self.capacity.as_ref().or(self.limit.as_ref()) else {
            let said =
                format!("{name} needs a capacity, how many may come at once: add it, like capacity: 100");
            complaints.error(self.place, said);
            return None;
        };
        let (quota, place) = match (&self.refill_rate, &self.window) {
            (Some(rate), window) => {
                if let Some(window) = window {
                    complain_of_difference(capacity.value, &rate.value, window, complaints);
                }
                let Ok(amount) = u32::try_from(rate.value.above) else {
                    complaints
                        .error(rate.place, "refill_rate has too many digits to be counted exactly: round it");
                    return None;
                };
                (Quota::new(amount, Span::secs(rate.value.below)), rate.place)
            }
            (None, Some(window)) => (Quota::new(capacity.value, window.value), window.place),
            (None, None) => {
                let said = format!(
                    "{name} needs to know how fast it refills: add refill_rate: 1.67 (each second) or \
                     window: 60 (seconds)"
                );
                complaints.error(self.place, said);
                return None;
            }
        };
        let quota = quota.and_then(|quota| match law {
            // As many at once as in a period is what a token bucket allows anyhow.
            Algorithm::TokenBucket if quota.amount() == capacity.value => Ok(quota),
            _ => quota.with_burst(capacity.value),
        });
        quota.map_err(|error| complaints.error(place, error.to_string())).ok()
    }

    fn window(&self, law: Algorithm, complaints: &mut Diagnostics) -> Option<Quota> {
        let name = law.name();
        let strays =
            [self.capacity.as_ref().map(|at| at.place), self.refill_rate.as_ref().map(|at| at.place)];
        for (place, field) in strays.into_iter().zip(["capacity", "refill_rate"]) {
            if let Some(place) = place {
                let said =
                    format!("{name} has no {field}: write limit: 100 and window: 60, or use token_bucket");
                complaints.error(place, said);
                return None;
            }
        }
        let (Some(limit), Some(window)) = (&self.limit, &self.window) else {
            let missing = if self.limit.is_none() { "limit: 100" } else { "window: 60" };
            complaints.error(self.place, format!("{name} needs a limit and a window: add {missing}"));
            return None;
        };
        let quota = Quota::new(limit.value, window.value);
        quota.map_err(|error| complaints.error(window.place, error.to_string())).ok()
    }
}

fn is_bucket(law: Algorithm) -> bool {
    matches!(law, Algorithm::TokenBucket | Algorithm::LeakyBucket(_))
}

/// A window beside a rate only repeats it in other words; if it does not, somebody is mistaken.
fn complain_of_difference(capacity: u32, rate: &Ratio, window: &At<Span>, complaints: &mut Diagnostics) {
    let by_window = u128::from(capacity) * 1_000_000 * u128::from(rate.below);
    let by_rate = u128::from(rate.above) * u128::from(window.value.get());
    if by_window.abs_diff(by_rate) * 20 > by_rate {
        let said = format!(
            "refill_rate adds {} in {}, not the capacity of {capacity}, and refill_rate is what counts: make \
             them agree, or \
             leave window out",
            by_rate / (u128::from(rate.below) * 1_000_000),
            window.value
        );
        complaints.warn(window.place, said);
    }
}

/// What people write who mean that there is no limit.
fn means_unlimited(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    near(&text, [UNLIMITED]).is_some()
        || matches!(&*text, "none" | "no limit" | "infinite" | "infinity" | "inf" | ".inf" | "-1")
}

impl FieldItem<'_> {
    /// Whether a limit says for how long it is, or that there is none.
    fn is_quota(&self) -> bool {
        let says_period = |text: &str| text.contains('/') || text.contains(" per ");
        self.node.text().is_some_and(says_period) || self.is_unlimited()
    }

    fn is_unlimited(&self) -> bool {
        self.node.text() == Some(UNLIMITED)
    }
}
