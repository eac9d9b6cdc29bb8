//! The client address of a request that arrived through proxies.
//!
//! The peer address of a connection is certain; a header may be forged. So an address in a header is used only if it
//! comes from a trusted proxy: the peer if it is trusted, then the address that the peer reports if that is trusted
//! too, and so on towards the client. Proxies append to the list, so the walk starts at its end and stops at the first
//! untrusted address: everything to the left of it was written by that client. An entry that can't be parsed also stops
//! the walk, at the proxy that reported it.
//!
//! Only the one configured header is used. A proxy overwrites the header that it was configured for and forwards all
//! others as the client sent them, so a server that accepts any of them lets the client choose its address.

use ratekeeper::rules::Cidr;
use std::net::{IpAddr, Ipv6Addr};

/// The most entries that are walked. A list can be as long as a head allows, and every entry costs time.
const MAX_HOPS: usize = 32;

/// The header in which proxies report the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.1`: every proxy appends the address of its peer.
    #[default]
    XForwardedFor,
    /// `X-Real-IP: 203.0.113.7`: the outermost proxy sets it, and the others forward it.
    XRealIp,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"`, as in RFC 7239.
    Forwarded,
}

impl AddressHeader {
    /// The header name, in lower case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AddressHeader::XForwardedFor => "x-forwarded-for",
            AddressHeader::XRealIp => "x-real-ip",
            AddressHeader::Forwarded => "forwarded",
        }
    }
}

/// The proxies whose client address header is trusted.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    /// The networks of the proxies.
    pub networks: Vec<Cidr>,
    /// The header that they set.
    pub header: AddressHeader,
}

/// Loopback addresses only, with `X-Forwarded-For`.
impl Default for TrustedProxies {
    fn default() -> TrustedProxies {
        let loopback = ["127.0.0.0/8", "::1"];
        let networks = loopback.map(|network| network.parse().expect("the loopback networks are valid"));
        TrustedProxies { networks: networks.into(), header: AddressHeader::default() }
    }
}

impl TrustedProxies {
    /// Whether an address belongs to a trusted proxy.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The client's address of a request that `peer` sent. `lines` are the values of the header, the last one first.
    pub(crate) fn client_address<'a>(&self, peer: IpAddr, lines: impl Iterator<Item = &'a [u8]>) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return peer;
        }
        // Quotes are ignored when splitting: otherwise a client could hide the proxies' entries behind an opening
        // quote. An element with a quoted comma is split in two, and neither part is valid.
        let elements = |line: &'a [u8]| line.rsplit(|byte| *byte == b',');
        match self.header {
            AddressHeader::XForwardedFor => self.walk(peer, lines.flat_map(elements).map(parse_address)),
            AddressHeader::Forwarded => self.walk(peer, lines.flat_map(elements).map(parse_forwarded)),
            AddressHeader::XRealIp => single(lines).and_then(parse_address).unwrap_or(peer),
        }
    }

    /// Walks back from a trusted peer to the first untrusted address.
    fn walk(&self, peer: IpAddr, reported: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for address in reported.take(MAX_HOPS) {
            let Some(address) = address else { break };
            client = address;
            if !self.contains(client) {
                break;
            }
        }
        client
    }
}

/// The only line. Returns `None` if there are several: the client may have sent one of them.
fn single<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let first = lines.next();
    first.filter(|_| lines.next().is_none())
}

/// Parses `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:4711` or `fe80::1%eth0`.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let address = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (inner, behind) = bracketed.split_once(']')?;
            let is_port = behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port);
            IpAddr::V6(is_port.then(|| parse_ipv6(inner))??)
        }
        None => match text.split_once(':') {
            None => IpAddr::V4(text.parse().ok()?),
            Some((host, port)) if host.contains('.') => {
                IpAddr::V4(is_port(port).then(|| host.parse().ok())??)
            }
            Some(_) => IpAddr::V6(parse_ipv6(text)?),
        },
    };
    Some(address.to_canonical())
}

/// Parses an IPv6 address. A zone is ignored: it has a meaning only on the machine that wrote it.
fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    text.split('%').next()?.parse().ok()
}

/// Whether text is a port, or an obfuscated one as in RFC 7239.
fn is_port(text: &str) -> bool {
    let is_hidden = text.strip_prefix('_').is_some_and(|name| !name.is_empty());
    // `parse` would accept a plus sign.
    is_hidden || !text.starts_with('+') && text.parse::<u16>().is_ok()
}

/// Parses an element of `Forwarded`: pairs separated by semicolons, exactly one of which is `for`.
fn parse_forwarded(element: &[u8]) -> Option<IpAddr> {
    let mut nodes = element.split(|byte| *byte == b';').filter_map(|pair| {
        let (name, value) = pair.trim_ascii().split_at_checked(b"for=".len())?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    });
    let (Some(node), None) = (nodes.next(), nodes.next()) else { return None };
    match node {
        [b'"', inner @ .., b'"'] => parse_address(inner),
        node => parse_address(node),
    }
}

#[cfg(test)]
mod tests;
