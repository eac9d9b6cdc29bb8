//! Checks the allow and deny lists, and the keys of tiers: entries that match every client, and entries that contradict
//! or hide each other.

use crate::access_lists::{MAX_SIMILAR_PATTERNS, PatternKey, pattern_keys};
use crate::address::Cidr;
use crate::diagnostic::{Diagnostics, quoted};
use crate::pattern::Pattern;
use crate::spec::{At, FileSpec, ListEntry, Position};
use std::collections::{BTreeSet, HashMap};

pub(super) fn check(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    let effect = "deny every request: leave it out, or be more specific";
    check_catch_all(&spec.deny, "blacklist", effect, diagnostics);
    let effect = "let every request pass unchecked: leave it out, or be more specific";
    check_catch_all(&spec.allow, "whitelist", effect, diagnostics);
    let denied = ListEntries::of(&spec.deny);
    for entry in &spec.allow {
        if let Some(place) = denied.covering(&entry.value) {
            let message = format!(
                "{} is also on the blacklist (line {}), which takes precedence, so it is denied: remove it from one of \
                 the lists",
                show(&entry.value),
                place.line
            );
            diagnostics.warn(entry.place, message);
        }
    }
    let overridden =
        spec.rules.iter().flat_map(|rule| &rule.overrides).map(|client| (&client.key, "an override"));
    let recorded = spec.clients.iter().map(|client| (&client.key, "a client record"));
    for (key, what) in overridden.chain(recorded) {
        if let Some(place) = denied.patterns.covering(&Pattern::new(&key.value)) {
            let message = format!(
                "{} has {what}, but is denied by the blacklist (line {}): remove one of them",
                quoted(&key.value),
                place.line
            );
            diagnostics.warn(key.place, message);
        }
    }
    check_tier_keys(spec, diagnostics);
    for (list, name) in [(&spec.allow, "whitelist"), (&spec.deny, "blacklist")] {
        let keys = list.iter().filter_map(|entry| match &entry.value {
            ListEntry::Key(pattern) => Some((pattern, entry.place)),
            ListEntry::Network(_) => None,
        });
        check_similar_patterns(keys, &format!("on the {name}"), diagnostics);
    }
    let tier_keys = spec.tiers.iter().flat_map(|tier| &tier.keys).map(|key| (&key.value, key.place));
    check_similar_patterns(tier_keys, "of all tiers", diagnostics);
}

/// Limits the number of patterns with the same prefix and suffix. Patterns are indexed by prefix or suffix; those that
/// share both have to be compared one by one with every request.
fn check_similar_patterns<'s>(
    patterns: impl Iterator<Item = (&'s Pattern, Position)>,
    whose: &str,
    diagnostics: &mut Diagnostics,
) {
    let (patterns, places): (Vec<_>, Vec<_>) = patterns.unzip();
    let mut alike: HashMap<PatternKey<'_>, usize> = HashMap::new();
    for ((pattern, place), index_key) in patterns.iter().zip(places).zip(pattern_keys(&patterns)) {
        let count = alike.entry(index_key).or_default();
        *count += 1;
        if *count > MAX_SIMILAR_PATTERNS && !matches!(index_key, PatternKey::Exact(_)) {
            let message = format!(
                "more than {MAX_SIMILAR_PATTERNS} patterns {whose} begin and end like {}, and every request would be compared \
                 with each: give them different prefixes or suffixes",
                quoted(pattern.as_str())
            );
            diagnostics.error(place, message);
            return;
        }
    }
}

fn check_catch_all(list: &[At<ListEntry>], name: &str, effect: &str, diagnostics: &mut Diagnostics) {
    let [ipv4, ipv6] = ["0.0.0.0/0", "::/0"].map(str::parse::<Cidr>);
    for entry in list {
        let is_everybody = match &entry.value {
            ListEntry::Key(pattern) => pattern.is_any(),
            ListEntry::Network(network) => {
                [&ipv4, &ipv6].into_iter().flatten().any(|all| network.covers(all))
            }
        };
        if is_everybody {
            diagnostics.error(entry.place, format!("{} on the {name} would {effect}", show(&entry.value)));
        }
    }
}

/// Warns about hidden patterns: a key belongs to the first tier with a pattern that matches it.
fn check_tier_keys(spec: &FileSpec, diagnostics: &mut Diagnostics) {
    let mut taken = PrefixPatterns::default();
    for tier in &spec.tiers {
        for key in &tier.keys {
            if let Some(place) = taken.covering(&key.value) {
                let message = format!(
                    "{} is never used: a tier above already matches these keys in line {}",
                    quoted(key.value.as_str()),
                    place.line
                );
                diagnostics.warn(key.place, message);
            }
        }
        for key in &tier.keys {
            taken.insert(&key.value, key.place);
        }
    }
}

fn show(entry: &ListEntry) -> String {
    match entry {
        ListEntry::Key(pattern) => quoted(pattern.as_str()),
        ListEntry::Network(network) => network.to_string(),
    }
}

/// The entries of a list, indexed to find one that covers another without comparing all of them.
#[derive(Default)]
struct ListEntries<'s> {
    patterns: PrefixPatterns<'s>,
    networks: HashMap<Cidr, Position>,
    /// The distinct prefix lengths of the networks.
    bits: BTreeSet<u8>,
}

impl<'s> ListEntries<'s> {
    fn of(list: &'s [At<ListEntry>]) -> ListEntries<'s> {
        let mut entries = ListEntries::default();
        for entry in list {
            match &entry.value {
                ListEntry::Key(pattern) => entries.patterns.insert(pattern, entry.place),
                ListEntry::Network(network) => {
                    entries.networks.entry(*network).or_insert(entry.place);
                    entries.bits.insert(network.prefix_len());
                }
            }
        }
        entries
    }

    fn covering(&self, entry: &ListEntry) -> Option<Position> {
        match entry {
            ListEntry::Key(pattern) => self.patterns.covering(pattern),
            ListEntry::Network(network) => {
                let wider = self.bits.iter().take_while(|bits| **bits <= network.prefix_len());
                wider.filter_map(|bits| self.networks.get(&network.supernet(*bits))).min().copied()
            }
        }
    }
}

/// Patterns indexed by their literal prefix: a pattern can only cover texts that begin with its prefix.
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
