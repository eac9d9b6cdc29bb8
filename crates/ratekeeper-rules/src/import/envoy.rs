//! The configuration of envoyproxy/ratelimit.
//!
//! A file has a domain and nested descriptors. A request's descriptor is followed from the top, entry by entry: at each
//! level an entry whose value is written out goes before one with a `*` at its end, and that before one without a value.
//! There is no way back: where the entry that was taken leads nowhere, nothing limits the request, though a wider one
//! beside it might have. [`precedence`] makes rules of that whose first match is the same; [`key_groups`] keeps apart what is
//! counted apart.

mod key_groups;
mod precedence;

use super::draft::DraftRule;
use super::fields::ImportFields;
use super::{ImportPlace, ImportReports, quota};
use crate::diagnostic::quoted;
use crate::read::MOST_TEXT;
use crate::yaml::{self, YamlNode, YamlValue};
use ratekeeper_core::{Algorithm, Align, Limit, Quota, Span, Zone};

/// What stands above the rules.
pub(super) const ABOUT: &str = "\
Imported from FILE (envoyproxy/ratelimit).
Of descriptors that match, the first from top to bottom counts, as the narrowest did there.";

/// The fields of a file, of a descriptor, and of its limit.
const FILE: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// A domain and what is limited in it.
#[derive(Debug)]
struct EnvoyDomain {
    name: String,
    entries: Vec<EnvoyEntry>,
}

/// A descriptor of the file: one entry of those that proxies send, and what may follow it.
#[derive(Debug)]
struct EnvoyEntry {
    spot: ImportPlace,
    key: String,
    value: EntryValues,
    limit: Option<EnvoyRateLimit>,
    /// Whether there is a limit that could not be read: nobody knows whether what it was for should pass.
    is_broken: bool,
    is_shadow: bool,
    /// Whether all values that it matches have one count.
    is_shared: bool,
    children: Vec<EnvoyEntry>,
}

/// Which values an entry is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EntryValues {
    Exact(String),
    /// Those that begin so.
    Start(String),
    Any,
}

/// A limit of the file.
#[derive(Clone, Debug)]
struct EnvoyRateLimit {
    name: Option<String>,
    /// None if it is unlimited.
    quota: Option<Quota>,
    /// What is different here.
    note: Option<&'static str>,
}

/// Reads the files and makes rules of them.
pub(super) fn translate(texts: &[&str], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut domains: Vec<EnvoyDomain> = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        let Some(documents) = yaml::parse_all(text, &mut reports.complaints[file]) else {
            reports.unread[file] = true;
            continue;
        };
        let mut documents = documents.iter().filter(|document| !document.is_null()).peekable();
        if documents.peek().is_none() {
            reports.unread(
                ImportPlace { file, ..ImportPlace::default() },
                "the file says nothing: there is no domain in it",
            );
        }
        for document in documents {
            read_domain(document, file, &mut domains, reports);
        }
    }
    for domain in &mut domains {
        precedence::sort(&mut domain.entries, reports);
    }
    let mut items = Vec::new();
    for domain in &domains {
        precedence::flatten(&domain.name, &domain.entries, &mut items);
    }
    key_groups::rules(&items, reports)
}

/// Several documents may be of one domain.
fn read_domain(
    node: &YamlNode<'_>,
    file: usize,
    domains: &mut Vec<EnvoyDomain>,
    reports: &mut ImportReports,
) {
    let spot = ImportPlace { file, place: node.place };
    let YamlValue::Map(pairs) = &node.value else {
        let said = format!(
            "this is no configuration of envoyproxy/ratelimit, which begins with domain: and descriptors:, but {}",
            node.kind()
        );
        reports.unread(spot, said);
        return;
    };
    if pairs.iter().any(|(name, _)| name.text() == Some("apiVersion")) {
        let said = "this is a resource of Kubernetes: import the configuration that stands in it, of a ConfigMap what is \
                    below data";
        reports.unread(spot, said);
        return;
    }
    let Some(fields) = ImportFields::read(node, file, "a configuration", &FILE, "it is", reports) else {
        return;
    };
    let Some((spot, name)) = fields.text("domain", reports).filter(|(_, name)| !name.trim().is_empty())
    else {
        reports.unread(spot, "the domain is missing: add it, like domain: edge");
        return;
    };
    if name.contains('*') {
        let said = format!("the domain {} has a *, which rules take for any run of characters", quoted(name));
        reports.error(spot, said);
    }
    let entries = read_entries(&fields, reports);
    match domains.iter_mut().find(|known| known.name == name) {
        Some(known) => known.entries.extend(entries),
        None => domains.push(EnvoyDomain { name: name.to_owned(), entries }),
    }
}

fn read_entries(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Vec<EnvoyEntry> {
    let items = fields.list("descriptors", reports);
    items.iter().filter_map(|node| read_entry(node, fields.spot.file, reports)).collect()
}

fn read_entry(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<EnvoyEntry> {
    let fields = ImportFields::read(node, file, "a descriptor", &DESCRIPTOR, "it is", reports)?;
    let Some((key_spot, key)) = fields.text("key", reports).filter(|(_, key)| !key.trim().is_empty()) else {
        reports.error(fields.spot, "the descriptor has no key: it is left out, with all that is below it");
        return None;
    };
    if key.contains('*') {
        let said = format!(
            "the key {} has a *, and rules have patterns for values only: the descriptor is left out, with all that is \
             below it",
            quoted(key)
        );
        reports.error(key_spot, said);
        return None;
    }
    if key.len() > MOST_TEXT {
        let said =
            format!("the key has more than {MOST_TEXT} bytes: the descriptor is left out, with all below it");
        reports.error(key_spot, said);
        return None;
    }
    let value = match fields.text("value", reports) {
        None | Some((_, "")) => EntryValues::Any,
        Some((spot, text)) => read_values(spot, text, reports)?,
    };
    let is_quota = fields.is_set("quota_mode", reports);
    let is_shared = fields.is_set("share_threshold", reports);
    complain_of_fields(&fields, is_quota, reports);
    let limit = fields.find("rate_limit").and_then(|(_, node)| read_limit(node, file, reports));
    if let (true, EntryValues::Exact(_) | EntryValues::Any, Some(spot)) =
        (is_shared, &value, fields.named_at("share_threshold"))
    {
        reports.warn(spot, "share_threshold is for values that end with *: here it changes nothing");
    }
    Some(EnvoyEntry {
        spot: fields.spot,
        key: key.to_owned(),
        is_shared: is_shared && matches!(value, EntryValues::Start(_)),
        value,
        is_broken: limit.is_none() && fields.find("rate_limit").is_some(),
        limit,
        is_shadow: fields.is_set("shadow_mode", reports) || is_quota,
        children: read_entries(&fields, reports),
    })
}

/// A `*` at the end stands for any rest; anywhere else it is a character like any other, which a pattern can't say.
fn read_values(spot: ImportPlace, text: &str, reports: &mut ImportReports) -> Option<EntryValues> {
    let (start, is_open) = match text.strip_suffix('*') {
        Some(start) => (start, true),
        None => (text, false),
    };
    if text.trim().is_empty() || text.len() > MOST_TEXT {
        let said = format!(
            "a rule can't ask for a value of spaces alone, or of more than {MOST_TEXT} bytes: the descriptor is left out, \
             with all that is below it"
        );
        reports.error(spot, said);
        return None;
    }
    if start.contains('*') {
        let said = format!(
            "{} asks for a * that is not at the end, and rules take every * for any run of characters: the descriptor is \
             left out, with all that is below it",
            quoted(text)
        );
        reports.error(spot, said);
        return None;
    }
    Some(if is_open { EntryValues::Start(start.to_owned()) } else { EntryValues::Exact(text.to_owned()) })
}

fn complain_of_fields(fields: &ImportFields<'_>, is_quota: bool, reports: &mut ImportReports) {
    for name in ["detailed_metric", "value_to_metric"] {
        if let (true, Some(spot)) = (fields.is_set(name, reports), fields.named_at(name)) {
            let said =
                format!("{name} is left out: it says what metrics are called there, and limits nobody");
            reports.warn(spot, said);
        }
    }
    if let Some(spot) = fields.named_at("metadata") {
        reports.error(spot, "metadata is left out: nothing is sent to the proxy with an answer");
    }
    if let (true, Some(spot)) = (is_quota, fields.named_at("quota_mode")) {
        let said = "quota_mode became shadow: true: it refuses nobody here too, but the proxy is not told in metadata \
                    what is over the limit";
        reports.error(spot, said);
    }
}

fn read_limit(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<EnvoyRateLimit> {
    let fields = ImportFields::read(node, file, "a rate_limit", &RATE_LIMIT, "it is", reports)?;
    let name = fields.text("name", reports).map(|(_, name)| name.to_owned());
    for node in fields.list("replaces", reports) {
        complain_of_replaces(node, file, reports);
    }
    if fields.is_set("unlimited", reports) {
        if let Some(spot) = fields.named_at("unit").or(fields.named_at("requests_per_unit")) {
            reports.error(spot, "a limit that is unlimited has no unit and no amount: these are left out");
        }
        return Some(EnvoyRateLimit { name, quota: None, note: None });
    }
    let span = read_unit(&fields, reports)?;
    let spot = fields.named_at("requests_per_unit").unwrap_or(fields.spot);
    let amount = match fields.find("requests_per_unit") {
        Some(_) => fields.number("requests_per_unit", reports)?,
        None => 0,
    };
    let quota = quota(amount, span, spot, reports)?;
    match Limit::new(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), quota) {
        Ok(_) => Some(EnvoyRateLimit { name, quota: Some(quota), note: note(amount, span) }),
        Err(error) => {
            reports.error(spot, format!("the limit is left out: {error}"));
            None
        }
    }
}

/// What somebody who reads the rule should know.
fn note(amount: u64, span: Span) -> Option<&'static str> {
    match (amount, span) {
        (0, _) => Some("This refuses everything in ratelimit; a rule lets one through."),
        (_, Span::WEEK) => Some("From Monday to Monday; in ratelimit from Thursday to Thursday."),
        (_, Span::MONTH) => Some("By the calendar; in ratelimit every 30 days."),
        _ => None,
    }
}

fn read_unit(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<Span> {
    let Some((spot, text)) = fields.text("unit", reports) else {
        reports.error(fields.spot, "the rate_limit has no unit: it is left out");
        return None;
    };
    Some(match text.to_ascii_lowercase().as_str() {
        "second" => Span::SECOND,
        "minute" => Span::MINUTE,
        "hour" => Span::HOUR,
        "day" => Span::DAY,
        "week" => {
            reports.warn(
                spot,
                "a week begins on Monday here; in ratelimit it begins on Thursday, as the epoch did",
            );
            Span::WEEK
        }
        "month" => {
            reports.warn(spot, "a month is one of the calendar here; in ratelimit it is 30 days");
            Span::MONTH
        }
        "year" => Span::YEAR,
        _ => {
            let said = format!(
                "unknown unit {}: the limit is left out; units are second, minute, hour, day, week, month and year",
                quoted(text)
            );
            reports.error(spot, said);
            return None;
        }
    })
}

fn complain_of_replaces(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) {
    let name = match &node.value {
        YamlValue::Map(pairs) => {
            pairs.iter().find(|(name, _)| name.text() == Some("name")).map(|(_, value)| value)
        }
        _ => None,
    };
    let shown = name.and_then(YamlNode::text).map_or_else(|| "another limit".to_owned(), quoted);
    let said = format!(
        "replaces is left out: it takes {shown} away from another descriptor of the same request, and rules see one \
         descriptor at a time, so both limits hold"
    );
    reports.error(ImportPlace { file, place: node.place }, said);
}
