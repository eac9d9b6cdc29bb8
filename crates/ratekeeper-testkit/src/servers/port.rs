//! A port that nobody else takes.
//!
//! A server that is to come back at the same place needs its port kept free while it is down. So the number is held by
//! a UDP socket, which is in no TCP server's way: another guard, in this process or another, cannot have the same socket and
//! looks on. It lies below the range from which the kernel gives ports to outgoing connections and to listeners that
//! don't care. When the test ends, however it ends, the kernel gives the number back.

use crate::patience::fail;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Above what well-known services use.
const FIRST: u16 = 10_240;
/// Where the kernel's own range begins if it does not say so.
const USUAL_END: u16 = 32_768;
/// With so many failures something else is wrong.
const MOST_TRIES: u64 = 10_000;

/// A TCP port of 127.0.0.1 that is free, and stays ours until this is dropped.
#[derive(Debug)]
pub struct FreePort {
    number: u16,
    _hold: UdpSocket,
}

impl FreePort {
    /// Some port.
    pub fn free() -> FreePort {
        let end = end_of_range();
        // Keyed anew in each process, so that tests that start together look in different places.
        let random = RandomState::new();
        let found = (0..MOST_TRIES).find_map(|attempt| {
            let offset = random.hash_one(attempt) % u64::from(end - FIRST);
            FreePort::hold(FIRST + u16::try_from(offset).ok()?)
        });
        match found {
            Some(port) => port,
            None => fail(&format!("no port between {FIRST} and {end} is free")),
        }
    }

    /// This port, unless somebody has it.
    fn hold(number: u16) -> Option<FreePort> {
        let hold = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // On all addresses, because so do many servers.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).ok()?;
        Some(FreePort { number, _hold: hold })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Where the kernel begins to give ports to those who don't care which.
fn end_of_range() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    // A machine that gives nearly all of them away leaves no better choice than the usual.
    first.filter(|first| *first > FIRST + 1024).unwrap_or(USUAL_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_held_or_in_use_is_nobody_elses() {
        let port = FreePort::free();
        assert!(FreePort::hold(port.number()).is_none());
        let number = port.number();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(FreePort::hold(number).is_none());
        drop(listener);
        assert!(FreePort::hold(number).is_some());
    }
}
