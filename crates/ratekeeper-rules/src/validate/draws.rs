//! How many limits a request may have to pass.
//!
//! Of rules that count by the same key the first that matches is used, so a request passes at most as many limits for
//! a key as any one rule has for it. That sum is bounded, and with it how many keys there can be.

use crate::diagnostic::Diagnostics;
use crate::dimension::Dimension;
use crate::spec::{FileSpec, Mode, Position};
use ratekeeper_core::MAX_DRAWS;
use std::collections::HashMap;

/// Rules that count by the same key.
struct KeyGroup {
    name: String,
    /// The most limits of any of them.
    most: usize,
    /// The rule that has the most.
    place: Position,
}

pub(super) fn check(spec: &FileSpec, complaints: &mut Diagnostics) {
    let tracks = tracks(spec);
    let mut sum = 0;
    for track in &tracks {
        sum += track.most;
        if sum > MAX_DRAWS {
            let all: usize = tracks.iter().map(|track| track.most).sum();
            let named: Vec<_> =
                tracks.iter().take(20).map(|track| format!("{} by {}", track.most, track.name)).collect();
            let said = format!(
                "a request may have to pass {all} limits, and at most {MAX_DRAWS} can be checked at once: \
                 {}. Leave out those \
                 that others imply, or let rules count by the same key, of which only the first that matches \
                 is used",
                named.join(", ")
            );
            complaints.error(track.place, said);
            return;
        }
    }
}

/// What is counted apart, in the order of the file.
fn tracks(spec: &FileSpec) -> Vec<KeyGroup> {
    let mut tracks: Vec<KeyGroup> = Vec::new();
    let mut known: HashMap<(Box<[Dimension]>, bool), usize> = HashMap::new();
    let mut add = |key: &[Dimension], is_shadow, limits: usize, place| {
        let index = *known.entry((Dimension::track_of(key), is_shadow)).or_insert_with(|| {
            tracks.push(KeyGroup { name: name(key, is_shadow), most: 0, place });
            tracks.len() - 1
        });
        if limits > tracks[index].most {
            tracks[index].most = limits;
            tracks[index].place = place;
        }
    };
    let (base, place) = base(spec);
    if base > 0 {
        let key = spec.default.as_ref().map_or(&[Dimension::Client][..], |default| &default.key);
        add(key, false, base, place);
    }
    for rule in spec.rules.iter().filter(|rule| rule.mode != Mode::Disabled) {
        let own = rule.limits.as_ref().map_or(base, Vec::len);
        let most = rule.overrides.iter().map(|client| client.limits.len()).chain([own]).max().unwrap_or(own);
        add(&rule.key, rule.mode == Mode::Shadow, most, rule.id.place);
    }
    tracks
}

/// The most limits that the default, a tier or a client has.
fn base(spec: &FileSpec) -> (usize, Position) {
    let default = spec.default.iter().map(|default| (default.limits.len(), default.place));
    let tiers = spec.tiers.iter().map(|tier| (tier.limits.as_ref().map_or(0, Vec::len), tier.name.place));
    let clients =
        spec.clients.iter().map(|client| (client.limits.as_ref().map_or(0, Vec::len), client.key.place));
    default.chain(tiers).chain(clients).max_by_key(|(limits, _)| *limits).unwrap_or_default()
}

/// What is counted, in words.
pub(super) fn name(key: &[Dimension], is_shadow: bool) -> String {
    let names: Vec<_> = key.iter().map(ToString::to_string).collect();
    let names = if names.is_empty() { "global".to_owned() } else { names.join(" and ") };
    if is_shadow { format!("{names} in shadow") } else { names }
}
