//! IP networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An IP network: an address and a prefix length.
///
/// An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts as the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The first address of the network.
    first: u128,
    /// The prefix length out of 128 bits; an IPv4 network is stored within `::ffff:0:0/96`.
    prefix_len: u8,
}

impl Cidr {
    /// Whether the network contains the address.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        mask(to_ipv6_bits(address), self.prefix_len) == self.first
    }

    /// The network with this prefix length (out of 128 bits) that contains the address.
    pub(crate) fn containing(address: IpAddr, prefix_len: u8) -> Cidr {
        Cidr { first: mask(to_ipv6_bits(address), prefix_len), prefix_len }
    }

    /// The prefix length out of 128 bits.
    pub(crate) fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// The network with a prefix of at most `bits` that contains this one.
    pub(crate) fn supernet(&self, bits: u8) -> Cidr {
        let bits = bits.min(self.prefix_len);
        Cidr { first: mask(self.first, bits), prefix_len: bits }
    }

    /// Whether the network contains every address of `other`.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.prefix_len <= other.prefix_len && mask(other.first, self.prefix_len) == self.first
    }
}

fn to_ipv6_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(address: u128, bits: u8) -> u128 {
    match bits {
        0 => 0,
        bits => address & (u128::MAX << (128 - bits)),
    }
}

/// The address that rules count by: IPv4 unchanged, IPv6 truncated to its first `bits` bits.
pub(crate) fn truncate_ipv6(address: IpAddr, bits: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(mask(address.to_bits(), bits))),
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address)?;
        let (most, skipped) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or(CidrError::Prefix { most })?,
            None => most,
        } + skipped;
        let first = to_ipv6_bits(address);
        if mask(first, bits) == first {
            Ok(Cidr { first, prefix_len: bits })
        } else {
            Err(CidrError::HostBits { network: Cidr { first: mask(first, bits), prefix_len: bits } })
        }
    }
}

/// CIDR notation; a single address is written without a prefix length.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.first);
        let (address, bits, most) = match (address.to_ipv4_mapped(), self.prefix_len.checked_sub(96)) {
            (Some(address), Some(bits)) => (IpAddr::V4(address), bits, 32),
            _ => (IpAddr::V6(address), self.prefix_len, 128),
        };
        if bits == most { write!(f, "{address}") } else { write!(f, "{address}/{bits}") }
    }
}

/// Why a text is not a valid network, and what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CidrError {
    /// The address can't be parsed.
    #[error("write an address or a network, like 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32")]
    Address,
    /// The prefix length is not a number, or out of range.
    #[error("the number after / is the prefix length: write 0 to {most}")]
    Prefix {
        /// The longest prefix of this address family.
        most: u8,
    },
    /// The address has bits set after its prefix.
    #[error(
        "the address has bits set after its prefix: write {network} for the whole network, or the address alone"
    )]
    HostBits {
        /// The network that contains the address.
        network: Cidr,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn contains_addresses_in_either_notation() {
        let contains = |net: &str, address: &str| cidr(net).contains(address.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("192.0.2.7", "192.0.2.7"));
        assert!(!contains("192.0.2.7", "192.0.2.8"));
        assert!(contains("0.0.0.0/0", "8.8.8.8"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!contains("2001:db8::/32", "2001:db9::1"));
        for text in ["10.0.0.0/8", "192.0.2.7", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0"] {
            assert_eq!(cidr(text).to_string(), text);
        }
        assert!(cidr("10.0.0.0/8").covers(&cidr("10.1.0.0/16")));
        assert!(!cidr("10.1.0.0/16").covers(&cidr("10.0.0.0/8")));
    }

    #[test]
    fn invalid_networks_are_rejected_with_advice() {
        for bad in ["", "sk_*", "10.0.0", "10.0.0.0.0", "/8", "host/8"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError::Address), "{bad}");
        }
        for bad in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/x", "10.0.0.0/256"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError::Prefix { most: 32 }), "{bad}");
        }
        assert_eq!(
            "10.1.2.3/8".parse::<Cidr>().unwrap_err().to_string(),
            "the address has bits set after its prefix: write 10.0.0.0/8 for the whole network, or the address alone"
        );
    }

    #[test]
    fn ipv6_clients_are_counted_by_network() {
        let count = |address: &str, bits| truncate_ipv6(address.parse().unwrap(), bits).to_string();
        assert_eq!(count("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(count("2001:db8:1:2:3:4:5:6", 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(count("10.1.2.3", 64), "10.1.2.3");
        assert_eq!(count("::ffff:10.1.2.3", 64), "10.1.2.3");
    }
}
