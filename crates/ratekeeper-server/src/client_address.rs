//! Whose request it is, where proxies stand in between.
//!
//! Who is at the other end of a connection is certain; what a header says is what somebody wrote. So an address is
//! believed if one that is trusted told it: the peer if that is trusted, then whoever it names if that is trusted too,
//! and so on back towards the client. Proxies add to a list at its end, so the walk begins there, and nothing to the left
//! of the first stranger is ever looked at: that is what the stranger wrote itself. Where something can't be read the walk
//! ends too, at whoever told it.
//!
//! One field is believed and no other. A proxy sees to the field that it was told to and hands all others on as the client
//! wrote them, so a server that takes whichever is there lets the client choose.

use ratekeeper::rules::Cidr;
use std::net::{IpAddr, Ipv6Addr};

/// The most proxies in a row that are believed. A list can be as long as a head, and every entry costs a little.
const MAX_HOPS: usize = 32;

/// The header field in which proxies tell whose request it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressField {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.1`: every proxy adds whom it was asked by.
    #[default]
    XForwardedFor,
    /// `X-Real-IP: 203.0.113.7`: the outermost proxy says it, and the others hand it on.
    XRealIp,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"`, as RFC 7239 has it.
    Forwarded,
}

impl AddressField {
    /// Its name, in lower case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AddressField::XForwardedFor => "x-forwarded-for",
            AddressField::XRealIp => "x-real-ip",
            AddressField::Forwarded => "forwarded",
        }
    }
}

/// The proxies that are believed when they tell whose request it is.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    /// Where they are.
    pub networks: Vec<Cidr>,
    /// How they tell it.
    pub field: AddressField,
}

/// This machine alone, by `X-Forwarded-For`.
impl Default for TrustedProxies {
    fn default() -> TrustedProxies {
        let loopback = ["127.0.0.0/8", "::1"];
        let networks = loopback.map(|network| network.parse().expect("these are networks"));
        TrustedProxies { networks: networks.into(), field: AddressField::default() }
    }
}

impl TrustedProxies {
    /// Whether an address is one of theirs.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The client that a request is from: `peer` sent it, with these lines of the field, the last of them first.
    pub(crate) fn client<'a>(&self, peer: IpAddr, lines: impl Iterator<Item = &'a [u8]>) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contain(peer) {
            return peer;
        }
        // Quotes are not looked at: whoever wrote an opening one further left would have the rest swallowed. An element
        // that has a comma in quotes falls apart, and is not believed.
        let elements = |line: &'a [u8]| line.rsplit(|byte| *byte == b',');
        match self.field {
            AddressField::XForwardedFor => self.walk(peer, lines.flat_map(elements).map(address)),
            AddressField::Forwarded => self.walk(peer, lines.flat_map(elements).map(forwarded_for)),
            AddressField::XRealIp => only(lines).and_then(address).unwrap_or(peer),
        }
    }

    /// Goes back from one who is trusted, as far as trust reaches.
    fn walk(&self, from: IpAddr, told: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = from;
        for address in told.take(MAX_HOPS) {
            let Some(address) = address else { break };
            client = address;
            if !self.contain(client) {
                break;
            }
        }
        client
    }
}

/// The only one there is. Of two, one is the client's own.
fn only<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let first = lines.next();
    first.filter(|_| lines.next().is_none())
}

/// Reads `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:4711` or `fe80::1%eth0`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let address = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (inner, behind) = bracketed.split_once(']')?;
            let is_port = behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port);
            IpAddr::V6(is_port.then(|| ipv6(inner))??)
        }
        None => match text.split_once(':') {
            None => IpAddr::V4(text.parse().ok()?),
            Some((host, port)) if host.contains('.') => {
                IpAddr::V4(is_port(port).then(|| host.parse().ok())??)
            }
            Some(_) => IpAddr::V6(ipv6(text)?),
        },
    };
    Some(address.to_canonical())
}

/// A zone says which of a machine's networks is meant, which is nothing to others.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    text.split('%').next()?.parse().ok()
}

/// A port, or what stands for one that nobody is to know.
fn is_port(text: &str) -> bool {
    let is_hidden = text.strip_prefix('_').is_some_and(|name| !name.is_empty());
    // A sign would be read as part of the number.
    is_hidden || !text.starts_with('+') && text.parse::<u16>().is_ok()
}

/// Reads an element of `Forwarded`: pairs with semicolons between them, of which one is `for`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut nodes = element.split(|byte| *byte == b';').filter_map(|pair| {
        let (name, value) = pair.trim_ascii().split_at_checked(b"for=".len())?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    });
    let (Some(node), None) = (nodes.next(), nodes.next()) else { return None };
    match node {
        [b'"', inner @ .., b'"'] => address(inner),
        node => address(node),
    }
}

#[cfg(test)]
mod tests;
