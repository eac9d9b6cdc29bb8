//! Which descriptor goes before which, as a list of which the first match counts.
//!
//! Following the tree of a file is the same as trying its paths one by one, narrow entries before wide ones, but for one
//! thing: ratelimit never turns back. Where a narrow entry leads nowhere, a wide one beside it is not tried. So behind
//! what is below a narrow entry stand *cuts*: for each limit below a wide one, that what the narrow entry matches passes.

use super::super::{ImportPlace, ImportReports};
use super::key_groups::EnvoyKeyGroup;
use super::{EntryValues, EnvoyEntry, EnvoyRateLimit};
use crate::diagnostic::quoted;
use crate::read::MOST_RULES;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

/// A path of entries and what becomes of the descriptors that match it and nothing before it.
#[derive(Debug)]
pub(super) struct EnvoyItem<'d> {
    pub(super) domain: &'d str,
    pub(super) path: Vec<&'d EnvoyEntry>,
    pub(super) kind: EnvoyItemKind<'d>,
}

#[derive(Debug)]
pub(super) enum EnvoyItemKind<'d> {
    /// They are held to a limit, or may be unlimited.
    Limit(&'d EnvoyRateLimit),
    /// They pass, and must not meet what is behind it on this track.
    Cut(EnvoyKeyGroup),
}

/// Puts entries in the order in which they are tried, and leaves out those that never are.
pub(super) fn sort(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut keys: HashMap<String, usize> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        keys.entry(entry.key.clone()).or_insert(index);
    }
    // Entries of one key stay together, where the first of them is.
    entries.sort_by_key(|entry| (keys[&entry.key], rank(&entry.value)));
    drop_repeated(entries, reports);
    drop_unreached(entries, reports);
    for entry in entries {
        sort(&mut entry.children, reports);
    }
}

fn rank(value: &EntryValues) -> u8 {
    match value {
        EntryValues::Exact(_) => 0,
        EntryValues::Start(_) => 1,
        EntryValues::Any => 2,
    }
}

/// ratelimit refuses a file in which an entry is there twice.
fn drop_repeated(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut known: HashMap<(String, EntryValues), ImportPlace> = HashMap::new();
    entries.retain(|entry| match known.entry((entry.key.clone(), entry.value.clone())) {
        Slot::Vacant(slot) => {
            slot.insert(entry.spot);
            true
        }
        Slot::Occupied(first) => {
            let said = format!(
                "{} is there twice, first in line {}, which ratelimit refuses: this one is left out, with all that is \
                 below it",
                entry.in_words(),
                first.get().place.line
            );
            reports.error(entry.spot, said);
            false
        }
    });
}

/// Of entries with a `*`, the first that matches is taken: one that is as wide as a later one hides it.
fn drop_unreached(entries: &mut Vec<EnvoyEntry>, reports: &mut ImportReports) {
    let mut wild: Vec<(String, EntryValues, ImportPlace)> = Vec::new();
    entries.retain(|entry| {
        if let EntryValues::Exact(_) = entry.value {
            return true;
        }
        let hider = wild.iter().find(|(key, value, _)| *key == entry.key && value.covers(&entry.value));
        if let Some((_, _, spot)) = hider {
            let said = format!(
                "{} is left out, with all that is below it: the one in line {} comes first and matches all of its values, \
                 in ratelimit too",
                entry.in_words(),
                spot.place.line
            );
            reports.warn(entry.spot, said);
            return false;
        }
        wild.push((entry.key.clone(), entry.value.clone(), entry.spot));
        true
    });
}

/// Adds the paths of a domain, which has been sorted. It stops soon after there are too many.
pub(super) fn flatten<'d>(domain: &'d str, entries: &'d [EnvoyEntry], items: &mut Vec<EnvoyItem<'d>>) {
    descend(domain, &mut Vec::new(), entries, items);
}

fn descend<'d>(
    domain: &'d str,
    path: &mut Vec<&'d EnvoyEntry>,
    entries: &'d [EnvoyEntry],
    items: &mut Vec<EnvoyItem<'d>>,
) {
    // What is below each entry that an earlier one might keep from being tried.
    let below: Vec<(usize, Vec<LimitedEntry<'d>>)> = (0..)
        .zip(entries)
        .filter(|(_, entry)| !matches!(entry.value, EntryValues::Exact(_)))
        .map(|(index, entry)| (index, limited(path, entry)))
        .collect();
    for (index, entry) in entries.iter().enumerate() {
        if items.len() > MOST_RULES {
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
                limited.iter().for_each(|limited| cut(domain, path, limited, start, items));
            }
        }
        path.pop();
    }
}

/// A limit below an entry.
struct LimitedEntry<'d> {
    /// The entries that lead to it.
    tail: Vec<&'d EnvoyEntry>,
    track: EnvoyKeyGroup,
}

/// All limits below an entry that a path leads to, its own included.
fn limited<'d>(path: &[&'d EnvoyEntry], entry: &'d EnvoyEntry) -> Vec<LimitedEntry<'d>> {
    let mut found = Vec::new();
    let mut path: Vec<_> = path.iter().copied().chain([entry]).collect();
    let above = path.len();
    gather(&mut path, above, &mut found);
    found
}

fn gather<'d>(path: &mut Vec<&'d EnvoyEntry>, above: usize, found: &mut Vec<LimitedEntry<'d>>) {
    let Some(entry) = path.last().copied() else { return };
    if let Some(EnvoyRateLimit { quota: Some(_), .. }) = entry.limit {
        found.push(LimitedEntry { tail: path[above..].to_vec(), track: EnvoyKeyGroup::of(path) });
    }
    for child in &entry.children {
        path.push(child);
        gather(path, above, found);
        path.pop();
    }
}

/// Keeps what `path` matches from a limit that a wider entry leads to, unless what is below the path, from `start` on,
/// says otherwise.
fn cut<'d>(
    domain: &'d str,
    path: &[&'d EnvoyEntry],
    limited: &LimitedEntry<'d>,
    start: usize,
    items: &mut Vec<EnvoyItem<'d>>,
) {
    let is_broken = path.last().is_some_and(|entry| entry.is_broken);
    if limited.tail.is_empty() && is_broken || items.len() > MOST_RULES {
        return;
    }
    let path: Vec<_> = path.iter().chain(&limited.tail).copied().collect();
    // Where a cut on another track covers this one, the limit that it was made for lets pass on this track what it
    // binds, and with that all that either cut is for.
    if !items[start..].iter().any(|item| covers(&item.path, &path)) {
        items.push(EnvoyItem { domain, path, kind: EnvoyItemKind::Cut(limited.track.clone()) });
    }
}

/// Whether all descriptors that match the other path match this one.
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
            (EntryValues::Start(own), EntryValues::Exact(other) | EntryValues::Start(other)) => {
                other.starts_with(own)
            }
            (EntryValues::Start(own), EntryValues::Any) => own.is_empty(),
            (EntryValues::Exact(_), _) => false,
        }
    }

    /// Of two that overlap, one is always the wider.
    fn overlaps(&self, other: &EntryValues) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl EnvoyEntry {
    /// What it is in messages.
    fn in_words(&self) -> String {
        let key = quoted(&self.key);
        match &self.value {
            EntryValues::Exact(value) => format!("the key {key} with the value {}", quoted(value)),
            EntryValues::Start(start) => {
                format!("the key {key} with the value {}", quoted(&format!("{start}*")))
            }
            EntryValues::Any => format!("the key {key} without a value"),
        }
    }
}
