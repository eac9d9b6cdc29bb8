//! The lists of who passes and who is refused: entries that mean everybody, and entries that undo each other.

use crate::access_lists::{MAX_ALIKE, PatternKey, handles};
use crate::address::Cidr;
use crate::diagnostic::{Diagnostics, quoted};
use crate::pattern::Pattern;
use crate::spec::{At, FileSpec, ListEntry, Position};
use std::collections::{BTreeSet, HashMap};

pub(super) fn check(spec: &FileSpec, complaints: &mut Diagnostics) {
    let fate = "refuse everybody: leave it out, or name who is meant";
    complain_of_everybody(&spec.deny, "blacklist", fate, complaints);
    let fate = "let everybody pass unchecked, so that no limit holds: leave it out, or name who is meant";
    complain_of_everybody(&spec.allow, "whitelist", fate, complaints);
    let denied = ListEntries::of(&spec.deny);
    for entry in &spec.allow {
        if let Some(place) = denied.covering(&entry.value) {
            let said = format!(
                "{} is on the blacklist too, by line {}, and that wins: it is refused. Take it off one of \
                 them",
                show(&entry.value),
                place.line
            );
            complaints.warn(entry.place, said);
        }
    }
    let overridden =
        spec.rules.iter().flat_map(|rule| &rule.overrides).map(|client| (&client.key, "an override"));
    let recorded = spec.clients.iter().map(|client| (&client.key, "a client record"));
    for (key, what) in overridden.chain(recorded) {
        if let Some(place) = denied.patterns.covering(&Pattern::new(&key.value)) {
            let said = format!(
                "{} has {what}, and the blacklist refuses it by line {}: take out one of them",
                quoted(&key.value),
                place.line
            );
            complaints.warn(key.place, said);
        }
    }
    complain_of_tier_keys(spec, complaints);
    for (list, name) in [(&spec.allow, "whitelist"), (&spec.deny, "blacklist")] {
        let keys = list.iter().filter_map(|entry| match &entry.value {
            ListEntry::Key(pattern) => Some((pattern, entry.place)),
            ListEntry::Net(_) => None,
        });
        complain_of_crowd(keys, &format!("on the {name}"), complaints);
    }
    let tier_keys = spec.tiers.iter().flat_map(|tier| &tier.keys).map(|key| (&key.value, key.place));
    complain_of_crowd(tier_keys, "of all tiers", complaints);
}

/// Patterns are looked up by how they begin or end. What begins and ends alike has to be compared one by one, with every
/// request, so there is a bound.
fn complain_of_crowd<'s>(
    patterns: impl Iterator<Item = (&'s Pattern, Position)>,
    whose: &str,
    complaints: &mut Diagnostics,
) {
    let (patterns, places): (Vec<_>, Vec<_>) = patterns.unzip();
    let mut alike: HashMap<PatternKey<'_>, usize> = HashMap::new();
    for ((pattern, place), handle) in patterns.iter().zip(places).zip(handles(&patterns)) {
        let count = alike.entry(handle).or_default();
        *count += 1;
        if *count > MAX_ALIKE && !matches!(handle, PatternKey::Whole(_)) {
            let said = format!(
                "more than {MAX_ALIKE} patterns {whose} begin and end like {}, and every request would be compared \
                 with each: have them begin or end with what tells them apart",
                quoted(pattern.as_str())
            );
            complaints.error(place, said);
            return;
        }
    }
}

fn complain_of_everybody(list: &[At<ListEntry>], name: &str, fate: &str, complaints: &mut Diagnostics) {
    let [ipv4, ipv6] = ["0.0.0.0/0", "::/0"].map(str::parse::<Cidr>);
    for entry in list {
        let is_everybody = match &entry.value {
            ListEntry::Key(pattern) => pattern.is_any(),
            ListEntry::Net(network) => [&ipv4, &ipv6].into_iter().flatten().any(|all| network.covers(all)),
        };
        if is_everybody {
            complaints.error(entry.place, format!("{} on the {name} would {fate}", show(&entry.value)));
        }
    }
}

/// A key belongs to the first tier whose pattern it matches.
fn complain_of_tier_keys(spec: &FileSpec, complaints: &mut Diagnostics) {
    let mut taken = PrefixPatterns::default();
    for tier in &spec.tiers {
        for key in &tier.keys {
            if let Some(place) = taken.covering(&key.value) {
                let said = format!(
                    "{} is never looked at: a tier above takes these keys in line {}",
                    quoted(key.value.as_str()),
                    place.line
                );
                complaints.warn(key.place, said);
            }
        }
        for key in &tier.keys {
            taken.insert(&key.value, key.place);
        }
    }
}

fn show(whom: &ListEntry) -> String {
    match whom {
        ListEntry::Key(pattern) => quoted(pattern.as_str()),
        ListEntry::Net(network) => network.to_string(),
    }
}

/// The entries of a list, so kept that the one that covers another is found without looking at all of them.
#[derive(Default)]
struct ListEntries<'s> {
    patterns: PrefixPatterns<'s>,
    networks: HashMap<Cidr, Position>,
    /// The lengths of their prefixes.
    bits: BTreeSet<u8>,
}

impl<'s> ListEntries<'s> {
    fn of(list: &'s [At<ListEntry>]) -> ListEntries<'s> {
        let mut entries = ListEntries::default();
        for entry in list {
            match &entry.value {
                ListEntry::Key(pattern) => entries.patterns.insert(pattern, entry.place),
                ListEntry::Net(network) => {
                    entries.networks.entry(*network).or_insert(entry.place);
                    entries.bits.insert(network.bits());
                }
            }
        }
        entries
    }

    fn covering(&self, whom: &ListEntry) -> Option<Position> {
        match whom {
            ListEntry::Key(pattern) => self.patterns.covering(pattern),
            ListEntry::Net(network) => {
                let wider = self.bits.iter().take_while(|bits| **bits <= network.bits());
                wider.filter_map(|bits| self.networks.get(&network.widened(*bits))).min().copied()
            }
        }
    }
}

/// Patterns by what each begins with: only what begins alike can cover another.
#[derive(Default)]
struct PrefixPatterns<'s> {
    by_prefix: HashMap<&'s [u8], Vec<(&'s Pattern, Position)>>,
    lengths: BTreeSet<usize>,
}

impl<'s> PrefixPatterns<'s> {
    fn insert(&mut self, pattern: &'s Pattern, place: Position) {
        let prefix = pattern.prefix().as_bytes();
        self.by_prefix.entry(prefix).or_default().push((pattern, place));
        self.lengths.insert(prefix.len());
    }

    fn covering(&self, other: &Pattern) -> Option<Position> {
        let text = other.as_str().as_bytes();
        let alike =
            self.lengths.iter().filter_map(|length| self.by_prefix.get(text.get(..*length)?)).flatten();
        alike.filter(|(pattern, _)| pattern.covers(other)).map(|(_, place)| *place).min()
    }
}
