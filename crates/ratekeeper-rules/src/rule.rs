//! Compiled rules: which requests they match, and the key that they count by.

use crate::address::truncate_ipv6;
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

/// A compiled rule: the requests it applies to, the key it counts by, and its limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) version: Option<u64>,
    pub(crate) description: Option<Box<str>>,
    pub(crate) mode: Mode,
    pub(crate) when: MatchSpec,
    pub(crate) key: Box<[Dimension]>,
    /// What to do with a request that lacks a dimension of `key`. A shadow rule never denies.
    pub(crate) missing: MissingKey,
    /// `None` if the rule inherits the fallback limits; empty if it is unlimited.
    pub(crate) limits: Option<Box<[Limit]>>,
    pub(crate) overrides: TextMap<ClientLimits>,
    pub(crate) on_store_failure: FailureMode,
    pub(crate) consistency: Consistency,
    pub(crate) store_timeout_ms: Option<NonZeroU16>,
    /// The key group: of the rules in one group, only the first match applies.
    pub(crate) key_group: u32,
    /// The scope of the first limit's states; the other limits have the numbers after it.
    pub(crate) scope: u64,
    /// The name of each limit in headers: the id, with a number appended from the second limit on.
    pub(crate) limit_names: Box<[Box<str>]>,
}

/// Limits of one client, which may expire.
#[derive(Clone, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) limits: Box<[Limit]>,
    pub(crate) valid_until: Option<Micros>,
}

impl ClientLimits {
    pub(crate) fn from_spec(spec: &OverrideSpec) -> ClientLimits {
        ClientLimits { limits: spec.limits.clone().into(), valid_until: spec.valid_until }
    }
}

/// Whether an entry has not expired. The clock is read only if it has an expiry.
pub(crate) fn is_valid(until: Option<Micros>, now: impl FnOnce() -> Micros) -> bool {
    until.is_none_or(|until| now() < until)
}

impl Rule {
    /// The rule's unique name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The version number from the rule file.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// The description from the rule file.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Whether the rule is enforced, in shadow or disabled.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The limits for clients without an override; empty if the rule inherits them, or is unlimited.
    pub fn limits(&self) -> &[Limit] {
        self.limits.as_deref().unwrap_or_default()
    }

    /// Whether the rule is unlimited for all clients without an override.
    pub fn is_unlimited(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_empty())
    }

    /// The dimensions to count by: requests with the same values in all of them share a count.
    pub fn key(&self) -> &[Dimension] {
        &self.key
    }

    /// What to do with a request that lacks a dimension of the key.
    pub fn missing(&self) -> MissingKey {
        self.missing
    }

    /// What to decide when the store fails.
    pub fn on_store_failure(&self) -> FailureMode {
        self.on_store_failure
    }

    /// How exact the limits are across nodes.
    pub fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// The store timeout in milliseconds; `None` if the server's timeout applies.
    pub fn store_timeout_ms(&self) -> Option<NonZeroU16> {
        self.store_timeout_ms
    }

    /// The options of the rule's draws.
    pub(crate) fn draw_options(&self) -> DrawOptions {
        DrawOptions {
            is_shadow: self.mode == Mode::Shadow,
            consistency: self.consistency,
            on_failure: self.on_store_failure,
            timeout_ms: self.store_timeout_ms,
        }
    }

    /// The name of a limit in headers.
    pub fn limit_name(&self, index: usize) -> &str {
        self.limit_names.get(index).map_or(&self.id, |name| name)
    }

    /// Returns the first condition that the request does not meet, or `None` if the rule matches. The condition that
    /// the index has `proven` is not checked again.
    pub(crate) fn mismatch(&self, facts: &RequestFacts<'_>, proven: IndexProof) -> Option<Mismatch<'_>> {
        let MatchSpec { api_key, path, methods, tiers, rule_tier, ip, attributes, domain, descriptor } =
            &self.when;
        if proven != IndexProof::Key
            && let Some(pattern) = api_key
            && !pattern.matches(facts.client_key)
        {
            return Some(Mismatch::ApiKey(pattern.as_str()));
        }
        if let Some(tier) = rule_tier
            && !matches_tier(facts.tier, tier, api_key.is_some())
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
            let matches =
                facts.attribute(name).is_some_and(|value| patterns.iter().any(|p| p.matches(value)));
            if !matches {
                return Some(Mismatch::Attribute(name));
            }
        }
        if let Some(pattern) = domain
            && !facts.descriptor.is_some_and(|own| pattern.matches(own.domain))
        {
            return Some(Mismatch::Domain(pattern.as_str()));
        }
        if !descriptor.is_empty()
            && let Some(mismatch) = DescriptorMismatch::check(descriptor, facts.descriptor.as_ref())
        {
            return Some(Mismatch::Descriptor(descriptor, mismatch));
        }
        if proven != IndexProof::Path
            && let Some(pattern) = path
            && !pattern.matches(facts.path)
        {
            return Some(Mismatch::Path(pattern));
        }
        self.key.iter().find(|dimension| !facts.has(dimension)).map(Mismatch::MissingDimension)
    }

    /// The parts of the counting key of a request.
    ///
    /// Requests that differ in a dimension have different parts. Each dimension is one part. A missing dimension is an
    /// empty part, and its number is appended after all others, so that it differs from an empty value. `client` is the
    /// key or the address, and a part that says which of them; a client key that is the whole key has no such part.
    #[inline]
    pub(crate) fn key_parts<'a>(
        &'a self,
        facts: &RequestFacts<'a>,
        text: &'a RequestText,
    ) -> impl Iterator<Item = &'a str> {
        // A rule without dimensions keeps its only count under one empty part.
        let global = self.key.is_empty().then_some("");
        let facts = *facts;
        let values = self.key.iter().flat_map(move |dimension| {
            let kind = match dimension {
                Dimension::Client => facts.client_kind(self.key.len() == 1),
                _ => None,
            };
            std::iter::once(self.key_part(dimension, &facts, text)).chain(kind)
        });
        let missing = match self.missing {
            MissingKey::Shared => &*self.key,
            MissingKey::Skip | MissingKey::Refuse => &[],
        };
        let missing =
            DIMENSION_NUMBERS.iter().zip(missing).filter(move |(_, dimension)| !facts.has(dimension));
        global.into_iter().chain(values).chain(missing.map(|(number, _)| *number))
    }

    /// The value of a request in a dimension; empty if it is missing.
    #[inline]
    fn key_part<'a>(
        &'a self,
        dimension: &Dimension,
        facts: &RequestFacts<'a>,
        text: &'a RequestText,
    ) -> &'a str {
        match dimension {
            Dimension::ApiKey => facts.client_key,
            Dimension::Client if !facts.client_key.is_empty() => facts.client_key,
            Dimension::Client => text.ip.as_str(),
            Dimension::Ip => text.ip.as_str(),
            Dimension::Endpoint => match &self.when.path {
                Some(PathPattern::Template { text, .. } | PathPattern::Glob { text, .. }) => text,
                Some(PathPattern::Exact(_) | PathPattern::Regex { .. }) | None => facts.path,
            },
            Dimension::Path => facts.path,
            Dimension::Method => facts.method,
            Dimension::Tier => facts.tier.unwrap_or_default(),
            Dimension::Domain => facts.descriptor.map_or("", |own| own.domain),
            Dimension::Descriptor => text.descriptor.as_str(),
            Dimension::Attribute(name) => facts.attribute(name).unwrap_or_default(),
        }
    }

    /// The name and value of each part of the counting key.
    pub(crate) fn named_key_parts(
        &self,
        facts: &RequestFacts<'_>,
        text: &RequestText,
    ) -> Vec<(String, String)> {
        let names = self.key.iter().flat_map(|dimension| {
            let kind = match dimension {
                Dimension::Client => facts.client_kind(self.key.len() == 1).map(|_| "by".to_owned()),
                _ => None,
            };
            std::iter::once(dimension.to_string()).chain(kind)
        });
        let unknown = self.key.iter().filter(|dimension| !facts.has(dimension));
        let missing = unknown.map(|dimension| format!("{MISSING_LABEL} {dimension}"));
        names.chain(missing).zip(self.key_parts(facts, text).map(str::to_owned)).collect()
    }
}

/// The name of a key part that stands for a missing dimension; the dimension's name follows.
pub(crate) const MISSING_LABEL: &str = "missing";

/// The numbers of a key's dimensions as text, so that writing one does not allocate.
const DIMENSION_NUMBERS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
const _: () = assert!(
    DIMENSION_NUMBERS.len() >= crate::bounds::MAX_DIMENSIONS,
    "every dimension of a key has a number"
);

/// Whether a rule for `tier` matches a client of tier `own`. A rule with a key pattern also matches clients whose
/// tier is not known, since the pattern implies it.
fn matches_tier(own: Option<&str>, tier: &str, has_key_pattern: bool) -> bool {
    own.map_or(has_key_pattern, |own| own == tier)
}

/// The names in headers of a rule's `count` limits.
pub(crate) fn limit_names(id: &str, count: usize) -> Box<[Box<str>]> {
    let name = |index| match index {
        0 => id.into(),
        index => format!("{id}-{}", index + 1).into(),
    };
    (0..count.min(MAX_DRAWS)).map(name).collect()
}

/// The properties of a request that rules match, with the path in canonical form and the tier resolved.
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

    /// Whether the client is identified by `"key"` or by `"ip"`. Returns `None` if by neither, and for a client key if
    /// `is_alone`: if `client` is the only dimension.
    fn client_kind(&self, is_alone: bool) -> Option<&'static str> {
        match (self.client_key.is_empty(), self.ip) {
            (false, _) if is_alone => None,
            (false, _) => Some("key"),
            (true, Some(_)) => Some("ip"),
            (true, None) => None,
        }
    }

    pub(crate) fn has(&self, dimension: &Dimension) -> bool {
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

/// Request properties that must be formatted before they can be counted by. A reusable buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestText {
    ip: String,
    descriptor: String,
}

impl RequestText {
    /// Writes the client's address, with IPv6 truncated to its prefix.
    pub(crate) fn write_ip(&mut self, ip: Option<IpAddr>, ipv6_prefix: u8) {
        self.ip.clear();
        if let Some(ip) = ip {
            write!(self.ip, "{}", truncate_ipv6(ip, ipv6_prefix)).expect("writing to a string never fails");
        }
    }

    /// Writes the descriptor's counting key.
    pub(crate) fn write_descriptor(&mut self, descriptor: Option<&Descriptor<'_>>) {
        match descriptor {
            Some(descriptor) => descriptor::write(descriptor, &mut self.descriptor),
            None => self.descriptor.clear(),
        }
    }
}

/// The condition of a rule that the index lookup has already checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexProof {
    None,
    Path,
    Key,
}

/// Why a rule does not match a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mismatch<'r> {
    /// The client's key does not match this pattern.
    ApiKey(&'r str),
    /// The client has none of these tiers.
    Tier(&'r [String]),
    /// The method is none of these.
    Method(&'r [String]),
    /// The address is in none of the rule's networks, or is not known.
    Ip,
    /// This attribute is missing, or matches none of the rule's patterns.
    Attribute(&'r str),
    /// The domain does not match this pattern, or the request has no descriptor.
    Domain(&'r str),
    /// The descriptor does not match these entries.
    Descriptor(&'r [(String, Pattern)], DescriptorMismatch),
    /// The path does not match this pattern.
    Path(&'r PathPattern),
    /// The rule counts by this dimension, which the request does not have.
    MissingDimension(&'r Dimension),
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
            Mismatch::Descriptor(expected, mismatch) => mismatch.describe(expected, f),
            Mismatch::Path(pattern) => {
                write!(f, "the path does not match the {} {}", pattern.kind(), pattern.as_str())
            }
            Mismatch::MissingDimension(Dimension::Client) => {
                f.write_str("it counts by client, and the request has neither a key nor an address")
            }
            Mismatch::MissingDimension(dimension) => {
                write!(f, "it counts by {dimension}, which the request does not have")
            }
        }
    }
}
