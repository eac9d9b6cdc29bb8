//! Chooses keys such that limits do not become alternatives.
//!
//! A limit counts by its variables. The domain, and any entry whose value its conditions fix, can be added to the
//! key: for the rule they are constant, so they change no count. In this way, limits that may match the same request
//! get different keys. Limits that never match the same request may have the same key, which keeps down the number of
//! limits that a request could have to pass.

use super::LimitadorGroup;
use crate::ImportReports;
use crate::draft::key_name_error;
use ratekeeper_core::MAX_DRAWS;
use ratekeeper_rules::bounds::MAX_DIMENSIONS;

/// The most entries of the conditions that are tried as additions to the key, in all combinations.
const MAX_ADDITIONS: usize = 6;

/// The groups of limits that have the same key.
struct LimitadorKeyGroup {
    key: Vec<String>,
    /// The most limits of any of the groups.
    max_limits: usize,
    /// The indices of the groups.
    members: Vec<usize>,
}

/// Chooses a key for each group. Groups for which there is none are reported and left out.
pub(super) fn choose_keys(
    groups: Vec<LimitadorGroup>,
    reports: &mut ImportReports,
) -> Vec<(LimitadorGroup, Vec<String>)> {
    let mut key_groups: Vec<LimitadorKeyGroup> = Vec::new();
    let mut keys = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let key = candidate_keys(group)
            .into_iter()
            .find(|key| add_to_key_group(&mut key_groups, key, index, &groups));
        if key.is_none() {
            reports.error(group.place, no_key_error(group, &key_groups, &groups));
        }
        keys.push(key);
    }
    groups.into_iter().zip(keys).filter_map(|(group, key)| Some((group, key?))).collect()
}

/// Adds a group to the key group of `key`. Returns `false` if a group there may match the same request, or if a request
/// could then have to pass too many limits.
fn add_to_key_group(
    key_groups: &mut Vec<LimitadorKeyGroup>,
    key: &[String],
    index: usize,
    groups: &[LimitadorGroup],
) -> bool {
    let group = &groups[index];
    let others: usize =
        key_groups.iter().filter(|known| known.key != key).map(|known| known.max_limits).sum();
    let key_group = key_groups.iter_mut().find(|known| known.key == key);
    let most = key_group.as_ref().map_or(0, |known| known.max_limits).max(group.limits.len());
    if others + most > MAX_DRAWS {
        return false;
    }
    match key_group {
        None => {
            key_groups.push(LimitadorKeyGroup { key: key.to_vec(), max_limits: most, members: vec![index] });
        }
        Some(known) if known.members.iter().any(|member| groups[*member].overlaps(group)) => return false,
        Some(known) => {
            known.max_limits = most;
            known.members.push(index);
        }
    }
    true
}

/// The message for a group without a key.
fn no_key_error(
    group: &LimitadorGroup,
    key_groups: &[LimitadorKeyGroup],
    groups: &[LimitadorGroup],
) -> String {
    if group.variables.len() > MAX_DIMENSIONS {
        return format!("the limit is left out: a rule's key has at most {MAX_DIMENSIONS} dimensions");
    }
    let candidates = candidate_keys(group);
    let overlapping = key_groups
        .iter()
        .filter(|known| candidates.contains(&known.key))
        .flat_map(|known| &known.members)
        .find(|member| groups[**member].overlaps(group));
    match overlapping {
        Some(member) => format!(
            "the limit is left out: it may match the same request as the one in line {} and counts by the same key, \
             and of such rules only the first match applies",
            groups[*member].place.position.line
        ),
        None => format!(
            "the limit is left out: with it, a request could have to pass more than the {MAX_DRAWS} limits that can be \
             checked at once"
        ),
    }
}

impl LimitadorGroup {
    /// Whether both may match the same request.
    fn overlaps(&self, other: &LimitadorGroup) -> bool {
        let agrees =
            |(name, value): (&String, &String)| other.conditions.get(name).is_none_or(|own| own == value);
        self.namespace == other.namespace && self.conditions.iter().all(agrees)
    }
}

/// The keys that a group may have, those with the fewest additions first.
fn candidate_keys(group: &LimitadorGroup) -> Vec<Vec<String>> {
    let variables: Vec<_> = group.variables.iter().cloned().collect();
    let is_addition = |name: &&String| !group.variables.contains(*name) && key_name_error(name).is_none();
    let additions: Vec<_> = group.conditions.keys().filter(is_addition).take(MAX_ADDITIONS).collect();
    let mut subsets: Vec<usize> = (0..1 << additions.len()).collect();
    subsets.sort_by_key(|subset| subset.count_ones());
    let mut keys = Vec::new();
    for subset in subsets {
        let chosen = additions.iter().enumerate().filter(|(bit, _)| subset & 1 << bit != 0);
        let mut names = variables.clone();
        names.extend(chosen.map(|(_, name)| (*name).clone()));
        let with_domain: Vec<_> = ["domain".to_owned()].into_iter().chain(names.iter().cloned()).collect();
        if !names.is_empty() {
            keys.push(names);
        }
        keys.push(with_domain);
    }
    if variables.is_empty() {
        keys.push(vec!["global".to_owned()]);
    }
    keys.retain(|key| key.len() <= MAX_DIMENSIONS);
    // The order of a key's dimensions does not matter, so equal keys are made identical.
    for key in &mut keys {
        key.sort();
    }
    keys
}
