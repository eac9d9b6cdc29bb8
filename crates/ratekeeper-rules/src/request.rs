//! Who asks, and for what.

use std::net::{IpAddr, SocketAddr};

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
pub struct CheckRequest<'a> {
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

impl<'a> CheckRequest<'a> {
    /// A request of a client for `/`, at a cost of 1, of which nothing else is known.
    pub const fn new(client_key: &'a str) -> CheckRequest<'a> {
        CheckRequest {
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

    /// Has a descriptor's entries with names that everybody knows fill the plain fields that are empty, so that ordinary
    /// rules bind it too: `api_key` or `client_key`, `path` or `endpoint`, `method`, `tier`, and `remote_address` or `ip`.
    /// The first of two counts.
    #[must_use]
    pub fn told_by(mut self, entries: &[Attribute<'a>]) -> CheckRequest<'a> {
        for (name, value) in entries {
            let text = match *name {
                "client_key" | "api_key" => &mut self.client_key,
                "endpoint" | "path" | ":path" => &mut self.endpoint,
                "method" | ":method" => &mut self.method,
                "tier" => &mut self.tier,
                "ip" | "remote_address" | "masked_remote_address" => {
                    self.ip = self.ip.or_else(|| address(value));
                    continue;
                }
                _ => continue,
            };
            if text.is_empty() {
                *text = value;
            }
        }
        self
    }

    /// An attribute's value.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// An address as it is written, with a port, or as the network that it was cut down to.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.split_once('/').map_or(text, |(network, _)| network);
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_in_several_forms() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:80", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("2001:db8::/64", "2001:db8::"),
        ] {
            assert_eq!(address(text), Some(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "/", "192.0.2", "192.0.2.7:", "[192.0.2.7", "localhost", "unix:/tmp/socket"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
