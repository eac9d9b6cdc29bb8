//! Describes the differences between two rule files, for reviewers and programs.
//!
//! It compares parsed files, so formatting, comments and alternative spellings make no difference. Two files that apply
//! the same limits to the same requests in the same order have no differences.

mod words;

use crate::spec::{At, ClientSpec, FallbackSpec, FileSpec, ListEntry, OverrideSpec, RuleSpec, TierSpec};
use ratekeeper_core::{Algorithm, Limit, Micros};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display};
use words::{
    client_in_words, key_in_words, limits_in_words, limits_or_inherited, list_entry_in_words, match_in_words,
    missing_in_words, mode_in_words, paths_in_words, rule_in_words, tier_in_words, tier_keys_in_words,
    timeout_in_words, until_suffix,
};

/// A difference between two rule files. `Display` describes it in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleChange {
    /// What happened.
    pub kind: ChangeKind,
    /// The field of the file that it is in, like `rules`.
    pub section: &'static str,
    /// The rule, the tier or the client; `None` in sections without named items.
    pub id: Option<String>,
    /// The client key of the override within the rule, if it is in one.
    #[serde(rename = "override")]
    pub override_key: Option<String>,
    /// The field of the item; `None` if the item as a whole was added, removed or replaced.
    pub field: Option<&'static str>,
    /// What was there, in words; `None` if there was nothing.
    pub before: Option<String>,
    /// What is there now, in words; `None` if there is nothing.
    pub after: Option<String>,
    /// The description in one line.
    pub text: String,
}

/// The kind of a [`RuleChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Only the new file has it.
    Added,
    /// Only the old file has it.
    Removed,
    /// It has another value.
    Changed,
    /// It is tried at another position.
    Moved,
}

impl Display for RuleChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Lists the changes from one file to another: those of the rules first, in the order of the new file.
///
/// ```
/// use ratekeeper_core::Micros;
/// use ratekeeper_rules::{diff, read};
///
/// let before = read("rules: [{id: orders, limit: 100/min}]", Micros::EPOCH).spec.expect("valid");
/// let after = read("rules: [{id: orders, limit: 200/min}]", Micros::EPOCH).spec.expect("valid");
/// let changes = diff(&before, &after);
/// assert_eq!(changes[0].to_string(), "orders: 100/min → 200/min");
/// assert_eq!((changes[0].field, changes[0].after.as_deref()), (Some("limits"), Some("200/min")));
/// ```
pub fn diff(before: &FileSpec, after: &FileSpec) -> Vec<RuleChange> {
    let mut changes = RuleChanges::default();
    changes.diff_rules(&before.rules, &after.rules);
    changes.diff_default(before.default.as_ref(), after.default.as_ref());
    changes.diff_tiers(&before.tiers, &after.tiers);
    changes.compare_section("default_tier", before, after, |file| tier_in_words(file.default_tier.as_ref()));
    changes.diff_clients(&before.clients, &after.clients);
    changes.diff_list("whitelist", &before.allow, &after.allow);
    changes.diff_list("blacklist", &before.deny, &after.deny);
    changes.compare_section("paths", before, after, |file| paths_in_words(file.paths));
    changes.compare_section("unknown_tier", before, after, |file| file.unknown_tier.name());
    changes.compare_section("missing", before, after, |file| missing_in_words(file.missing, "default"));
    changes.compare_section("ipv6_prefix", before, after, |file| file.ipv6_prefix.unwrap_or(64));
    changes.compare_section("on_store_failure", before, after, |file| {
        file.on_store_failure.map_or("server default", |mode| mode.name())
    });
    changes.compare_section("consistency", before, after, |file| file.consistency.unwrap_or_default().name());
    changes.compare_section("store_timeout", before, after, |file| {
        timeout_in_words(file.store_timeout_ms, "server default")
    });
    changes.0
}

/// An item of a file. `Display` is how descriptions begin.
#[derive(Clone, Copy)]
struct ItemName<'s> {
    section: &'static str,
    id: Option<&'s str>,
    override_key: Option<&'s str>,
}

impl<'s> ItemName<'s> {
    fn section(section: &'static str) -> ItemName<'s> {
        ItemName { section, id: None, override_key: None }
    }

    fn named(section: &'static str, id: &'s str) -> ItemName<'s> {
        ItemName { id: Some(id), ..ItemName::section(section) }
    }
}

impl Display for ItemName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.section, self.id, self.override_key) {
            (_, Some(id), Some(key)) => write!(f, "{id}: override for {key}"),
            ("tiers", Some(id), None) => write!(f, "tier {id}"),
            ("clients", Some(id), None) => write!(f, "client {id}"),
            (_, Some(name), None) | (name, None, _) => f.write_str(name),
        }
    }
}

/// Collects changes.
#[derive(Default)]
struct RuleChanges(Vec<RuleChange>);

impl RuleChanges {
    fn push(
        &mut self,
        kind: ChangeKind,
        item: ItemName<'_>,
        field: Option<&'static str>,
        [before, after]: [Option<String>; 2],
        text: String,
    ) {
        let [id, override_key] = [item.id, item.override_key].map(|name| name.map(str::to_owned));
        self.0.push(RuleChange { kind, section: item.section, id, override_key, field, before, after, text });
    }

    /// `label` introduces the words in the description.
    fn added(&mut self, item: ItemName<'_>, label: &str, words: String) {
        let text = format!("{item}{label} {words}");
        self.push(ChangeKind::Added, item, None, [None, Some(words)], text);
    }

    /// `label` introduces the words in the description.
    fn removed(&mut self, item: ItemName<'_>, label: &str, words: String) {
        let text = format!("{item}{label} {words}");
        self.push(ChangeKind::Removed, item, None, [Some(words), None], text);
    }

    /// `label` introduces the values in the description.
    fn changed(
        &mut self,
        item: ItemName<'_>,
        field: Option<&'static str>,
        label: &str,
        [before, after]: [String; 2],
    ) {
        let text = format!("{item}:{label} {before} → {after}");
        self.push(ChangeKind::Changed, item, field, [Some(before), Some(after)], text);
    }

    fn compare_as<T: PartialEq + Display>(
        &mut self,
        item: ItemName<'_>,
        field: Option<&'static str>,
        label: &str,
        values: [T; 2],
    ) {
        if values[0] != values[1] {
            self.changed(item, field, label, values.map(|value| value.to_string()));
        }
    }

    fn compare<T: PartialEq + Display>(&mut self, item: ItemName<'_>, field: &'static str, values: [T; 2]) {
        self.compare_as(item, Some(field), &format!(" {field}:"), values);
    }

    fn compare_section<T: PartialEq + Display>(
        &mut self,
        section: &'static str,
        before: &FileSpec,
        after: &FileSpec,
        value: impl Fn(&FileSpec) -> T,
    ) {
        self.compare_as(ItemName::section(section), None, "", [before, after].map(value));
    }

    fn compare_limits(&mut self, item: ItemName<'_>, limits: [Option<&[Limit]>; 2]) {
        if limits[0] == limits[1] {
            return;
        }
        // The algorithm is shown only if it is not the same throughout.
        let algorithms: HashSet<Algorithm> =
            limits.iter().flatten().copied().flatten().map(Limit::algorithm).collect();
        let show = |limits: Option<&[Limit]>| match limits {
            Some(limits) => limits_in_words(limits, algorithms.len() > 1),
            None => "inherited limits".to_owned(),
        };
        self.changed(item, Some("limits"), "", limits.map(show));
    }

    fn compare_expiry(&mut self, item: ItemName<'_>, moments: [Option<Micros>; 2]) {
        let show = |moment: Option<Micros>| match moment {
            Some(_) => until_suffix(moment).trim_start().to_owned(),
            None => "forever".to_owned(),
        };
        self.compare_as(item, Some("valid_until"), " valid:", moments.map(show));
    }

    fn diff_rules(&mut self, before: &[RuleSpec], after: &[RuleSpec]) {
        let old_index = by_name(before, |rule| &rule.id.value);
        let old_index = |rule: &RuleSpec| old_index.get(&*rule.id.value).copied();
        let moved = moved(after.iter().map(old_index));
        let place = |rules: &[RuleSpec], index: usize| match index.checked_sub(1) {
            Some(before) => format!("after {}", rules[before].id.value),
            None => "first".to_owned(),
        };
        for (now, pair) in indexed_pairs(before, after, |rule| &rule.id.value) {
            let item = ItemName::named("rules", &pair.item().id.value);
            match pair {
                ItemPair::Removed(rule) => self.removed(item, ": removed; it was", rule_in_words(rule)),
                ItemPair::Added(rule) => {
                    self.added(item, &format!(": new, tried {}:", place(after, now)), rule_in_words(rule));
                }
                ItemPair::Kept([old, rule]) => {
                    if let Some(was) = old_index(rule).filter(|_| moved.contains(&now)) {
                        let places = [place(before, was), place(after, now)];
                        let text = format!("{item}: moved, now tried {}", places[1]);
                        self.push(ChangeKind::Moved, item, Some("position"), places.map(Some), text);
                    }
                    self.diff_rule(item, [old, rule]);
                }
            }
        }
    }

    fn diff_rule(&mut self, item: ItemName<'_>, rules: [&RuleSpec; 2]) {
        let [before, after] = rules;
        self.compare_as(item, Some("mode"), "", rules.map(|rule| mode_in_words(rule.mode)));
        self.compare_limits(item, rules.map(|rule| rule.limits.as_deref()));
        if before.when != after.when {
            self.changed(item, Some("match"), " matches", rules.map(|rule| match_in_words(&rule.when)));
        }
        self.compare_as(item, Some("key"), " counts by:", rules.map(|rule| key_in_words(&rule.key)));
        self.compare(item, "missing", rules.map(|rule| missing_in_words(rule.missing, "file default")));
        self.diff_overrides(item, &before.overrides, &after.overrides);
        self.compare(
            item,
            "on_store_failure",
            rules.map(|rule| rule.on_store_failure.map_or("file default", |mode| mode.name())),
        );
        self.compare(
            item,
            "consistency",
            rules.map(|rule| rule.consistency.map_or("file default", |known| known.name())),
        );
        let timeouts = rules.map(|rule| timeout_in_words(rule.store_timeout_ms, "file default"));
        self.compare(item, "store_timeout", timeouts);
        let version = |rule: &RuleSpec| rule.version.map_or("none".to_owned(), |version| version.to_string());
        self.compare(item, "version", rules.map(version));
        if before.description != after.description {
            let text = format!("{item}: description changed");
            let values = rules.map(|rule| rule.description.clone());
            self.push(ChangeKind::Changed, item, Some("description"), values, text);
        }
    }

    fn diff_overrides(&mut self, rule: ItemName<'_>, before: &[OverrideSpec], after: &[OverrideSpec]) {
        for (_, pair) in indexed_pairs(before, after, |client| &client.key.value) {
            let key = &pair.item().key.value;
            let item = ItemName { override_key: Some(key), ..rule };
            let words = limits_in_words(&pair.item().limits, true);
            match pair {
                ItemPair::Removed(_) => self.removed(item, " removed; it was", words),
                ItemPair::Added(client) => {
                    let words = words + &until_suffix(client.valid_until);
                    let text = format!("{rule}: new override for {key}: {words}");
                    self.push(ChangeKind::Added, item, None, [None, Some(words)], text);
                }
                ItemPair::Kept(clients) => {
                    self.compare_limits(item, clients.map(|client| Some(&*client.limits)));
                    self.compare_expiry(item, clients.map(|client| client.valid_until));
                }
            }
        }
    }

    fn diff_default(&mut self, before: Option<&FallbackSpec>, after: Option<&FallbackSpec>) {
        let item = ItemName::section("default");
        let words = |spec: &FallbackSpec| {
            format!("{} by {}", limits_in_words(&spec.limits, true), key_in_words(&spec.key))
        };
        match (before, after) {
            (None, None) => {}
            (None, Some(after)) => self.added(item, ": new:", words(after)),
            (Some(before), None) => self.removed(item, ": removed; it was", words(before)),
            (Some(before), Some(after)) => {
                let specs = [before, after];
                self.compare_limits(item, specs.map(|spec| Some(&*spec.limits)));
                self.compare_as(item, Some("key"), " counts by:", specs.map(|spec| key_in_words(&spec.key)));
                let missing = specs.map(|spec| missing_in_words(spec.missing, "file default"));
                self.compare(item, "missing", missing);
            }
        }
    }

    fn diff_tiers(&mut self, before: &[TierSpec], after: &[TierSpec]) {
        let mut kept_names = HashSet::new();
        for (_, pair) in indexed_pairs(before, after, |tier| &tier.name.value) {
            let name = &*pair.item().name.value;
            let item = ItemName::named("tiers", name);
            let words = limits_or_inherited(pair.item().limits.as_deref());
            match pair {
                ItemPair::Removed(_) => self.removed(item, ": removed; it had", words),
                ItemPair::Added(tier) if tier.keys.is_empty() => self.added(item, ": new:", words),
                ItemPair::Added(tier) => {
                    self.added(item, ": new:", format!("{words}, for keys {}", tier_keys_in_words(tier)));
                }
                ItemPair::Kept(tiers) => {
                    kept_names.insert(name);
                    self.compare_limits(item, tiers.map(|tier| tier.limits.as_deref()));
                    self.compare(item, "keys", tiers.map(tier_keys_in_words));
                }
            }
        }
        // The order matters, since a key belongs to the first tier that matches it.
        let orders = [before, after].map(|tiers| {
            let names = tiers.iter().filter(|tier| !tier.keys.is_empty()).map(|tier| &*tier.name.value);
            names.filter(|name| kept_names.contains(name)).collect::<Vec<_>>()
        });
        if orders[0] != orders[1] && orders[0].len() == orders[1].len() {
            let orders = orders.map(|names| names.join(", "));
            let text = format!("tiers: keys are now matched in the order {}", orders[1]);
            let item = ItemName::section("tiers");
            self.push(ChangeKind::Moved, item, Some("position"), orders.map(Some), text);
        }
    }

    fn diff_clients(&mut self, before: &[ClientSpec], after: &[ClientSpec]) {
        for (_, pair) in indexed_pairs(before, after, |client| &client.key.value) {
            let item = ItemName::named("clients", &pair.item().key.value);
            match pair {
                ItemPair::Removed(client) => {
                    self.removed(item, ": removed; it had", client_in_words(client));
                }
                ItemPair::Added(client) => {
                    self.added(item, ": new:", client_in_words(client) + &until_suffix(client.valid_until));
                }
                ItemPair::Kept(clients) => {
                    self.compare(item, "tier", clients.map(|client| tier_in_words(client.tier.as_ref())));
                    self.compare_limits(item, clients.map(|client| client.limits.as_deref()));
                    self.compare_expiry(item, clients.map(|client| client.valid_until));
                }
            }
        }
    }

    fn diff_list(&mut self, name: &'static str, before: &[At<ListEntry>], after: &[At<ListEntry>]) {
        let [before, after] = [before, after].map(|list| list.iter().map(list_entry_in_words));
        let [old, new]: [HashSet<String>; 2] = [before.clone().collect(), after.clone().collect()];
        let item = ItemName::section(name);
        for entry in before.filter(|entry| !new.contains(entry)) {
            let text = format!("{name}: {entry} removed");
            self.push(ChangeKind::Removed, item, None, [Some(entry), None], text);
        }
        for entry in after.filter(|entry| !old.contains(entry)) {
            let text = format!("{name}: {entry} added");
            self.push(ChangeKind::Added, item, None, [None, Some(entry)], text);
        }
    }
}

/// An item of the old file, of the new file, or of both.
#[derive(Clone, Copy)]
enum ItemPair<'s, T> {
    Removed(&'s T),
    Added(&'s T),
    Kept([&'s T; 2]),
}

impl<'s, T> ItemPair<'s, T> {
    fn item(&self) -> &'s T {
        match self {
            ItemPair::Removed(item) | ItemPair::Added(item) | ItemPair::Kept([_, item]) => item,
        }
    }
}

/// Pairs the items of two lists by name: first those that were removed, then those of the new list, each with its index
/// in its list.
fn indexed_pairs<'s, T>(
    before: &'s [T],
    after: &'s [T],
    name: fn(&T) -> &String,
) -> impl Iterator<Item = (usize, ItemPair<'s, T>)> {
    let (old, new) = (by_name(before, name), by_name(after, name));
    let removed = before.iter().enumerate().filter(move |(_, item)| !new.contains_key(name(item).as_str()));
    let removed = removed.map(|(index, item)| (index, ItemPair::Removed(item)));
    let kept = after.iter().enumerate().map(move |(index, item)| match old.get(name(item).as_str()) {
        Some(old) => (index, ItemPair::Kept([&before[*old], item])),
        None => (index, ItemPair::Added(item)),
    });
    removed.chain(kept)
}

/// The index of the first item with each name.
fn by_name<T>(items: &[T], name: fn(&T) -> &String) -> HashMap<&str, usize> {
    let mut places = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        places.entry(name(item).as_str()).or_insert(index);
    }
    places
}

/// The items that were moved, by their new index, if as few as possible were moved. The input is the old index of each
/// item; `None` for a new one.
fn moved(before: impl Iterator<Item = Option<usize>>) -> HashSet<usize> {
    let items: Vec<(usize, usize)> =
        before.enumerate().filter_map(|(now, before)| Some((now, before?))).collect();
    // The items that stayed are a longest increasing subsequence of the old indices. `ends[n]` is the item that ends
    // the best subsequence of length n + 1.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(items.len());
    for (index, (_, before)) in items.iter().enumerate() {
        let length = ends.partition_point(|end| items[*end].1 < *before);
        previous.push(length.checked_sub(1).map(|length| ends[length]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut moved: HashSet<usize> = items.iter().map(|(now, _)| *now).collect();
    let mut stayed = ends.last().copied();
    while let Some(index) = stayed {
        moved.remove(&items[index].0);
        stayed = previous[index];
    }
    moved
}

#[cfg(test)]
mod tests;
