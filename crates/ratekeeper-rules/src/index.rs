//! Finding the rules that may bind a request, without trying each.
//!
//! Every rule is filed under one thing that a request must have for it to bind: its exact key, its exact path, its
//! template, what its key or path begins with, its tier, its descriptor, its domain, or an attribute. Of those that it
//! asks for, the one that fewest other rules share. A request looks under what it has, and finds little more than the
//! rules that bind it.

use crate::descriptor_index::{DescriptorIndex, DescriptorKey};
use crate::literal_index::LiteralIndex;
use crate::pattern::{PathPattern, Pattern};
use crate::prefixed_regex::PrefixedRegex;
use crate::prefixes::{Positions, Prefixes, TextMap};
use crate::rule::{IndexProof, RequestFacts, Rule};
use crate::template_index::TemplateIndex;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// From how many expressions on that begin with anything, they are found by the texts that their matches have.
const MANY: usize = 16;

/// Rules by what a request must have for them to bind.
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
    /// Expressions that begin with anything, by a text that every match has.
    texts: Option<LiteralIndex>,
    /// Rules that ask for nothing of the kind.
    others: Vec<u32>,
    proofs: Vec<IndexProof>,
}

/// What a rule may be filed under.
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

/// Where the rules that were found are gathered.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexMatches {
    pub(crate) positions: Vec<u32>,
    /// Which texts were met, a bit each.
    met: Vec<u64>,
    /// A path with its wild segments taken out, or a descriptor with its open values.
    shaped: String,
}

impl RuleIndex {
    /// Files the rules that `is_filed` names.
    pub(crate) fn new(rules: &[Rule], is_filed: impl Fn(&Rule) -> bool) -> RuleIndex {
        let mut shared: HashMap<IndexKey<'_>, usize, RandomState> = HashMap::default();
        for handle in rules.iter().filter(|rule| is_filed(rule)).flat_map(handles) {
            *shared.entry(handle).or_default() += 1;
        }
        let mut index = RuleIndex { proofs: vec![IndexProof::Nothing; rules.len()], ..RuleIndex::default() };
        let mut loose = Vec::new();
        for (position, rule) in (0..).zip(rules).filter(|(_, rule)| is_filed(rule)) {
            let rarest = handles(rule).min_by_key(|handle| shared[handle]);
            match (rarest, &rule.when.path) {
                (Some(handle), _) => index.file(rule, handle, position),
                (None, Some(PathPattern::Regex { cut, .. } | PathPattern::Glob { cut, .. })) => {
                    loose.push((position, cut));
                }
                (None, _) => index.others.push(position),
            }
        }
        index.file_loose(&loose);
        index
    }

    fn file(&mut self, rule: &Rule, handle: IndexKey<'_>, position: u32) {
        let mut proof = IndexProof::Nothing;
        match handle {
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
            IndexKey::Descriptor(sought) => self.descriptors.insert(sought, position),
            IndexKey::Domain(domain) => Positions::add(&mut self.domains, domain, position),
        }
        self.proofs[position as usize] = proof;
    }

    fn file_loose(&mut self, loose: &[(u32, &PrefixedRegex)]) {
        let (found, tried): (Vec<_>, Vec<_>) =
            loose.iter().partition(|(_, cut)| loose.len() >= MANY && !cut.required().is_empty());
        self.texts = LiteralIndex::new(found.iter().map(|(position, cut)| (*position, cut.required())));
        self.others.extend(tried.iter().map(|(position, _)| *position));
        if self.texts.is_none() {
            self.others.extend(found.iter().map(|(position, _)| *position));
        }
        self.others.sort_unstable();
    }

    /// Gathers the positions of all rules that may bind a request, in order.
    pub(crate) fn find(&self, facts: &RequestFacts<'_>, found: &mut IndexMatches) {
        let IndexMatches { positions, met, shaped } = found;
        positions.clear();
        positions.extend_from_slice(&self.others);
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
        for more in self.key_prefixes.of(facts.client_key).chain(self.path_prefixes.of(facts.path)) {
            positions.extend_from_slice(more);
        }
        if let Some(texts) = &self.texts {
            texts.find(facts.path, met, positions);
        }
        if positions.len() > 1 {
            positions.sort_unstable();
            // A path may have several of the texts of one expression.
            positions.dedup();
        }
    }

    /// What finding a rule has made sure of.
    #[inline]
    pub(crate) fn proof(&self, position: usize) -> IndexProof {
        self.proofs[position]
    }
}

/// All that a rule may be filed under.
fn handles(rule: &Rule) -> impl Iterator<Item = IndexKey<'_>> {
    let key = rule.when.api_key.as_ref().and_then(|pattern| match pattern.exact() {
        Some(key) => Some(IndexKey::Key(key)),
        None if pattern.prefix().is_empty() => None,
        None => Some(IndexKey::KeyPrefix(pattern.prefix())),
    });
    let path = rule.when.path.as_ref().and_then(|pattern| match pattern {
        PathPattern::Exact(path) => Some(IndexKey::Path(path)),
        PathPattern::Template { text, .. } => Some(IndexKey::Template(text)),
        PathPattern::Glob { cut, .. } | PathPattern::Regex { cut, .. } => {
            Some(cut.prefix()).filter(|prefix| !matches!(*prefix, "" | "/")).map(IndexKey::PathPrefix)
        }
    });
    let tier = match (rule.when.tiers.as_slice(), &rule.when.rule_tier) {
        ([tier], _) => Some(IndexKey::Tier(tier)),
        // With a key pattern it also binds clients whose tier is not known.
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
