//! Allow and deny lists, and the index of key patterns that they share with tiers.
//!
//! A lookup does not try every entry: exact keys and networks are hashed, and a pattern is found by its prefix or
//! suffix, whichever fewer patterns of the list share.

use crate::address::Cidr;
use crate::pattern::Pattern;
use crate::prefixes::{Prefixes, TextMap};
use crate::spec::{At, ListEntry};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::net::IpAddr;

/// An allow or deny list: clients by exact key, key pattern or network.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessList {
    keys: KeyPatterns,
    networks: NetworkIndex,
}

impl AccessList {
    pub(crate) fn new(entries: &[At<ListEntry>]) -> AccessList {
        let mut networks = NetworkIndex::default();
        let mut patterns = Vec::new();
        for entry in entries {
            match &entry.value {
                ListEntry::Key(pattern) => patterns.push(pattern),
                ListEntry::Network(net) => networks.insert(*net),
            }
        }
        AccessList { keys: KeyPatterns::new(patterns), networks }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.patterns.is_empty() && self.networks.prefix_lengths.is_empty()
    }

    /// Whether an entry matches the client key or the address.
    #[inline]
    pub(crate) fn contains(&self, client_key: &str, ip: Option<IpAddr>) -> bool {
        !self.is_empty()
            && (self.keys.first_match(client_key).is_some()
                || ip.is_some_and(|ip| self.networks.contains(ip)))
    }
}

/// The most patterns of one list that may share both prefix and suffix: a key is compared with each of them.
pub(crate) const MAX_SIMILAR_PATTERNS: usize = 1_000;

/// An ordered list of key patterns, indexed so that a lookup does not try each of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPatterns {
    exact: TextMap<u32>,
    prefixes: Prefixes,
    suffixes: Prefixes,
    patterns: Vec<Pattern>,
}

/// The part of a pattern that it is indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PatternKey<'p> {
    Exact(&'p str),
    Prefix(&'p str),
    Suffix(&'p str),
}

/// The index key of each pattern: an exact pattern as a whole, any other by its prefix or suffix, whichever fewer
/// patterns share.
pub(crate) fn pattern_keys<'p>(patterns: &[&'p Pattern]) -> Vec<PatternKey<'p>> {
    let mut shared: HashMap<PatternKey<'_>, usize, RandomState> = HashMap::default();
    let wild =
        |pattern: &'p Pattern| [PatternKey::Prefix(pattern.prefix()), PatternKey::Suffix(pattern.suffix())];
    for key in patterns.iter().filter(|pattern| pattern.exact().is_none()).flat_map(|pattern| wild(pattern)) {
        *shared.entry(key).or_default() += 1;
    }
    let one = |pattern: &&'p Pattern| match pattern.exact() {
        Some(key) => PatternKey::Exact(key),
        None => {
            let [start, end] = wild(pattern);
            if shared[&start] <= shared[&end] { start } else { end }
        }
    };
    patterns.iter().map(one).collect()
}

impl KeyPatterns {
    pub(crate) fn new<'p>(patterns: impl IntoIterator<Item = &'p Pattern>) -> KeyPatterns {
        let patterns: Vec<_> = patterns.into_iter().collect();
        let mut keys = KeyPatterns::default();
        for (position, key) in (0..).zip(pattern_keys(&patterns)) {
            match key {
                PatternKey::Exact(key) => drop(keys.exact.entry(key.into()).or_insert(position)),
                PatternKey::Prefix(prefix) => keys.prefixes.insert(prefix, position),
                PatternKey::Suffix(suffix) => keys.suffixes.insert(suffix, position),
            }
        }
        keys.patterns = patterns.into_iter().cloned().collect();
        keys
    }

    /// Returns the position of the first pattern that matches the key, or `None` if none does.
    #[inline]
    pub(crate) fn first_match(&self, key: &str) -> Option<usize> {
        if self.patterns.is_empty() { None } else { self.find(key) }
    }

    fn find(&self, key: &str) -> Option<usize> {
        let matching = |position: &&u32| self.patterns[**position as usize].matches(key);
        let wild = self.candidates(key).filter(matching);
        self.exact.get(key).into_iter().chain(wild).min().map(|position| *position as usize)
    }

    /// The patterns with a `*` that the key has to be compared with.
    fn candidates<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a u32> {
        self.prefixes.prefixes_of(key).chain(self.suffixes.suffixes_of(key)).flatten()
    }
}

/// A set of networks, looked up once per distinct prefix length.
#[derive(Clone, Debug, Default)]
struct NetworkIndex {
    /// The distinct prefix lengths, in ascending order.
    prefix_lengths: Vec<u8>,
    networks: HashMap<Cidr, (), RandomState>,
}

impl NetworkIndex {
    fn insert(&mut self, net: Cidr) {
        if let Err(at) = self.prefix_lengths.binary_search(&net.prefix_len()) {
            self.prefix_lengths.insert(at, net.prefix_len());
        }
        self.networks.insert(net, ());
    }

    fn contains(&self, ip: IpAddr) -> bool {
        self.prefix_lengths.iter().any(|bits| self.networks.contains_key(&Cidr::containing(ip, *bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(patterns: impl Iterator<Item = String>) -> KeyPatterns {
        let patterns: Vec<_> = patterns.map(|text| Pattern::new(&text)).collect();
        KeyPatterns::new(&patterns)
    }

    #[test]
    fn a_lookup_compares_the_key_with_few_patterns() {
        for form in ["*-{}", "sk_*-{}", "{}-*", "*_{}_x", "a*b*{}"] {
            for many in [100, 100_000] {
                let keys = keys((0..many).map(|index| form.replace("{}", &format!("{index:06}"))));
                let key = form.replace("{}", "000042").replace('*', "y");
                assert_eq!(keys.first_match(&key), Some(42), "{form}");
                assert!(
                    keys.candidates(&key).count() <= 2,
                    "{form}, {many}: {}",
                    keys.candidates(&key).count()
                );
                assert_eq!(keys.first_match("unlisted"), None);
            }
        }
    }

    #[test]
    fn the_first_match_wins_whichever_way_it_is_indexed() {
        let keys = keys(["*x", "a*", "ax", "*", "*é", "a*x"].into_iter().map(str::to_owned));
        for (key, first) in [("ax", 0), ("ab", 1), ("b", 3), ("é", 3), ("", 3), ("x", 0)] {
            assert_eq!(keys.first_match(key), Some(first), "{key}");
        }
    }
}
