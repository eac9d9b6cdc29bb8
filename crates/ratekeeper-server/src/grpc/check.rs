//! Decodes checks and encodes decisions over gRPC.

use super::message::{MessageError, MessageFields, put_bytes, put_number};
use crate::api::WireNumbers;
use ratekeeper::rules::{CheckRequest, RequestBuilder, RequestError, RequestField, parse_ip};
use ratekeeper::{Reason, RuleDecision};
use std::borrow::Cow;
use tonic::Status;

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

impl From<RequestError> for InvalidCheck {
    fn from(error: RequestError) -> InvalidCheck {
        InvalidCheck::new(error.to_string())
    }
}

/// Decodes a `CheckRequest` and calls `use_it` with the request.
pub(super) fn with_request<T>(
    message: &[u8],
    use_it: impl FnOnce(&CheckRequest<'_>) -> T,
) -> Result<T, InvalidCheck> {
    let mut request = RequestBuilder::default();
    merge(&mut request, MessageFields::of(message))?;
    Ok(request.with_request(use_it)?)
}

/// Merges fields into a request. As in protobuf, the last of two fields with one number counts.
fn merge<'a>(
    request: &mut RequestBuilder<&'a str>,
    mut fields: MessageFields<'a>,
) -> Result<(), InvalidCheck> {
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => request.client_key(RequestField::ClientKey.read(value.bytes()?)?)?,
            2 => request.endpoint(RequestField::Endpoint.read(value.bytes()?)?)?,
            3 => request.method(RequestField::Method.read(value.bytes()?)?)?,
            4 => request.tier(RequestField::Tier.read(value.bytes()?)?)?,
            5 => request.ip(match value.bytes()? {
                b"" => None,
                address => Some(parse_ip(address)?),
            }),
            6 => add_attribute(request, value.fields()?)?,
            7 => request.cost(value.number()?)?,
            _ => {}
        }
    }
    Ok(())
}

#[cold]
fn add_attribute<'a>(
    request: &mut RequestBuilder<&'a str>,
    mut fields: MessageFields<'a>,
) -> Result<(), InvalidCheck> {
    let (mut name, mut value) = ("", "");
    while let Some((number, found)) = fields.next()? {
        match number {
            1 => name = RequestField::AttributeName.read(found.bytes()?)?,
            2 => value = RequestField::AttributeValue.read(found.bytes()?)?,
            _ => {}
        }
    }
    Ok(request.attribute(name, value)?)
}

/// Decodes a `CheckBatchRequest`, passes each check to `visit`, and returns their number. If a check is invalid,
/// `visit` has already been called for those before it.
pub(super) fn read_batch(
    message: &[u8],
    max_checks: usize,
    mut visit: impl FnMut(&CheckRequest<'_>),
) -> Result<usize, InvalidCheck> {
    let (mut fields, mut count) = (MessageFields::of(message), 0);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            if count == max_checks {
                return Err(InvalidCheck::new(format!(
                    "there are more than {max_checks} checks: send several batches"
                )));
            }
            with_request(value.bytes()?, &mut visit).map_err(|error| error.at("check", count))?;
            count += 1;
        }
    }
    Ok(count)
}

/// Decodes a `CheckStreamRequest` and calls `use_it` with the request. Returns the id too, 0 if it can't be read.
pub(super) fn with_stream_request<T>(
    message: &[u8],
    use_it: impl FnOnce(&CheckRequest<'_>) -> T,
) -> (u64, Result<T, InvalidCheck>) {
    let mut id = 0;
    let read = || -> Result<T, InvalidCheck> {
        let (mut fields, mut request) = (MessageFields::of(message), RequestBuilder::default());
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => id = value.number()?,
                2 => merge(&mut request, value.fields()?)?,
                _ => {}
            }
        }
        Ok(request.with_request(use_it)?)
    };
    let used = read();
    if used.is_err() {
        // The id may come after the invalid field.
        id = find_id(message).unwrap_or(id);
    }
    (id, used)
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
