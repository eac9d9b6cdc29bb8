//! The JSON bodies of checks and batches, as serde reads them.
//!
//! Text is borrowed from the body where possible. An invalid body is rejected with the place and the reason, and takes
//! no units.

use ratekeeper::rules::{
    CheckRequest, FieldBound, MAX_ATTRIBUTES, RequestBuilder, RequestError, RequestField, parse_ip,
};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// The fields of a check.
const FIELDS: [&str; 7] = ["client_key", "endpoint", "method", "tier", "ip", "attributes", "cost"];

/// A check as a JSON object.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckBody<'a> {
    request: RequestBuilder<Cow<'a, str>>,
    has_key: bool,
}

impl CheckBody<'_> {
    pub(crate) fn has_key(&self) -> bool {
        self.has_key
    }

    /// Calls `use_it` with the request.
    pub(crate) fn with_request<T>(
        &self,
        use_it: impl FnOnce(&CheckRequest<'_>) -> T,
    ) -> Result<T, RequestError> {
        self.request.with_request(use_it)
    }
}

impl<'de> Deserialize<'de> for CheckBody<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CheckBody<'de>, D::Error> {
        deserializer.deserialize_map(CheckVisitor)
    }
}

struct CheckVisitor;

impl<'de> Visitor<'de> for CheckVisitor {
    type Value = CheckBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a check to be an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CheckBody<'de>, A::Error> {
        let (mut check, mut seen) = (CheckBody::default(), [false; FIELDS.len()]);
        while let Some(name) = map.next_key_seed(JsonText("the name of a field"))? {
            let Some(index) = FIELDS.iter().position(|known| *known == name) else {
                return Err(A::Error::unknown_field(&name, &FIELDS));
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(A::Error::duplicate_field(FIELDS[index]));
            }
            let CheckBody { request, has_key } = &mut check;
            let mut text = |field| map.next_value_seed(Optional(BoundedText(field)));
            let set = match FIELDS[index] {
                "client_key" => text(RequestField::ClientKey)?.map(|key| {
                    *has_key = true;
                    request.client_key(key)
                }),
                "endpoint" => text(RequestField::Endpoint)?.map(|endpoint| request.endpoint(endpoint)),
                "method" => text(RequestField::Method)?.map(|method| request.method(method)),
                "tier" => text(RequestField::Tier)?.map(|tier| request.tier(tier)),
                "ip" => {
                    request.ip(map.next_value_seed(Optional(Address))?);
                    None
                }
                "attributes" => map.next_value_seed(Optional(Attributes(request)))?.map(Ok),
                _ => map.next_value_seed(Optional(WholeNumber))?.map(|cost| request.cost(cost.into())),
            };
            set.unwrap_or(Ok(())).map_err(A::Error::custom)?;
        }
        Ok(check)
    }
}

/// A value that may be `null`.
struct Optional<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Optional<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Optional<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

/// A string, borrowed unless it has escapes. It says what is expected.
#[derive(Clone, Copy)]
struct JsonText<T>(T);

impl<'de, T: fmt::Display> DeserializeSeed<'de> for JsonText<T> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, T: fmt::Display> Visitor<'de> for JsonText<T> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// A string within the bound of its field.
struct BoundedText(RequestField);

impl<'de> DeserializeSeed<'de> for BoundedText {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        let expected = ExpectedText(self.0);
        let text = JsonText(expected).deserialize(deserializer)?;
        match self.0.check(&text) {
            Ok(()) => Ok(text),
            Err(RequestError::Length { length, .. }) => {
                Err(D::Error::invalid_length(length, &JsonText(expected)))
            }
            Err(error) => Err(D::Error::custom(error)),
        }
    }
}

/// Describes the text that a field takes.
#[derive(Clone, Copy)]
struct ExpectedText(RequestField);

impl fmt::Display for ExpectedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FieldBound { min, max, unit } = self.0.bound();
        write!(f, "{} to be a string of ", self.0.name())?;
        if min > 0 { write!(f, "{min} to {max} {unit}") } else { write!(f, "at most {max} {unit}") }
    }
}

/// The client's address.
struct Address;

impl<'de> DeserializeSeed<'de> for Address {
    type Value = IpAddr;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<IpAddr, D::Error> {
        let expected = "ip to be an address, like 192.0.2.7 or 2001:db8::1";
        let text = JsonText(expected).deserialize(deserializer)?;
        parse_ip(text.as_bytes()).map_err(|error| match error {
            RequestError::InvalidAddress { found } => {
                D::Error::invalid_value(Unexpected::Str(&found), &expected)
            }
            error => D::Error::custom(error),
        })
    }
}

/// Adds the attributes of a check.
struct Attributes<'b, 'a>(&'b mut RequestBuilder<Cow<'a, str>>);

impl<'de> DeserializeSeed<'de> for Attributes<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Attributes<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attributes to be an object of at most {MAX_ATTRIBUTES} names with string values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(BoundedText(RequestField::AttributeName))? {
            let value = map.next_value_seed(BoundedText(RequestField::AttributeValue))?;
            self.0.attribute(name, value).map_err(|error| match error {
                RequestError::TooManyAttributes => A::Error::invalid_length(MAX_ATTRIBUTES + 1, &self),
                RequestError::RepeatedAttribute { name } => {
                    A::Error::custom(format_args!("duplicate attribute `{name}`"))
                }
                error => A::Error::custom(error),
            })?;
        }
        Ok(())
    }
}

/// The number of units that the request takes.
struct WholeNumber;

impl<'de> DeserializeSeed<'de> for WholeNumber {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_u32(self)
    }
}

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

/// Reads a batch, `{"checks": [...]}`, and passes on each check as soon as it is read. Returns their number.
pub(crate) struct BatchBody<F> {
    /// The most checks in the batch.
    pub(crate) max_checks: usize,
    /// Called with each check.
    pub(crate) on_check: F,
}

impl<'de, F: FnMut(&CheckRequest<'_>)> DeserializeSeed<'de> for BatchBody<F> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&CheckRequest<'_>)> Visitor<'de> for BatchBody<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with checks")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let field = || JsonText("the name of a field");
        match map.next_key_seed(field())? {
            Some(name) if name == "checks" => {}
            Some(name) => return Err(A::Error::unknown_field(&name, &["checks"])),
            None => return Err(A::Error::missing_field("checks")),
        }
        let count = map.next_value_seed(CheckList(self))?;
        match map.next_key_seed(field())? {
            None => Ok(count),
            Some(name) if name == "checks" => Err(A::Error::duplicate_field("checks")),
            Some(name) => Err(A::Error::unknown_field(&name, &["checks"])),
        }
    }
}

/// The list of checks in a batch.
struct CheckList<F>(BatchBody<F>);

impl<'de, F: FnMut(&CheckRequest<'_>)> DeserializeSeed<'de> for CheckList<F> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&CheckRequest<'_>)> Visitor<'de> for CheckList<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checks to be a list of at most {} checks", self.0.max_checks)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        loop {
            // Errors give the index of the check, counted from 0 as in the client's program.
            let with_index = |error: &dyn fmt::Display| A::Error::custom(format!("check {count}: {error}"));
            let next = list.next_element::<CheckBody<'de>>().map_err(|error| with_index(&error))?;
            let Some(check) = next else { return Ok(count) };
            if count == self.0.max_checks {
                return Err(A::Error::invalid_length(count + 1, &self));
            }
            check.with_request(&mut self.0.on_check).map_err(|error| with_index(&error))?;
            count += 1;
        }
    }
}
