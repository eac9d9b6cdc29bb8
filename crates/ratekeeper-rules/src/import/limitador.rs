//! Limits of Kuadrant's Limitador.
//!
//! A limit has conditions, of which those are translated that ask for an entry to have a value, and variables, which are
//! what is counted apart. All limits that match a request apply. Of our rules only the first of those applies that count
//! by the same key, so limits that may meet must have different keys: [`keys`] finds them.

mod cel;
mod keys;

use super::draft::{DraftRule, Ids, unfit_as_attribute, unfit_for_key};
use super::fields::ImportFields;
use super::{ImportPlace, ImportReports, quota};
use crate::diagnostic::quoted;
use crate::read::MOST_TEXT;
use crate::yaml::{self, YamlNode, YamlValue};
use ratekeeper_core::{Algorithm, Align, Limit, Quota, Span};
use std::collections::{BTreeMap, BTreeSet};

/// What stands above the rules.
pub(super) const ABOUT: &str = "\
Imported from FILE (Limitador).
All limits that match a request apply there. Here, rules with the same key are alternatives, so where limits may meet,
their keys differ by the domain or by what the rule asks for anyhow, which changes no count.
Rules look at each descriptor of a request; Limitador looks at the first, descriptors[0].";

/// The fields of a limit.
const LIMIT: [&str; 7] = ["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"];

/// Limits that bind the same requests and count the same.
#[derive(Debug)]
struct LimitadorGroup {
    spot: ImportPlace,
    namespace: String,
    /// Which values entries must have.
    conditions: BTreeMap<String, String>,
    /// Which entries are counted apart.
    variables: BTreeSet<String>,
    limits: Vec<Quota>,
    /// What the limits are called, as far as they are.
    names: Vec<String>,
    /// The id of the first limit that has one.
    id: Option<String>,
    refuses_all: bool,
}

/// Reads the files and makes rules of them.
pub(super) fn translate(texts: &[&str], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut groups: Vec<LimitadorGroup> = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        let Some(root) = yaml::parse(text, &mut reports.complaints[file]) else {
            reports.unread[file] = true;
            if reports.complaints[file].errors() == 0 {
                reports.unread(
                    ImportPlace { file, ..ImportPlace::default() },
                    "the file says nothing: there are no limits in it",
                );
            }
            continue;
        };
        for node in list(&root, file, reports) {
            if let Some(group) = read_limit(node, file, reports) {
                join(&mut groups, group, reports);
            }
        }
    }
    let mut ids = Ids::default();
    let keyed = keys::choose(groups, reports);
    keyed.into_iter().map(|(group, key)| rule(group, key, &mut ids)).collect()
}

/// The limits of a file.
fn list<'n>(root: &'n YamlNode<'n>, file: usize, reports: &mut ImportReports) -> &'n [YamlNode<'n>] {
    let spot = ImportPlace { file, place: root.place };
    let said = match &root.value {
        YamlValue::List(items) => return items,
        YamlValue::Map(pairs) => {
            let has = |name: &str| pairs.iter().any(|(known, _)| known.text() == Some(name));
            match (has("apiVersion"), has("limits")) {
                (true, _) => {
                    "this is a resource of Kubernetes: import the list that stands in it, below spec: limits:"
                }
                (false, true) => "this has more in it than limits: import the list below limits:",
                (false, false) => "limits of Limitador are a list: each begins with - namespace:",
            }
        }
        YamlValue::Scalar { .. } | YamlValue::Broken => {
            "limits of Limitador are a list: each begins with - namespace:"
        }
    };
    reports.unread(spot, said);
    &[]
}

fn read_limit(node: &YamlNode<'_>, file: usize, reports: &mut ImportReports) -> Option<LimitadorGroup> {
    let errors = reports.errors();
    let fields = ImportFields::read(node, file, "a limit", &LIMIT, "the limit is", reports)?;
    let namespace = read_namespace(&fields, reports);
    let conditions = read_conditions(&fields, reports);
    let variables = read_variables(&fields, reports);
    let has_understood = reports.errors() == errors;
    let (amount, limit) = read_quota(&fields, reports)?;
    // Without one of its conditions, however that is spelled, it would bind more than it should.
    if !has_understood {
        return None;
    }
    let name = fields.text("name", reports).map(|(_, name)| name.to_owned());
    Some(LimitadorGroup {
        spot: fields.spot,
        namespace: namespace?,
        conditions: conditions?,
        variables,
        limits: vec![limit],
        names: name.into_iter().collect(),
        id: fields.text("id", reports).map(|(_, id)| id.to_owned()),
        refuses_all: amount == 0,
    })
}

fn read_namespace(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<String> {
    match fields.text("namespace", reports) {
        Some((spot, text)) if text.contains('*') => {
            let said = format!(
                "the limit is left out: its namespace {} has a *, which rules take for any run of characters",
                quoted(text)
            );
            reports.error(spot, said);
            None
        }
        Some((_, text)) if !text.trim().is_empty() => Some(text.to_owned()),
        _ => {
            reports.error(fields.spot, "the limit is left out: it has no namespace");
            None
        }
    }
}

fn read_quota(fields: &ImportFields<'_>, reports: &mut ImportReports) -> Option<(u64, Quota)> {
    for name in ["max_value", "seconds"] {
        if fields.find(name).is_none() {
            reports.error(fields.spot, format!("the limit is left out: it has no {name}"));
            return None;
        }
    }
    let amount = fields.number("max_value", reports)?;
    let seconds = fields.number("seconds", reports)?;
    let spot = fields.named_at("max_value").unwrap_or(fields.spot);
    let most = Limit::LONGEST.get() / Span::SECOND.get();
    if seconds > most {
        let spot = fields.named_at("seconds").unwrap_or(fields.spot);
        reports.error(
            spot,
            format!("the limit is left out: a window has at most {most} seconds, not {seconds}"),
        );
        return None;
    }
    let quota = quota(amount, Span::secs(seconds), spot, reports)?;
    match Limit::new(Algorithm::FixedWindow(Align::FirstHit), quota) {
        Ok(_) => Some((amount, quota)),
        Err(error) => {
            reports.error(spot, format!("the limit is left out: {error}"));
            None
        }
    }
}

/// What entries must be, unless they can't all be so at once.
fn read_conditions(
    fields: &ImportFields<'_>,
    reports: &mut ImportReports,
) -> Option<BTreeMap<String, String>> {
    let mut conditions: BTreeMap<String, String> = BTreeMap::new();
    let mut can_hold = true;
    for node in fields.list("conditions", reports) {
        let spot = ImportPlace { file: fields.spot.file, place: node.place };
        let text = node.text().unwrap_or_default();
        let asked = match cel::equalities(text) {
            Ok(asked) => asked,
            Err(why) => {
                reports.error(
                    spot,
                    format!(
                        "the condition {} can't be translated, so the limit is left out: {why}",
                        quoted(text)
                    ),
                );
                continue;
            }
        };
        for (name, value) in asked {
            if let Some(why) = unfit_as_attribute(&name).or_else(|| unfit_as_value(&value)) {
                reports.error(
                    spot,
                    format!(
                        "the condition {} can't be translated, so the limit is left out: {why}",
                        quoted(text)
                    ),
                );
                continue;
            }
            can_hold &= conditions.insert(name, value.clone()).is_none_or(|before| before == value);
        }
    }
    if !can_hold {
        let said =
            "the limit is left out: its conditions ask for two values of one entry, so it binds nobody";
        reports.warn(fields.spot, said);
        return None;
    }
    Some(conditions)
}

fn unfit_as_value(value: &str) -> Option<String> {
    match value {
        value if value.contains('*') => Some("rules take * for any run of characters".to_owned()),
        value if value.trim().is_empty() => Some("rules can't ask for a value that is empty".to_owned()),
        value if value.len() > MOST_TEXT => Some(format!("a value has at most {MOST_TEXT} bytes")),
        _ => None,
    }
}

fn read_variables(fields: &ImportFields<'_>, reports: &mut ImportReports) -> BTreeSet<String> {
    let mut variables = BTreeSet::new();
    for node in fields.list("variables", reports) {
        let text = node.text().unwrap_or_default();
        let name = cel::entry(text).and_then(|name| match unfit_for_key(&name) {
            Some(why) => Err(why),
            None => Ok(name),
        });
        match name {
            Ok(name) => drop(variables.insert(name)),
            Err(why) => {
                let spot = ImportPlace { file: fields.spot.file, place: node.place };
                reports.error(
                    spot,
                    format!(
                        "the variable {} can't be translated, so the limit is left out: {why}",
                        quoted(text)
                    ),
                );
            }
        }
    }
    variables
}

/// Puts a limit to those that bind the same and count the same.
fn join(groups: &mut Vec<LimitadorGroup>, group: LimitadorGroup, reports: &mut ImportReports) {
    let known = groups.iter_mut().find(|known| {
        known.namespace == group.namespace
            && known.conditions == group.conditions
            && known.variables == group.variables
    });
    let Some(known) = known else { return groups.push(group) };
    for limit in group.limits {
        match known.limits.contains(&limit) {
            true => {
                let said = format!(
                    "the limit is left out: it says the same as the one in line {}",
                    known.spot.place.line
                );
                reports.warn(group.spot, said);
            }
            false => known.limits.push(limit),
        }
    }
    known.names.extend(group.names);
    known.id = known.id.take().or(group.id);
    known.refuses_all |= group.refuses_all;
}

fn rule(group: LimitadorGroup, key: Vec<String>, ids: &mut Ids) -> DraftRule {
    let wanted =
        group.id.clone().or_else(|| group.names.first().cloned()).unwrap_or_else(|| what_it_says(&group));
    let id = ids.name(&wanted);
    let names = group.names.join(", ");
    DraftRule {
        description: Some(names).filter(|names| !names.is_empty() && *names != id),
        id,
        comments: match group.refuses_all {
            true => vec!["This refuses everything in Limitador; a rule lets one through.".to_owned()],
            false => Vec::new(),
        },
        domain: group.namespace,
        attributes: group.conditions.into_iter().collect(),
        key,
        limits: group.limits,
        starts_with_hit: true,
        ..DraftRule::default()
    }
}

/// A name for limits without one.
fn what_it_says(group: &LimitadorGroup) -> String {
    let conditions = group.conditions.iter().map(|(name, value)| format!("{name}.{value}"));
    let parts: Vec<_> = conditions.chain(group.variables.iter().cloned()).collect();
    match parts.is_empty() {
        true => group.namespace.clone(),
        false => format!("{}:{}", group.namespace, parts.join("/")),
    }
}
