//! What requests are told apart by when they are counted.

use crate::spec::MOST_ID;
use std::fmt;

/// What requests are told apart by when they are counted. Those that agree in all dimensions of a rule's key share
/// one count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// `api_key` (or `client_key`): the client's key.
    ApiKey,
    /// `client`: who asks, by the key if the request has one, else by the address as `ip` counts it. A key and an address
    /// that are written alike are two clients.
    Client,
    /// `ip`: the client's address; of IPv6 the first 64 bits, unless the file says otherwise.
    Ip,
    /// `endpoint`: the rule's path template or glob if it has one, so that all paths that match it are one endpoint;
    /// else the path.
    Endpoint,
    /// `path`: the path itself.
    Path,
    /// `method`: the HTTP method.
    Method,
    /// `tier`: the client's tier.
    Tier,
    /// `domain`: the domain of the request's descriptor.
    Domain,
    /// `descriptor`: the request's whole descriptor, its domain and all entries, names and values.
    Descriptor,
    /// Any other name: an attribute that the caller sends.
    Attribute(Box<str>),
}

impl Dimension {
    /// The names that are no attributes in a key.
    pub(crate) const NAMES: [&str; 11] = [
        "api_key",
        "client_key",
        "client",
        "ip",
        "endpoint",
        "path",
        "method",
        "tier",
        "domain",
        "descriptor",
        "global",
    ];

    /// Whether an attribute may have this name in a rule.
    pub(crate) fn is_attribute(name: &str) -> bool {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        name.len() <= MOST_ID && name.bytes().all(is_known)
    }

    /// Whether every request tells it.
    pub(crate) fn is_always_known(&self) -> bool {
        matches!(self, Dimension::Endpoint | Dimension::Path)
    }

    /// What rules are alternatives by: a key, with the client's key and the client itself taken for one. Both count
    /// clients, and where a request has a key they count the same.
    pub(crate) fn track_of(key: &[Dimension]) -> Box<[Dimension]> {
        let same = |dimension: &Dimension| match dimension {
            Dimension::ApiKey => Dimension::Client,
            other => other.clone(),
        };
        key.iter().map(same).collect()
    }

    /// The dimension of a name. Names that no built-in one has are attributes.
    pub fn named(name: &str) -> Dimension {
        match name {
            "api_key" | "client_key" => Dimension::ApiKey,
            "client" => Dimension::Client,
            "ip" => Dimension::Ip,
            "endpoint" => Dimension::Endpoint,
            "path" => Dimension::Path,
            "method" => Dimension::Method,
            "tier" => Dimension::Tier,
            "domain" => Dimension::Domain,
            "descriptor" => Dimension::Descriptor,
            name => Dimension::Attribute(name.into()),
        }
    }
}

/// The name it is written by.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dimension::ApiKey => "api_key",
            Dimension::Client => "client",
            Dimension::Ip => "ip",
            Dimension::Endpoint => "endpoint",
            Dimension::Path => "path",
            Dimension::Method => "method",
            Dimension::Tier => "tier",
            Dimension::Domain => "domain",
            Dimension::Descriptor => "descriptor",
            Dimension::Attribute(name) => name,
        })
    }
}
