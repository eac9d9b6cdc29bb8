//! The key group that a limit of ratelimit belongs to: what it counts by, and whether it is in shadow.

use super::{EntryValues, EnvoyEntry};
use crate::draft::key_name_error;
use ratekeeper_rules::bounds::MAX_DIMENSIONS;

/// A key group of the imported rules: of its rules, only the first match applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EnvoyKeyGroup {
    /// The dimensions to count by; if empty, the whole descriptor.
    pub(super) key: Vec<String>,
    pub(super) is_shadow: bool,
}

impl EnvoyKeyGroup {
    /// The group of the limit that a path leads to.
    pub(super) fn of(path: &[&EnvoyEntry]) -> EnvoyKeyGroup {
        let is_shadow = path.last().is_some_and(|entry| entry.is_shadow);
        let is_shared = path.iter().any(|entry| entry.is_shared) && sharing_error(path).is_none();
        let mut key = Vec::new();
        if is_shared {
            key.extend(counted_entries(path).map(|entry| entry.key.clone()));
            key.sort();
            key.insert(0, "domain".to_owned());
        }
        EnvoyKeyGroup { key, is_shadow }
    }

    pub(super) fn is_default(&self) -> bool {
        *self == EnvoyKeyGroup::default()
    }
}

/// The entries that match several values, each with its own count.
fn counted_entries<'p>(path: &'p [&'p EnvoyEntry]) -> impl Iterator<Item = &'p EnvoyEntry> {
    path.iter().copied().filter(|entry| !matches!(entry.value, EntryValues::Exact(_)) && !entry.is_shared)
}

/// Returns why the values of a path can't share a count, or `None` if they can.
pub(super) fn sharing_error(path: &[&EnvoyEntry]) -> Option<String> {
    // The domain is one dimension more.
    if counted_entries(path).count() >= MAX_DIMENSIONS {
        return Some(format!("a rule's key has at most {MAX_DIMENSIONS} dimensions"));
    }
    let repeats = |key: &str| path.iter().filter(|entry| entry.key == key).count() > 1;
    counted_entries(path).find_map(|entry| match key_name_error(&entry.key) {
        Some(why) => Some(why),
        None if repeats(&entry.key) => Some(format!(
            "a rule can count only by the first entry of a name, and {} appears twice",
            entry.key
        )),
        None => None,
    })
}
