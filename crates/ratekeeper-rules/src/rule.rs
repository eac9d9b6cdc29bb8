//! A rule that runs.

use crate::address::counted;
use crate::descriptor::{self, DescriptorMismatch};
use crate::dimension::Dimension;
use crate::pattern::{PathPattern, Pattern};
use crate::prefixes::TextMap;
use crate::request::Descriptor;
use crate::spec::{Consistency, FailureMode, MatchSpec, MissingKey, Mode, OverrideSpec};
use ratekeeper_core::{DrawOptions, Limit, MAX_DRAWS, Micros};
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::num::NonZeroU16;

/// A rule that runs: whom it binds, what it counts, and to which limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) version: Option<u64>,
    pub(crate) description: Option<Box<str>>,
    pub(crate) mode: Mode,
    pub(crate) when: MatchSpec,
    pub(crate) key: Box<[Dimension]>,
    /// What to do with a request that lacks something of `key`. A shadow never refuses.
    pub(crate) missing: MissingKey,
    /// Its limits; nothing if it inherits them. If they are there and empty, it is unlimited.
    pub(crate) limits: Option<Box<[Limit]>>,
    pub(crate) overrides: TextMap<ClientLimits>,
    pub(crate) on_store_failure: FailureMode,
    pub(crate) consistency: Consistency,
    pub(crate) store_timeout_ms: Option<NonZeroU16>,
    /// Rules of one track are alternatives.
    pub(crate) track: u32,
    /// What tells its first limit's states from all others; the next limits follow.
    pub(crate) scope: u64,
    /// What each limit goes by in headers: the id, and from the second on a number behind it.
    pub(crate) names: Box<[Box<str>]>,
}

/// Limits for one client, perhaps for a time.
#[derive(Clone, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) limits: Box<[Limit]>,
    pub(crate) valid_until: Option<Micros>,
}

impl ClientLimits {
    pub(crate) fn of(spec: &OverrideSpec) -> ClientLimits {
        ClientLimits { limits: spec.limits.clone().into(), valid_until: spec.valid_until }
    }
}

/// Whether something that may end has not. The clock is read only if it ends at all.
pub(crate) fn is_valid(until: Option<Micros>, now: impl FnOnce() -> Micros) -> bool {
    until.is_none_or(|until| now() < until)
}

impl Rule {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number that its author gave it.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// What its author says it is for.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Whether it is enforced.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Its limits for those without an override; none if it inherits them, or is unlimited.
    pub fn limits(&self) -> &[Limit] {
        self.limits.as_deref().unwrap_or_default()
    }

    /// Whether it holds nobody to anything, but for those with an override.
    pub fn is_unlimited(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_empty())
    }

    /// What it counts: requests that agree in all of these share a count.
    pub fn key(&self) -> &[Dimension] {
        &self.key
    }

    /// What to do with a request that lacks something that it counts by.
    pub fn missing(&self) -> MissingKey {
        self.missing
    }

    /// What to answer when the store gives no answer.
    pub fn on_store_failure(&self) -> FailureMode {
        self.on_store_failure
    }

    /// How exact it is across nodes.
    pub fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// How many milliseconds the store has to answer; nothing if it has as long as the server says.
    pub fn store_timeout_ms(&self) -> Option<NonZeroU16> {
        self.store_timeout_ms
    }

    /// On what terms its draws are made.
    pub(crate) fn terms(&self) -> DrawOptions {
        DrawOptions {
            is_shadow: self.mode == Mode::Shadow,
            consistency: self.consistency,
            on_failure: self.on_store_failure,
            deadline: self.store_timeout_ms,
        }
    }

    /// What one of its limits goes by in headers.
    pub fn limit_name(&self, index: usize) -> &str {
        self.names.get(index).map_or(&self.id, |name| name)
    }

    /// Why it does not bind a request, if it does not. What the index has proven is not looked at again.
    pub(crate) fn misfit(&self, facts: &RequestFacts<'_>, proven: IndexProof) -> Option<Mismatch<'_>> {
        let MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor } =
            &self.when;
        if proven != IndexProof::Key
            && let Some(pattern) = api_key
            && !pattern.matches(facts.client_key)
        {
            return Some(Mismatch::ApiKey(pattern.as_str()));
        }
        if let Some(tier) = rule_tier
            && !is_of_tier(facts.tier, tier, api_key.is_some())
        {
            return Some(Mismatch::Tier(std::slice::from_ref(tier)));
        }
        if !tiers.is_empty() && !facts.tier.is_some_and(|own| tiers.iter().any(|tier| tier == own)) {
            return Some(Mismatch::Tier(tiers));
        }
        if !methods.is_empty() && !methods.iter().any(|method| method.eq_ignore_ascii_case(facts.method)) {
            return Some(Mismatch::Method(methods));
        }
        if !ip.is_empty() && !facts.ip.is_some_and(|own| ip.iter().any(|net| net.contains(own))) {
            return Some(Mismatch::Ip);
        }
        for (name, patterns) in attributes {
            let is_met = facts.attribute(name).is_some_and(|value| patterns.iter().any(|p| p.matches(value)));
            if !is_met {
                return Some(Mismatch::Attribute(name));
            }
        }
        if let Some(pattern) = domain
            && !facts.descriptor.is_some_and(|own| pattern.matches(own.domain))
        {
            return Some(Mismatch::Domain(pattern.as_str()));
        }
        if !descriptor.is_empty()
            && let Some(misfit) = DescriptorMismatch::of(descriptor, facts.descriptor.as_ref())
        {
            return Some(Mismatch::Descriptor(descriptor, misfit));
        }
        if proven != IndexProof::Path
            && let Some(pattern) = path
            && !pattern.matches(facts.path)
        {
            return Some(Mismatch::Path(pattern));
        }
        self.key.iter().find(|dimension| !facts.knows(dimension)).map(Mismatch::Unknown)
    }

    /// The parts of the key that a request is counted under.
    ///
    /// No two requests that differ in a dimension have the same parts. A dimension is one part, and one that is missing
    /// is an empty part and its number behind all others, so that it differs from a value that is empty. A client is its
    /// key or address and a part that says which; a key alone stands for itself.
    #[inline]
    pub(crate) fn parts<'a>(
        &'a self,
        facts: &RequestFacts<'a>,
        words: &'a RequestText,
    ) -> impl Iterator<Item = &'a str> {
        // One count for all is kept under a key that is the same for all.
        let everybody = self.key.is_empty().then_some("");
        let facts = *facts;
        let values = self.key.iter().flat_map(move |dimension| {
            let kind = match dimension {
                Dimension::Client => facts.client_kind(self.key.len() == 1),
                _ => None,
            };
            std::iter::once(self.part(dimension, &facts, words)).chain(kind)
        });
        let missing = match self.missing {
            MissingKey::Shared => &*self.key,
            MissingKey::Skip | MissingKey::Refuse => &[],
        };
        let missing = NUMBERS.iter().zip(missing).filter(move |(_, dimension)| !facts.knows(dimension));
        everybody.into_iter().chain(values).chain(missing.map(|(number, _)| *number))
    }

    /// What a request has in a dimension; empty if it is missing.
    #[inline]
    fn part<'a>(
        &'a self,
        dimension: &Dimension,
        facts: &RequestFacts<'a>,
        words: &'a RequestText,
    ) -> &'a str {
        match dimension {
            Dimension::ApiKey => facts.client_key,
            Dimension::Client if !facts.client_key.is_empty() => facts.client_key,
            Dimension::Client => words.ip.as_str(),
            Dimension::Ip => words.ip.as_str(),
            Dimension::Endpoint => match &self.when.path {
                Some(PathPattern::Template { text, .. } | PathPattern::Glob { text, .. }) => text,
                Some(PathPattern::Exact(_) | PathPattern::Regex { .. }) | None => facts.path,
            },
            Dimension::Path => facts.path,
            Dimension::Method => facts.method,
            Dimension::Tier => facts.tier.unwrap_or_default(),
            Dimension::Domain => facts.descriptor.map_or("", |own| own.domain),
            Dimension::Descriptor => words.descriptor.as_str(),
            Dimension::Attribute(name) => facts.attribute(name).unwrap_or_default(),
        }
    }

    /// What each part of the key is, and its value.
    pub(crate) fn named_parts(&self, facts: &RequestFacts<'_>, words: &RequestText) -> Vec<(String, String)> {
        let names = self.key.iter().flat_map(|dimension| {
            let kind = match dimension {
                Dimension::Client => facts.client_kind(self.key.len() == 1).map(|_| "by".to_owned()),
                _ => None,
            };
            std::iter::once(dimension.to_string()).chain(kind)
        });
        let unknown = self.key.iter().filter(|dimension| !facts.knows(dimension));
        let missing = unknown.map(|dimension| format!("{MISSING} {dimension}"));
        names.chain(missing).zip(self.parts(facts, words).map(str::to_owned)).collect()
    }
}

/// What a part of a key is called that says which dimension is missing, with that dimension's name behind it.
pub(crate) const MISSING: &str = "missing";

/// The numbers of a key's dimensions, of which there are few.
const NUMBERS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
const _: () = assert!(NUMBERS.len() >= crate::read::MOST_DIMENSIONS, "each dimension of a key has a number");

/// A rule is for clients of its tier; and if its key pattern tells the tier, for those of whom nobody stated it.
fn is_of_tier(own: Option<&str>, tier: &str, told_by_key: bool) -> bool {
    own.map_or(told_by_key, |own| own == tier)
}

/// The names that so many limits of a rule go by.
pub(crate) fn names(id: &str, count: usize) -> Box<[Box<str>]> {
    let name = |index| match index {
        0 => id.into(),
        index => format!("{id}-{}", index + 1).into(),
    };
    (0..count.min(MAX_DRAWS)).map(name).collect()
}

/// What is known of a request, with its path in canonical form and its tier worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFacts<'a> {
    pub(crate) client_key: &'a str,
    pub(crate) path: &'a str,
    pub(crate) method: &'a str,
    pub(crate) tier: Option<&'a str>,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) attributes: &'a [crate::request::Attribute<'a>],
    pub(crate) descriptor: Option<Descriptor<'a>>,
}

impl<'a> RequestFacts<'a> {
    pub(crate) fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Which of the two that may tell a client this request has; nothing if it has neither, and for a key that stands
    /// alone.
    fn client_kind(&self, is_alone: bool) -> Option<&'static str> {
        match (self.client_key.is_empty(), self.ip) {
            (false, _) if is_alone => None,
            (false, _) => Some("key"),
            (true, Some(_)) => Some("ip"),
            (true, None) => None,
        }
    }

    pub(crate) fn knows(&self, dimension: &Dimension) -> bool {
        match dimension {
            Dimension::ApiKey => !self.client_key.is_empty(),
            Dimension::Client => !self.client_key.is_empty() || self.ip.is_some(),
            Dimension::Ip => self.ip.is_some(),
            Dimension::Endpoint | Dimension::Path => true,
            Dimension::Method => !self.method.is_empty(),
            Dimension::Tier => self.tier.is_some(),
            Dimension::Domain => self.descriptor.is_some_and(|own| !own.domain.is_empty()),
            Dimension::Descriptor => self.descriptor.is_some(),
            Dimension::Attribute(name) => self.attribute(name).is_some(),
        }
    }
}

/// What of a request must be put into words before it can be counted by. It is made to be kept and written again.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestText {
    ip: String,
    descriptor: String,
}

impl RequestText {
    /// Writes the client's address as rules count it.
    pub(crate) fn write_ip(&mut self, ip: Option<IpAddr>, ipv6_prefix: u8) {
        self.ip.clear();
        if let Some(ip) = ip {
            write!(self.ip, "{}", counted(ip, ipv6_prefix)).expect("text can be written to memory");
        }
    }

    /// Writes the descriptor as rules count it.
    pub(crate) fn write_descriptor(&mut self, descriptor: Option<&Descriptor<'_>>) {
        match descriptor {
            Some(descriptor) => descriptor::write(descriptor, &mut self.descriptor),
            None => self.descriptor.clear(),
        }
    }
}

/// What the index has made sure of already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexProof {
    Nothing,
    Path,
    Key,
}

/// Why a rule does not bind a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mismatch<'r> {
    /// The client's key does not match this pattern.
    ApiKey(&'r str),
    /// The client is of none of these tiers.
    Tier(&'r [String]),
    /// The method is none of these.
    Method(&'r [String]),
    /// The address is in none of the rule's networks, or is not known.
    Ip,
    /// This attribute is missing, or matches none of the rule's patterns.
    Attribute(&'r str),
    /// The domain does not match this pattern, or there is no descriptor that has one.
    Domain(&'r str),
    /// The descriptor is not this one.
    Descriptor(&'r [(String, Pattern)], DescriptorMismatch),
    /// The path does not match.
    Path(&'r PathPattern),
    /// The rule counts by this, and the request does not tell it.
    Unknown(&'r Dimension),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::ApiKey(pattern) => write!(f, "the key does not match {pattern}"),
            Mismatch::Tier(tiers) => write!(f, "the client's tier is not {}", tiers.join(" or ")),
            Mismatch::Method(methods) => write!(f, "the method is not {}", methods.join(" or ")),
            Mismatch::Ip => f.write_str("the address is in none of its networks"),
            Mismatch::Attribute(name) => write!(f, "the attribute {name} is missing or does not match"),
            Mismatch::Domain(pattern) => write!(f, "the domain does not match {pattern}"),
            Mismatch::Descriptor(wanted, misfit) => misfit.describe(wanted, f),
            Mismatch::Path(pattern) => {
                write!(f, "the path does not match the {} {}", pattern.kind(), pattern.as_str())
            }
            Mismatch::Unknown(Dimension::Client) => {
                f.write_str("it counts by client, and the request has neither a key nor an address")
            }
            Mismatch::Unknown(dimension) => {
                write!(f, "it counts by {dimension}, and the request does not tell it")
            }
        }
    }
}
