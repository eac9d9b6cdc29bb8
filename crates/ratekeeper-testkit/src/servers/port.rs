//! A reserved TCP port.
//!
//! A server that restarts at the same address needs its port kept free while it is down. The number is reserved by a
//! UDP socket, which does not get in the way of a TCP server: another guard, in this process or another, cannot bind
//! the same UDP socket and tries another number. The number is below the range from which the kernel assigns ports to
//! outgoing connections and to listeners on port 0. The kernel releases it when the test ends, however it ends.

use crate::wait::fail;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Above the ports of well-known services.
const FIRST_PORT: u16 = 10_240;
/// Where the kernel's ephemeral range usually starts, if the kernel does not say.
const DEFAULT_END: u16 = 32_768;
/// After this many failures something else is wrong.
const MAX_ATTEMPTS: u64 = 10_000;

/// A free TCP port of 127.0.0.1, reserved until this is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _reservation: UdpSocket,
}

impl ReservedPort {
    /// Reserves a random port.
    pub fn reserve() -> ReservedPort {
        let end = end_of_range();
        // Seeded differently in each process, so that tests that start together try different ports.
        let random = RandomState::new();
        let found = (0..MAX_ATTEMPTS).find_map(|attempt| {
            let offset = random.hash_one(attempt) % u64::from(end - FIRST_PORT);
            ReservedPort::try_reserve(FIRST_PORT + u16::try_from(offset).ok()?)
        });
        match found {
            Some(port) => port,
            None => fail(&format!("no port between {FIRST_PORT} and {end} is free")),
        }
    }

    /// Reserves this port. Returns `None` if it is in use.
    fn try_reserve(number: u16) -> Option<ReservedPort> {
        let hold = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // On all addresses, as many servers bind.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).ok()?;
        Some(ReservedPort { number, _reservation: hold })
    }

    /// The port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The start of the kernel's ephemeral port range.
fn end_of_range() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    // If the ephemeral range covers nearly all ports, the usual start is as good as any.
    first.filter(|first| *first > FIRST_PORT + 1024).unwrap_or(DEFAULT_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_or_used_port_is_not_reserved_again() {
        let port = ReservedPort::reserve();
        assert!(ReservedPort::try_reserve(port.number()).is_none());
        let number = port.number();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(ReservedPort::try_reserve(number).is_none());
        drop(listener);
        assert!(ReservedPort::try_reserve(number).is_some());
    }
}
