//! Imports the limits of Kuadrant's Limitador.
//!
//! A limit has conditions and variables. Conditions that compare an entry with a value are translated; variables are
//! the entries to count by. In Limitador all limits that match a request apply, but of our rules with the same key
//! only the first match does. So limits that may match the same request need different keys, which [`keys`] finds.

mod cel;
mod keys;

use super::draft::{DraftRule, RuleIds, attribute_name_error, key_name_error};
use super::fields::ImportFields;
use super::{ImportPlace, ImportReports, quota};
use ratekeeper_core::{Align, Limit, Quota, Span};
use ratekeeper_rules::bounds::MAX_TEXT_BYTES;
use ratekeeper_rules::quoted;
use ratekeeper_rules::yaml::{self, YamlNode, YamlValue};
use std::collections::{BTreeMap, BTreeSet};

/// The comment above the rules.
pub(super) const HEADER: &str = "\
Imported from FILE (Limitador).
In Limitador, all limits that match a request apply. Here, only the first match of the rules with the same key does.
So rules that may match the same request have different keys: with the domain, or with an attribute that has one value
in all requests that the rule matches, so no count changes.
Rules match each descriptor of a request; Limitador matches the first, descriptors[0].";

/// The fields of a limit.
const LIMIT_FIELDS: [&str; 7] =
    ["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"];

/// Limits that match the same requests and count by the same variables: they become one rule.
#[derive(Debug)]
struct LimitadorGroup {
    place: ImportPlace,
    namespace: String,
    /// The values that entries must have.
    conditions: BTreeMap<String, String>,
    /// The entries to count by.
    variables: BTreeSet<String>,
    limits: Vec<Quota>,
    /// The names of the limits that have one.
    names: Vec<String>,
    /// The id of the first limit that has one.
    id: Option<String>,
    denies_all: bool,
}

/// Reads the files and translates them to rules.
pub(super) fn translate(texts: &[&str], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut groups: Vec<LimitadorGroup> = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        let Some(root) = yaml::parse(text, &mut reports.diagnostics[file]) else {
            reports.unreadable[file] = true;
            if reports.diagnostics[file].errors() == 0 {
                reports.reject_file(
                    ImportPlace { file, ..ImportPlace::default() },
                    "the file is empty: it has no limits",
                );
            }
            continue;
        };
        for node in limit_nodes(&root, file, reports) {
            if let Some(group) = read_limit(node, file, reports) {
                add_to_groups(&mut groups, group, reports);
            }
        }
    }
    let mut ids = RuleIds::default();
    let keyed = keys::choose_keys(groups, reports);
    keyed.into_iter().map(|(group, key)| rule(group, key, &mut ids)).collect()
}

/// The limits of a file; empty if it is not a list.
fn limit_nodes<'n>(root: &'n YamlNode<'n>, file: usize, reports: &mut ImportReports) -> &'n [YamlNode<'n>] {
    let place = ImportPlace { file, position: root.place };
    let message = match &root.value {
        YamlValue::List(items) => return items,
        YamlValue::Map(pairs) => {
            let has = |name: &str| pairs.iter().any(|(known, _)| known.text() == Some(name));
            match (has("apiVersion"), has("limits")) {
                (true, _) => "this is a Kubernetes resource: import the list inside it, below spec: limits:",
                (false, true) => "this is more than a list of limits: import the list below limits:",
                (false, false) => "Limitador's limits are a list: each begins with - namespace:",
            }
        }
        YamlValue::Scalar { .. } | YamlValue::Broken => {
            "Limitador's limits are a list: each begins with - namespace:"
        }
    };
    reports.reject_file(place, message);
    &[]
}

fn read_limit(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<LimitadorGroup> {
    let errors = reports.error_count();
    let fields = ImportFields::read(node, file, "a limit", &LIMIT_FIELDS, "the limit is", reports)?;
    let namespace = read_namespace(&fields, reports);
    let conditions = read_conditions(&fields, reports);
    let variables = read_variables(&fields, reports);
    let is_translated = reports.error_count() == errors;
    let (amount, limit) = read_quota(&fields, reports)?;
    // Without one of its conditions, even a misspelled one, it would apply to too many requests.
    if !is_translated {
        return None;
    }
    let name = fields.text("name", reports).map(|(_, name)| name.to_owned());
    Some(LimitadorGroup {
        place: fields.place,
        namespace: namespace?,
        conditions: conditions?,
        variables,
        limits: vec![limit],
        names: name.into_iter().collect(),
        id: fields.text("id", reports).map(|(_, id)| id.to_owned()),
        denies_all: amount == 0,
    })
}

fn read_namespace(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<String> {
    match fields.text("namespace", reports) {
        Some((place, text)) if text.contains('*') => {
            let message = format!(
                "the limit is left out: its namespace {} has a *, which rules treat as a wildcard",
                quoted(text)
            );
            reports.reject(place, message)
        }
        Some((_, text)) if !text.trim().is_empty() => Some(text.to_owned()),
        _ => reports.reject(fields.place, "the limit is left out: it has no namespace"),
    }
}

fn read_quota(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<(u64, Quota)> {
    for name in ["max_value", "seconds"] {
        if fields.find(name).is_none() {
            return reports.reject(fields.place, format!("the limit is left out: it has no {name}"));
        }
    }
    let amount = fields.number("max_value", reports)?;
    let seconds = fields.number("seconds", reports)?;
    let place = fields.name_place("max_value").unwrap_or(fields.place);
    let most = Limit::MAX_TTL.get() / Span::SECOND.get();
    if seconds > most {
        let place = fields.name_place("seconds").unwrap_or(fields.place);
        let message =
            format!("the limit is left out: a window is at most {most} seconds long, not {seconds}");
        return reports.reject(place, message);
    }
    Some((amount, quota(amount, Span::secs(seconds), Align::FirstHit, place, reports)?))
}

/// Reads the values that entries must have. Returns `None` if no request can meet all conditions.
fn read_conditions(
    fields: &ImportFields<'_>,
    reports: &mut ImportReports,
) -> Option<BTreeMap<String, String>> {
    let mut conditions: BTreeMap<String, String> = BTreeMap::new();
    let mut can_match = true;
    for node in fields.list("conditions", reports) {
        let text = node.text().unwrap_or_default();
        let mut report =
            |why: &str| reports.error(fields.place_of(node), untranslated("condition", text, why));
        let equalities = cel::equalities(text).unwrap_or_else(|why| {
            report(&why);
            Vec::new()
        });
        for (name, value) in equalities {
            match attribute_name_error(&name).or_else(|| value_error(&value)) {
                Some(why) => report(&why),
                None => {
                    can_match &= conditions.insert(name, value.clone()).is_none_or(|before| before == value);
                }
            }
        }
    }
    if !can_match {
        let message =
            "the limit is left out: its conditions require two values of one entry, so it never applies";
        reports.warn(fields.place, message);
        return None;
    }
    Some(conditions)
}

fn untranslated(what: &str, text: &str, why: &str) -> String {
    format!("the {what} {} can't be translated, so the limit is left out: {why}", quoted(text))
}

fn value_error(value: &str) -> Option<String> {
    match value {
        value if value.contains('*') => Some("rules treat * as a wildcard".to_owned()),
        value if value.trim().is_empty() => Some("rules can't match an empty value".to_owned()),
        value if value.len() > MAX_TEXT_BYTES => Some(format!("a value has at most {MAX_TEXT_BYTES} bytes")),
        _ => None,
    }
}

fn read_variables(fields: &ImportFields<'_>, reports: &mut ImportReports) -> BTreeSet<String> {
    let mut variables = BTreeSet::new();
    for node in fields.list("variables", reports) {
        let text = node.text().unwrap_or_default();
        let name = cel::entry(text).and_then(|name| key_name_error(&name).map_or(Ok(name), Err));
        match name {
            Ok(name) => drop(variables.insert(name)),
            Err(why) => reports.error(fields.place_of(node), untranslated("variable", text, &why)),
        }
    }
    variables
}

/// Adds a limit to the group with the same conditions and variables, or as a new group.
fn add_to_groups(groups: &mut Vec<LimitadorGroup>, group: LimitadorGroup, reports: &mut ImportReports) {
    let known = groups.iter_mut().find(|known| {
        known.namespace == group.namespace
            && known.conditions == group.conditions
            && known.variables == group.variables
    });
    let Some(known) = known else { return groups.push(group) };
    for limit in group.limits {
        if known.limits.contains(&limit) {
            let message = format!(
                "the limit is left out: it is the same as the one in line {}",
                known.place.position.line
            );
            reports.warn(group.place, message);
        } else {
            known.limits.push(limit);
        }
    }
    known.names.extend(group.names);
    known.id = known.id.take().or(group.id);
    known.denies_all |= group.denies_all;
}

fn rule(group: LimitadorGroup, key: Vec<String>, ids: &mut RuleIds) -> DraftRule {
    let preferred =
        group.id.clone().or_else(|| group.names.first().cloned()).unwrap_or_else(|| generated_name(&group));
    let id = ids.unique_id(&preferred);
    let names = group.names.join(", ");
    DraftRule {
        description: Some(names).filter(|names| !names.is_empty() && *names != id),
        id,
        comments: if group.denies_all {
            vec!["Denies everything in Limitador; this rule allows one request a year.".to_owned()]
        } else {
            Vec::new()
        },
        domain: group.namespace,
        attributes: group.conditions.into_iter().collect(),
        key,
        limits: group.limits,
        starts_at_first_hit: true,
        ..DraftRule::default()
    }
}

/// A name for limits without one, made from conditions and variables.
fn generated_name(group: &LimitadorGroup) -> String {
    let conditions = group.conditions.iter().map(|(name, value)| format!("{name}.{value}"));
    let parts: Vec<_> = conditions.chain(group.variables.iter().cloned()).collect();
    if parts.is_empty() {
        group.namespace.clone()
    } else {
        format!("{}:{}", group.namespace, parts.join("/"))
    }
}
