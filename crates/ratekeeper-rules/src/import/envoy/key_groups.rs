//! What is counted apart, and what is tried out.
//!
//! Rules are alternatives if they count by the same key and are both enforced or both in shadow: they are on one track.
//! In ratelimit all descriptors are alternatives, also those in shadow and those whose values share a count. So what
//! binds on one track lets pass on the others: it stands there, in its place, as a rule that is unlimited, wherever a
//! later rule of that track might bind the same.

use super::super::ImportReports;
use super::super::draft::{DraftRule, Ids, unfit_for_key};
use super::precedence::{EnvoyItem, EnvoyItemKind};
use super::{EntryValues, EnvoyEntry, EnvoyRateLimit};
use crate::read::MOST_DIMENSIONS;
use ratekeeper_core::MAX_DRAWS;
use std::collections::HashMap;

/// What rules have in common of which only one binds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EnvoyKeyGroup {
    /// What they count by; if empty, the whole descriptor.
    key: Vec<String>,
    is_shadow: bool,
}

impl EnvoyKeyGroup {
    /// The track of the limit that a path leads to.
    pub(super) fn of(path: &[&EnvoyEntry]) -> EnvoyKeyGroup {
        let is_shadow = path.last().is_some_and(|entry| entry.is_shadow);
        let is_shared = path.iter().any(|entry| entry.is_shared) && unshareable(path).is_none();
        let mut key = Vec::new();
        if is_shared {
            key.extend(open(path).map(|entry| entry.key.clone()));
            key.sort();
            key.insert(0, "domain".to_owned());
        }
        EnvoyKeyGroup { key, is_shadow }
    }

    fn is_ordinary(&self) -> bool {
        *self == EnvoyKeyGroup::default()
    }
}

/// The entries that have several values, each with a count of its own.
fn open<'p>(path: &'p [&'p EnvoyEntry]) -> impl Iterator<Item = &'p EnvoyEntry> {
    path.iter().copied().filter(|entry| !matches!(entry.value, EntryValues::Exact(_)) && !entry.is_shared)
}

/// Why the values of a path can't share a count, if they can't.
fn unshareable(path: &[&EnvoyEntry]) -> Option<String> {
    // The domain is one of them.
    if open(path).count() >= MOST_DIMENSIONS {
        return Some(format!("a rule counts by at most {MOST_DIMENSIONS} names"));
    }
    let repeats = |key: &str| path.iter().filter(|entry| entry.key == key).count() > 1;
    open(path).find_map(|entry| match unfit_for_key(&entry.key) {
        Some(why) => Some(why),
        None if repeats(&entry.key) => Some(format!(
            "of entries with one name only the first can be counted by, and {} is there twice",
            entry.key
        )),
        None => None,
    })
}

/// Makes rules of a list of which the first match counts.
pub(super) fn rules(items: &[EnvoyItem<'_>], reports: &mut ImportReports) -> Vec<DraftRule> {
    let mut ids = Ids::default();
    // What limits comes first to its name; what lets pass may have to stand in several places.
    let own = |item: &EnvoyItem<'_>| {
        matches!(item.kind, EnvoyItemKind::Limit(_)).then(|| ids.name(&wanted_id(item)))
    };
    let ids_of: Vec<String> = items.iter().map(own).map(Option::unwrap_or_default).collect();
    let mut rules = Vec::new();
    for track in tracks(items, reports) {
        let first = rules.len();
        let placed = PlacedLimits::on(&track, items);
        for (index, item) in items.iter().enumerate() {
            let id = &ids_of[index];
            match &item.kind {
                EnvoyItemKind::Limit(limit) if placed.belongs(item) => {
                    rules.push(rule(item, limit, &track, id))
                }
                EnvoyItemKind::Limit(_) if placed.is_met(index, item) => {
                    let comment = format!("Left to {id}.");
                    let id = ids.name(&format!("{id}:passes"));
                    rules.push(passing(item, &track, id, comment));
                }
                EnvoyItemKind::Cut(own) if *own == track => {
                    rules.push(passing(item, &track, ids.name(&wanted_id(item)), why_cut(item)));
                }
                EnvoyItemKind::Limit(_) | EnvoyItemKind::Cut(_) => {}
            }
        }
        if let Some(rule) = rules.get_mut(first).filter(|_| !track.is_ordinary()) {
            rule.comments.splice(0..0, heading(&track));
        }
    }
    rules
}

/// The tracks that have limits, in the order of the list, that of ordinary rules first.
fn tracks(items: &[EnvoyItem<'_>], reports: &mut ImportReports) -> Vec<EnvoyKeyGroup> {
    let mut tracks = vec![EnvoyKeyGroup::default()];
    for item in items {
        let EnvoyItemKind::Limit(limit) = &item.kind else { continue };
        if let (Some(entry), Some(why)) =
            (item.path.iter().find(|entry| entry.is_shared && limit.quota.is_some()), unshareable(&item.path))
        {
            let said = format!("share_threshold is left out, and each value has a count of its own: {why}");
            reports.error(entry.spot, said);
        }
        let track = PlacedLimits::track_of(item, limit);
        if tracks.contains(&track) {
            continue;
        }
        match tracks.len() < MAX_DRAWS {
            true => tracks.push(track),
            false => {
                let spot = item.path.last().map(|entry| entry.spot).unwrap_or_default();
                let said = format!(
                    "the limit is left out: with it, a request could have to pass more than the {MAX_DRAWS} limits that \
                     can be checked at once"
                );
                reports.error(spot, said);
            }
        }
    }
    tracks
}

/// A domain, and the names of entries.
type EntryNames<'i> = (&'i str, Vec<&'i str>);

/// The limits of a track, to find out whether something else would meet them.
struct PlacedLimits<'i> {
    track: &'i EnvoyKeyGroup,
    /// By domain and names, since others never meet.
    limits: HashMap<EntryNames<'i>, Vec<(usize, &'i EnvoyItem<'i>)>>,
}

impl<'i> PlacedLimits<'i> {
    fn on(track: &'i EnvoyKeyGroup, items: &'i [EnvoyItem<'i>]) -> PlacedLimits<'i> {
        let mut placed = PlacedLimits { track, limits: HashMap::new() };
        for (index, item) in items.iter().enumerate() {
            if matches!(item.kind, EnvoyItemKind::Limit(EnvoyRateLimit { quota: Some(_), .. }))
                && placed.belongs(item)
            {
                placed.limits.entry(names(item)).or_default().push((index, item));
            }
        }
        placed
    }

    /// What is unlimited counts nothing: it is an ordinary rule.
    fn track_of(item: &EnvoyItem<'_>, limit: &EnvoyRateLimit) -> EnvoyKeyGroup {
        limit.quota.map_or_else(EnvoyKeyGroup::default, |_| EnvoyKeyGroup::of(&item.path))
    }

    fn belongs(&self, item: &EnvoyItem<'_>) -> bool {
        matches!(item.kind, EnvoyItemKind::Limit(limit) if PlacedLimits::track_of(item, limit) == *self.track)
    }

    /// Whether a later limit of the track may bind what an item of another one binds.
    fn is_met(&self, index: usize, item: &EnvoyItem<'_>) -> bool {
        let Some(limits) = self.limits.get(&names(item)) else { return false };
        let later = limits.partition_point(|(other, _)| *other <= index);
        limits[later..].iter().any(|(_, other)| other.overlaps(item))
    }
}

fn names<'i>(item: &EnvoyItem<'i>) -> EntryNames<'i> {
    (item.domain, item.path.iter().map(|entry| entry.key.as_str()).collect())
}

/// A limit's own name, or what its path says.
fn wanted_id(item: &EnvoyItem<'_>) -> String {
    if let EnvoyItemKind::Limit(EnvoyRateLimit { name: Some(name), .. }) = &item.kind {
        return name.clone();
    }
    let step = |entry: &&EnvoyEntry| match &entry.value {
        EntryValues::Exact(value) | EntryValues::Start(value) if !value.is_empty() => {
            format!("{}.{value}", entry.key)
        }
        _ => entry.key.clone(),
    };
    format!("{}:{}", item.domain, item.path.iter().map(step).collect::<Vec<_>>().join("/"))
}

fn heading(track: &EnvoyKeyGroup) -> Vec<String> {
    let mut lines = vec![String::new()];
    if !track.key.is_empty() {
        lines.push("One count for all values that match a pattern: share_threshold.".to_owned());
    }
    if track.is_shadow {
        lines.push("In shadow: these decide and are counted, and refuse nobody.".to_owned());
    }
    lines
}

fn why_cut(item: &EnvoyItem<'_>) -> String {
    let is_leaf = item.path.last().is_some_and(|entry| entry.limit.is_none() && entry.children.is_empty());
    match is_leaf {
        true => "No limit there, so it passes.".to_owned(),
        false => "Passes: ratelimit does not turn back to a wider descriptor.".to_owned(),
    }
}

fn rule(item: &EnvoyItem<'_>, limit: &EnvoyRateLimit, track: &EnvoyKeyGroup, id: &str) -> DraftRule {
    DraftRule {
        limits: limit.quota.into_iter().collect(),
        comments: limit.note.map(str::to_owned).into_iter().collect(),
        ..draft(item, track, id.to_owned())
    }
}

fn passing(item: &EnvoyItem<'_>, track: &EnvoyKeyGroup, id: String, comment: String) -> DraftRule {
    DraftRule { comments: vec![comment], ..draft(item, track, id) }
}

fn draft(item: &EnvoyItem<'_>, track: &EnvoyKeyGroup, id: String) -> DraftRule {
    let value = |entry: &&EnvoyEntry| match &entry.value {
        EntryValues::Exact(value) => (entry.key.clone(), Some(value.clone())),
        EntryValues::Start(start) => (entry.key.clone(), Some(format!("{start}*"))),
        EntryValues::Any => (entry.key.clone(), None),
    };
    DraftRule {
        id,
        is_shadow: track.is_shadow,
        domain: item.domain.to_owned(),
        descriptor: item.path.iter().map(value).collect(),
        key: track.key.clone(),
        ..DraftRule::default()
    }
}
