//! The JSON bodies of checks and batches.
//!
//! Every field is bounded, and borrowed from the body where possible. An invalid body is rejected with the place and
//! the reason, and takes no units.

use ratekeeper::MAX_KEY_BYTES;
use ratekeeper::rules::{Attribute, CheckRequest};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// The most characters of an endpoint.
pub(crate) const MAX_ENDPOINT_CHARS: usize = 8192;
/// The most characters of a method, a tier or an attribute name.
pub(crate) const MAX_NAME_CHARS: usize = 128;
/// The most characters of an attribute value.
pub(crate) const MAX_VALUE_CHARS: usize = 4096;
/// The most attributes in a check.
pub(crate) const MAX_ATTRIBUTES: usize = 32;

/// The fields of a check.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckFields<'a> {
    #[serde(borrow, default)]
    client_key: Option<ClientKey<'a>>,
    #[serde(borrow, default)]
    endpoint: Option<Endpoint<'a>>,
    #[serde(borrow, default)]
    method: Option<ShortText<'a>>,
    #[serde(borrow, default)]
    tier: Option<ShortText<'a>>,
    #[serde(default)]
    ip: Option<AddressText>,
    #[serde(borrow, default)]
    attributes: Option<Attributes<'a>>,
    #[serde(default)]
    cost: Option<CostValue>,
}

/// A check as a JSON object. A derived `Deserialize` would also accept an array of fields in an undocumented order.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckBody<'a>(CheckFields<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for CheckBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CheckBody<'a>, D::Error> {
        deserializer.deserialize_map(CheckVisitor)
    }
}

struct CheckVisitor;

impl<'de> Visitor<'de> for CheckVisitor {
    type Value = CheckBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a check to be an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CheckBody<'de>, A::Error> {
        CheckFields::deserialize(MapAccessDeserializer::new(map)).map(CheckBody)
    }
}

impl<'a> CheckBody<'a> {
    /// Whether it identifies a client: by key, address or attributes.
    pub(crate) fn has_client(&self) -> bool {
        let has_attributes = self.0.attributes.as_ref().is_some_and(|attributes| !attributes.0.is_empty());
        self.0.client_key.is_some() || self.0.ip.is_some() || has_attributes
    }

    pub(crate) fn has_key(&self) -> bool {
        self.0.client_key.is_some()
    }

    /// Calls `use_it` with the request.
    pub(crate) fn with_request<T>(&self, use_it: impl FnOnce(&CheckRequest<'_>) -> T) -> T {
        let attributes: Vec<Attribute<'_>>;
        let attributes = match &self.0.attributes {
            None => &[][..],
            Some(known) => {
                attributes = known.0.iter().map(|(name, value)| (&**name, &**value)).collect();
                &attributes
            }
        };
        use_it(&CheckRequest {
            client_key: self.0.client_key.as_ref().map_or("", |key| &key.0),
            endpoint: self.0.endpoint.as_ref().map_or("", |endpoint| &endpoint.0),
            method: self.0.method.as_ref().map_or("", |method| &method.0),
            tier: self.0.tier.as_ref().map_or("", |tier| &tier.0),
            ip: self.0.ip.as_ref().map(|ip| ip.0),
            attributes,
            descriptor: None,
            cost: self.0.cost.as_ref().map_or(1, |cost| cost.0),
        })
    }
}

/// Reads a string of `min` to `max` characters, borrowed unless it has escapes.
fn bounded_string<'de, D: Deserializer<'de>>(
    deserializer: D,
    min: usize,
    max: usize,
    expected: &'static str,
) -> Result<Cow<'de, str>, D::Error> {
    let text = deserializer.deserialize_str(JsonText { expected })?;
    // A string has no more characters than bytes, so they are rarely counted.
    let length = if text.len() <= max { text.len() } else { text.chars().count() };
    if (min..=max).contains(&length) { Ok(text) } else { Err(D::Error::invalid_length(length, &expected)) }
}

/// The client's key: not empty, and at most [`MAX_KEY_BYTES`] long.
#[derive(Clone, Debug)]
struct ClientKey<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ClientKey<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClientKey<'a>, D::Error> {
        let expected = "client_key to be a string of 1 to 4096 bytes";
        let key = bounded_string(deserializer, 1, usize::MAX, expected)?;
        // Bytes, not characters, because stores have to keep it.
        if key.len() <= MAX_KEY_BYTES {
            Ok(ClientKey(key))
        } else {
            Err(D::Error::invalid_length(key.len(), &expected))
        }
    }
}

/// The path that the request is for.
#[derive(Clone, Debug)]
struct Endpoint<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Endpoint<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint<'a>, D::Error> {
        bounded_string(
            deserializer,
            0,
            MAX_ENDPOINT_CHARS,
            "endpoint to be a string of at most 8192 characters",
        )
        .map(Endpoint)
    }
}

/// A method or a tier.
#[derive(Clone, Debug)]
struct ShortText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ShortText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ShortText<'a>, D::Error> {
        bounded_string(
            deserializer,
            0,
            MAX_NAME_CHARS,
            "method and tier to be strings of at most 128 characters",
        )
        .map(ShortText)
    }
}

/// The client's address.
#[derive(Clone, Copy, Debug)]
struct AddressText(IpAddr);

impl<'de> Deserialize<'de> for AddressText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AddressText, D::Error> {
        let expected = "ip to be an address, like 192.0.2.7 or 2001:db8::1";
        let text = deserializer.deserialize_str(JsonText { expected })?;
        text.parse().map(AddressText).map_err(|_| {
            let shown = text.char_indices().nth(64).map_or(&*text, |(end, _)| &text[..end]);
            D::Error::invalid_value(Unexpected::Str(shown), &expected)
        })
    }
}

/// Attribute names and values. Duplicate names are rejected.
#[derive(Clone, Debug, Default)]
struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Attributes<'a>, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attributes to be an object of at most 32 names with string values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'de>, A::Error> {
        let mut attributes = Vec::new();
        while let Some((AttributeName(name), AttributeValue(value))) = map.next_entry()? {
            if attributes.len() == MAX_ATTRIBUTES {
                return Err(A::Error::invalid_length(MAX_ATTRIBUTES + 1, &self));
            }
            if attributes.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format!("duplicate attribute `{name}`")));
            }
            attributes.push((name, value));
        }
        Ok(Attributes(attributes))
    }
}

struct AttributeName<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for AttributeName<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AttributeName<'a>, D::Error> {
        bounded_string(
            deserializer,
            1,
            MAX_NAME_CHARS,
            "an attribute name to be a string of 1 to 128 characters",
        )
        .map(AttributeName)
    }
}

struct AttributeValue<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for AttributeValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AttributeValue<'a>, D::Error> {
        bounded_string(
            deserializer,
            0,
            MAX_VALUE_CHARS,
            "an attribute to be a string of at most 4096 characters",
        )
        .map(AttributeValue)
    }
}

/// Reads a string, borrowed unless it has escapes.
struct JsonText {
    expected: &'static str,
}

impl<'de> Visitor<'de> for JsonText {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// The number of units that the request takes.
#[derive(Clone, Copy, Debug)]
struct CostValue(u32);

impl<'de> Deserialize<'de> for CostValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CostValue, D::Error> {
        deserializer.deserialize_u32(WholeNumber).map(CostValue)
    }
}

struct WholeNumber;

impl Visitor<'_> for WholeNumber {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cost to be a whole number from 0 to 4294967295")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        u32::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    /// Accepts `2.0`: some languages write whole numbers like that.
    fn visit_f64<E: Error>(self, number: f64) -> Result<u32, E> {
        if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the number is whole and in range"
            )]
            let cost = number as u32;
            Ok(cost)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
}

/// Reads a batch, `{"checks": [...]}`, and passes on each check as soon as it is read.
pub(crate) struct BatchBody<F> {
    /// The most checks in the batch.
    pub(crate) max_checks: usize,
    /// Called with each check. An error rejects the batch.
    pub(crate) on_check: F,
}

impl<'de, F: FnMut(CheckBody<'de>) -> Result<(), &'static str>> serde::de::DeserializeSeed<'de>
    for BatchBody<F>
{
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(CheckBody<'de>) -> Result<(), &'static str>> Visitor<'de> for BatchBody<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with checks")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        match map.next_key::<Cow<'de, str>>()? {
            Some(field) if field == "checks" => {}
            Some(field) => return Err(A::Error::unknown_field(&field, &["checks"])),
            None => return Err(A::Error::missing_field("checks")),
        }
        let count =
            map.next_value_seed(CheckList { max_checks: self.max_checks, on_check: self.on_check })?;
        match map.next_key::<Cow<'de, str>>()? {
            None => Ok(count),
            Some(field) if field == "checks" => Err(A::Error::duplicate_field("checks")),
            Some(field) => Err(A::Error::unknown_field(&field, &["checks"])),
        }
    }
}

struct CheckList<F> {
    max_checks: usize,
    on_check: F,
}

impl<'de, F: FnMut(CheckBody<'de>) -> Result<(), &'static str>> serde::de::DeserializeSeed<'de>
    for CheckList<F>
{
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(CheckBody<'de>) -> Result<(), &'static str>> Visitor<'de> for CheckList<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checks to be a list of at most {} checks", self.max_checks)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        loop {
            // Errors give the index of the check, counted from 0 as in the client's program.
            let with_index = |error: &dyn fmt::Display| A::Error::custom(format!("check {count}: {error}"));
            let next = list.next_element::<CheckBody<'de>>().map_err(|error| with_index(&error))?;
            let Some(check) = next else { return Ok(count) };
            if count == self.max_checks {
                return Err(A::Error::invalid_length(count + 1, &self));
            }
            (self.on_check)(check).map_err(|error| with_index(&error))?;
            count += 1;
        }
    }
}
