//! Rules that are never used, because an earlier one always is.
//!
//! Rules that count by the same key are alternatives: the first that matches is used. So a rule is hidden if an earlier
//! one for the same key matches all that it matches. Comparing each rule with all before it would take seconds for ten
//! thousand, so each is compared only with those that could hide it: they are kept by what every request that they
//! match has in common (how its path and key begin, a method, a tier, a network, an attribute), and rules of one shape
//! are looked up in one hash table.

use super::draws;
use crate::address::Cidr;
use crate::complaint::{Complaints, quoted};
use crate::dimension::Dimension;
use crate::path::PathStyle;
use crate::pattern::{PathPattern, Pattern};
use crate::spec::{FileSpec, Match, Mode, RuleSpec};
use foldhash::fast::RandomState;
use std::collections::HashMap as Map;
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

pub(super) fn check(spec: &FileSpec, unsound: &[bool], complaints: &mut Complaints) {
    let universal = Universal::new();
    let mut tracks: Hashed<(&[Dimension], bool), Index<'_>> = Hashed::default();
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
        let track = tracks.entry((&rule.key, is_shadow)).or_default();
        let view = View::of(rule, &universal);
        match track.find(&view, &mut work) {
            Some(first) => {
                let said = format!(
                    "the rule is never used: {} in line {} counts by {} too and matches all that this one \
                     matches. Put this \
                     one above it, join the limits in one rule (limits: [a, b]), or give this one another \
                     key",
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
struct View<'s> {
    rule: &'s RuleSpec,
    when: &'s Match,
    path: Option<&'s PathPattern>,
    /// What every path that matches begins with; of an exact path all of it.
    path_start: &'s str,
    key: Option<&'s Pattern>,
    tiers: Tiers<'s>,
}

/// Which tiers a rule binds.
struct Tiers<'s> {
    /// None if it binds all of them: a rule that binds no tier at all has been complained of.
    known: &'s [String],
    /// Whether it binds clients whose tier nobody stated.
    unknown: bool,
}

impl<'s> View<'s> {
    fn of(rule: &'s RuleSpec, universal: &Universal) -> View<'s> {
        let when = &rule.when;
        let path = when.path.as_ref().filter(|path| !universal.is(path));
        let key = when.api_key.as_ref().filter(|key| !key.is_any());
        View {
            rule,
            when,
            path,
            path_start: path.map(start_of).unwrap_or_default(),
            key,
            tiers: Tiers::of(when),
        }
    }

    fn covers(&self, other: &View<'_>) -> bool {
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
        methods() && self.tiers.cover(&other.tiers) && key() && path() && ip() && attributes()
    }
}

/// Whether each of the others is covered by one of ours. No condition covers any, and only none covers none.
fn covers_all<T>(own: &[T], others: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    own.is_empty()
        || !others.is_empty() && others.iter().all(|other| own.iter().any(|own| covers(own, other)))
}

impl<'s> Tiers<'s> {
    fn of(when: &'s Match) -> Tiers<'s> {
        match &when.rule_tier {
            Some(tier) => Tiers {
                known: slice::from_ref(tier),
                unknown: when.api_key.is_some() && when.tiers.is_empty(),
            },
            None => Tiers { known: &when.tiers, unknown: when.tiers.is_empty() },
        }
    }

    fn cover(&self, other: &Tiers<'_>) -> bool {
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
enum Common {
    /// All of it.
    Whole,
    /// So many bytes at its beginning, perhaps none.
    Start(usize),
    /// So many bytes at its end.
    End(usize),
}

impl Common {
    /// What a text is looked up by; nothing if it is too short.
    fn of(self, text: &str) -> Option<&[u8]> {
        match self {
            Common::Whole => Some(text.as_bytes()),
            Common::Start(length) => text.as_bytes().get(..length),
            Common::End(length) => text.as_bytes().get(text.len().checked_sub(length)?..),
        }
    }
}

/// Which conditions of a rule it is looked up by. Rules of one shape are in one hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape<'s> {
    path: Common,
    key: Common,
    by_method: bool,
    by_tier: bool,
    /// By a network of so many bits.
    bits: Option<u8>,
    /// By what attributes have in common.
    attributes: [Option<(&'s str, Common)>; INDEXED],
}

/// What a rule of a shape is looked up by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Probe<'s> {
    path: &'s [u8],
    key: &'s [u8],
    method: &'s str,
    tier: &'s str,
    network: Option<Cidr>,
    attributes: [&'s [u8]; INDEXED],
}

/// The rules that count by one key, in the order in which they are tried.
#[derive(Default)]
struct Index<'s> {
    views: Vec<View<'s>>,
    shapes: Vec<Shape<'s>>,
    tables: Vec<Hashed<Probe<'s>, Vec<usize>>>,
    numbers: Hashed<Shape<'s>, usize>,
}

impl<'s> Index<'s> {
    /// The first rule that hides another.
    fn find(&self, other: &View<'s>, work: &mut usize) -> Option<&'s RuleSpec> {
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

    fn insert(&mut self, view: View<'s>) {
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
    fn shapes_of(&self, view: &View<'s>) -> Vec<(Shape<'s>, Probe<'s>)> {
        let is_exact = matches!(view.path, Some(PathPattern::Exact(_)));
        let path = if is_exact { Common::Whole } else { Common::Start(self.cut(view.path_start.len())) };
        let key = view.key.map_or(Common::Start(0), |key| self.common(key));
        let shape =
            Shape { path, key, by_method: false, by_tier: false, bits: None, attributes: [None; INDEXED] };
        let probe = Probe {
            path: path.of(view.path_start).unwrap_or_default(),
            key: view.key.and_then(|text| key.of(text.as_str())).unwrap_or_default(),
            ..Probe::default()
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
    fn common(&self, pattern: &Pattern) -> Common {
        let start = pattern.prefix().len();
        let end = pattern.as_str().rsplit('*').next().map_or(0, str::len);
        match pattern.exact() {
            Some(_) => Common::Whole,
            None if end > start => Common::End(self.cut(end)),
            None => Common::Start(self.cut(start)),
        }
    }

    fn cut(&self, length: usize) -> usize {
        if self.shapes.len() < MANY_SHAPES { length } else { length / COARSE * COARSE }
    }
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

impl<'s> Shape<'s> {
    /// What a rule of this shape that hides another would be found by; nothing if there can be none.
    fn probe(&self, other: &View<'s>) -> Option<Probe<'s>> {
        // An exact path hides nothing but itself.
        let is_exact = matches!(other.path, Some(PathPattern::Exact(_)));
        if self.path == Common::Whole && !is_exact {
            return None;
        }
        let mut probe = Probe {
            path: self.path.of(other.path_start)?,
            key: self.key.of(other.key.map_or("", Pattern::as_str))?,
            ..Probe::default()
        };
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
mod tests {
    use super::*;
    use crate::spec::{At, Place};
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};
    use tollgate_core::{Limit, Quota};

    fn path() -> impl Strategy<Value = Option<PathPattern>> {
        let plain = select(&["/a", "/a/b", "/a/{x}", "/{x}/b", "/{*x}", "/a/*", "/a/**", "/**", "/*/b"][..]);
        let plain = plain.prop_map(|text| PathPattern::new(text, PathStyle::default()).unwrap());
        let regex = select(&["^/a", "^/a/[0-9]", ".*", "b$"][..]);
        let regex = regex.prop_map(|text| PathPattern::regex(text, PathStyle::default()).unwrap());
        prop_oneof![Just(None), plain.prop_map(Some), regex.prop_map(Some)]
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        select(&["*", "k", "k1", "k*", "k1*", "*1", "*k1", "k*1", "k1*1"][..]).prop_map(Pattern::new)
    }

    fn some<T: Clone + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
        prop_oneof![2 => Just(Vec::new()), 1 => subsequence(all, 1..=all.len())]
    }

    fn words(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
        some(all).prop_map(|words| words.into_iter().map(str::to_owned).collect())
    }

    fn when() -> impl Strategy<Value = Match> {
        let networks = some(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::/0", "2001:db8::/32"][..]);
        let ip = networks.prop_map(|all| all.iter().map(|text| text.parse().unwrap()).collect());
        let values = prop::collection::vec(pattern(), 1..6);
        let attributes = prop::collection::vec((select(&["x", "y", "z"][..]), values), 0..3);
        let attributes = prop_oneof![2 => Just(Vec::new()), 1 => attributes];
        let attributes = attributes.prop_map(|mut all| {
            all.sort_by_key(|(name, _)| *name);
            all.dedup_by_key(|(name, _)| *name);
            all.into_iter().map(|(name, patterns)| (name.to_owned(), patterns)).collect()
        });
        let tier = prop_oneof![3 => Just(None), 1 => Just(Some("t1".to_owned()))];
        let methods = words(&["GET", "POST", "PUT", "PATCH", "HEAD"]);
        let parts = (
            prop::option::weighted(0.4, pattern()),
            path(),
            methods,
            words(&["t1", "t2"]),
            tier,
            ip,
            attributes,
        );
        parts.prop_map(|(api_key, path, methods, tiers, rule_tier, ip, attributes)| {
            // A rule for one tier that matches others binds nobody, and is refused when it is read.
            let rule_tier = rule_tier.filter(|tier| tiers.is_empty() || tiers.contains(tier));
            Match { api_key, path, methods, tiers, rule_tier, ip, attributes }
        })
    }

    fn rule(index: usize, when: Match) -> RuleSpec {
        let place = Place { line: u32::try_from(index).unwrap() + 1, column: 1 };
        let limit = Limit::new(tollgate_core::Law::TokenBucket, Quota::per_second(1)).unwrap();
        RuleSpec {
            id: At { value: format!("r{index}"), place },
            version: None,
            description: None,
            mode: Mode::Enforced,
            when,
            key: Vec::new(),
            limits: Some(vec![limit]),
            overrides: Vec::new(),
            on_store_failure: None,
            consistency: None,
        }
    }

    /// A path, a key, a method, a tier, an address, and what every attribute but `z` is.
    type Asked = [&'static str; 6];

    fn requests() -> impl Iterator<Item = Asked> {
        let all: [&[&str]; 6] = [
            &["/", "/a", "/a/b", "/a/1", "/c/b", "/b"],
            &["", "k", "k1", "k11", "x1"],
            &["", "GET", "POST"],
            &["", "t1", "t2", "t3"],
            &["10.1.2.3", "10.2.0.1", "192.0.2.1", "2001:db8::1"],
            &["k", "k1", "k21"],
        ];
        let count: usize = all.iter().map(|values| values.len()).product();
        (0..count).map(move |mut index| {
            all.map(|values| {
                let value = values[index % values.len()];
                index /= values.len();
                value
            })
        })
    }

    /// Whether a rule binds a request, as plainly as it can be written.
    fn binds(when: &Match, [path, key, method, tier, ip, value]: Asked) -> bool {
        let rule_tier = match &when.rule_tier {
            Some(own) => own == tier || tier.is_empty() && when.api_key.is_some(),
            None => true,
        };
        rule_tier
            && when.api_key.as_ref().is_none_or(|own| own.matches(key))
            && when.path.as_ref().is_none_or(|own| own.matches(path))
            && (when.methods.is_empty() || when.methods.iter().any(|own| own == method))
            && (when.tiers.is_empty() || when.tiers.iter().any(|own| own == tier))
            && (when.ip.is_empty() || when.ip.iter().any(|own| own.contains(ip.parse().unwrap())))
            && when
                .attributes
                .iter()
                .all(|(name, own)| name != "z" && own.iter().any(|own| own.matches(value)))
    }

    proptest! {
        #[test]
        fn what_a_hidden_rule_binds_its_hider_binds(conditions in prop::collection::vec(when(), 12)) {
            let rules: Vec<_> = conditions.into_iter().map(|when| rule(0, when)).collect();
            let universal = Universal::new();
            let covers = |a: &RuleSpec, b: &RuleSpec| View::of(a, &universal).covers(&View::of(b, &universal));
            for (hider, hidden) in rules.iter().flat_map(|a| rules.iter().map(move |b| (a, b))) {
                if std::ptr::eq(hider, hidden) || !covers(hider, hidden) {
                    continue;
                }
                for request in requests() {
                    let is_kept = !binds(&hidden.when, request) || binds(&hider.when, request);
                    prop_assert!(is_kept, "{:?} hides {:?}, but not for {:?}", hider.when, hidden.when, request);
                }
            }
        }

        #[test]
        fn what_is_looked_up_is_what_comparing_all_finds(conditions in prop::collection::vec(when(), 0..24)) {
            let rules = conditions.into_iter().enumerate().map(|(index, when)| rule(index, when)).collect();
            let spec = FileSpec { rules, ..FileSpec::default() };
            let mut complaints = Complaints::default();
            check(&spec, &[], &mut complaints);
            let found: Vec<_> = complaints.finish().into_iter().map(|complaint| {
                let hider = complaint.said.split('"').nth(1).unwrap().to_owned();
                (complaint.place.line, hider)
            }).collect();

            let universal = Universal::new();
            let mut seen: Vec<View<'_>> = Vec::new();
            let mut expected = Vec::new();
            for rule in &spec.rules {
                let view = View::of(rule, &universal);
                match seen.iter().find(|earlier| earlier.covers(&view)) {
                    Some(hider) => expected.push((rule.id.place.line, hider.rule.id.value.clone())),
                    None => seen.push(view),
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
