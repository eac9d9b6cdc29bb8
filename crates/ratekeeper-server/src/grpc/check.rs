//! A check as it is asked over gRPC, and its answer: the same fields and bounds as those of the HTTP API.

use super::message::{MessageError, MessageFields, put_bytes, put_number};
use crate::api::{MAX_ATTRIBUTES, MAX_ENDPOINT_CHARS, MAX_NAME_CHARS, MAX_VALUE_CHARS, NOBODY, WireNumbers};
use ratekeeper::rules::{Attribute, CheckRequest};
use ratekeeper::{MAX_KEY_BYTES, Reason, RuleDecision};
use std::borrow::Cow;
use std::net::IpAddr;
use tonic::Status;

/// How much of what somebody sent is shown to them again.
const SHOWN_CHARS: usize = 64;

/// What is wrong with what was asked, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidCheck(Cow<'static, str>);

impl InvalidCheck {
    pub(super) fn new(said: impl Into<Cow<'static, str>>) -> InvalidCheck {
        InvalidCheck(said.into())
    }

    /// The same, about one of many.
    pub(super) fn about(self, what: &str, index: usize) -> InvalidCheck {
        InvalidCheck(format!("{what} {index}: {}", self.0).into())
    }

    pub(super) fn into_text(self) -> String {
        self.0.into_owned()
    }
}

impl From<MessageError> for InvalidCheck {
    fn from(_: MessageError) -> InvalidCheck {
        InvalidCheck::new("it is not the message that this method takes, or a broken one")
    }
}

impl From<InvalidCheck> for Status {
    fn from(flaw: InvalidCheck) -> Status {
        Status::invalid_argument(flaw.0)
    }
}

/// A check, borrowed from the message that asks for it.
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
    /// Reads a check.
    pub(super) fn read(message: &'a [u8]) -> Result<GrpcCheck<'a>, InvalidCheck> {
        let mut check = GrpcCheck::default();
        check.take_in(MessageFields::of(message))?;
        check.complete()
    }

    /// Takes in fields. Of two with one number, the last counts.
    pub(super) fn take_in(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => self.client_key = key(value.bytes()?)?,
                2 => self.endpoint = text("endpoint", value.bytes()?, MAX_ENDPOINT_CHARS)?,
                3 => self.method = text("method", value.bytes()?, MAX_NAME_CHARS)?,
                4 => self.tier = text("tier", value.bytes()?, MAX_NAME_CHARS)?,
                5 => self.ip = address(value.bytes()?)?,
                6 => self.take_attribute(value.fields()?)?,
                7 => self.cost = Some(cost(value.number()?)?),
                _ => {}
            }
        }
        Ok(())
    }

    #[cold]
    fn take_attribute(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
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
            let said = format!("there are more than {MAX_ATTRIBUTES} attributes: send those that rules use");
            return Err(InvalidCheck::new(said));
        }
        if self.attributes.iter().any(|(known, _)| *known == name) {
            return Err(InvalidCheck::new(format!("the attribute {name:?} is there twice: send it once")));
        }
        self.attributes.push((name, value));
        Ok(())
    }

    /// The check, if it says who asks.
    pub(super) fn complete(self) -> Result<GrpcCheck<'a>, InvalidCheck> {
        match self.client_key.is_empty() && self.ip.is_none() && self.attributes.is_empty() {
            false => Ok(self),
            true => Err(InvalidCheck::new(NOBODY)),
        }
    }

    /// The request that it stands for.
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

/// Reads many checks, and hands over each. If one of them can't be read, some may have been handed over in vain.
pub(super) fn read_batch<'a>(
    message: &'a [u8],
    most: usize,
    mut use_it: impl FnMut(&GrpcCheck<'a>),
) -> Result<usize, InvalidCheck> {
    let (mut fields, mut count) = (MessageFields::of(message), 0);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            if count == most {
                return Err(InvalidCheck::new(format!(
                    "there are more than {most} checks: send several batches"
                )));
            }
            use_it(&GrpcCheck::read(value.bytes()?).map_err(|flaw| flaw.about("check", count))?);
            count += 1;
        }
    }
    Ok(count)
}

/// A check on a stream: the id by which its answer is known, as far as it could be read, and the check.
pub(super) fn read_numbered(message: &[u8]) -> (u64, Result<GrpcCheck<'_>, InvalidCheck>) {
    let mut id = 0;
    let mut read = || {
        let (mut fields, mut check) = (MessageFields::of(message), GrpcCheck::default());
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => id = value.number()?,
                2 => check.take_in(value.fields()?)?,
                _ => {}
            }
        }
        check.complete()
    };
    let check = read();
    if check.is_err() {
        // It may stand behind what is wrong.
        id = id_of(message).unwrap_or(id);
    }
    (id, check)
}

fn id_of(message: &[u8]) -> Option<u64> {
    let (mut fields, mut id) = (MessageFields::of(message), None);
    while let Ok(Some((number, value))) = fields.next() {
        if number == 1 {
            id = value.number().ok().or(id);
        }
    }
    id
}

/// Writes a `CheckResponse`.
#[inline]
pub(super) fn write_answer(verdict: &RuleDecision<'_>, out: &mut Vec<u8>) {
    let figures = WireNumbers::of(verdict);
    if verdict.is_allowed() {
        put_number(out, 1, 1);
    }
    if let Some(remaining) = figures.remaining {
        put_number(out, 2, remaining.into());
    }
    if let Some((limit, window)) = figures.limit {
        put_number(out, 3, figures.reset_at);
        put_number(out, 5, limit.into());
        put_number(out, 6, window);
    }
    if let Some(retry_after) = figures.retry_after {
        put_number(out, 4, retry_after);
    }
    put_bytes(out, 7, verdict.rule().map_or("", |rule| rule.id()).as_bytes());
    put_number(out, 8, reason(verdict.cause()));
}

/// The number of a `Reason`.
fn reason(cause: Reason) -> u64 {
    match cause {
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
    // Stores have to keep it, so it is bytes that count.
    match bytes.len() <= MAX_KEY_BYTES {
        true => str::from_utf8(bytes).map_err(|_| no_text("client_key")),
        false => Err(too_long("client_key", bytes.len(), "bytes", MAX_KEY_BYTES)),
    }
}

/// Text of at most so many characters.
fn text<'a>(what: &str, bytes: &'a [u8], most: usize) -> Result<&'a str, InvalidCheck> {
    let text = str::from_utf8(bytes).map_err(|_| no_text(what))?;
    // It has no more characters than bytes, so nearly always there is nothing to count.
    let length = if text.len() <= most { text.len() } else { text.chars().count() };
    match length <= most {
        true => Ok(text),
        false => Err(too_long(what, length, "characters", most)),
    }
}

fn address(bytes: &[u8]) -> Result<Option<IpAddr>, InvalidCheck> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let parsed = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| no_address(bytes))
}

fn cost(number: u64) -> Result<u32, InvalidCheck> {
    u32::try_from(number)
        .map_err(|_| InvalidCheck::new("cost is above 4294967295: send a whole number up to that"))
}

#[cold]
fn no_address(bytes: &[u8]) -> InvalidCheck {
    let shown: String = String::from_utf8_lossy(bytes).chars().take(SHOWN_CHARS).collect();
    InvalidCheck::new(format!("ip is {shown:?}: send an address, like 192.0.2.7 or 2001:db8::1"))
}

#[cold]
fn no_text(what: &str) -> InvalidCheck {
    InvalidCheck::new(format!("{what} is not UTF-8: send text"))
}

#[cold]
fn too_long(what: &str, length: usize, unit: &str, most: usize) -> InvalidCheck {
    InvalidCheck::new(format!("{what} has {length} {unit}: send at most {most}"))
}
