//! The request that rules are resolved for, and the bounds of what a client may send in it.
//!
//! A server builds requests with [`RequestBuilder`], whatever protocol they come by. The bounds of texts are those of
//! [`RequestField::bound`].

use ratekeeper_core::MAX_KEY_BYTES;
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A named attribute of a request: `("tenant", "acme")`.
pub type Attribute<'a> = (&'a str, &'a str);

/// An Envoy rate limit descriptor: a domain, and entries whose order matters.
///
/// Envoy sends descriptors with each call of its rate limit service. A name may occur more than once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The configuration that the entries belong to. Rules for one domain do not apply to requests of another.
    pub domain: &'a str,
    /// Names and values, in the order in which the proxy sends them.
    pub entries: &'a [Attribute<'a>],
}

impl<'a> Descriptor<'a> {
    /// The parts of the descriptor's counting key: the domain, then each name and value.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a str> {
        let entries = self.entries.iter().flat_map(|(name, value)| [*name, *value]);
        std::iter::once(self.domain).chain(entries)
    }
}

/// A request to check: the client, the endpoint, the cost, and all other properties that rules can match.
#[derive(Clone, Copy, Debug)]
pub struct CheckRequest<'a> {
    /// The client's key; empty if it has none, and then a rule that counts by it does what its `missing` says.
    pub client_key: &'a str,
    /// The path as the client sent it. Empty means `/`.
    pub endpoint: &'a str,
    /// The HTTP method; empty if it is not known.
    pub method: &'a str,
    /// The client's tier; empty if the caller does not know it.
    pub tier: &'a str,
    /// The address of the client itself, not of a proxy.
    pub ip: Option<IpAddr>,
    /// Further attributes. Of two with the same name, the first counts.
    pub attributes: &'a [Attribute<'a>],
    /// The descriptor that a proxy sent with the request. Its entries are not attributes: a caller who wants rules to
    /// match them as attributes adds them to `attributes` as well.
    pub descriptor: Option<Descriptor<'a>>,
    /// The number of units to take.
    pub cost: u32,
}

impl<'a> CheckRequest<'a> {
    /// A request for `/` at a cost of 1, with no other properties.
    pub const fn new(client_key: &'a str) -> CheckRequest<'a> {
        CheckRequest {
            client_key,
            endpoint: "",
            method: "",
            tier: "",
            ip: None,
            attributes: &[],
            descriptor: None,
            cost: 1,
        }
    }

    /// Fills empty fields from descriptor entries with well-known names, so that rules for these fields match too:
    /// `api_key` or `client_key`, `path` or `endpoint`, `method`, `tier`, and `remote_address` or `ip`. Of several
    /// entries for one field, the first counts.
    #[must_use]
    pub fn with_known_entries(mut self, entries: &[Attribute<'a>]) -> CheckRequest<'a> {
        for (name, value) in entries {
            let text = match *name {
                "client_key" | "api_key" => &mut self.client_key,
                "endpoint" | "path" | ":path" => &mut self.endpoint,
                "method" | ":method" => &mut self.method,
                "tier" => &mut self.tier,
                "ip" | "remote_address" | "masked_remote_address" => {
                    self.ip = self.ip.or_else(|| parse_address(value));
                    continue;
                }
                _ => continue,
            };
            if text.is_empty() {
                *text = value;
            }
        }
        self
    }

    /// Returns the value of an attribute, or `None` if the request does not have it.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// A text field of a request that a client sends. Its length is bounded here, and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// The client's key.
    ClientKey,
    /// The path.
    Endpoint,
    /// The HTTP method.
    Method,
    /// The client's tier.
    Tier,
    /// The name of an attribute.
    AttributeName,
    /// The value of an attribute.
    AttributeValue,
    /// The domain of a call from Envoy.
    Domain,
    /// The name of an entry of a descriptor.
    EntryName,
    /// The value of an entry of a descriptor.
    EntryValue,
}

/// How long a field may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBound {
    /// The minimum length. The fields of a [`RequestBuilder`] may also be left empty.
    pub min: usize,
    /// The maximum length.
    pub max: usize,
    /// What is counted.
    pub unit: LengthUnit,
}

/// What the length of a text is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthUnit {
    /// Bytes in UTF-8.
    Bytes,
    /// Unicode characters.
    Characters,
}

/// The maximum number of attributes of a request.
pub const MAX_ATTRIBUTES: usize = 32;

/// The maximum number of descriptors of a call from Envoy: far more than any configuration has.
pub const MAX_DESCRIPTORS: usize = 64;

/// The maximum number of entries of a descriptor.
pub const MAX_ENTRIES: usize = 32;

impl RequestField {
    /// The bound of the field's length.
    pub const fn bound(self) -> FieldBound {
        let (min, max, unit) = match self {
            // Bytes, because stores have to keep it.
            RequestField::ClientKey => (1, MAX_KEY_BYTES, LengthUnit::Bytes),
            RequestField::Endpoint => (0, 8192, LengthUnit::Characters),
            RequestField::Method | RequestField::Tier => (0, 128, LengthUnit::Characters),
            RequestField::AttributeName => (1, 128, LengthUnit::Characters),
            RequestField::AttributeValue => (0, 4096, LengthUnit::Characters),
            // An operator has configured these two.
            RequestField::Domain | RequestField::EntryName => (1, 256, LengthUnit::Bytes),
            // It may be a header that a client has sent. This is more than Envoy accepts by default for all headers of
            // a request (60 KiB): a longer value is an error, and Envoy may let the request pass because of it.
            RequestField::EntryValue => (0, 65_535, LengthUnit::Bytes),
        };
        FieldBound { min, max, unit }
    }

    /// The name of the field in messages.
    pub const fn name(self) -> &'static str {
        match self {
            RequestField::ClientKey => "client_key",
            RequestField::Endpoint => "endpoint",
            RequestField::Method => "method",
            RequestField::Tier => "tier",
            RequestField::AttributeName => "an attribute's name",
            RequestField::AttributeValue => "an attribute",
            RequestField::Domain => "the domain",
            RequestField::EntryName => "the name of an entry",
            RequestField::EntryValue => "an entry",
        }
    }

    /// Checks a text against the bound.
    ///
    /// # Errors
    /// If the text is too short or too long.
    #[inline]
    pub fn check(self, text: &str) -> Result<(), RequestError> {
        let FieldBound { min, max, unit } = self.bound();
        let length = match unit {
            // Text has no more characters than bytes, so nearly always there is no need to count them.
            LengthUnit::Characters if text.len() > max => text.chars().count(),
            LengthUnit::Characters | LengthUnit::Bytes => text.len(),
        };
        if (min..=max).contains(&length) { Ok(()) } else { Err(RequestError::Length { field: self, length }) }
    }

    /// Reads text, which is not checked against the bound yet.
    ///
    /// # Errors
    /// If the bytes are not UTF-8.
    #[inline]
    pub fn read(self, bytes: &[u8]) -> Result<&str, RequestError> {
        str::from_utf8(bytes).map_err(|_| RequestError::NotUtf8 { field: self })
    }
}

impl fmt::Display for LengthUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LengthUnit::Bytes => "bytes",
            LengthUnit::Characters => "characters",
        })
    }
}

/// Why a request is invalid. The messages are for callers by program; a protocol may word them for its users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A text is too short or too long.
    #[error("{} has {length} {}: send at most {}", .field.name(), .field.bound().unit, .field.bound().max)]
    Length {
        /// The field.
        field: RequestField,
        /// The length of the text, in the unit of the bound.
        length: usize,
    },
    /// A text is not UTF-8.
    #[error("{} is not UTF-8: send text", .field.name())]
    NotUtf8 {
        /// The field.
        field: RequestField,
    },
    /// The client's address can't be parsed.
    #[error("ip is {found:?}: send an address, like 192.0.2.7 or 2001:db8::1")]
    InvalidAddress {
        /// The beginning of what was sent.
        found: String,
    },
    /// The cost is too high.
    #[error("cost is above {}: send a whole number up to that", u32::MAX)]
    CostTooHigh,
    /// An attribute has no name.
    #[error("an attribute has no name: send one of 1 to {} characters", RequestField::AttributeName.bound().max)]
    NamelessAttribute,
    /// There are too many attributes.
    #[error("there are more than {MAX_ATTRIBUTES} attributes: send those that rules use")]
    TooManyAttributes,
    /// Two attributes have the same name.
    #[error("the attribute {name:?} is given twice: send it once")]
    RepeatedAttribute {
        /// The name.
        name: String,
    },
    /// Neither a key, nor an address, nor an attribute says who the client is.
    #[error("the check has no client: send client_key, ip or attributes")]
    NoClient,
}

/// Builds a request from what a client has sent, in the text type `T`. Every protocol decodes into it, so a request
/// within these bounds is all that rules ever see.
///
/// ```
/// use ratekeeper_rules::{RequestBuilder, RequestError};
///
/// let mut request = RequestBuilder::default();
/// request.client_key("alice")?;
/// request.attribute("tenant", "acme")?;
/// request.cost(5)?;
/// let cost = request.with_request(|request| request.cost)?;
/// assert_eq!(cost, 5);
/// assert_eq!(RequestBuilder::<&str>::default().with_request(|_| ()), Err(RequestError::NoClient));
/// # Ok::<(), RequestError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestBuilder<T> {
    client_key: T,
    endpoint: T,
    method: T,
    tier: T,
    ip: Option<IpAddr>,
    /// Nearly all requests have a few at most, which need no allocation.
    attributes: SmallVec<[(T, T); 4]>,
    cost: Option<u32>,
}

#[expect(clippy::missing_errors_doc, reason = "the errors are those of `RequestError`")]
impl<T: AsRef<str>> RequestBuilder<T> {
    /// Sets the client's key. An empty one counts as none.
    #[inline]
    pub fn client_key(&mut self, key: T) -> Result<(), RequestError> {
        put(&mut self.client_key, RequestField::ClientKey, key)
    }

    /// Sets the path.
    #[inline]
    pub fn endpoint(&mut self, endpoint: T) -> Result<(), RequestError> {
        put(&mut self.endpoint, RequestField::Endpoint, endpoint)
    }

    /// Sets the HTTP method.
    #[inline]
    pub fn method(&mut self, method: T) -> Result<(), RequestError> {
        put(&mut self.method, RequestField::Method, method)
    }

    /// Sets the client's tier.
    #[inline]
    pub fn tier(&mut self, tier: T) -> Result<(), RequestError> {
        put(&mut self.tier, RequestField::Tier, tier)
    }

    /// Sets the client's address.
    pub fn ip(&mut self, ip: Option<IpAddr>) {
        self.ip = ip;
    }

    /// Sets the number of units to take, which is 1 otherwise.
    #[inline]
    pub fn cost(&mut self, cost: u64) -> Result<(), RequestError> {
        self.cost = Some(u32::try_from(cost).map_err(|_| RequestError::CostTooHigh)?);
        Ok(())
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, name: T, value: T) -> Result<(), RequestError> {
        if name.as_ref().is_empty() {
            return Err(RequestError::NamelessAttribute);
        }
        RequestField::AttributeName.check(name.as_ref())?;
        RequestField::AttributeValue.check(value.as_ref())?;
        if self.attributes.len() == MAX_ATTRIBUTES {
            return Err(RequestError::TooManyAttributes);
        }
        if self.attributes.iter().any(|(known, _)| known.as_ref() == name.as_ref()) {
            return Err(RequestError::RepeatedAttribute { name: name.as_ref().to_owned() });
        }
        self.attributes.push((name, value));
        Ok(())
    }

    /// Calls `use_it` with the request.
    #[inline]
    pub fn with_request<R>(&self, use_it: impl FnOnce(&CheckRequest<'_>) -> R) -> Result<R, RequestError> {
        let attributes: SmallVec<[Attribute<'_>; 4]> =
            self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        let client_key = self.client_key.as_ref();
        if client_key.is_empty() && self.ip.is_none() && attributes.is_empty() {
            return Err(RequestError::NoClient);
        }
        Ok(use_it(&CheckRequest {
            client_key,
            endpoint: self.endpoint.as_ref(),
            method: self.method.as_ref(),
            tier: self.tier.as_ref(),
            ip: self.ip,
            attributes: &attributes,
            descriptor: None,
            cost: self.cost.unwrap_or(1),
        }))
    }
}

/// Sets a text if it is empty or within the field's bound.
#[inline]
fn put<T: AsRef<str>>(slot: &mut T, field: RequestField, text: T) -> Result<(), RequestError> {
    if !text.as_ref().is_empty() {
        field.check(text.as_ref())?;
    }
    *slot = text;
    Ok(())
}

/// Parses the address of a client.
///
/// # Errors
/// If it is not an address.
pub fn parse_ip(bytes: &[u8]) -> Result<IpAddr, RequestError> {
    let parsed = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        let found = String::from_utf8_lossy(bytes).chars().take(MAX_ECHOED_CHARS).collect();
        RequestError::InvalidAddress { found }
    })
}

/// The maximum number of characters of an invalid address that an error repeats.
const MAX_ECHOED_CHARS: usize = 64;

/// Parses an address: plain, with a port, in brackets, or as a masked network (`192.0.2.0/24`).
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.split_once('/').map_or(text, |(network, _)| network);
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_at_both_ends() {
        for (field, too_long) in [
            (RequestField::ClientKey, "é".repeat(2048) + "x"),
            (RequestField::Endpoint, "é".repeat(8193)),
            (RequestField::Method, "é".repeat(129)),
            (RequestField::Tier, "é".repeat(129)),
            (RequestField::AttributeName, "é".repeat(129)),
            (RequestField::AttributeValue, "é".repeat(4097)),
            (RequestField::Domain, "x".repeat(257)),
            (RequestField::EntryName, "x".repeat(257)),
            (RequestField::EntryValue, "x".repeat(65_536)),
        ] {
            let FieldBound { min, max, .. } = field.bound();
            assert_eq!(field.check(&too_long), Err(RequestError::Length { field, length: max + 1 }));
            let longest = too_long.chars().rev().skip(1).collect::<String>();
            assert_eq!(field.check(&longest), Ok(()));
            assert_eq!(field.check("").is_err(), min > 0, "{field:?}");
        }
    }

    #[test]
    fn a_builder_keeps_what_is_within_bounds() {
        let names: Vec<String> = (0..=MAX_ATTRIBUTES).map(|name| name.to_string()).collect();
        let too_long = "x".repeat(4097);
        let mut builder = RequestBuilder::default();
        assert_eq!(builder.with_request(|_| ()), Err(RequestError::NoClient));
        builder.ip(Some([192, 0, 2, 7].into()));
        builder.client_key("a").unwrap();
        assert!(builder.client_key(&too_long).is_err() && builder.cost(1 << 32).is_err());
        builder.cost(0).unwrap();
        for name in &names[..MAX_ATTRIBUTES] {
            builder.attribute(name, "").unwrap();
        }
        assert_eq!(builder.attribute(&names[MAX_ATTRIBUTES], ""), Err(RequestError::TooManyAttributes));
        let (key, cost, count) = builder
            .with_request(|request| (request.client_key.to_owned(), request.cost, request.attributes.len()))
            .unwrap();
        assert_eq!((&*key, cost, count), ("a", 0, MAX_ATTRIBUTES));
        builder.client_key("").unwrap();
        assert_eq!(builder.with_request(|request| request.client_key.is_empty()), Ok(true));
        let repeated = RequestBuilder::<&str>::default().attribute("", "");
        assert_eq!(repeated, Err(RequestError::NamelessAttribute));
    }

    #[test]
    fn addresses_are_parsed_in_all_forms() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:80", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("2001:db8::/64", "2001:db8::"),
        ] {
            assert_eq!(parse_address(text), Some(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "/", "192.0.2", "192.0.2.7:", "[192.0.2.7", "localhost", "unix:/tmp/socket"] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }
}
