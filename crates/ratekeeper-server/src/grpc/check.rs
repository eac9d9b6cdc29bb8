//! Decodes checks and encodes decisions over gRPC, with the same fields and bounds as the HTTP API.

use super::message::{MessageError, MessageFields, put_bytes, put_number};
use crate::api::{
    MAX_ATTRIBUTES, MAX_ENDPOINT_CHARS, MAX_NAME_CHARS, MAX_VALUE_CHARS, NO_CLIENT, WireNumbers,
};
use ratekeeper::rules::{Attribute, CheckRequest};
use ratekeeper::{MAX_KEY_BYTES, Reason, RuleDecision};
use std::borrow::Cow;
use std::net::IpAddr;
use tonic::Status;

/// The maximum number of characters of a client's input that an error message repeats.
const MAX_ECHOED_CHARS: usize = 64;

/// Why a check is invalid, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidCheck(Cow<'static, str>);

impl InvalidCheck {
    pub(super) fn new(message: impl Into<Cow<'static, str>>) -> InvalidCheck {
        InvalidCheck(message.into())
    }

    /// Prefixes the message with the position of the invalid element.
    pub(super) fn at(self, what: &str, index: usize) -> InvalidCheck {
        InvalidCheck(format!("{what} {index}: {}", self.0).into())
    }

    pub(super) fn into_text(self) -> String {
        self.0.into_owned()
    }
}

impl From<MessageError> for InvalidCheck {
    fn from(_: MessageError) -> InvalidCheck {
        InvalidCheck::new("the message is malformed, or not of the type that this method takes")
    }
}

impl From<InvalidCheck> for Status {
    fn from(error: InvalidCheck) -> Status {
        Status::invalid_argument(error.0)
    }
}

/// A `CheckRequest`, borrowed from its encoded message.
#[derive(Clone, Debug, Default)]
pub(super) struct GrpcCheck<'a> {
    client_key: &'a str,
    endpoint: &'a str,
    method: &'a str,
    tier: &'a str,
    ip: Option<IpAddr>,
    attributes: Vec<Attribute<'a>>,
    cost: Option<u32>,
}

impl<'a> GrpcCheck<'a> {
    /// Decodes and validates a check.
    pub(super) fn read(message: &'a [u8]) -> Result<GrpcCheck<'a>, InvalidCheck> {
        let mut check = GrpcCheck::default();
        check.merge(MessageFields::of(message))?;
        check.validate()
    }

    /// Merges fields into the check. As in protobuf, the last of two fields with one number counts.
    pub(super) fn merge(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => self.client_key = key(value.bytes()?)?,
                2 => self.endpoint = text("endpoint", value.bytes()?, MAX_ENDPOINT_CHARS)?,
                3 => self.method = text("method", value.bytes()?, MAX_NAME_CHARS)?,
                4 => self.tier = text("tier", value.bytes()?, MAX_NAME_CHARS)?,
                5 => self.ip = address(value.bytes()?)?,
                6 => self.add_attribute(value.fields()?)?,
                7 => self.cost = Some(cost(value.number()?)?),
                _ => {}
            }
        }
        Ok(())
    }

    #[cold]
    fn add_attribute(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
        let (mut name, mut value) = ("", "");
        while let Some((number, found)) = fields.next()? {
            match number {
                1 => name = text("an attribute's name", found.bytes()?, MAX_NAME_CHARS)?,
                2 => value = text("an attribute", found.bytes()?, MAX_VALUE_CHARS)?,
                _ => {}
            }
        }
        if name.is_empty() {
            return Err(InvalidCheck::new("an attribute has no name: send one of 1 to 128 characters"));
        }
        if self.attributes.len() == MAX_ATTRIBUTES {
            let message =
                format!("there are more than {MAX_ATTRIBUTES} attributes: send those that rules use");
            return Err(InvalidCheck::new(message));
        }
        if self.attributes.iter().any(|(known, _)| *known == name) {
            return Err(InvalidCheck::new(format!("the attribute {name:?} is given twice: send it once")));
        }
        self.attributes.push((name, value));
        Ok(())
    }

    /// Returns the check if it identifies a client.
    pub(super) fn validate(self) -> Result<GrpcCheck<'a>, InvalidCheck> {
        if self.client_key.is_empty() && self.ip.is_none() && self.attributes.is_empty() {
            Err(InvalidCheck::new(NO_CLIENT))
        } else {
            Ok(self)
        }
    }

    /// The request to decide.
    pub(super) fn request(&self) -> CheckRequest<'_> {
        CheckRequest {
            client_key: self.client_key,
            endpoint: self.endpoint,
            method: self.method,
            tier: self.tier,
            ip: self.ip,
            attributes: &self.attributes,
            descriptor: None,
            cost: self.cost.unwrap_or(1),
        }
    }
}

/// Decodes a `CheckBatchRequest`, passes each check to `visit`, and returns their number. If a check is invalid,
/// `visit` has already been called for those before it.
pub(super) fn read_batch<'a>(
    message: &'a [u8],
    max_checks: usize,
    mut visit: impl FnMut(&GrpcCheck<'a>),
) -> Result<usize, InvalidCheck> {
    let (mut fields, mut count) = (MessageFields::of(message), 0);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            if count == max_checks {
                return Err(InvalidCheck::new(format!(
                    "there are more than {max_checks} checks: send several batches"
                )));
            }
            visit(&GrpcCheck::read(value.bytes()?).map_err(|error| error.at("check", count))?);
            count += 1;
        }
    }
    Ok(count)
}

/// Decodes a `CheckStreamRequest`: its id, 0 if it can't be read, and the check.
pub(super) fn read_stream_check(message: &[u8]) -> (u64, Result<GrpcCheck<'_>, InvalidCheck>) {
    let mut id = 0;
    let mut read = || {
        let (mut fields, mut check) = (MessageFields::of(message), GrpcCheck::default());
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => id = value.number()?,
                2 => check.merge(value.fields()?)?,
                _ => {}
            }
        }
        check.validate()
    };
    let check = read();
    if check.is_err() {
        // The id may come after the invalid field.
        id = find_id(message).unwrap_or(id);
    }
    (id, check)
}

fn find_id(message: &[u8]) -> Option<u64> {
    let (mut fields, mut id) = (MessageFields::of(message), None);
    while let Ok(Some((number, value))) = fields.next() {
        if number == 1 {
            id = value.number().ok().or(id);
        }
    }
    id
}

/// Encodes a `CheckResponse`.
#[inline]
pub(super) fn write_answer(decision: &RuleDecision<'_>, out: &mut Vec<u8>) {
    let numbers = WireNumbers::from_decision(decision);
    if decision.is_allowed() {
        put_number(out, 1, 1);
    }
    if let Some(remaining) = numbers.remaining {
        put_number(out, 2, remaining.into());
    }
    if let Some((limit, window)) = numbers.limit {
        put_number(out, 3, numbers.reset_at);
        put_number(out, 5, limit.into());
        put_number(out, 6, window);
    }
    if let Some(retry_after) = numbers.retry_after {
        put_number(out, 4, retry_after);
    }
    put_bytes(out, 7, decision.rule().map_or("", |rule| rule.id()).as_bytes());
    put_number(out, 8, reason_number(decision.reason()));
}

/// The enum number of a `Reason`.
fn reason_number(reason: Reason) -> u64 {
    match reason {
        Reason::Limit => 1,
        Reason::NoRule => 2,
        Reason::AllowList => 3,
        Reason::DenyList => 4,
        Reason::Emergency => 5,
        Reason::Degraded => 6,
        Reason::UnknownTier => 7,
        Reason::Missing => 8,
    }
}

fn key(bytes: &[u8]) -> Result<&str, InvalidCheck> {
    // Limited in bytes, because stores have to keep it.
    if bytes.len() <= MAX_KEY_BYTES {
        str::from_utf8(bytes).map_err(|_| not_utf8("client_key"))
    } else {
        Err(too_long("client_key", bytes.len(), "bytes", MAX_KEY_BYTES))
    }
}

/// Text of at most `max_chars` characters.
fn text<'a>(what: &str, bytes: &'a [u8], max_chars: usize) -> Result<&'a str, InvalidCheck> {
    let text = str::from_utf8(bytes).map_err(|_| not_utf8(what))?;
    // Text has no more characters than bytes, so nearly always there is no need to count them.
    let length = if text.len() <= max_chars { text.len() } else { text.chars().count() };
    if length <= max_chars { Ok(text) } else { Err(too_long(what, length, "characters", max_chars)) }
}

fn address(bytes: &[u8]) -> Result<Option<IpAddr>, InvalidCheck> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let parsed = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| invalid_address(bytes))
}

fn cost(number: u64) -> Result<u32, InvalidCheck> {
    u32::try_from(number)
        .map_err(|_| InvalidCheck::new("cost is above 4294967295: send a whole number up to that"))
}

#[cold]
fn invalid_address(bytes: &[u8]) -> InvalidCheck {
    let shown: String = String::from_utf8_lossy(bytes).chars().take(MAX_ECHOED_CHARS).collect();
    InvalidCheck::new(format!("ip is {shown:?}: send an address, like 192.0.2.7 or 2001:db8::1"))
}

#[cold]
fn not_utf8(what: &str) -> InvalidCheck {
    InvalidCheck::new(format!("{what} is not UTF-8: send text"))
}

#[cold]
fn too_long(what: &str, length: usize, unit: &str, max: usize) -> InvalidCheck {
    InvalidCheck::new(format!("{what} has {length} {unit}: send at most {max}"))
}
