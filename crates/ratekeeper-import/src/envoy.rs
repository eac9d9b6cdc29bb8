//! Imports the configuration of envoyproxy/ratelimit.
//!
//! A file has a domain and nested descriptors. ratelimit follows a request's descriptor from the top, entry by entry.
//! At each level it takes the entry with the exact value, else one whose value ends with `*`, else the one without a
//! value. It never backtracks: if the entry it took leads to no limit, the request is not limited, even if a less
//! specific entry beside it would have limited it. [`precedence`] turns the tree into a list of which the first match
//! decides the same; [`rules`] makes rules of the list that keep separate counts separate.

mod key_group;
mod precedence;
mod rules;

use super::draft::DraftRule;
use super::fields::ImportFields;
use super::{ImportPlace, ImportReports, quota};
use ratekeeper_core::{Align, Quota, Span, Zone};
use ratekeeper_rules::bounds::MAX_TEXT_BYTES;
use ratekeeper_rules::quoted;
use ratekeeper_rules::yaml::{self, YamlNode, YamlValue};

/// The comment above the rules.
pub(super) const HEADER: &str = "\
Imported from FILE (envoyproxy/ratelimit).
Of the rules that match, the first applies; in ratelimit, the most specific descriptor does.";

/// The fields of a file. Those of a descriptor and of its limit follow.
const FILE_FIELDS: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR_FIELDS: [&str; 10] = [
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
const RATE_LIMIT_FIELDS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// A domain and its descriptors, of all files.
#[derive(Debug)]
struct EnvoyDomain {
    name: String,
    entries: Vec<EnvoyEntry>,
}

/// A descriptor of the file: it matches one entry of a request's descriptor, and its children the entries after it.
#[derive(Debug)]
struct EnvoyEntry {
    place: ImportPlace,
    key: String,
    value: EntryValues,
    limit: Option<EnvoyRateLimit>,
    /// Whether it has a limit that could not be read: then it is unknown whether the requests it matches should pass.
    has_invalid_limit: bool,
    is_shadow: bool,
    /// Whether all values that it matches share one count (`share_threshold`).
    is_shared: bool,
    children: Vec<EnvoyEntry>,
}

/// The values that an entry matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EntryValues {
    Exact(String),
    /// Values with this prefix.
    Prefix(String),
    Any,
}

/// A limit of the file.
#[derive(Clone, Debug)]
struct EnvoyRateLimit {
    name: Option<String>,
    /// `None` if it is unlimited.
    quota: Option<Quota>,
    /// A comment on a difference from ratelimit.
    note: Option<&'static str>,
}

/// Reads the files and translates them to rules.
pub(super) fn translate(texts: &[&str], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut domains: Vec<EnvoyDomain> = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        let Some(documents) = yaml::parse_all(text, &mut reports.diagnostics[file]) else {
            reports.unreadable[file] = true;
            continue;
        };
        let mut documents = documents.iter().filter(|document| !document.is_null()).peekable();
        if documents.peek().is_none() {
            reports.reject_file(
                ImportPlace { file, ..ImportPlace::default() },
                "the file is empty: it has no domain",
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
    rules::rules(&items, reports)
}

/// Reads a document into `domains`. Several documents may belong to one domain.
fn read_domain(
    node: &YamlNode<'_>,
    file: usize,
    domains: &mut Vec<EnvoyDomain>,
    reports: &mut ImportReports,
) {
    let place = ImportPlace { file, position: node.place };
    let YamlValue::Map(pairs) = &node.value else {
        let message = format!(
            "this is not a configuration of envoyproxy/ratelimit, which begins with domain: and descriptors:, but {}",
            node.kind()
        );
        reports.reject_file(place, message);
        return;
    };
    if pairs.iter().any(|(name, _)| name.text() == Some("apiVersion")) {
        let message = "this is a Kubernetes resource: import the configuration inside it, which in a ConfigMap is \
                       below data";
        reports.reject_file(place, message);
        return;
    }
    let Some(fields) = ImportFields::read(node, file, "a configuration", &FILE_FIELDS, "it is", reports)
    else {
        return;
    };
    let Some((place, name)) = fields.text("domain", reports).filter(|(_, name)| !name.trim().is_empty())
    else {
        reports.reject_file(place, "the domain is missing: add it, like domain: edge");
        return;
    };
    if name.contains('*') {
        let message = format!("the domain {} has a *, which rules treat as a wildcard", quoted(name));
        reports.error(place, message);
    }
    let entries = read_entries(&fields, reports);
    match domains.iter_mut().find(|known| known.name == name) {
        Some(known) => known.entries.extend(entries),
        None => domains.push(EnvoyDomain { name: name.to_owned(), entries }),
    }
}

fn read_entries(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Vec<EnvoyEntry> {
    let items = fields.list("descriptors", reports);
    items.iter().filter_map(|node| read_entry(node, fields.place.file, reports)).collect()
}

fn read_entry(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<EnvoyEntry> {
    let fields = ImportFields::read(node, file, "a descriptor", &DESCRIPTOR_FIELDS, "it is", reports)?;
    let Some((key_place, key)) = fields.text("key", reports).filter(|(_, key)| !key.trim().is_empty()) else {
        let message = "the descriptor has no key: it is left out, with everything below it";
        return reports.reject(fields.place, message);
    };
    if key.contains('*') {
        let why = format!("the key {} has a *, and rules support patterns in values only", quoted(key));
        return reports.reject(key_place, left_out(&why));
    }
    if key.len() > MAX_TEXT_BYTES {
        let why = format!("the key has more than {MAX_TEXT_BYTES} bytes");
        return reports.reject(key_place, left_out(&why));
    }
    let value = match fields.text("value", reports) {
        None | Some((_, "")) => EntryValues::Any,
        Some((place, text)) => read_values(place, text, reports)?,
    };
    let is_quota = fields.is_set("quota_mode", reports);
    let is_shared = fields.is_set("share_threshold", reports);
    report_unsupported_fields(&fields, is_quota, reports);
    let limit = fields.find("rate_limit").and_then(|(_, node)| read_limit(node, file, reports));
    if let (true, EntryValues::Exact(_) | EntryValues::Any, Some(place)) =
        (is_shared, &value, fields.name_place("share_threshold"))
    {
        reports.warn(place, "share_threshold is for values that end with *: it has no effect here");
    }
    Some(EnvoyEntry {
        place: fields.place,
        key: key.to_owned(),
        is_shared: is_shared && matches!(value, EntryValues::Prefix(_)),
        value,
        has_invalid_limit: limit.is_none() && fields.find("rate_limit").is_some(),
        limit,
        is_shadow: fields.is_set("shadow_mode", reports) || is_quota,
        children: read_entries(&fields, reports),
    })
}

fn left_out(why: &str) -> String {
    format!("{why}: the descriptor is left out, with everything below it")
}

/// Reads a value. A `*` at the end matches any suffix; anywhere else it is a literal character in ratelimit, which a
/// pattern can't express.
fn read_values(place: ImportPlace, text: &str, reports: &mut ImportReports) -> Option<EntryValues> {
    let (start, is_open) = match text.strip_suffix('*') {
        Some(start) => (start, true),
        None => (text, false),
    };
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES {
        let why = format!("a rule can't match a value that is blank or has more than {MAX_TEXT_BYTES} bytes");
        return reports.reject(place, left_out(&why));
    }
    if start.contains('*') {
        let why =
            format!("{} has a * that is not at the end, and rules treat every * as a wildcard", quoted(text));
        return reports.reject(place, left_out(&why));
    }
    Some(if is_open { EntryValues::Prefix(start.to_owned()) } else { EntryValues::Exact(text.to_owned()) })
}

fn report_unsupported_fields(fields: &ImportFields<'_>, is_quota: bool, reports: &mut ImportReports) {
    for name in ["detailed_metric", "value_to_metric"] {
        if let (true, Some(place)) = (fields.is_set(name, reports), fields.name_place(name)) {
            let message = format!("{name} is left out: it only affects metrics, not limits");
            reports.warn(place, message);
        }
    }
    if let Some(place) = fields.name_place("metadata") {
        reports.error(place, "metadata is left out: responses to the proxy carry none");
    }
    if let (true, Some(place)) = (is_quota, fields.name_place("quota_mode")) {
        let message = "quota_mode became shadow: true: it never denies here either, but the proxy gets no metadata \
                       about what is over the limit";
        reports.error(place, message);
    }
}

fn read_limit(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<EnvoyRateLimit> {
    let fields = ImportFields::read(node, file, "a rate_limit", &RATE_LIMIT_FIELDS, "it is", reports)?;
    let name = fields.text("name", reports).map(|(_, name)| name.to_owned());
    for node in fields.list("replaces", reports) {
        reports.error(fields.place_of(node), replaces_error(node));
    }
    if fields.is_set("unlimited", reports) {
        if let Some(place) = fields.name_place("unit").or(fields.name_place("requests_per_unit")) {
            let message = "an unlimited rate_limit has no unit and no requests_per_unit: these are left out";
            reports.error(place, message);
        }
        return Some(EnvoyRateLimit { name, quota: None, note: None });
    }
    let span = read_unit(&fields, reports)?;
    let place = fields.name_place("requests_per_unit").unwrap_or(fields.place);
    let amount = match fields.find("requests_per_unit") {
        Some(_) => fields.number("requests_per_unit", reports)?,
        None => 0,
    };
    let quota = quota(amount, span, Align::WallClock(Zone::UTC), place, reports)?;
    Some(EnvoyRateLimit { name, quota: Some(quota), note: difference_note(amount, span) })
}

/// Returns a comment for the rule if its limit differs from ratelimit's, else `None`.
fn difference_note(amount: u64, span: Span) -> Option<&'static str> {
    match (amount, span) {
        (0, _) => Some("Denies everything in ratelimit; this rule allows one request a year."),
        (_, Span::WEEK) => Some("Weeks begin on Monday; in ratelimit on Thursday."),
        (_, Span::MONTH) => Some("Calendar months; in ratelimit 30 days each."),
        _ => None,
    }
}

fn read_unit(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<Span> {
    let Some((place, text)) = fields.text("unit", reports) else {
        return reports.reject(fields.place, "the rate_limit has no unit: it is left out");
    };
    Some(match text.to_ascii_lowercase().as_str() {
        "second" => Span::SECOND,
        "minute" => Span::MINUTE,
        "hour" => Span::HOUR,
        "day" => Span::DAY,
        "week" => {
            reports.warn(
                place,
                "a week begins on Monday here; in ratelimit it begins on Thursday, like the Unix epoch",
            );
            Span::WEEK
        }
        "month" => {
            reports.warn(place, "a month is a calendar month here; in ratelimit it is 30 days");
            Span::MONTH
        }
        "year" => Span::YEAR,
        _ => {
            let message = format!(
                "unknown unit {}: the limit is left out; units are second, minute, hour, day, week, month and year",
                quoted(text)
            );
            return reports.reject(place, message);
        }
    })
}

fn replaces_error(node: &YamlNode<'_>) -> String {
    let name = match &node.value {
        YamlValue::Map(pairs) => {
            pairs.iter().find(|(name, _)| name.text() == Some("name")).map(|(_, value)| value)
        }
        _ => None,
    };
    let shown = name.and_then(YamlNode::text).map_or_else(|| "another limit".to_owned(), quoted);
    format!(
        "replaces is left out: it removes {shown} from another descriptor of the same request, but rules see one \
         descriptor at a time, so both limits apply"
    )
}
