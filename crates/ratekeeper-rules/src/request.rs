//! The request that rules are resolved for.

use std::net::{IpAddr, SocketAddr};

/// A named attribute of a request: `("tenant", "acme")`.
pub type Attribute<'a> = (&'a str, &'a str);

/// An Envoy rate limit descriptor: a domain, and entries whose order matters.
///
/// Envoy sends descriptors with each call of its rate limit service. A name may occur more than once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The configuration that the entries belong to. Rules for one domain do not apply to requests of another.
    pub domain: &'a str,
    /// Names and values, in the order in which the proxy sends them.
    pub entries: &'a [Attribute<'a>],
}

impl<'a> Descriptor<'a> {
    /// The parts of the descriptor's counting key: the domain, then each name and value.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a str> {
        let entries = self.entries.iter().flat_map(|(name, value)| [*name, *value]);
        std::iter::once(self.domain).chain(entries)
    }
}

/// A request to check: the client, the endpoint, the cost, and all other properties that rules can match.
#[derive(Clone, Copy, Debug)]
pub struct CheckRequest<'a> {
    /// The client's key; empty if it has none, and then a rule that counts by it does what its `missing` says.
    pub client_key: &'a str,
    /// The path as the client sent it. Empty means `/`.
    pub endpoint: &'a str,
    /// The HTTP method; empty if it is not known.
    pub method: &'a str,
    /// The client's tier; empty if the caller does not know it.
    pub tier: &'a str,
    /// The address of the client itself, not of a proxy.
    pub ip: Option<IpAddr>,
    /// Further attributes. Of two with the same name, the first counts.
    pub attributes: &'a [Attribute<'a>],
    /// The descriptor that a proxy sent with the request. Its entries are not attributes: a caller who wants rules to
    /// match them as attributes adds them to `attributes` as well.
    pub descriptor: Option<Descriptor<'a>>,
    /// The number of units to take.
    pub cost: u32,
}

impl<'a> CheckRequest<'a> {
    /// A request for `/` at a cost of 1, with no other properties.
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

    /// Fills empty fields from descriptor entries with well-known names, so that rules for these fields match too:
    /// `api_key` or `client_key`, `path` or `endpoint`, `method`, `tier`, and `remote_address` or `ip`. Of several
    /// entries for one field, the first counts.
    #[must_use]
    pub fn with_known_entries(mut self, entries: &[Attribute<'a>]) -> CheckRequest<'a> {
        for (name, value) in entries {
            let text = match *name {
                "client_key" | "api_key" => &mut self.client_key,
                "endpoint" | "path" | ":path" => &mut self.endpoint,
                "method" | ":method" => &mut self.method,
                "tier" => &mut self.tier,
                "ip" | "remote_address" | "masked_remote_address" => {
                    self.ip = self.ip.or_else(|| parse_address(value));
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

    /// Returns the value of an attribute, or `None` if the request does not have it.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// Parses an address: plain, with a port, in brackets, or as a masked network (`192.0.2.0/24`).
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.split_once('/').map_or(text, |(network, _)| network);
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_in_all_forms() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:80", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("2001:db8::/64", "2001:db8::"),
        ] {
            assert_eq!(parse_address(text), Some(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "/", "192.0.2", "192.0.2.7:", "[192.0.2.7", "localhost", "unix:/tmp/socket"] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }
}
