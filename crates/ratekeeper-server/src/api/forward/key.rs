//! Where the key of a client is found in a request that a proxy asks about.
//!
//! `header:x-api-key,query:api_key,ip` is a list in order of preference. What is there twice is refused: whoever is behind
//! the proxy might read the other one. A key that names an address is never what a client wrote, so nobody can spend
//! somebody else's units by sending that address as a key.

use super::escape::{decoded, is_name};
use crate::http::{HttpError, RequestHead};
use ratekeeper::MAX_KEY_BYTES;
use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// What keys that stand for an address begin with.
const OF_ADDRESS: &str = "ip:";
/// Of an IPv6 address, the network counts: its other half is the client's to choose.
const NETWORK_BITS: u32 = 64;
/// The most sources in a list: there are no more places where keys are usually sent.
const MOST_SOURCES: usize = 8;
/// An address with its prefixes has at most 45 bytes.
const MOST_BRIEF_BYTES: usize = 52;
/// The most bytes of a header's or a parameter's name.
const MOST_NAME_BYTES: usize = 128;

/// Where to look for a client's key, in order of preference.
///
/// ```
/// use ratekeeper_server::KeySources;
///
/// let sources: KeySources = "header:x-api-key, query:api_key, ip".parse()?;
/// assert_eq!(sources.to_string(), "header:x-api-key,query:api_key,ip");
/// assert_eq!(KeySources::default().to_string(), "ip");
/// # Ok::<(), ratekeeper_server::KeySourcesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySources(String);

/// The client's address.
impl Default for KeySources {
    fn default() -> KeySources {
        KeySources("ip".to_owned())
    }
}

impl fmt::Display for KeySources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KeySources {
    type Err = KeySourcesError;

    fn from_str(text: &str) -> Result<KeySources, KeySourcesError> {
        let mut parts = Vec::new();
        for (part, source) in sources(text) {
            source?;
            parts.push(part);
        }
        Ok(KeySources(parts.join(",")))
    }
}

impl KeySources {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a list says nothing, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySourcesError {
    /// A part of it is no place where a key could be.
    #[error("{found:?} is no place for a key: write header:NAME, query:NAME or ip, with commas between them")]
    Unknown {
        /// That part, or its beginning.
        found: String,
    },
    /// It goes on for too long.
    #[error("there are more than {MOST_SOURCES} places for a key: keep those that are used")]
    TooMany,
}

/// The parts of a list, each with where it says to look.
fn sources(list: &str) -> impl Iterator<Item = (&str, Result<KeySource<'_>, KeySourcesError>)> {
    list.split(',').map(str::trim).enumerate().map(|(index, part)| {
        let source = match KeySource::read(part) {
            _ if index == MOST_SOURCES => Err(KeySourcesError::TooMany),
            None => Err(KeySourcesError::Unknown { found: part.chars().take(64).collect() }),
            Some(source) => Ok(source),
        };
        (part, source)
    })
}

/// One place where a key may be.
#[derive(Clone, Copy, Debug)]
enum KeySource<'a> {
    Header(&'a str),
    /// A parameter of what the client asked for.
    Query(&'a str),
    /// The address itself.
    Ip,
}

impl<'a> KeySource<'a> {
    fn read(text: &'a str) -> Option<KeySource<'a>> {
        let fits = |name: &&str| (1..=MOST_NAME_BYTES).contains(&name.len());
        if text == "ip" {
            return Some(KeySource::Ip);
        }
        match text.split_once(':')? {
            ("header", name) => Some(name).filter(fits).filter(|name| is_name(name)).map(KeySource::Header),
            ("query", name) => Some(name).filter(fits).map(KeySource::Query),
            _ => None,
        }
    }
}

/// A client's key, as rules see it.
#[derive(Debug)]
pub(super) enum ForwardKey<'a> {
    /// There is none.
    Nobody,
    /// What the client sent. It may well be a secret.
    Sent(Cow<'a, str>),
    /// What stands for its address.
    Address(InlineText),
}

impl<'a> ForwardKey<'a> {
    /// Looks in all places of a list. `query` is that of what the client asked for.
    pub(super) fn find(
        list: &str,
        head: &RequestHead<'a>,
        query: Option<&'a [u8]>,
        address: IpAddr,
    ) -> Result<ForwardKey<'a>, HttpError> {
        let mut key = ForwardKey::Nobody;
        // Those behind the one that is used are read too: a mistake is one for every client.
        for (_, source) in sources(list) {
            let source = source.map_err(|error| HttpError::unclear(format_args!("key: {error}")))?;
            if let ForwardKey::Nobody = key {
                key = match source {
                    KeySource::Header(name) => {
                        in_header(head, name)?.map_or(ForwardKey::Nobody, ForwardKey::Sent)
                    }
                    KeySource::Query(name) => in_query(query.unwrap_or_default(), name)?
                        .map_or(ForwardKey::Nobody, ForwardKey::Sent),
                    KeySource::Ip => ForwardKey::Address(of_address(address)),
                };
            }
        }
        Ok(key)
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            ForwardKey::Nobody => "",
            ForwardKey::Sent(key) => key,
            ForwardKey::Address(key) => key.as_str(),
        }
    }
}

fn in_header<'a>(head: &RequestHead<'a>, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let mut values = head.values(name);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(HttpError::unclear(format_args!(
            "the header {name} is there twice, and may mean two clients"
        )));
    }
    let value = match name.eq_ignore_ascii_case("authorization") {
        true => credentials(value),
        false => value,
    };
    usable(Cow::Borrowed(value), name)
}

/// What stands behind the scheme of an `Authorization`. Clients may spell the scheme as they like.
fn credentials(value: &[u8]) -> &[u8] {
    match value.iter().position(|byte| *byte == b' ') {
        Some(blank) => value[blank..].trim_ascii_start(),
        None => value,
    }
}

fn in_query<'a>(query: &'a [u8], name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let mut found = None;
    for pair in query.split(|byte| *byte == b'&') {
        let (known, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &[][..]),
        };
        // Whoever is behind the proxy undoes the escapes, so nobody may hide a key by writing them.
        if *decoded(known) == *name.as_bytes() && found.replace(value).is_some() {
            return Err(HttpError::unclear(format_args!(
                "the parameter {name} is there twice, and may mean two clients"
            )));
        }
    }
    found.map_or(Ok(None), |value| usable(decoded(value), name))
}

/// A key that is there can be counted by, or the request is refused.
fn usable<'a>(value: Cow<'a, [u8]>, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let text = match value {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    match text {
        None => Err(HttpError::unclear(format_args!("the key in {name} is no text"))),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) if text.len() > MAX_KEY_BYTES => {
            Err(HttpError::unclear(format_args!("the key in {name} has more than {MAX_KEY_BYTES} bytes")))
        }
        Some(text) if text.starts_with(OF_ADDRESS) => Err(HttpError::unclear(format_args!(
            "the key in {name} begins with {OF_ADDRESS}, as only addresses do"
        ))),
        Some(text) => Ok(Some(text)),
    }
}

/// `ip:192.0.2.7`, or the network of an IPv6 address: `ip:2001:db8:1:2::/64`.
fn of_address(address: IpAddr) -> InlineText {
    match address.to_canonical() {
        IpAddr::V4(address) => InlineText::new(format_args!("{OF_ADDRESS}{address}")),
        IpAddr::V6(address) => {
            let network = Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - NETWORK_BITS)));
            InlineText::new(format_args!("{OF_ADDRESS}{network}/{NETWORK_BITS}"))
        }
    }
}

/// Text so short that it needs no memory of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineText {
    bytes: [u8; MOST_BRIEF_BYTES],
    length: usize,
}

impl InlineText {
    fn new(text: fmt::Arguments<'_>) -> InlineText {
        let mut bytes = [0; MOST_BRIEF_BYTES];
        let mut rest = &mut bytes[..];
        rest.write_fmt(text).expect("it has at most as many bytes");
        let length = MOST_BRIEF_BYTES - rest.len();
        InlineText { bytes, length }
    }

    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).expect("it was written as text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_key_that_no_client_can_write() {
        let key = |text: &str| of_address(text.parse().unwrap()).as_str().to_owned();
        assert_eq!(key("192.0.2.7"), "ip:192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), "ip:192.0.2.7");
        assert_eq!(key("2001:db8:1:2:3:4:5:6"), "ip:2001:db8:1:2::/64");
        assert_eq!(
            key("2001:db80:1000:2000:ffff:ffff:ffff:ffff"),
            "ip:2001:db80:1000:2000::/64",
            "the longest network"
        );
        assert_eq!(key("::1"), "ip:::/64");
        let forged = usable(Cow::Borrowed(b"ip:192.0.2.7"), "x-api-key").unwrap_err();
        assert!(forged.to_string().contains("begins with ip:"), "{forged}");
    }

    #[test]
    fn a_key_in_a_query_is_found_however_it_is_spelled() {
        let found = |query: &str| in_query(query.as_bytes(), "api_key").map(|key| key.map(Cow::into_owned));
        let is = |query: &str, key: &str| assert_eq!(found(query).unwrap().as_deref(), Some(key), "{query}");
        is("api_key=abc", "abc");
        is("a=b&api_key=abc&c", "abc");
        is("api%5fkey=a%62c", "abc");
        is("api_key=a+b%20c%2B", "a b c+");
        is("api_key=a=b", "a=b");
        is("api_key=%zz%", "%zz%");
        for query in ["", "api_key", "api_key=", "xapi_key=abc", "API_KEY=abc", "a=api_key=abc"] {
            assert_eq!(found(query).unwrap(), None, "{query}");
        }
        for query in ["api_key=a&api_key=b", "api_key=a&api%5Fkey=", "api_key&api_key=b", "api_key=%ff"] {
            found(query).unwrap_err();
        }
    }

    #[test]
    fn credentials_are_what_stands_behind_the_scheme() {
        for (value, key) in
            [("Bearer abc", "abc"), ("bearer   abc", "abc"), ("abc", "abc"), ("Basic a=", "a=")]
        {
            assert_eq!(credentials(value.as_bytes()), key.as_bytes());
        }
    }

    #[test]
    fn a_list_of_sources_says_what_is_wrong_with_it() {
        for good in ["ip", "header:x-api-key", " header:X-Key , query:api_key ,ip"] {
            assert!(good.parse::<KeySources>().is_ok(), "{good}");
        }
        for bad in ["", "ip,", "header:", "header:x y", "header:é", "query:", "cookie:a", "x-api-key", "ip:1"]
        {
            let said = bad.parse::<KeySources>().unwrap_err().to_string();
            assert!(said.contains("is no place for a key: write header:NAME"), "{bad}: {said}");
        }
        assert_eq!(["ip"; 9].join(",").parse::<KeySources>(), Err(KeySourcesError::TooMany));
    }
}
