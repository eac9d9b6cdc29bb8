//! Keys that keep limits from being alternatives.
//!
//! What a limit counts is told apart by its variables. To these may be added the domain, and any entry whose value its
//! conditions name: for the rule they are always the same, so they change no count. Limits that may bind the same request
//! get different keys in this way; limits that never meet may have the same, which keeps down how many limits a request
//! could have to pass.

use super::super::ImportReports;
use super::super::draft::unfit_for_key;
use super::LimitadorGroup;
use crate::read::MOST_DIMENSIONS;
use ratekeeper_core::MAX_DRAWS;

/// How many entries of the conditions are tried as additions: all combinations of so many.
const TRIED: usize = 6;

/// Rules with one key.
struct LimitadorKeyGroup {
    key: Vec<String>,
    /// The most limits of any of them.
    most: usize,
    /// Which groups they are.
    members: Vec<usize>,
}

/// Finds a key for each group. Those for which there is none are complained of and left out.
pub(super) fn choose(
    groups: Vec<LimitadorGroup>,
    reports: &mut ImportReports,
) -> Vec<(LimitadorGroup, Vec<String>)> {
    let mut tracks: Vec<LimitadorKeyGroup> = Vec::new();
    let mut keys = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let key = candidates(group).into_iter().find(|key| place(&mut tracks, key, index, &groups));
        if key.is_none() {
            reports.error(group.spot, why_not(group, &tracks, &groups));
        }
        keys.push(key);
    }
    groups.into_iter().zip(keys).filter_map(|(group, key)| Some((group, key?))).collect()
}

/// Puts a group on the track of a key, if nothing there may meet it and there is room.
fn place(
    tracks: &mut Vec<LimitadorKeyGroup>,
    key: &[String],
    index: usize,
    groups: &[LimitadorGroup],
) -> bool {
    let group = &groups[index];
    let others: usize = tracks.iter().filter(|track| track.key != key).map(|track| track.most).sum();
    let track = tracks.iter_mut().find(|track| track.key == key);
    let most = track.as_ref().map_or(0, |track| track.most).max(group.limits.len());
    if others + most > MAX_DRAWS {
        return false;
    }
    match track {
        None => tracks.push(LimitadorKeyGroup { key: key.to_vec(), most, members: vec![index] }),
        Some(track) if track.members.iter().any(|member| groups[*member].meets(group)) => return false,
        Some(track) => {
            track.most = most;
            track.members.push(index);
        }
    }
    true
}

fn why_not(group: &LimitadorGroup, tracks: &[LimitadorKeyGroup], groups: &[LimitadorGroup]) -> String {
    if group.variables.len() > MOST_DIMENSIONS {
        return format!("the limit is left out: a rule counts by at most {MOST_DIMENSIONS} names");
    }
    let candidates = candidates(group);
    let met = tracks
        .iter()
        .filter(|track| candidates.contains(&track.key))
        .flat_map(|track| &track.members)
        .find(|member| groups[**member].meets(group));
    match met {
        Some(member) => format!(
            "the limit is left out: it may bind the same request as the one in line {} and counts the same, and of rules \
             that do only the first applies",
            groups[*member].spot.place.line
        ),
        None => format!(
            "the limit is left out: with it, a request could have to pass more than the {MAX_DRAWS} limits that can be \
             checked at once"
        ),
    }
}

impl LimitadorGroup {
    /// Whether a request may be bound by both.
    fn meets(&self, other: &LimitadorGroup) -> bool {
        let agrees =
            |(name, value): (&String, &String)| other.conditions.get(name).is_none_or(|own| own == value);
        self.namespace == other.namespace && self.conditions.iter().all(agrees)
    }
}

/// The keys that a group may have, the plainest first.
fn candidates(group: &LimitadorGroup) -> Vec<Vec<String>> {
    let variables: Vec<_> = group.variables.iter().cloned().collect();
    let is_addition = |name: &&String| !group.variables.contains(*name) && unfit_for_key(name).is_none();
    let additions: Vec<_> = group.conditions.keys().filter(is_addition).take(TRIED).collect();
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
    keys.retain(|key| key.len() <= MOST_DIMENSIONS);
    // The same key is the same whatever the order in which it is written.
    for key in &mut keys {
        key.sort();
    }
    keys
}
