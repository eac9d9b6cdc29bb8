//! Who passes unchecked and who never passes.

use crate::address::Cidr;
use crate::pattern::Pattern;
use crate::prefixes::{Map, Prefixes};
use crate::spec::{At, Whom};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::net::IpAddr;

/// A list of clients: by key, by pattern of keys, by network.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    keys: Keys,
    nets: Nets,
}

impl List {
    pub(crate) fn new(entries: &[At<Whom>]) -> List {
        let mut list = List::default();
        for entry in entries {
            match &entry.value {
                Whom::Key(pattern) => list.keys.insert(pattern),
                Whom::Net(net) => list.nets.insert(*net),
            }
        }
        list
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

/// Patterns of keys, in order, found without trying each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    exact: Map<u32>,
    prefixes: Prefixes,
    patterns: Vec<Pattern>,
}

impl Keys {
    pub(crate) fn insert(&mut self, pattern: &Pattern) {
        let position = u32::try_from(self.patterns.len()).unwrap_or(u32::MAX);
        self.patterns.push(pattern.clone());
        match pattern.exact() {
            Some(key) => drop(self.exact.entry(key.into()).or_insert(position)),
            None => self.prefixes.insert(pattern.prefix(), position),
        }
    }

    /// The position of the first pattern that a key matches.
    #[inline]
    pub(crate) fn first(&self, key: &str) -> Option<usize> {
        if self.patterns.is_empty() { None } else { self.find(key) }
    }

    fn find(&self, key: &str) -> Option<usize> {
        let matching = |position: &&u32| self.patterns[**position as usize].matches(key);
        let by_prefix = self.prefixes.of(key).flatten().filter(matching);
        self.exact.get(key).into_iter().chain(by_prefix).min().map(|position| *position as usize)
    }
}

/// Networks, found by their prefix lengths.
#[derive(Clone, Debug, Default)]
struct Nets {
    /// Every prefix length that occurs.
    bits: Vec<u8>,
    nets: HashMap<Cidr, (), RandomState>,
}

impl Nets {
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
