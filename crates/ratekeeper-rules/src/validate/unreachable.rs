//! Rules that are never used, because an earlier one always is.
//!
//! Rules that count by the same key are alternatives: the first that matches is used. So a rule is hidden if an earlier
//! one for the same key matches all that it matches. Comparing each rule with all before it would take seconds for ten
//! thousand, so each is compared only with those that could hide it: they are kept by what every request that they
//! match has in common (how its path and key begin, a method, a tier, a network, an attribute, a descriptor), and rules
//! of one shape are looked up in one hash table.

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

/// A hash table that is quick: its keys are no secret, and the file's author gains nothing by making it slow.
type Hashed<K, V> = Map<K, V, RandomState>;

/// Sets larger than this are not looked up by their elements.
const FEW: usize = 4;
/// How many attributes of a rule it is looked up by.
const INDEXED: usize = 2;
/// From so many shapes on, beginnings are cut to a multiple of [`COARSE`], so that few more shapes come.
const MANY_SHAPES: usize = 200;
const COARSE: usize = 16;
/// How many lookups and comparisons are made at most, which take a fraction of a second.
const MOST_WORK: usize = 10_000_000;

pub(super) fn check(spec: &FileSpec, unsound: &[bool], complaints: &mut Diagnostics) {
    let universal = Universal::new();
    let mut tracks: Hashed<(Box<[Dimension]>, bool), CoverIndex<'_>> = Hashed::default();
    let mut work = 0;
    for (index, rule) in spec.rules.iter().enumerate() {
        let is_unsound = unsound.get(index).copied().unwrap_or(false);
        if rule.mode == Mode::Disabled || is_unsound {
            continue;
        }
        if work > MOST_WORK {
            let said =
                "too many rules are alike to tell which are never used: from here on, none is looked at";
            complaints.warn(rule.id.place, said);
            return;
        }
        let is_shadow = rule.mode == Mode::Shadow;
        let track = tracks.entry((Dimension::track_of(&rule.key), is_shadow)).or_default();
        let view = RuleView::of(rule, spec.missing, &universal);
        match track.find(&view, &mut work) {
            Some(first) => {
                let is_unlimited = first.limits.as_ref().is_some_and(Vec::is_empty);
                let join = if is_unlimited { "" } else { ", join the limits in one rule (limits: [a, b])," };
                let said = format!(
                    "the rule is never used: {} in line {} counts by {} too and matches all that this one \
                     matches. Put this one above it{join} or give this one another key",
                    quoted(&first.id.value),
                    first.id.place.line,
                    draws::name(&rule.key, is_shadow)
                );
                complaints.error(rule.id.place, said);
            }
            // Without a default, whoever a rule without limits has none for may go on to the next.
            None if rule.limits.is_some() || spec.default.is_some() => track.insert(view),
            None => {}
        }
    }
}

/// Tells patterns that match every path: only those cover an expression that nobody would write.
struct Universal(Option<PathPattern>);

impl Universal {
    fn new() -> Universal {
        Universal(PathPattern::regex("^/\u{1}$", PathStyle::default()).ok())
    }

    fn is(&self, pattern: &PathPattern) -> bool {
        self.0.as_ref().is_some_and(|odd| pattern.covers(odd))
    }
}

/// A rule's conditions, with those that everything meets left out.
struct RuleView<'s> {
    rule: &'s RuleSpec,
    when: &'s MatchSpec,
    path: Option<&'s PathPattern>,
    /// What every path that matches begins with; of an exact path all of it.
    path_start: &'s str,
    key: Option<&'s Pattern>,
    domain: Option<&'s Pattern>,
    tiers: TierSet<'s>,
    /// Whether it does not bind requests that lack something of its key.
    skips_missing: bool,
}

/// Which tiers a rule binds.
struct TierSet<'s> {
    /// None if it binds all of them: a rule that binds no tier at all has been complained of.
    known: &'s [String],
    /// Whether it binds clients whose tier nobody stated.
    unknown: bool,
}

impl<'s> RuleView<'s> {
    fn of(rule: &'s RuleSpec, missing: Option<MissingKey>, universal: &Universal) -> RuleView<'s> {
        let when = &rule.when;
        let path = when.path.as_ref().filter(|path| !universal.is(path));
        let key = when.api_key.as_ref().filter(|key| !key.is_any());
        RuleView {
            rule,
            when,
            path,
            path_start: path.map(start_of).unwrap_or_default(),
            key,
            // Who has no descriptor has no domain, so that even one that matches all of them is asked for.
            domain: when.domain.as_ref().filter(|domain| !domain.is_any() || when.descriptor.is_empty()),
            tiers: TierSet::of(when),
            skips_missing: rule.missing.or(missing).unwrap_or_default() == MissingKey::Skip
                && !rule.key.iter().all(Dimension::is_always_known),
        }
    }

    /// Whether all that the other binds by what its key needs, this one binds too. Both are alternatives, so their keys
    /// differ at most in that one counts by the client's key and the other by the client.
    fn tells_apart(&self, other: &RuleView<'_>) -> bool {
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
        self.tells_apart(other)
            && methods()
            && self.tiers.cover(&other.tiers)
            && key()
            && path()
            && ip()
            && attributes()
            && domain()
            && descriptor()
    }
}

/// Whether the other asks for the same entries and for no more values. No condition covers any.
fn covers_descriptor(own: &[(String, Pattern)], other: &[(String, Pattern)]) -> bool {
    let covers = |((own_name, own), (name, other)): (&(String, Pattern), &(String, Pattern))| {
        own_name == name && own.covers(other)
    };
    own.is_empty() || own.len() == other.len() && own.iter().zip(other).all(covers)
}

/// Whether each of the others is covered by one of ours. No condition covers any, and only none covers none.
fn covers_all<T>(own: &[T], others: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    own.is_empty()
        || !others.is_empty() && others.iter().all(|other| own.iter().any(|own| covers(own, other)))
}

impl<'s> TierSet<'s> {
    fn of(when: &'s MatchSpec) -> TierSet<'s> {
        match &when.rule_tier {
            Some(tier) => TierSet {
                known: slice::from_ref(tier),
                unknown: when.api_key.is_some() && when.tiers.is_empty(),
            },
            None => TierSet { known: &when.tiers, unknown: when.tiers.is_empty() },
        }
    }

    fn cover(&self, other: &TierSet<'_>) -> bool {
        covers_all(self.known, other.known, |own, other| own == other) && (self.unknown || !other.unknown)
    }
}

/// What every path that matches begins with.
fn start_of(path: &PathPattern) -> &str {
    match path {
        PathPattern::Exact(text) => text,
        PathPattern::Glob { cut, .. } | PathPattern::Regex { cut, .. } => cut.prefix(),
        PathPattern::Template { text, .. } => text.split('{').next().unwrap_or_default(),
    }
}

/// How much of a text all that a rule matches have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CommonText {
    /// All of it.
    Whole,
    /// So many bytes at its beginning, perhaps none.
    Start(usize),
    /// So many bytes at its end.
    End(usize),
}

impl CommonText {
    /// What a text is looked up by; nothing if it is too short.
    fn of(self, text: &str) -> Option<&[u8]> {
        match self {
            CommonText::Whole => Some(text.as_bytes()),
            CommonText::Start(length) => text.as_bytes().get(..length),
            CommonText::End(length) => text.as_bytes().get(text.len().checked_sub(length)?..),
        }
    }
}

/// Which conditions of a rule it is looked up by. Rules of one shape are in one hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LookupShape<'s> {
    path: CommonText,
    key: CommonText,
    by_method: bool,
    by_tier: bool,
    /// By a network of so many bits.
    bits: Option<u8>,
    /// By what attributes have in common.
    attributes: [Option<(&'s str, CommonText)>; INDEXED],
    by_domain: bool,
    /// By the names of so many entries of a descriptor, and by the values of those whose bit is set.
    entries: Option<(usize, u64)>,
}

/// What a rule of a shape is looked up by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct LookupKey<'s> {
    path: &'s [u8],
    key: &'s [u8],
    method: &'s str,
    tier: &'s str,
    network: Option<Cidr>,
    attributes: [&'s [u8]; INDEXED],
    domain: &'s str,
    /// A hash of the names and values.
    entries: u64,
}

/// The rules that count by one key, in the order in which they are tried.
#[derive(Default)]
struct CoverIndex<'s> {
    views: Vec<RuleView<'s>>,
    shapes: Vec<LookupShape<'s>>,
    tables: Vec<Hashed<LookupKey<'s>, Vec<usize>>>,
    numbers: Hashed<LookupShape<'s>, usize>,
}

impl<'s> CoverIndex<'s> {
    /// The first rule that hides another.
    fn find(&self, other: &RuleView<'s>, work: &mut usize) -> Option<&'s RuleSpec> {
        let mut first: Option<usize> = None;
        for (shape, table) in self.shapes.iter().zip(&self.tables) {
            *work += 1;
            let Some(probe) = shape.probe(other) else { continue };
            let Some(found) = table.get(&probe) else { continue };
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
        for (shape, probe) in self.shapes_of(&view) {
            let number = *self.numbers.entry(shape).or_insert_with(|| {
                self.shapes.push(shape);
                self.tables.push(Hashed::default());
                self.tables.len() - 1
            });
            self.tables[number].entry(probe).or_default().push(index);
        }
        self.views.push(view);
    }

    /// Where a rule is to be found: several places, if it has several methods, tiers, networks or patterns.
    fn shapes_of(&self, view: &RuleView<'s>) -> Vec<(LookupShape<'s>, LookupKey<'s>)> {
        let is_exact = matches!(view.path, Some(PathPattern::Exact(_)));
        let path =
            if is_exact { CommonText::Whole } else { CommonText::Start(self.cut(view.path_start.len())) };
        let key = view.key.map_or(CommonText::Start(0), |key| self.common(key));
        let domain = view.domain.and_then(Pattern::exact);
        let descriptor = &view.when.descriptor;
        let entries = (!descriptor.is_empty()).then(|| (descriptor.len(), written_out(descriptor)));
        let shape = LookupShape {
            path,
            key,
            by_method: false,
            by_tier: false,
            bits: None,
            attributes: [None; INDEXED],
            by_domain: domain.is_some(),
            entries,
        };
        let probe = LookupKey {
            path: path.of(view.path_start).unwrap_or_default(),
            key: view.key.and_then(|text| key.of(text.as_str())).unwrap_or_default(),
            domain: domain.unwrap_or_default(),
            entries: entries.map_or(0, |(_, values)| hash_of(descriptor, values)),
            ..LookupKey::default()
        };
        let mut places = vec![(shape, probe)];
        split(&mut places, &view.when.methods, |(shape, probe), method| {
            shape.by_method = true;
            probe.method = method;
        });
        split(&mut places, view.tiers.known, |(shape, probe), tier| {
            shape.by_tier = true;
            probe.tier = tier;
        });
        split(&mut places, &view.when.ip, |(shape, probe), network| {
            shape.bits = Some(network.bits());
            probe.network = Some(*network);
        });
        for (slot, (name, patterns)) in view.when.attributes.iter().take(INDEXED).enumerate() {
            split(&mut places, patterns, |(shape, probe), pattern| {
                let common = self.common(pattern);
                shape.attributes[slot] = Some((name, common));
                probe.attributes[slot] = common.of(pattern.as_str()).unwrap_or_default();
            });
        }
        places
    }

    /// What all that a pattern matches have in common.
    fn common(&self, pattern: &Pattern) -> CommonText {
        let start = pattern.prefix().len();
        let end = pattern.as_str().rsplit('*').next().map_or(0, str::len);
        match pattern.exact() {
            Some(_) => CommonText::Whole,
            None if end > start => CommonText::End(self.cut(end)),
            None => CommonText::Start(self.cut(start)),
        }
    }

    fn cut(&self, length: usize) -> usize {
        if self.shapes.len() < MANY_SHAPES { length } else { length / COARSE * COARSE }
    }
}

/// A bit for each of the first entries whose value is written out.
fn written_out(descriptor: &[(String, Pattern)]) -> u64 {
    let bits = (0..u64::BITS).zip(descriptor).filter(|(_, (_, value))| value.exact().is_some());
    bits.fold(0, |all, (bit, _)| all | 1 << bit)
}

/// A hash of the names, and of the values whose bit is set. What it finds is compared in full.
fn hash_of(descriptor: &[(String, Pattern)], values: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (index, (name, value)) in descriptor.iter().enumerate() {
        let is_set = index < 64 && values & 1 << index != 0;
        (name, is_set.then_some(value)).hash(&mut hasher);
    }
    hasher.finish()
}

/// Puts each place once for each of a few values.
fn split<'s, P: Copy, T>(places: &mut Vec<P>, values: &'s [T], set: impl Fn(&mut P, &'s T)) {
    if values.is_empty() || values.len() > FEW {
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
    /// What a rule of this shape that hides another would be found by; nothing if there can be none.
    fn probe(&self, other: &RuleView<'s>) -> Option<LookupKey<'s>> {
        // An exact path hides nothing but itself.
        let is_exact = matches!(other.path, Some(PathPattern::Exact(_)));
        if self.path == CommonText::Whole && !is_exact {
            return None;
        }
        let mut probe = LookupKey {
            path: self.path.of(other.path_start)?,
            key: self.key.of(other.key.map_or("", Pattern::as_str))?,
            ..LookupKey::default()
        };
        if self.by_domain {
            probe.domain = other.domain?.as_str();
        }
        if let Some((length, values)) = self.entries {
            if other.when.descriptor.len() != length {
                return None;
            }
            probe.entries = hash_of(&other.when.descriptor, values);
        }
        if self.by_method {
            probe.method = other.when.methods.first()?;
        }
        if self.by_tier {
            probe.tier = other.tiers.known.first()?;
        }
        if let Some(bits) = self.bits {
            let network = other.when.ip.first().filter(|network| network.bits() >= bits)?;
            probe.network = Some(network.widened(bits));
        }
        for (slot, attribute) in self.attributes.iter().enumerate() {
            let Some((name, common)) = attribute else { continue };
            let (_, patterns) = other.when.attributes.iter().find(|(known, _)| known == name)?;
            probe.attributes[slot] = common.of(patterns.first()?.as_str())?;
        }
        Some(probe)
    }
}

#[cfg(test)]
mod tests;
