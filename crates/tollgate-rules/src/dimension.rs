//! What requests are told apart by when they are counted.

use crate::spec::MOST_ID;
use std::fmt;

/// What requests are told apart by when they are counted. Those that agree in all dimensions of a rule's key share
/// one count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// `api_key` (or `client_key`): the client's key.
    ApiKey,
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
    pub(crate) const NAMES: [&str; 10] = [
        "api_key",
        "client_key",
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

    /// The dimension of a name. Names that no built-in one has are attributes.
    pub fn named(name: &str) -> Dimension {
        match name {
            "api_key" | "client_key" => Dimension::ApiKey,
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
