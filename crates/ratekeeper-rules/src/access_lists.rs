//! Who passes unchecked and who never passes.

use crate::address::Cidr;
use crate::pattern::Pattern;
use crate::prefixes::{Prefixes, TextMap};
use crate::spec::{At, ListEntry};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::net::IpAddr;

/// A list of clients: by key, by pattern of keys, by network.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessList {
    keys: KeyPatterns,
    nets: NetworkIndex,
}

impl AccessList {
    pub(crate) fn new(entries: &[At<ListEntry>]) -> AccessList {
        let mut nets = NetworkIndex::default();
        let mut patterns = Vec::new();
        for entry in entries {
            match &entry.value {
                ListEntry::Key(pattern) => patterns.push(pattern),
                ListEntry::Net(net) => nets.insert(*net),
            }
        }
        AccessList { keys: KeyPatterns::new(patterns), nets }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.patterns.is_empty() && self.nets.bits.is_empty()
    }

    /// Whether a client is on it.
    #[inline]
    pub(crate) fn has(&self, client_key: &str, ip: Option<IpAddr>) -> bool {
        !self.is_empty() && (self.keys.first(client_key).is_some() || ip.is_some_and(|ip| self.nets.has(ip)))
    }
}

/// The most patterns of one list that a key may have to be compared with because they begin and end alike.
pub(crate) const MAX_ALIKE: usize = 1_000;

/// Patterns of keys, in order, found without trying each.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPatterns {
    exact: TextMap<u32>,
    prefixes: Prefixes,
    suffixes: Prefixes,
    patterns: Vec<Pattern>,
}

/// What a pattern is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PatternKey<'p> {
    Whole(&'p str),
    Start(&'p str),
    End(&'p str),
}

/// What each pattern is looked up by: all of it, or of its beginning and its end the one that fewest others share.
pub(crate) fn handles<'p>(patterns: &[&'p Pattern]) -> Vec<PatternKey<'p>> {
    let mut shared: HashMap<PatternKey<'_>, usize, RandomState> = HashMap::default();
    let wild =
        |pattern: &'p Pattern| [PatternKey::Start(pattern.prefix()), PatternKey::End(pattern.suffix())];
    for handle in
        patterns.iter().filter(|pattern| pattern.exact().is_none()).flat_map(|pattern| wild(pattern))
    {
        *shared.entry(handle).or_default() += 1;
    }
    let one = |pattern: &&'p Pattern| match pattern.exact() {
        Some(key) => PatternKey::Whole(key),
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
        for (position, handle) in (0..).zip(handles(&patterns)) {
            match handle {
                PatternKey::Whole(key) => drop(keys.exact.entry(key.into()).or_insert(position)),
                PatternKey::Start(prefix) => keys.prefixes.insert(prefix, position),
                PatternKey::End(suffix) => keys.suffixes.insert(suffix, position),
            }
        }
        keys.patterns = patterns.into_iter().cloned().collect();
        keys
    }

    /// The position of the first pattern that a key matches.
    #[inline]
    pub(crate) fn first(&self, key: &str) -> Option<usize> {
        if self.patterns.is_empty() { None } else { self.find(key) }
    }

    fn find(&self, key: &str) -> Option<usize> {
        let matching = |position: &&u32| self.patterns[**position as usize].matches(key);
        let wild = self.candidates(key).filter(matching);
        self.exact.get(key).into_iter().chain(wild).min().map(|position| *position as usize)
    }

    /// The patterns with a `*` that a key has to be compared with.
    fn candidates<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a u32> {
        self.prefixes.of(key).chain(self.suffixes.of_end(key)).flatten()
    }
}

/// Networks, found by their prefix lengths.
#[derive(Clone, Debug, Default)]
struct NetworkIndex {
    /// Every prefix length that occurs.
    bits: Vec<u8>,
    nets: HashMap<Cidr, (), RandomState>,
}

impl NetworkIndex {
    fn insert(&mut self, net: Cidr) {
        if let Err(at) = self.bits.binary_search(&net.bits()) {
            self.bits.insert(at, net.bits());
        }
        self.nets.insert(net, ());
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.bits.iter().any(|bits| self.nets.contains_key(&Cidr::around(ip, *bits)))
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
    fn a_key_is_compared_with_few_of_many_patterns() {
        for form in ["*-{}", "sk_*-{}", "{}-*", "*_{}_x", "a*b*{}"] {
            for many in [100, 100_000] {
                let keys = keys((0..many).map(|index| form.replace("{}", &format!("{index:06}"))));
                let key = form.replace("{}", "000042").replace('*', "y");
                assert_eq!(keys.first(&key), Some(42), "{form}");
                assert!(
                    keys.candidates(&key).count() <= 2,
                    "{form}, {many}: {}",
                    keys.candidates(&key).count()
                );
                assert_eq!(keys.first("nobody"), None);
            }
        }
    }

    #[test]
    fn the_first_that_matches_is_found_however_it_is_looked_up() {
        let keys = keys(["*x", "a*", "ax", "*", "*é", "a*x"].into_iter().map(str::to_owned));
        for (key, first) in [("ax", 0), ("ab", 1), ("b", 3), ("é", 3), ("", 3), ("x", 0)] {
            assert_eq!(keys.first(key), Some(first), "{key}");
        }
    }
}
