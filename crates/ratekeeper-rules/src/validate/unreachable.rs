//! Finds rules that are never used, because an earlier rule always matches first.
//!
//! Of the rules that count by the same key, the first match is used. So a rule is hidden if an earlier rule with the
//! same key matches every request that it matches. Comparing each of ten thousand rules with all rules before it would
//! take seconds, so each is compared only with rules that could hide it. To find those, rules are indexed by what all
//! requests that they match have in common: the prefix of the path and of the key, a method, a tier, a network, an
//! attribute, a descriptor. There is one hash table per combination of indexed conditions (its *shape*).

use super::draws;
use crate::address::Cidr;
use crate::diagnostic::{Diagnostics, quoted};
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::pattern::{PathPattern, Pattern};
use crate::spec::{FileSpec, MatchSpec, MissingKey, Mode, RuleSpec};
use foldhash::fast::RandomState;
use std::collections::HashMap as Map;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice;

/// A map with a fast hash function. It is not hardened against collision attacks: the author of a rule file gains
/// nothing by slowing down the check.
type FastMap<K, V> = Map<K, V, RandomState>;

/// Conditions with more values than this are not indexed.
const MAX_INDEXED_VALUES: usize = 4;
/// How many attributes of a rule are indexed.
const INDEXED_ATTRIBUTES: usize = 2;
/// From this number of shapes on, prefix lengths are rounded down to a multiple of [`PREFIX_STEP`], so that few new
/// shapes are added.
const MANY_SHAPES: usize = 200;
/// See [`MANY_SHAPES`].
const PREFIX_STEP: usize = 16;
/// The maximum number of lookups and comparisons, which take a fraction of a second.
const MAX_WORK: usize = 10_000_000;

pub(super) fn check(spec: &FileSpec, incomplete: &[bool], diagnostics: &mut Diagnostics) {
    let universal = Universal::new();
    let mut groups: FastMap<(Box<[Dimension]>, bool), CoverIndex<'_>> = FastMap::default();
    let mut work = 0;
    for (index, rule) in spec.rules.iter().enumerate() {
        let is_incomplete = incomplete.get(index).copied().unwrap_or(false);
        if rule.mode == Mode::Disabled || is_incomplete {
            continue;
        }
        if work > MAX_WORK {
            let message =
                "too many rules are similar to find those that are never used: from here on, none is checked";
            diagnostics.warn(rule.id.place, message);
            return;
        }
        let is_shadow = rule.mode == Mode::Shadow;
        let group = groups.entry((Dimension::key_group(&rule.key), is_shadow)).or_default();
        let view = RuleView::of(rule, spec.missing, &universal);
        match group.find(&view, &mut work) {
            Some(first) => {
                let is_unlimited = first.limits.as_ref().is_some_and(Vec::is_empty);
                let join =
                    if is_unlimited { "" } else { ", combine the limits in one rule (limits: [a, b])," };
                let message = format!(
                    "the rule is never used: {} in line {} also counts by {} and matches every request that this one \
                     matches. Move this one above it{join} or give this one another key",
                    quoted(&first.id.value),
                    first.id.place.line,
                    draws::name(&rule.key, is_shadow)
                );
                diagnostics.error(rule.id.place, message);
            }
            // A rule without limits hides nothing if there is no default: clients without inherited limits go on to the
            // next rule.
            None if rule.limits.is_some() || spec.default.is_some() => group.insert(view),
            None => {}
        }
    }
}

/// Recognizes patterns that match every path: those that cover an expression that is so odd that no other pattern does.
struct Universal(Option<PathPattern>);

impl Universal {
    fn new() -> Universal {
        Universal(PathPattern::regex("^/\u{1}$", PathStyle::default()).ok())
    }

    fn matches_all(&self, pattern: &PathPattern) -> bool {
        self.0.as_ref().is_some_and(|odd| pattern.covers(odd))
    }
}

/// A rule's conditions, without those that every request meets.
struct RuleView<'s> {
    rule: &'s RuleSpec,
    when: &'s MatchSpec,
    path: Option<&'s PathPattern>,
    /// The common prefix of all matching paths; the whole path if it is exact.
    path_prefix: &'s str,
    key: Option<&'s Pattern>,
    domain: Option<&'s Pattern>,
    tiers: TierSet<'s>,
    /// Whether it does not apply to requests that lack part of its key.
    skips_missing: bool,
}

/// The tiers that a rule applies to.
struct TierSet<'s> {
    /// Empty if it applies to all tiers. A rule that applies to no tier at all has already been reported.
    names: &'s [String],
    /// Whether it applies to clients whose tier is not known.
    includes_unknown: bool,
}

impl<'s> RuleView<'s> {
    fn of(rule: &'s RuleSpec, missing: Option<MissingKey>, universal: &Universal) -> RuleView<'s> {
        let when = &rule.when;
        let path = when.path.as_ref().filter(|path| !universal.matches_all(path));
        let key = when.api_key.as_ref().filter(|key| !key.is_any());
        RuleView {
            rule,
            when,
            path,
            path_prefix: path.map(common_prefix).unwrap_or_default(),
            key,
            // A request without a descriptor has no domain, so even a pattern that matches every domain is a condition.
            domain: when.domain.as_ref().filter(|domain| !domain.is_any() || when.descriptor.is_empty()),
            tiers: TierSet::of(when),
            skips_missing: rule.missing.or(missing).unwrap_or_default() == MissingKey::Skip
                && !rule.key.iter().all(Dimension::is_always_present),
        }
    }

    /// Whether this rule applies wherever the other does, as far as missing key parts are concerned. Both rules count
    /// by the same key, except that one may count by `api_key` and the other by `client`.
    fn covers_missing(&self, other: &RuleView<'_>) -> bool {
        let needs_key = |view: &RuleView<'_>| view.rule.key.contains(&Dimension::ApiKey);
        !self.skips_missing || other.skips_missing && (!needs_key(self) || needs_key(other))
    }

    fn covers(&self, other: &RuleView<'_>) -> bool {
        let methods = || covers_all(&self.when.methods, &other.when.methods, |own, other| own == other);
        let key = || match (self.key, other.key) {
            (None, _) => true,
            (Some(own), Some(other)) => own.covers(other),
            (Some(_), None) => false,
        };
        let path = || match (self.path, other.path) {
            (None, _) => true,
            (Some(own), Some(other)) => own.covers(other),
            (Some(_), None) => false,
        };
        let ip = || covers_all(&self.when.ip, &other.when.ip, Cidr::covers);
        let attributes = || {
            self.when.attributes.iter().all(|(name, own)| {
                let other = other.when.attributes.iter().find(|(known, _)| known == name);
                other.is_some_and(|(_, other)| covers_all(own, other, Pattern::covers))
            })
        };
        let domain = || match (self.domain, other.domain) {
            (None, _) => true,
            (Some(own), Some(other)) => own.covers(other),
            (Some(_), None) => false,
        };
        let descriptor = || covers_descriptor(&self.when.descriptor, &other.when.descriptor);
        self.covers_missing(other)
            && methods()
            && self.tiers.covers(&other.tiers)
            && key()
            && path()
            && ip()
            && attributes()
            && domain()
            && descriptor()
    }
}

/// Whether `own` has the same entry names as `other`, and matches at least its values. An empty condition covers all.
fn covers_descriptor(own: &[(String, Pattern)], other: &[(String, Pattern)]) -> bool {
    let covers = |((own_name, own), (name, other)): (&(String, Pattern), &(String, Pattern))| {
        own_name == name && own.covers(other)
    };
    own.is_empty() || own.len() == other.len() && own.iter().zip(other).all(covers)
}

/// Whether each of the others is covered by one of `own`. An empty condition covers all, and only an empty one covers
/// an empty one.
fn covers_all<T>(own: &[T], others: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    own.is_empty()
        || !others.is_empty() && others.iter().all(|other| own.iter().any(|own| covers(own, other)))
}

impl<'s> TierSet<'s> {
    fn of(when: &'s MatchSpec) -> TierSet<'s> {
        match &when.rule_tier {
            Some(tier) => TierSet {
                names: slice::from_ref(tier),
                includes_unknown: when.api_key.is_some() && when.tiers.is_empty(),
            },
            None => TierSet { names: &when.tiers, includes_unknown: when.tiers.is_empty() },
        }
    }

    fn covers(&self, other: &TierSet<'_>) -> bool {
        covers_all(self.names, other.names, |own, other| own == other)
            && (self.includes_unknown || !other.includes_unknown)
    }
}

/// The common prefix of all matching paths.
fn common_prefix(path: &PathPattern) -> &str {
    match path {
        PathPattern::Exact(text) => text,
        PathPattern::Glob { regex: cut, .. } | PathPattern::Regex { regex: cut, .. } => cut.prefix(),
        PathPattern::Template { text, .. } => text.split('{').next().unwrap_or_default(),
    }
}

/// Which part of a text is the same in all requests that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CommonText {
    /// The whole text.
    Whole,
    /// This many bytes at the start; may be 0.
    Start(usize),
    /// This many bytes at the end.
    End(usize),
}

impl CommonText {
    /// This part of a text. Returns `None` if the text is too short.
    fn part_of(self, text: &str) -> Option<&[u8]> {
        match self {
            CommonText::Whole => Some(text.as_bytes()),
            CommonText::Start(length) => text.as_bytes().get(..length),
            CommonText::End(length) => text.as_bytes().get(text.len().checked_sub(length)?..),
        }
    }
}

/// Which conditions of a rule are indexed. Rules of the same shape are in the same hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LookupShape<'s> {
    path: CommonText,
    key: CommonText,
    by_method: bool,
    by_tier: bool,
    /// The prefix length of the indexed network.
    bits: Option<u8>,
    /// The indexed attributes, each with the part of its value that is compared.
    attributes: [Option<(&'s str, CommonText)>; INDEXED_ATTRIBUTES],
    by_domain: bool,
    /// The number of descriptor entries, all of whose names are indexed, and a bit for each whose value is indexed.
    entries: Option<(usize, u64)>,
}

/// The values of the indexed conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct LookupKey<'s> {
    path: &'s [u8],
    key: &'s [u8],
    method: &'s str,
    tier: &'s str,
    network: Option<Cidr>,
    attributes: [&'s [u8]; INDEXED_ATTRIBUTES],
    domain: &'s str,
    /// A hash of the indexed names and values of the descriptor.
    entries: u64,
}

/// The rules with the same key, in file order, indexed by their conditions.
#[derive(Default)]
struct CoverIndex<'s> {
    views: Vec<RuleView<'s>>,
    shapes: Vec<LookupShape<'s>>,
    tables: Vec<FastMap<LookupKey<'s>, Vec<usize>>>,
    table_by_shape: FastMap<LookupShape<'s>, usize>,
}

impl<'s> CoverIndex<'s> {
    /// Returns the first rule that hides `other`, or `None` if none does.
    fn find(&self, other: &RuleView<'s>, work: &mut usize) -> Option<&'s RuleSpec> {
        let mut first: Option<usize> = None;
        for (shape, table) in self.shapes.iter().zip(&self.tables) {
            *work += 1;
            let Some(key) = shape.key_for(other) else { continue };
            let Some(found) = table.get(&key) else { continue };
            for index in found.iter().take_while(|index| first.is_none_or(|first| **index < first)) {
                *work += 1;
                if self.views[*index].covers(other) {
                    first = Some(*index);
                    break;
                }
            }
        }
        first.map(|index| self.views[index].rule)
    }

    fn insert(&mut self, view: RuleView<'s>) {
        let index = self.views.len();
        for (shape, key) in self.lookup_keys(&view) {
            let number = *self.table_by_shape.entry(shape).or_insert_with(|| {
                self.shapes.push(shape);
                self.tables.push(FastMap::default());
                self.tables.len() - 1
            });
            self.tables[number].entry(key).or_default().push(index);
        }
        self.views.push(view);
    }

    /// The tables and keys that a rule is indexed under: several if it has several methods, tiers, networks or
    /// patterns.
    fn lookup_keys(&self, view: &RuleView<'s>) -> Vec<(LookupShape<'s>, LookupKey<'s>)> {
        let is_exact = matches!(view.path, Some(PathPattern::Exact(_)));
        let path = if is_exact {
            CommonText::Whole
        } else {
            CommonText::Start(self.round_down(view.path_prefix.len()))
        };
        let key = view.key.map_or(CommonText::Start(0), |key| self.common_text(key));
        let domain = view.domain.and_then(Pattern::exact);
        let descriptor = &view.when.descriptor;
        let entries = (!descriptor.is_empty()).then(|| (descriptor.len(), exact_values(descriptor)));
        let shape = LookupShape {
            path,
            key,
            by_method: false,
            by_tier: false,
            bits: None,
            attributes: [None; INDEXED_ATTRIBUTES],
            by_domain: domain.is_some(),
            entries,
        };
        let lookup_key = LookupKey {
            path: path.part_of(view.path_prefix).unwrap_or_default(),
            key: view.key.and_then(|text| key.part_of(text.as_str())).unwrap_or_default(),
            domain: domain.unwrap_or_default(),
            entries: entries.map_or(0, |(_, values)| hash_entries(descriptor, values)),
            ..LookupKey::default()
        };
        let mut places = vec![(shape, lookup_key)];
        split_by(&mut places, &view.when.methods, |(shape, key), method| {
            shape.by_method = true;
            key.method = method;
        });
        split_by(&mut places, view.tiers.names, |(shape, key), tier| {
            shape.by_tier = true;
            key.tier = tier;
        });
        split_by(&mut places, &view.when.ip, |(shape, key), network| {
            shape.bits = Some(network.prefix_len());
            key.network = Some(*network);
        });
        for (slot, (name, patterns)) in view.when.attributes.iter().take(INDEXED_ATTRIBUTES).enumerate() {
            split_by(&mut places, patterns, |(shape, key), pattern| {
                let common = self.common_text(pattern);
                shape.attributes[slot] = Some((name, common));
                key.attributes[slot] = common.part_of(pattern.as_str()).unwrap_or_default();
            });
        }
        places
    }

    /// The part that all texts matching a pattern have in common.
    fn common_text(&self, pattern: &Pattern) -> CommonText {
        let start = pattern.prefix().len();
        let end = pattern.as_str().rsplit('*').next().map_or(0, str::len);
        match pattern.exact() {
            Some(_) => CommonText::Whole,
            None if end > start => CommonText::End(self.round_down(end)),
            None => CommonText::Start(self.round_down(start)),
        }
    }

    fn round_down(&self, length: usize) -> usize {
        if self.shapes.len() < MANY_SHAPES { length } else { length / PREFIX_STEP * PREFIX_STEP }
    }
}

/// One bit per entry (of the first 64) whose value is exact.
fn exact_values(descriptor: &[(String, Pattern)]) -> u64 {
    let bits = (0..u64::BITS).zip(descriptor).filter(|(_, (_, value))| value.exact().is_some());
    bits.fold(0, |all, (bit, _)| all | 1 << bit)
}

/// Hashes the names, and the values whose bit is set. Collisions are harmless: matches are compared in full.
fn hash_entries(descriptor: &[(String, Pattern)], values: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (index, (name, value)) in descriptor.iter().enumerate() {
        let is_set = index < 64 && values & 1 << index != 0;
        (name, is_set.then_some(value)).hash(&mut hasher);
    }
    hasher.finish()
}

/// Replaces each place by one copy per value, unless there are no values or too many.
fn split_by<'s, P: Copy, T>(places: &mut Vec<P>, values: &'s [T], set: impl Fn(&mut P, &'s T)) {
    if values.is_empty() || values.len() > MAX_INDEXED_VALUES {
        return;
    }
    let mut split = Vec::with_capacity(places.len() * values.len());
    for place in places.iter() {
        for value in values {
            let mut place = *place;
            set(&mut place, value);
            split.push(place);
        }
    }
    *places = split;
}

impl<'s> LookupShape<'s> {
    /// The key under which a rule of this shape that hides `other` is indexed. Returns `None` if no such rule can
    /// exist.
    fn key_for(&self, other: &RuleView<'s>) -> Option<LookupKey<'s>> {
        // An exact path covers only itself.
        let is_exact = matches!(other.path, Some(PathPattern::Exact(_)));
        if self.path == CommonText::Whole && !is_exact {
            return None;
        }
        let mut lookup_key = LookupKey {
            path: self.path.part_of(other.path_prefix)?,
            key: self.key.part_of(other.key.map_or("", Pattern::as_str))?,
            ..LookupKey::default()
        };
        if self.by_domain {
            lookup_key.domain = other.domain?.as_str();
        }
        if let Some((length, values)) = self.entries {
            if other.when.descriptor.len() != length {
                return None;
            }
            lookup_key.entries = hash_entries(&other.when.descriptor, values);
        }
        if self.by_method {
            lookup_key.method = other.when.methods.first()?;
        }
        if self.by_tier {
            lookup_key.tier = other.tiers.names.first()?;
        }
        if let Some(bits) = self.bits {
            let network = other.when.ip.first().filter(|network| network.prefix_len() >= bits)?;
            lookup_key.network = Some(network.supernet(bits));
        }
        for (slot, attribute) in self.attributes.iter().enumerate() {
            let Some((name, common)) = attribute else { continue };
            let (_, patterns) = other.when.attributes.iter().find(|(known, _)| known == name)?;
            lookup_key.attributes[slot] = common.part_of(patterns.first()?.as_str())?;
        }
        Some(lookup_key)
    }
}

#[cfg(test)]
mod tests;
