//! Checks how many limits a request may have to pass.
//!
//! Of the rules with the same key only the first match is used, so the worst case is the sum, over all keys, of the
//! most limits that any rule with that key has. At most [`MAX_DRAWS`] are allowed, which also bounds the number of
//! keys.

use crate::diagnostic::Diagnostics;
use crate::dimension::Dimension;
use crate::spec::{FileSpec, Mode, Position};
use ratekeeper_core::MAX_DRAWS;
use std::collections::HashMap;

/// The rules that count by the same key.
struct KeyGroup {
    name: String,
    /// The largest number of limits of any of them.
    max_limits: usize,
    /// The position of the rule with the most limits.
    place: Position,
}

pub(super) fn check(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    let groups = key_groups(spec);
    let mut sum = 0;
    for group in &groups {
        sum += group.max_limits;
        if sum > MAX_DRAWS {
            let all: usize = groups.iter().map(|group| group.max_limits).sum();
            let named: Vec<_> = groups
                .iter()
                .take(20)
                .map(|group| format!("{} by {}", group.max_limits, group.name))
                .collect();
            let message = format!(
                "a request may have to pass {all} limits, but at most {MAX_DRAWS} can be checked at once: {}. Leave \
                 out limits that others imply, or give rules the same key, so that only the first match is used",
                named.join(", ")
            );
            diagnostics.error(group.place, message);
            return;
        }
    }
}

/// The key groups of the file, in file order.
fn key_groups(spec: &FileSpec) -> Vec<KeyGroup> {
    let mut groups: Vec<KeyGroup> = Vec::new();
    let mut known: HashMap<(Box<[Dimension]>, bool), usize> = HashMap::new();
    let mut add = |key: &[Dimension], is_shadow, limits: usize, place| {
        let index = *known.entry((Dimension::key_group(key), is_shadow)).or_insert_with(|| {
            groups.push(KeyGroup { name: name(key, is_shadow), max_limits: 0, place });
            groups.len() - 1
        });
        if limits > groups[index].max_limits {
            groups[index].max_limits = limits;
            groups[index].place = place;
        }
    };
    let (inherited, place) = most_inherited(spec);
    if inherited > 0 {
        let key = spec.default.as_ref().map_or(&[Dimension::Client][..], |default| &default.key);
        add(key, false, inherited, place);
    }
    for rule in spec.rules.iter().filter(|rule| rule.mode != Mode::Disabled) {
        let own = rule.limits.as_ref().map_or(inherited, Vec::len);
        let most = rule.overrides.iter().map(|client| client.limits.len()).chain([own]).max().unwrap_or(own);
        add(&rule.key, rule.mode == Mode::Shadow, most, rule.id.place);
    }
    groups
}

/// The largest number of limits that the default, a tier or a client has, and its position.
fn most_inherited(spec: &FileSpec) -> (usize, Position) {
    let default = spec.default.iter().map(|default| (default.limits.len(), default.place));
    let tiers = spec.tiers.iter().map(|tier| (tier.limits.as_ref().map_or(0, Vec::len), tier.name.place));
    let clients =
        spec.clients.iter().map(|client| (client.limits.as_ref().map_or(0, Vec::len), client.key.place));
    default.chain(tiers).chain(clients).max_by_key(|(limits, _)| *limits).unwrap_or_default()
}

/// Describes what is counted, for use in messages.
pub(super) fn name(key: &[Dimension], is_shadow: bool) -> String {
    let names: Vec<_> = key.iter().map(ToString::to_string).collect();
    let names = if names.is_empty() { "global".to_owned() } else { names.join(" and ") };
    if is_shadow { format!("{names} in shadow") } else { names }
}
