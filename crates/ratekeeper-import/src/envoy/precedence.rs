//! Turns a tree of descriptors into a list of which the first match decides.
//!
//! Following the tree of a file is the same as trying its paths one by one, specific entries before wide ones, except
//! that ratelimit never backtracks: if a specific entry leads to no limit, a wider one beside it is not tried. So
//! *pass* items follow the limits below a specific entry: for each limit below a wider one, an item that lets the
//! descriptors of the specific entry pass.

use super::key_group::EnvoyKeyGroup;
use super::{EntryValues, EnvoyEntry, EnvoyRateLimit};
use crate::{ImportPlace, ImportReports};
use ratekeeper_rules::bounds::MAX_RULES;
use ratekeeper_rules::quoted;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

/// A path of entries, and what to do with descriptors that match it and no item before it.
#[derive(Debug)]
pub(super) struct EnvoyItem<'d> {
    pub(super) domain: &'d str,
    pub(super) path: Vec<&'d EnvoyEntry>,
    pub(super) kind: EnvoyItemKind<'d>,
}

#[derive(Debug)]
pub(super) enum EnvoyItemKind<'d> {
    /// Apply a limit, which may be unlimited.
    Limit(&'d EnvoyRateLimit),
    /// Let them pass the later limits of this key group.
    Pass(EnvoyKeyGroup),
}

/// Sorts entries in the order in which ratelimit tries them, and drops those that it never reaches.
pub(super) fn sort(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut keys: HashMap<String, usize> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        keys.entry(entry.key.clone()).or_insert(index);
    }
    // Entries with the same key stay together, at the position of the first of them.
    entries.sort_by_key(|entry| (keys[&entry.key], rank(&entry.value)));
    drop_duplicates(entries, reports);
    drop_unreachable(entries, reports);
    for entry in entries {
        sort(&mut entry.children, reports);
    }
}

fn rank(value: &EntryValues) -> u8 {
    match value {
        EntryValues::Exact(_) => 0,
        EntryValues::Prefix(_) => 1,
        EntryValues::Any => 2,
    }
}

/// ratelimit rejects a file with duplicate entries.
fn drop_duplicates(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut known: HashMap<(String, EntryValues), ImportPlace> = HashMap::new();
    entries.retain(|entry| match known.entry((entry.key.clone(), entry.value.clone())) {
        Slot::Vacant(slot) => {
            slot.insert(entry.place);
            true
        }
        Slot::Occupied(first) => {
            let message = format!(
                "{} appears twice, first in line {}, which ratelimit rejects: this one is left out, with everything \
                 below it",
                entry.describe(),
                first.get().position.line
            );
            reports.error(entry.place, message);
            false
        }
    });
}

/// Of entries with a `*`, ratelimit takes the first match, so an entry hides later ones that it covers.
fn drop_unreachable(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut wild: Vec<(String, EntryValues, ImportPlace)> = Vec::new();
    entries.retain(|entry| {
        if let EntryValues::Exact(_) = entry.value {
            return true;
        }
        let hidden_by = wild.iter().find(|(key, value, _)| *key == entry.key && value.covers(&entry.value));
        if let Some((_, _, place)) = hidden_by {
            let message = format!(
                "{} is left out, with everything below it: the one in line {} comes first and matches all of its \
                 values, as in ratelimit",
                entry.describe(),
                place.position.line
            );
            reports.warn(entry.place, message);
            return false;
        }
        wild.push((entry.key.clone(), entry.value.clone(), entry.place));
        true
    });
}

/// Appends the items of a domain, whose entries are sorted. It stops soon after there are more than a file may
/// have.
pub(super) fn flatten<'d>(domain: &'d str, entries: &'d [EnvoyEntry], items: &mut Vec<EnvoyItem<'d>>) {
    descend(domain, &mut Vec::new(), entries, items);
}

fn descend<'d>(
    domain: &'d str,
    path: &mut Vec<&'d EnvoyEntry>,
    entries: &'d [EnvoyEntry],
    items: &mut Vec<EnvoyItem<'d>>,
) {
    // The limits below each wildcard entry, which an earlier entry may keep from being tried.
    let below: Vec<(usize, Vec<LimitedEntry<'d>>)> = (0..)
        .zip(entries)
        .filter(|(_, entry)| !matches!(entry.value, EntryValues::Exact(_)))
        .map(|(index, entry)| (index, limits_below(path, entry)))
        .collect();
    for (index, entry) in entries.iter().enumerate() {
        if items.len() > MAX_RULES {
            return;
        }
        let start = items.len();
        path.push(entry);
        if let Some(limit) = &entry.limit {
            items.push(EnvoyItem { domain, path: path.clone(), kind: EnvoyItemKind::Limit(limit) });
        }
        descend(domain, path, &entry.children, items);
        for (other, limited) in &below {
            let wider = &entries[*other];
            if *other > index && wider.key == entry.key && wider.value.overlaps(&entry.value) {
                limited.iter().for_each(|limited| push_pass(domain, path, limited, start, items));
            }
        }
        path.pop();
    }
}

/// A limit at or below an entry.
struct LimitedEntry<'d> {
    /// The entries from there to the limit.
    tail: Vec<&'d EnvoyEntry>,
    group: EnvoyKeyGroup,
}

/// All limits at and below an entry; `path` leads to it.
fn limits_below<'d>(path: &[&'d EnvoyEntry], entry: &'d EnvoyEntry) -> Vec<LimitedEntry<'d>> {
    let mut found = Vec::new();
    let mut path: Vec<_> = path.iter().copied().chain([entry]).collect();
    let above = path.len();
    collect_limits(&mut path, above, &mut found);
    found
}

fn collect_limits<'d>(path: &mut Vec<&'d EnvoyEntry>, above: usize, found: &mut Vec<LimitedEntry<'d>>) {
    let Some(entry) = path.last().copied() else { return };
    if let Some(EnvoyRateLimit { quota: Some(_), .. }) = entry.limit {
        found.push(LimitedEntry { tail: path[above..].to_vec(), group: EnvoyKeyGroup::of(path) });
    }
    for child in &entry.children {
        path.push(child);
        collect_limits(path, above, found);
        path.pop();
    }
}

/// Appends an item that lets descriptors of `path` pass a limit of a wider entry, unless the items below the path, from
/// `start` on, already decide them.
fn push_pass<'d>(
    domain: &'d str,
    path: &[&'d EnvoyEntry],
    limited: &LimitedEntry<'d>,
    start: usize,
    items: &mut Vec<EnvoyItem<'d>>,
) {
    let is_broken = path.last().is_some_and(|entry| entry.has_invalid_limit);
    if limited.tail.is_empty() && is_broken || items.len() > MAX_RULES {
        return;
    }
    let path: Vec<_> = path.iter().chain(&limited.tail).copied().collect();
    // If a pass item of another key group covers this path, the limit that it was added for gets an unlimited rule in
    // this group, which lets all descriptors of both items pass.
    if !items[start..].iter().any(|item| covers(&item.path, &path)) {
        items.push(EnvoyItem { domain, path, kind: EnvoyItemKind::Pass(limited.group.clone()) });
    }
}

/// Whether all descriptors that match the path `other` match `own`.
fn covers(own: &[&EnvoyEntry], other: &[&EnvoyEntry]) -> bool {
    let covers =
        |(own, other): (&&EnvoyEntry, &&EnvoyEntry)| own.key == other.key && own.value.covers(&other.value);
    own.len() == other.len() && own.iter().zip(other).all(covers)
}

impl EnvoyItem<'_> {
    /// Whether a descriptor may match both paths.
    pub(super) fn overlaps(&self, other: &EnvoyItem<'_>) -> bool {
        let overlaps = |(own, other): (&&EnvoyEntry, &&EnvoyEntry)| {
            own.key == other.key && own.value.overlaps(&other.value)
        };
        self.domain == other.domain
            && self.path.len() == other.path.len()
            && self.path.iter().zip(&other.path).all(overlaps)
    }
}

impl EntryValues {
    fn covers(&self, other: &EntryValues) -> bool {
        match (self, other) {
            (EntryValues::Any, _) => true,
            (EntryValues::Exact(own), EntryValues::Exact(other)) => own == other,
            (EntryValues::Prefix(own), EntryValues::Exact(other) | EntryValues::Prefix(other)) => {
                other.starts_with(own)
            }
            (EntryValues::Prefix(own), EntryValues::Any) => own.is_empty(),
            (EntryValues::Exact(_), _) => false,
        }
    }

    /// If two overlap, one covers the other.
    fn overlaps(&self, other: &EntryValues) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl EnvoyEntry {
    /// The entry's description in messages.
    fn describe(&self) -> String {
        let key = quoted(&self.key);
        match &self.value {
            EntryValues::Exact(value) => format!("the key {key} with the value {}", quoted(value)),
            EntryValues::Prefix(start) => {
                format!("the key {key} with the value {}", quoted(&format!("{start}*")))
            }
            EntryValues::Any => format!("the key {key} without a value"),
        }
    }
}
