//! Index of the rules that may apply to a request.
//!
//! Every rule is indexed by one condition: an exact key, an exact path, a path template, a prefix of the key or the
//! path, a tier, a descriptor, a domain or an attribute. Of a rule's conditions, the one that fewest other rules
//! share is used. So a lookup does not try every rule, and finds little more than the rules that apply.

use crate::descriptor_index::{DescriptorIndex, DescriptorKey};
use crate::literal_index::LiteralIndex;
use crate::pattern::{PathPattern, Pattern};
use crate::prefixed_regex::PrefixedRegex;
use crate::prefixes::{Positions, Prefixes, TextMap};
use crate::rule::{IndexProof, RequestFacts, Rule};
use crate::template_index::TemplateIndex;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// From this many expressions without a prefix to index by, they are found by the literals that their matches must
/// contain; fewer are all tried.
const MIN_FOR_LITERAL_INDEX: usize = 16;

/// Positions of rules by the condition that each is indexed by.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleIndex {
    keys: TextMap<Positions>,
    paths: TextMap<Positions>,
    templates: TemplateIndex,
    key_prefixes: Prefixes,
    path_prefixes: Prefixes,
    tiers: TextMap<Positions>,
    attributes: Vec<(Box<str>, TextMap<Positions>)>,
    descriptors: DescriptorIndex,
    domains: TextMap<Positions>,
    /// Rules whose expression has no prefix to index by, by literals of which every match contains one.
    literals: Option<LiteralIndex>,
    /// Rules without a condition to index by: candidates for every request.
    unindexed: Vec<u32>,
    proofs: Vec<IndexProof>,
}

/// A condition that a rule can be indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IndexKey<'r> {
    Key(&'r str),
    Path(&'r str),
    Template(&'r str),
    KeyPrefix(&'r str),
    PathPrefix(&'r str),
    Tier(&'r str),
    Attribute(&'r str, &'r str),
    Descriptor(DescriptorKey<'r>),
    Domain(&'r str),
}

/// The result of a lookup and its scratch buffers, kept to be reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexMatches {
    pub(crate) positions: Vec<u32>,
    /// A bit for each literal that was found in the path.
    seen_literals: Vec<u64>,
    /// A path without its wildcard segments, or a descriptor without its pattern values.
    lookup_text: String,
}

impl RuleIndex {
    /// Indexes the rules for which `is_indexed` is true.
    pub(crate) fn new(rules: &[Rule], is_indexed: impl Fn(&Rule) -> bool) -> RuleIndex {
        let mut shared: HashMap<IndexKey<'_>, usize, RandomState> = HashMap::default();
        for key in rules.iter().filter(|rule| is_indexed(rule)).flat_map(index_keys) {
            *shared.entry(key).or_default() += 1;
        }
        let mut index = RuleIndex { proofs: vec![IndexProof::None; rules.len()], ..RuleIndex::default() };
        let mut prefixless = Vec::new();
        for (position, rule) in (0..).zip(rules).filter(|(_, rule)| is_indexed(rule)) {
            let rarest = index_keys(rule).min_by_key(|key| shared[key]);
            match (rarest, &rule.when.path) {
                (Some(key), _) => index.insert(rule, key, position),
                (None, Some(PathPattern::Regex { regex, .. } | PathPattern::Glob { regex, .. })) => {
                    prefixless.push((position, regex));
                }
                (None, _) => index.unindexed.push(position),
            }
        }
        index.insert_prefixless(&prefixless);
        index
    }

    fn insert(&mut self, rule: &Rule, key: IndexKey<'_>, position: u32) {
        let mut proof = IndexProof::None;
        match key {
            IndexKey::Key(key) => {
                proof = IndexProof::Key;
                Positions::add(&mut self.keys, key, position);
            }
            IndexKey::Path(path) => {
                proof = IndexProof::Path;
                Positions::add(&mut self.paths, path, position);
            }
            IndexKey::Template(_) => {
                if let Some(PathPattern::Template { segments, .. }) = &rule.when.path {
                    proof = IndexProof::Path;
                    self.templates.insert(segments, position);
                }
            }
            IndexKey::KeyPrefix(prefix) => self.key_prefixes.insert(prefix, position),
            IndexKey::PathPrefix(prefix) => self.path_prefixes.insert(prefix, position),
            IndexKey::Tier(tier) => Positions::add(&mut self.tiers, tier, position),
            IndexKey::Attribute(name, value) => {
                let known = self.attributes.iter().position(|(known, _)| **known == *name);
                let at = known.unwrap_or_else(|| {
                    self.attributes.push((name.into(), TextMap::default()));
                    self.attributes.len() - 1
                });
                Positions::add(&mut self.attributes[at].1, value, position);
            }
            IndexKey::Descriptor(key) => self.descriptors.insert(key, position),
            IndexKey::Domain(domain) => Positions::add(&mut self.domains, domain, position),
        }
        self.proofs[position as usize] = proof;
    }

    fn insert_prefixless(&mut self, rules: &[(u32, &PrefixedRegex)]) {
        let (indexed, tried): (Vec<_>, Vec<_>) = rules.iter().partition(|(_, regex)| {
            rules.len() >= MIN_FOR_LITERAL_INDEX && !regex.required_literals().is_empty()
        });
        self.literals =
            LiteralIndex::new(indexed.iter().map(|(position, regex)| (*position, regex.required_literals())));
        self.unindexed.extend(tried.iter().map(|(position, _)| *position));
        if self.literals.is_none() {
            self.unindexed.extend(indexed.iter().map(|(position, _)| *position));
        }
        self.unindexed.sort_unstable();
    }

    /// Writes the positions of all rules that may apply to a request into `found`, in order.
    pub(crate) fn find(&self, facts: &RequestFacts<'_>, found: &mut IndexMatches) {
        let IndexMatches { positions, seen_literals: met, lookup_text: shaped } = found;
        positions.clear();
        positions.extend_from_slice(&self.unindexed);
        let mut take =
            |more: Option<&Positions>| positions.extend_from_slice(more.map_or(&[], Positions::as_slice));
        if !self.keys.is_empty() {
            take(self.keys.get(facts.client_key));
        }
        if !self.paths.is_empty() {
            take(self.paths.get(facts.path));
        }
        if let Some(tier) = facts.tier {
            take(self.tiers.get(tier));
        }
        if let Some(descriptor) = facts.descriptor.filter(|_| !self.domains.is_empty()) {
            take(self.domains.get(descriptor.domain));
        }
        for (name, values) in &self.attributes {
            take(facts.attribute(name).and_then(|value| values.get(value)));
        }
        if !self.templates.is_empty() {
            self.templates.find(facts.path, shaped, positions);
        }
        if let Some(descriptor) = facts.descriptor.filter(|_| !self.descriptors.is_empty()) {
            self.descriptors.find(&descriptor, shaped, positions);
        }
        for more in
            self.key_prefixes.prefixes_of(facts.client_key).chain(self.path_prefixes.prefixes_of(facts.path))
        {
            positions.extend_from_slice(more);
        }
        if let Some(texts) = &self.literals {
            texts.find(facts.path, met, positions);
        }
        if positions.len() > 1 {
            positions.sort_unstable();
            // A path may contain several literals of one expression.
            positions.dedup();
        }
    }

    /// The condition of a rule that a lookup has already checked.
    #[inline]
    pub(crate) fn proof(&self, position: usize) -> IndexProof {
        self.proofs[position]
    }
}

/// All conditions that a rule can be indexed by.
fn index_keys(rule: &Rule) -> impl Iterator<Item = IndexKey<'_>> {
    let key = rule.when.api_key.as_ref().and_then(|pattern| match pattern.exact() {
        Some(key) => Some(IndexKey::Key(key)),
        None if pattern.prefix().is_empty() => None,
        None => Some(IndexKey::KeyPrefix(pattern.prefix())),
    });
    let path = rule.when.path.as_ref().and_then(|pattern| match pattern {
        PathPattern::Exact(path) => Some(IndexKey::Path(path)),
        PathPattern::Template { text, .. } => Some(IndexKey::Template(text)),
        PathPattern::Glob { regex, .. } | PathPattern::Regex { regex, .. } => {
            Some(regex.prefix()).filter(|prefix| !matches!(*prefix, "" | "/")).map(IndexKey::PathPrefix)
        }
    });
    let tier = match (rule.when.tiers.as_slice(), &rule.when.rule_tier) {
        ([tier], _) => Some(IndexKey::Tier(tier)),
        // With a key pattern, the rule also applies to clients whose tier is not known.
        ([], Some(tier)) if rule.when.api_key.is_none() => Some(IndexKey::Tier(tier)),
        _ => None,
    };
    let attributes = rule.when.attributes.iter().filter_map(|(name, patterns)| match patterns.as_slice() {
        [pattern] => Some(IndexKey::Attribute(name, pattern.exact()?)),
        _ => None,
    });
    let descriptor = match rule.when.descriptor.as_slice() {
        [] => rule.when.domain.as_ref().and_then(Pattern::exact).map(IndexKey::Domain),
        entries => Some(IndexKey::Descriptor(DescriptorKey::new(rule.when.domain.as_ref(), entries))),
    };
    [key, path, tier, descriptor].into_iter().flatten().chain(attributes)
}
