//! Makes rules that count separately what ratelimit does, and keeps shadow limits in shadow.
//!
//! Rules are alternatives only within a key group: if they have the same key, and are all enforced or all in shadow. In
//! ratelimit all descriptors are alternatives, including those in shadow and those with `share_threshold`. So an entry
//! that is limited in one group must pass in the others: there, an unlimited rule takes its place, wherever a later
//! rule of that group might apply to the same descriptors.

use super::key_group::{EnvoyKeyGroup, sharing_error};
use super::precedence::{EnvoyItem, EnvoyItemKind};
use super::{EntryValues, EnvoyEntry, EnvoyRateLimit};
use crate::ImportReports;
use crate::draft::{DraftRule, RuleIds};
use ratekeeper_core::MAX_DRAWS;
use std::collections::HashMap;

/// Makes rules of a list of items of which the first match decides.
pub(super) fn rules(items: &[EnvoyItem<'_>], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut ids = RuleIds::default();
    // Limits get their ids first; rules that only let requests pass may be repeated in several groups.
    let own = |item: &EnvoyItem<'_>| {
        matches!(item.kind, EnvoyItemKind::Limit(_)).then(|| ids.unique_id(&preferred_id(item)))
    };
    let ids_of: Vec<String> = items.iter().map(own).map(Option::unwrap_or_default).collect();
    let mut rules = Vec::new();
    for group in key_groups_of(items, reports) {
        let first = rules.len();
        let placed = GroupLimits::in_group(&group, items);
        for (index, item) in items.iter().enumerate() {
            let id = &ids_of[index];
            match &item.kind {
                EnvoyItemKind::Limit(limit) if placed.contains(item) => {
                    rules.push(limit_rule(item, limit, &group, id));
                }
                EnvoyItemKind::Limit(_) if placed.has_later_overlap(index, item) => {
                    let comment = format!("Limited by {id}.");
                    let id = ids.unique_id(&format!("{id}:passes"));
                    rules.push(pass_rule(item, &group, id, comment));
                }
                EnvoyItemKind::Pass(own) if *own == group => {
                    rules.push(pass_rule(
                        item,
                        &group,
                        ids.unique_id(&preferred_id(item)),
                        pass_comment(item),
                    ));
                }
                EnvoyItemKind::Limit(_) | EnvoyItemKind::Pass(_) => {}
            }
        }
        if let Some(rule) = rules.get_mut(first).filter(|_| !group.is_default()) {
            rule.comments.splice(0..0, heading(&group));
        }
    }
    rules
}

/// The key groups that have limits, in the order of the list, the default group first.
fn key_groups_of(items: &[EnvoyItem<'_>], reports: &mut ImportReports) -> Vec<EnvoyKeyGroup> {
    let mut groups = vec![EnvoyKeyGroup::default()];
    for item in items {
        let EnvoyItemKind::Limit(limit) = &item.kind else { continue };
        if let (Some(entry), Some(why)) = (
            item.path.iter().find(|entry| entry.is_shared && limit.quota.is_some()),
            sharing_error(&item.path),
        ) {
            let message = format!("share_threshold is left out, so each value has its own count: {why}");
            reports.error(entry.place, message);
        }
        let group = GroupLimits::group_of(item, limit);
        if groups.contains(&group) {
            continue;
        }
        if groups.len() < MAX_DRAWS {
            groups.push(group);
        } else {
            let place = item.path.last().map(|entry| entry.place).unwrap_or_default();
            let message = format!(
                "the limit is left out: with it, a request could have to pass more than the {MAX_DRAWS} limits that \
                 can be checked at once"
            );
            reports.error(place, message);
        }
    }
    groups
}

/// A domain, and the names of the entries of a path.
type EntryNames<'i> = (&'i str, Vec<&'i str>);

/// The limits of a key group, to find those that overlap with other items.
struct GroupLimits<'i> {
    group: &'i EnvoyKeyGroup,
    /// By domain and names: items that differ in these never overlap.
    limits: HashMap<EntryNames<'i>, Vec<(usize, &'i EnvoyItem<'i>)>>,
}

impl<'i> GroupLimits<'i> {
    fn in_group(group: &'i EnvoyKeyGroup, items: &'i [EnvoyItem<'i>]) -> GroupLimits<'i> {
        let mut placed = GroupLimits { group, limits: HashMap::new() };
        for (index, item) in items.iter().enumerate() {
            if matches!(item.kind, EnvoyItemKind::Limit(EnvoyRateLimit { quota: Some(_), .. }))
                && placed.contains(item)
            {
                placed.limits.entry(entry_names(item)).or_default().push((index, item));
            }
        }
        placed
    }

    /// The key group of an item. An unlimited one counts nothing, so it belongs to the default group.
    fn group_of(item: &EnvoyItem<'_>, limit: &EnvoyRateLimit) -> EnvoyKeyGroup {
        limit.quota.map_or_else(EnvoyKeyGroup::default, |_| EnvoyKeyGroup::of(&item.path))
    }

    fn contains(&self, item: &EnvoyItem<'_>) -> bool {
        matches!(item.kind, EnvoyItemKind::Limit(limit) if GroupLimits::group_of(item, limit) == *self.group)
    }

    /// Whether a later limit of this group may match the same descriptors as an item of another group.
    fn has_later_overlap(&self, index: usize, item: &EnvoyItem<'_>) -> bool {
        let Some(limits) = self.limits.get(&entry_names(item)) else { return false };
        let later = limits.partition_point(|(other, _)| *other <= index);
        limits[later..].iter().any(|(_, other)| other.overlaps(item))
    }
}

fn entry_names<'i>(item: &EnvoyItem<'i>) -> EntryNames<'i> {
    (item.domain, item.path.iter().map(|entry| entry.key.as_str()).collect())
}

/// The limit's own name, or one made from its path.
fn preferred_id(item: &EnvoyItem<'_>) -> String {
    if let EnvoyItemKind::Limit(EnvoyRateLimit { name: Some(name), .. }) = &item.kind {
        return name.clone();
    }
    let step = |entry: &&EnvoyEntry| match &entry.value {
        EntryValues::Exact(value) | EntryValues::Prefix(value) if !value.is_empty() => {
            format!("{}.{value}", entry.key)
        }
        _ => entry.key.clone(),
    };
    format!("{}:{}", item.domain, item.path.iter().map(step).collect::<Vec<_>>().join("/"))
}

fn heading(group: &EnvoyKeyGroup) -> Vec<String> {
    let mut lines = vec![String::new()];
    if !group.key.is_empty() {
        lines.push("share_threshold: all values that match a pattern share one count.".to_owned());
    }
    if group.is_shadow {
        lines.push("Shadow rules: evaluated and counted, but they never deny.".to_owned());
    }
    lines
}

fn pass_comment(item: &EnvoyItem<'_>) -> String {
    let is_leaf = item.path.last().is_some_and(|entry| entry.limit.is_none() && entry.children.is_empty());
    if is_leaf {
        "Passes: it has no limit in ratelimit.".to_owned()
    } else {
        "Passes: ratelimit does not fall back to a less specific descriptor.".to_owned()
    }
}

fn limit_rule(item: &EnvoyItem<'_>, limit: &EnvoyRateLimit, group: &EnvoyKeyGroup, id: &str) -> DraftRule {
    DraftRule {
        limits: limit.quota.into_iter().collect(),
        comments: limit.note.map(str::to_owned).into_iter().collect(),
        ..draft(item, group, id.to_owned())
    }
}

fn pass_rule(item: &EnvoyItem<'_>, group: &EnvoyKeyGroup, id: String, comment: String) -> DraftRule {
    DraftRule { comments: vec![comment], ..draft(item, group, id) }
}

fn draft(item: &EnvoyItem<'_>, group: &EnvoyKeyGroup, id: String) -> DraftRule {
    let value = |entry: &&EnvoyEntry| match &entry.value {
        EntryValues::Exact(value) => (entry.key.clone(), Some(value.clone())),
        EntryValues::Prefix(start) => (entry.key.clone(), Some(format!("{start}*"))),
        EntryValues::Any => (entry.key.clone(), None),
    };
    DraftRule {
        id,
        is_shadow: group.is_shadow,
        domain: item.domain.to_owned(),
        descriptor: item.path.iter().map(value).collect(),
        key: group.key.clone(),
        ..DraftRule::default()
    }
}
