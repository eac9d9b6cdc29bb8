//! Networks.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address and how many of its leading bits count.
///
/// An IPv4 address that is written as IPv6 (`::ffff:10.0.0.1`) is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The first address.
    first: u128,
    /// How many leading bits of the 128 count; IPv4 is counted within `::ffff:0:0/96`.
    bits: u8,
}

impl Cidr {
    /// Whether an address is in it.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        cut(widen(address), self.bits) == self.first
    }

    /// The network of an address that has so many leading bits of the 128.
    pub(crate) fn around(address: IpAddr, bits: u8) -> Cidr {
        Cidr { first: cut(widen(address), bits), bits }
    }

    /// How many leading bits of the 128 count.
    pub(crate) fn bits(&self) -> u8 {
        self.bits
    }

    /// The network of so many leading bits that it is in.
    pub(crate) fn widened(&self, bits: u8) -> Cidr {
        let bits = bits.min(self.bits);
        Cidr { first: cut(self.first, bits), bits }
    }

    /// Whether every address of the other is in it.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.bits <= other.bits && cut(other.first, self.bits) == self.first
    }
}

fn widen(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn cut(address: u128, bits: u8) -> u128 {
    match bits {
        0 => 0,
        bits => address & (u128::MAX << (128 - bits)),
    }
}

/// An address as rules count it: IPv4 as it is, IPv6 cut to its first `bits`.
pub(crate) fn counted(address: IpAddr, bits: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(cut(address.to_bits(), bits))),
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
        let first = widen(address);
        match cut(first, bits) == first {
            true => Ok(Cidr { first, bits }),
            false => Err(CidrError::Host { network: Cidr { first: cut(first, bits), bits } }),
        }
    }
}

/// As it is written; a single address without a prefix.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.first);
        let (address, bits, most) = match (address.to_ipv4_mapped(), self.bits.checked_sub(96)) {
            (Some(address), Some(bits)) => (IpAddr::V4(address), bits, 32),
            _ => (IpAddr::V6(address), self.bits, 128),
        };
        if bits == most { write!(f, "{address}") } else { write!(f, "{address}/{bits}") }
    }
}

/// Why text is no network, and what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CidrError {
    /// There is no address.
    #[error("write an address or a network, like 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32")]
    Address,
    /// The prefix does not fit.
    #[error("the number behind / is how many leading bits count: write 0 to {most}")]
    Prefix {
        /// The most bits.
        most: u8,
    },
    /// Bits are set that do not count.
    #[error(
        "the address has bits behind its prefix: write {network} for the whole network, or the address alone"
    )]
    Host {
        /// The network that it is in.
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
    fn a_network_holds_its_addresses_however_they_are_written() {
        let holds = |net: &str, address: &str| cidr(net).contains(address.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(holds("192.0.2.7", "192.0.2.7"));
        assert!(!holds("192.0.2.7", "192.0.2.8"));
        assert!(holds("0.0.0.0/0", "8.8.8.8"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::1"));
        for text in ["10.0.0.0/8", "192.0.2.7", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0"] {
            assert_eq!(cidr(text).to_string(), text);
        }
        assert!(cidr("10.0.0.0/8").covers(&cidr("10.1.0.0/16")));
        assert!(!cidr("10.1.0.0/16").covers(&cidr("10.0.0.0/8")));
    }

    #[test]
    fn what_is_no_network_is_refused_with_advice() {
        for bad in ["", "sk_*", "10.0.0", "10.0.0.0.0", "/8", "host/8"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError::Address), "{bad}");
        }
        for bad in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/x", "10.0.0.0/256"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError::Prefix { most: 32 }), "{bad}");
        }
        assert_eq!(
            "10.1.2.3/8".parse::<Cidr>().unwrap_err().to_string(),
            "the address has bits behind its prefix: write 10.0.0.0/8 for the whole network, or the address alone"
        );
    }

    #[test]
    fn an_ipv6_client_is_counted_by_its_network() {
        let count = |address: &str, bits| counted(address.parse().unwrap(), bits).to_string();
        assert_eq!(count("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(count("2001:db8:1:2:3:4:5:6", 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(count("10.1.2.3", 64), "10.1.2.3");
        assert_eq!(count("::ffff:10.1.2.3", 64), "10.1.2.3");
    }
}
