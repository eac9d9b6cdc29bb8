//! The dimensions of a rule's key.

use crate::bounds::MAX_ID_BYTES;
use std::fmt;

/// A dimension of a rule's key: a property that requests are counted by.
///
/// Requests with the same values in all dimensions of a rule's key share one count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// `api_key` (or `client_key`): the client's key.
    ApiKey,
    /// `client`: the client's key if the request has one, else its address as `ip` counts it. A key and an address with
    /// the same text are two clients.
    Client,
    /// `ip`: the client's address; for IPv6 its first 64 bits, unless the file sets another prefix length.
    Ip,
    /// `endpoint`: the rule's path template or glob if it has one, so that all matching paths share a count; else the
    /// path.
    Endpoint,
    /// `path`: the path itself.
    Path,
    /// `method`: the HTTP method.
    Method,
    /// `tier`: the client's tier.
    Tier,
    /// `domain`: the domain of the request's descriptor.
    Domain,
    /// `descriptor`: the whole descriptor of the request: its domain, and the names and values of all entries.
    Descriptor,
    /// Any other name: an attribute that the caller sends.
    Attribute(Box<str>),
}

impl Dimension {
    /// The names that a key does not take for attributes.
    pub const BUILT_IN_NAMES: [&str; 11] = [
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

    /// Whether a rule may use this name for an attribute.
    pub fn is_attribute_name(name: &str) -> bool {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        name.len() <= MAX_ID_BYTES && name.bytes().all(is_known)
    }

    /// Whether every request has a value for it.
    pub(crate) fn is_always_present(&self) -> bool {
        matches!(self, Dimension::Endpoint | Dimension::Path)
    }

    /// The key that identifies a key group: `key` with `api_key` replaced by `client`. Both count clients, and they
    /// count the same where a request has a key.
    pub(crate) fn key_group(key: &[Dimension]) -> Box<[Dimension]> {
        let group = |dimension: &Dimension| match dimension {
            Dimension::ApiKey => Dimension::Client,
            other => other.clone(),
        };
        key.iter().map(group).collect()
    }

    /// The dimension with this name; a name that is not built in is an attribute.
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

/// The name that rule files use.
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
