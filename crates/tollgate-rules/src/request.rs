//! Who asks, and for what.

use std::net::IpAddr;

/// A fact about a request, by its name: `("tenant", "acme")`.
pub type Attribute<'a> = (&'a str, &'a str);

/// What a proxy says of a request in the terms of its own configuration: a domain, and entries in an order that matters.
///
/// Envoy sends one with each call of its rate limit service. A name may be there more than once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Whose configuration the entries belong to. Rules of one domain do not bind requests of another.
    pub domain: &'a str,
    /// Names and values, in the order in which the proxy was told to send them.
    pub entries: &'a [Attribute<'a>],
}

impl<'a> Descriptor<'a> {
    /// The domain, and then names and values in turn: what tells one descriptor from all others.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a str> {
        let entries = self.entries.iter().flat_map(|(name, value)| [*name, *value]);
        std::iter::once(self.domain).chain(entries)
    }
}

/// Who asks, for what, and how much it costs: all that rules can tell requests apart by.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The client's key; empty if it has none, and then no rule that counts by it binds.
    pub client_key: &'a str,
    /// What is asked for, as the client spelled it. Empty is `/`.
    pub endpoint: &'a str,
    /// The HTTP method, or empty.
    pub method: &'a str,
    /// The client's tier, or empty if the caller does not know.
    pub tier: &'a str,
    /// The address of the client itself.
    pub ip: Option<IpAddr>,
    /// Whatever else the caller knows. Of two with one name, the first counts.
    pub attributes: &'a [Attribute<'a>],
    /// What a proxy's configuration says of it, if it came by way of one. Its entries are not looked for among the
    /// attributes: whoever wants rules to see them there too puts them there.
    pub descriptor: Option<Descriptor<'a>>,
    /// How many units it takes.
    pub cost: u32,
}

impl<'a> Request<'a> {
    /// A request of a client for `/`, at a cost of 1, of which nothing else is known.
    pub const fn new(client_key: &'a str) -> Request<'a> {
        Request {
            client_key,
            endpoint: "",
            method: "",
            tier: "",
            ip: None,
            attributes: &[],
            descriptor: None,
            cost: 1,
        }
    }

    /// An attribute's value.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}
