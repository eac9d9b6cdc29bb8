//! The client's key in a forward-auth request.
//!
//! `header:x-api-key,query:api_key,ip` is a list of sources in order of preference. A source that appears twice in a
//! request is rejected: the server behind the proxy might use the other one. Keys for addresses have a prefix that
//! clients may not send, so no client can spend another's units by sending that address as its key.

use super::escape::{is_token, percent_decode};
use crate::http::{HttpError, RequestHead};
use ratekeeper::rules::RequestField;
use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The prefix of keys that are derived from an address.
const ADDRESS_PREFIX: &str = "ip:";
/// The prefix length that identifies an IPv6 client: it chooses the other half of its address itself.
const NETWORK_BITS: u32 = 64;
/// The most sources in a list: more than there are usual places for keys.
const MOST_SOURCES: usize = 8;
/// The capacity of an [`InlineText`]. An address key has at most 45 bytes.
const MAX_INLINE_BYTES: usize = 52;
/// The most bytes of a header or parameter name.
const MAX_NAME_BYTES: usize = 128;

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

/// The client's address only.
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
        for (part, source) in parse_sources(text) {
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

/// Why a list of key sources is invalid, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySourcesError {
    /// An entry is not a key source.
    #[error("{found:?} is not a key source: write header:NAME, query:NAME or ip, with commas between them")]
    Unknown {
        /// The entry, or its beginning.
        found: String,
    },
    /// The list is too long.
    #[error("more than {MOST_SOURCES} key sources: keep those that are used")]
    TooMany,
}

/// The entries of a list, each with its parsed source.
fn parse_sources(list: &str) -> impl Iterator<Item = (&str, Result<KeySource<'_>, KeySourcesError>)> {
    list.split(',').map(str::trim).enumerate().map(|(index, part)| {
        let source = match KeySource::parse(part) {
            _ if index == MOST_SOURCES => Err(KeySourcesError::TooMany),
            None => Err(KeySourcesError::Unknown { found: part.chars().take(64).collect() }),
            Some(source) => Ok(source),
        };
        (part, source)
    })
}

/// One source of a key.
#[derive(Clone, Copy, Debug)]
enum KeySource<'a> {
    Header(&'a str),
    /// A query parameter of the client's request.
    Query(&'a str),
    /// The client's address.
    Ip,
}

impl<'a> KeySource<'a> {
    fn parse(text: &'a str) -> Option<KeySource<'a>> {
        let fits = |name: &&str| (1..=MAX_NAME_BYTES).contains(&name.len());
        if text == "ip" {
            return Some(KeySource::Ip);
        }
        match text.split_once(':')? {
            ("header", name) => Some(name).filter(fits).filter(|name| is_token(name)).map(KeySource::Header),
            ("query", name) => Some(name).filter(fits).map(KeySource::Query),
            _ => None,
        }
    }
}

/// A client's key, as rules see it.
#[derive(Debug)]
pub(super) enum ForwardKey<'a> {
    /// No source has a key.
    Missing,
    /// The key that the client sent, which may be a secret.
    Sent(Cow<'a, str>),
    /// A key derived from its address.
    Address(InlineText),
}

impl<'a> ForwardKey<'a> {
    /// Finds the key in the first source of the list that has one. `query` is that of the client's request.
    pub(super) fn find(
        list: &str,
        head: &RequestHead<'a>,
        query: Option<&'a [u8]>,
        address: IpAddr,
    ) -> Result<ForwardKey<'a>, HttpError> {
        let mut key = ForwardKey::Missing;
        // Sources after the one that is used are parsed too, so that a mistake in the list shows for every client.
        for (_, source) in parse_sources(list) {
            let source =
                source.map_err(|error| HttpError::invalid_forward_auth(format_args!("key: {error}")))?;
            if let ForwardKey::Missing = key {
                key = match source {
                    KeySource::Header(name) => {
                        key_from_header(head, name)?.map_or(ForwardKey::Missing, ForwardKey::Sent)
                    }
                    KeySource::Query(name) => key_from_query(query.unwrap_or_default(), name)?
                        .map_or(ForwardKey::Missing, ForwardKey::Sent),
                    KeySource::Ip => ForwardKey::Address(address_key(address)),
                };
            }
        }
        Ok(key)
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            ForwardKey::Missing => "",
            ForwardKey::Sent(key) => key,
            ForwardKey::Address(key) => key.as_str(),
        }
    }
}

fn key_from_header<'a>(head: &RequestHead<'a>, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let mut values = head.header_values(name);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(HttpError::invalid_forward_auth(format_args!(
            "the header {name} is sent twice, so the client is ambiguous"
        )));
    }
    let value = if name.eq_ignore_ascii_case("authorization") { credentials(value) } else { value };
    validate_key(Cow::Borrowed(value), name)
}

/// The credentials after the scheme of an `Authorization` header. Clients may spell the scheme in any case.
fn credentials(value: &[u8]) -> &[u8] {
    match value.iter().position(|byte| *byte == b' ') {
        Some(space) => value[space..].trim_ascii_start(),
        None => value,
    }
}

fn key_from_query<'a>(query: &'a [u8], name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let mut found = None;
    for pair in query.split(|byte| *byte == b'&') {
        let (known, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &[][..]),
        };
        // The server behind the proxy decodes escapes, so a client can't hide a key by escaping its name.
        if *percent_decode(known) == *name.as_bytes() && found.replace(value).is_some() {
            return Err(HttpError::invalid_forward_auth(format_args!(
                "the parameter {name} is sent twice, so the client is ambiguous"
            )));
        }
    }
    found.map_or(Ok(None), |value| validate_key(percent_decode(value), name))
}

/// Validates a key. Returns `None` if it is empty.
fn validate_key<'a>(value: Cow<'a, [u8]>, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let text = match value {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    match text {
        None => Err(HttpError::invalid_forward_auth(format_args!("the key in {name} is not UTF-8"))),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) if RequestField::ClientKey.check(&text).is_err() => {
            let max = RequestField::ClientKey.bound().max;
            Err(HttpError::invalid_forward_auth(format_args!("the key in {name} has more than {max} bytes")))
        }
        Some(text) if text.starts_with(ADDRESS_PREFIX) => Err(HttpError::invalid_forward_auth(format_args!(
            "the key in {name} begins with {ADDRESS_PREFIX}, which is reserved for addresses"
        ))),
        Some(text) => Ok(Some(text)),
    }
}

/// The key of an address: `ip:192.0.2.7`, or the network of an IPv6 address, `ip:2001:db8:1:2::/64`.
fn address_key(address: IpAddr) -> InlineText {
    match address.to_canonical() {
        IpAddr::V4(address) => InlineText::new(format_args!("{ADDRESS_PREFIX}{address}")),
        IpAddr::V6(address) => {
            let network = Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - NETWORK_BITS)));
            InlineText::new(format_args!("{ADDRESS_PREFIX}{network}/{NETWORK_BITS}"))
        }
    }
}

/// A short string without a heap allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineText {
    bytes: [u8; MAX_INLINE_BYTES],
    length: usize,
}

impl InlineText {
    fn new(text: fmt::Arguments<'_>) -> InlineText {
        let mut bytes = [0; MAX_INLINE_BYTES];
        let mut rest = &mut bytes[..];
        rest.write_fmt(text).expect("an address key fits");
        let length = MAX_INLINE_BYTES - rest.len();
        InlineText { bytes, length }
    }

    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).expect("it was written as UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_keys_are_reserved() {
        let key = |text: &str| address_key(text.parse().unwrap()).as_str().to_owned();
        assert_eq!(key("192.0.2.7"), "ip:192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), "ip:192.0.2.7");
        assert_eq!(key("2001:db8:1:2:3:4:5:6"), "ip:2001:db8:1:2::/64");
        assert_eq!(
            key("2001:db80:1000:2000:ffff:ffff:ffff:ffff"),
            "ip:2001:db80:1000:2000::/64",
            "the longest network"
        );
        assert_eq!(key("::1"), "ip:::/64");
        let forged = validate_key(Cow::Borrowed(b"ip:192.0.2.7"), "x-api-key").unwrap_err();
        assert!(forged.to_string().contains("begins with ip:"), "{forged}");
    }

    #[test]
    fn a_key_in_a_query_is_decoded() {
        let found =
            |query: &str| key_from_query(query.as_bytes(), "api_key").map(|key| key.map(Cow::into_owned));
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
    fn credentials_follow_the_scheme() {
        for (value, key) in
            [("Bearer abc", "abc"), ("bearer   abc", "abc"), ("abc", "abc"), ("Basic a=", "a=")]
        {
            assert_eq!(credentials(value.as_bytes()), key.as_bytes());
        }
    }

    #[test]
    fn an_invalid_list_of_sources_is_reported() {
        for good in ["ip", "header:x-api-key", " header:X-Key , query:api_key ,ip"] {
            assert!(good.parse::<KeySources>().is_ok(), "{good}");
        }
        for bad in ["", "ip,", "header:", "header:x y", "header:é", "query:", "cookie:a", "x-api-key", "ip:1"]
        {
            let error = bad.parse::<KeySources>().unwrap_err().to_string();
            assert!(error.contains("is not a key source: write header:NAME"), "{bad}: {error}");
        }
        assert_eq!(["ip"; 9].join(",").parse::<KeySources>(), Err(KeySourcesError::TooMany));
    }
}
