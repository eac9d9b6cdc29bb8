//! Whom a request is taken to be from, by what it says and who hands it on.

use super::*;
use AddressField::{Forwarded, XForwardedFor, XRealIp};
use std::net::Ipv4Addr;

/// Trusted: this machine, one network, and one proxy with an address of either kind.
fn proxies(field: AddressField) -> TrustedProxies {
    let networks = ["127.0.0.0/8", "::1", "10.0.0.0/8", "192.0.2.1", "2001:db8:ffff::/48"];
    TrustedProxies { networks: networks.iter().map(|text| text.parse().unwrap()).collect(), field }
}

/// Who the client is, if `peer` sends these lines.
#[track_caller]
fn check(field: AddressField, peer: &str, lines: &[&str], client: &str) {
    let told = lines.iter().rev().map(|line| line.as_bytes());
    let found = proxies(field).client(peer.parse().unwrap(), told);
    assert_eq!(found.to_string(), client, "{lines:?} from {peer}");
}

#[test]
fn a_stranger_is_the_client_whatever_it_says() {
    for field in [XForwardedFor, XRealIp, Forwarded] {
        for said in ["1.2.3.4", "127.0.0.1", "for=1.2.3.4", "", "garbage", "203.0.113.9, 10.0.0.1"] {
            check(field, "203.0.113.7", &[said], "203.0.113.7");
            check(field, "::ffff:203.0.113.7", &[said], "203.0.113.7");
            check(field, "2001:db8::7", &[said], "2001:db8::7");
        }
    }
}

#[test]
fn the_list_is_walked_from_its_end_to_the_first_stranger() {
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
fn what_cannot_be_read_is_not_believed_nor_is_what_stands_before_it() {
    let check = |lines: &[&str], client: &str| check(XForwardedFor, "127.0.0.1", lines, client);
    for strange in [
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
        check(&[strange], "127.0.0.1");
        check(&[&format!("1.2.3.4, {strange}")], "127.0.0.1");
        check(&[&format!("1.2.3.4, {strange}, 10.0.0.1")], "10.0.0.1");
        check(&["1.2.3.4", strange], "127.0.0.1");
        check(&[&format!("{strange}, 203.0.113.7")], "203.0.113.7");
    }
    let told = [&b"1.2.3.4, \xff"[..]].into_iter();
    assert_eq!(proxies(XForwardedFor).client(Ipv4Addr::LOCALHOST.into(), told), Ipv4Addr::LOCALHOST);
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
fn the_real_address_is_one_or_none() {
    let check = |lines: &[&str], client: &str| check(XRealIp, "127.0.0.1", lines, client);
    check(&["203.0.113.7"], "203.0.113.7");
    check(&["10.0.0.9"], "10.0.0.9");
    check(&[], "127.0.0.1");
    check(&["203.0.113.7, 203.0.113.8"], "127.0.0.1");
    check(&["1.2.3.4", "203.0.113.7"], "127.0.0.1");
    check(&["unknown"], "127.0.0.1");
}

#[test]
fn the_standard_field_is_walked_too() {
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
    // An opening quote further left swallows nothing.
    check(&["for=\"1.2.3.4, for=203.0.113.7"], "203.0.113.7");
    check(&["for=\"", "for=203.0.113.7"], "203.0.113.7");
    check(&["for=1.2.3.4, for=203.0.113.7;note=\"a,b\""], "127.0.0.1");
}

#[test]
fn trust_ends_somewhere_even_among_friends() {
    let long = ["1.2.3.4", &["10.0.0.1"; MAX_HOPS + 1].join(",")].join(",");
    check(XForwardedFor, "127.0.0.1", &[&long], "10.0.0.1");
    let just = ["1.2.3.4", &["10.0.0.1"; MAX_HOPS - 1].join(",")].join(",");
    check(XForwardedFor, "127.0.0.1", &[&just], "1.2.3.4");
}

/// What an attacker sends, and what becomes of it on its way through proxies that can be trusted.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Forgery {
    /// The attacker's own address, unless that happens to be one of a proxy.
    address: [u8; 4],
    lines: Vec<Line>,
    /// How many proxies hand it on, and whether each of them writes a line of its own.
    proxies: Vec<bool>,
}

#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Line(Vec<Piece>);

#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Piece {
    Known(u8),
    Byte(u8),
}

/// Pieces that lists of addresses, and mistakes in them, are made of.
const PIECES: [&str; 20] = [
    ",", ", ", ";", "\"", "\\", "for=", "For=", "by=", "[", "]", ":", "%", "=", " ", "1.2.3.4", "10.0.0.1",
    "::1", "unknown", "_x", "80",
];

impl Line {
    /// As it can stand in a head.
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

/// However a client forges the field, it is found at the address that the first proxy saw, and nowhere else.
#[test]
fn who_controls_the_header_but_no_trusted_hop_cannot_choose_the_address() {
    bolero::check!().with_type::<Forgery>().for_each(|forgery| {
        let mut attacker = IpAddr::from(forgery.address);
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        if proxies(XForwardedFor).contain(attacker) {
            attacker = Ipv4Addr::new(203, 0, 113, 66).into();
        }
        let forged: Vec<Vec<u8>> = forgery.lines.iter().take(4).map(Line::bytes).collect();
        for field in [XForwardedFor, Forwarded] {
            let mut lines = forged.clone();
            let mut seen = attacker.to_string();
            for writes_a_line in forgery.proxies.iter().take(MAX_HOPS - 1).chain([&true]) {
                let told = if field == Forwarded { format!("for={seen};proto=http") } else { seen };
                match lines.last_mut() {
                    Some(last) if !*writes_a_line => {
                        last.extend_from_slice(format!(", {told}").as_bytes());
                    }
                    _ => lines.push(told.into_bytes()),
                }
                seen = "10.0.0.1".to_owned();
            }
            let told = || lines.iter().rev().map(Vec::as_slice);
            assert_eq!(proxies(field).client(peer, told()), attacker, "{lines:?}");
            // Without a proxy in between, nothing of it is looked at.
            assert_eq!(proxies(field).client(attacker, told()), attacker);
        }
        // A proxy that tells the real address replaces what was there, and nothing else is read.
        let told = attacker.to_string();
        assert_eq!(proxies(XRealIp).client(peer, [told.as_bytes()].into_iter()), attacker);
        // Straight to the server, or through a proxy that tells nothing, whatever was forged breaks nothing.
        for field in [XForwardedFor, XRealIp, Forwarded] {
            let told = || forged.iter().rev().map(Vec::as_slice);
            assert_eq!(proxies(field).client(attacker, told()), attacker);
            proxies(field).client(peer, told());
        }
    });
}
