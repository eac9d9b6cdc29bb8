//! Tests of the client address, by header, peer and proxies.

use super::*;
use AddressHeader::{Forwarded, XForwardedFor, XRealIp};
use std::net::Ipv4Addr;

/// Trusts loopback, one network, and one proxy with an IPv4 and an IPv6 address.
fn proxies(field: AddressHeader) -> TrustedProxies {
    let networks = ["127.0.0.0/8", "::1", "10.0.0.0/8", "192.0.2.1", "2001:db8:ffff::/48"];
    TrustedProxies { networks: networks.iter().map(|text| text.parse().unwrap()).collect(), header: field }
}

/// Asserts the client's address if `peer` sends these lines.
#[track_caller]
fn check(field: AddressHeader, peer: &str, lines: &[&str], client: &str) {
    let values = lines.iter().rev().map(|line| line.as_bytes());
    let found = proxies(field).client_address(peer.parse().unwrap(), values);
    assert_eq!(found.to_string(), client, "{lines:?} from {peer}");
}

#[test]
fn an_untrusted_peer_is_the_client_whatever_it_sends() {
    for field in [XForwardedFor, XRealIp, Forwarded] {
        for value in ["1.2.3.4", "127.0.0.1", "for=1.2.3.4", "", "garbage", "203.0.113.9, 10.0.0.1"] {
            check(field, "203.0.113.7", &[value], "203.0.113.7");
            check(field, "::ffff:203.0.113.7", &[value], "203.0.113.7");
            check(field, "2001:db8::7", &[value], "2001:db8::7");
        }
    }
}

#[test]
fn the_list_is_walked_from_its_end_to_the_first_untrusted_address() {
    let check = |lines: &[&str], client: &str| check(XForwardedFor, "127.0.0.1", lines, client);
    check(&[], "127.0.0.1");
    check(&["203.0.113.7"], "203.0.113.7");
    check(&["1.2.3.4, 203.0.113.7"], "203.0.113.7");
    check(&["1.2.3.4,203.0.113.7 , 10.0.0.1,\t192.0.2.1"], "203.0.113.7");
    check(&["10.0.0.1"], "10.0.0.1");
    check(&["10.0.0.2, 10.0.0.1"], "10.0.0.2");
    check(&["1.2.3.4", "203.0.113.7"], "203.0.113.7");
    check(&["1.2.3.4, 203.0.113.7", "10.0.0.1"], "203.0.113.7");
    check(&["2001:db8::7, 2001:db8:ffff::1"], "2001:db8::7");
    check(&["::ffff:203.0.113.7, ::ffff:10.0.0.1"], "203.0.113.7");
}

#[test]
fn an_invalid_entry_and_all_before_it_are_ignored() {
    let check = |lines: &[&str], client: &str| check(XForwardedFor, "127.0.0.1", lines, client);
    for invalid in [
        "unknown",
        "_hidden",
        "",
        " ",
        "localhost",
        "203.0.113",
        "203.0.113.7.9",
        "203.0.113.07",
        "0xcb007107",
        "3405803783",
        "203.0.113.7:",
        "203.0.113.7:99999",
        "203.0.113.7:80:80",
        "203.0.113.7:+80",
        "203.0.113.7/24",
        "[203.0.113.7]",
        "[2001:db8::7",
        "2001:db8::7]",
        "[2001:db8::7]x",
        "[2001:db8::7]:",
        "[[2001:db8::7]]",
        "2001:db8::7::",
        "unix:",
        "\"203.0.113.7\"",
        "203.0.113.7;1.2.3.4",
        "203.0.113.7 1.2.3.4",
        "١.٢.٣.٤",
    ] {
        check(&[invalid], "127.0.0.1");
        check(&[&format!("1.2.3.4, {invalid}")], "127.0.0.1");
        check(&[&format!("1.2.3.4, {invalid}, 10.0.0.1")], "10.0.0.1");
        check(&["1.2.3.4", invalid], "127.0.0.1");
        check(&[&format!("{invalid}, 203.0.113.7")], "203.0.113.7");
    }
    let values = [&b"1.2.3.4, \xff"[..]].into_iter();
    assert_eq!(
        proxies(XForwardedFor).client_address(Ipv4Addr::LOCALHOST.into(), values),
        Ipv4Addr::LOCALHOST
    );
}

#[test]
fn an_address_may_have_a_port_brackets_or_a_zone() {
    for (text, client) in [
        ("203.0.113.7:4711", "203.0.113.7"),
        ("203.0.113.7:_port", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("2001:DB8:0::0007", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("[::ffff:203.0.113.7]:4711", "203.0.113.7"),
        ("fe80::7%eth0", "fe80::7"),
        ("[fe80::7%25eth0]:80", "fe80::7"),
    ] {
        check(XForwardedFor, "::1", &[text], client);
        check(XRealIp, "::ffff:127.0.0.1", &[text], client);
        check(Forwarded, "10.1.2.3", &[&format!("proto=http;FOR=\"{text}\";by=_me")], client);
    }
}

#[test]
fn x_real_ip_must_have_one_address() {
    let check = |lines: &[&str], client: &str| check(XRealIp, "127.0.0.1", lines, client);
    check(&["203.0.113.7"], "203.0.113.7");
    check(&["10.0.0.9"], "10.0.0.9");
    check(&[], "127.0.0.1");
    check(&["203.0.113.7, 203.0.113.8"], "127.0.0.1");
    check(&["1.2.3.4", "203.0.113.7"], "127.0.0.1");
    check(&["unknown"], "127.0.0.1");
}

#[test]
fn the_forwarded_header_is_walked() {
    let check = |lines: &[&str], client: &str| check(Forwarded, "127.0.0.1", lines, client);
    check(&["for=203.0.113.7"], "203.0.113.7");
    check(&["For=203.0.113.7; proto=https ;by=10.0.0.1"], "203.0.113.7");
    check(&["for=1.2.3.4, for=203.0.113.7;proto=http, for=\"[2001:db8:ffff::1]:80\""], "203.0.113.7");
    check(&["for=1.2.3.4", "for=203.0.113.7, for=10.0.0.1"], "203.0.113.7");
    check(&["for=unknown"], "127.0.0.1");
    check(&["for=_gazonk, for=10.0.0.1"], "10.0.0.1");
    check(&["proto=http"], "127.0.0.1");
    check(&["for = 203.0.113.7"], "127.0.0.1");
    check(&["for=203.0.113.7;for=1.2.3.4"], "127.0.0.1");
    check(&["for=\"203.0.113.7"], "127.0.0.1");
    check(&["for=\"203.0.113.7\\\""], "127.0.0.1");
    // An opening quote further left hides nothing.
    check(&["for=\"1.2.3.4, for=203.0.113.7"], "203.0.113.7");
    check(&["for=\"", "for=203.0.113.7"], "203.0.113.7");
    check(&["for=1.2.3.4, for=203.0.113.7;note=\"a,b\""], "127.0.0.1");
}

#[test]
fn the_walk_is_bounded_even_among_trusted_proxies() {
    let long = ["1.2.3.4", &["10.0.0.1"; MAX_HOPS + 1].join(",")].join(",");
    check(XForwardedFor, "127.0.0.1", &[&long], "10.0.0.1");
    let just = ["1.2.3.4", &["10.0.0.1"; MAX_HOPS - 1].join(",")].join(",");
    check(XForwardedFor, "127.0.0.1", &[&just], "1.2.3.4");
}

/// Headers that an attacker sends, and the trusted proxies that forward them.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Forgery {
    /// The attacker's address, unless it happens to be that of a trusted proxy.
    address: [u8; 4],
    lines: Vec<Line>,
    /// The proxies that forward the request, and whether each of them adds a header line instead of appending.
    proxies: Vec<bool>,
}

#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Line(Vec<Piece>);

#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Piece {
    Known(u8),
    Byte(u8),
}

/// Pieces of valid and invalid address lists.
const PIECES: [&str; 20] = [
    ",", ", ", ";", "\"", "\\", "for=", "For=", "by=", "[", "]", ":", "%", "=", " ", "1.2.3.4", "10.0.0.1",
    "::1", "unknown", "_x", "80",
];

impl Line {
    /// The line as it could appear in a head.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.0.iter().take(40) {
            match piece {
                Piece::Known(index) => {
                    bytes.extend_from_slice(PIECES[usize::from(*index) % PIECES.len()].as_bytes());
                }
                Piece::Byte(b'\r' | b'\n' | 0) => {}
                Piece::Byte(byte) => bytes.push(*byte),
            }
        }
        bytes
    }
}

/// However a client forges the header, its address is the one that the first trusted proxy saw.
#[test]
fn who_controls_the_header_but_no_trusted_hop_cannot_choose_the_address() {
    bolero::check!().with_type::<Forgery>().for_each(|forgery| {
        let mut attacker = IpAddr::from(forgery.address);
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        if proxies(XForwardedFor).contains(attacker) {
            attacker = Ipv4Addr::new(203, 0, 113, 66).into();
        }
        let forged: Vec<Vec<u8>> = forgery.lines.iter().take(4).map(Line::bytes).collect();
        for field in [XForwardedFor, Forwarded] {
            let mut lines = forged.clone();
            let mut seen = attacker.to_string();
            for writes_a_line in forgery.proxies.iter().take(MAX_HOPS - 1).chain([&true]) {
                let entry = if field == Forwarded { format!("for={seen};proto=http") } else { seen };
                match lines.last_mut() {
                    Some(last) if !*writes_a_line => {
                        last.extend_from_slice(format!(", {entry}").as_bytes());
                    }
                    _ => lines.push(entry.into_bytes()),
                }
                seen = "10.0.0.1".to_owned();
            }
            let values = || lines.iter().rev().map(Vec::as_slice);
            assert_eq!(proxies(field).client_address(peer, values()), attacker, "{lines:?}");
            // Without a proxy in between, the header is ignored.
            assert_eq!(proxies(field).client_address(attacker, values()), attacker);
        }
        // A proxy that sets `X-Real-IP` replaces the forged one, and no other header is read.
        let real_ip = attacker.to_string();
        assert_eq!(proxies(XRealIp).client_address(peer, [real_ip.as_bytes()].into_iter()), attacker);
        // Sent directly, or through a proxy that sets no header, forged lines do no harm.
        for field in [XForwardedFor, XRealIp, Forwarded] {
            let values = || forged.iter().rev().map(Vec::as_slice);
            assert_eq!(proxies(field).client_address(attacker, values()), attacker);
            proxies(field).client_address(peer, values());
        }
    });
}
