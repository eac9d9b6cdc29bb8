//! Decodes a `RateLimitRequest`.

use super::super::check::InvalidCheck;
use super::super::message::{FieldValue, MessageFields};
use super::unit;
use ratekeeper::rules::{
    Attribute, CheckRequest, Descriptor, MAX_DESCRIPTORS, MAX_ENTRIES, RequestError, RequestField, Verb,
};
use ratekeeper::{Limit, Quota};
use std::borrow::Cow;
use std::ops::Range;

/// A decoded call: a domain and its descriptors.
#[derive(Debug)]
pub(super) struct EnvoyCall<'a> {
    domain: Cow<'a, str>,
    /// The entries of all descriptors, as names and values.
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) descriptors: Vec<EnvoyDescriptor>,
}

/// One descriptor of a call.
#[derive(Debug)]
pub(super) struct EnvoyDescriptor {
    /// The range of its entries in [`EnvoyCall::entries`].
    entries: Range<usize>,
    pub(super) limit: DescriptorLimit,
    pub(super) verb: Verb,
    cost: u32,
    /// Its own `hits_addend`, if it has one.
    hits: Option<u64>,
    is_negative: bool,
    /// Its position in the batch: first the descriptors that are decided together, then the refunds. `None` if it is
    /// not in the batch, because its limit is zero.
    pub(super) batch_index: Option<usize>,
}

/// The limit that applies to a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorLimit {
    /// Those of the matching rules.
    Rules,
    /// A limit in the descriptor itself.
    Inline(Limit),
    /// A limit of zero in the descriptor itself.
    Zero,
}

impl<'a> EnvoyCall<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<EnvoyCall<'a>, InvalidCheck> {
        let mut call = EnvoyCall { domain: Cow::Borrowed(""), entries: Vec::new(), descriptors: Vec::new() };
        let (mut fields, mut hits) = (MessageFields::of(message), 0);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => call.domain = bounded_text(RequestField::Domain, value)?,
                2 => {
                    let index = call.descriptors.len();
                    if index == MAX_DESCRIPTORS {
                        let message =
                            format!("there are more than {MAX_DESCRIPTORS} descriptors: send fewer");
                        return Err(InvalidCheck::new(message));
                    }
                    call.add_descriptor(value.fields()?).map_err(|error| error.at("descriptor", index))?;
                }
                3 => hits = value.number()?,
                _ => {}
            }
        }
        call.validate(hits)
    }

    fn add_descriptor(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
        let first = self.entries.len();
        let (mut limit, mut hits, mut is_negative) = (DescriptorLimit::Rules, None, false);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 if self.entries.len() - first == MAX_ENTRIES => {
                    let message = format!("it has more than {MAX_ENTRIES} entries: send fewer");
                    return Err(InvalidCheck::new(message));
                }
                1 => self.entries.push(entry(value.fields()?)?),
                2 => limit = inline_limit(value.fields()?)?,
                3 => hits = Some(uint64_value(value.fields()?)?),
                4 => is_negative = value.number()? != 0,
                _ => {}
            }
        }
        let entries = first..self.entries.len();
        if entries.is_empty() {
            return Err(InvalidCheck::new("it has no entries: send at least one"));
        }
        self.descriptors.push(EnvoyDescriptor {
            entries,
            limit,
            verb: Verb::Check,
            cost: 1,
            hits,
            is_negative,
            batch_index: None,
        });
        Ok(())
    }

    /// Validates the call and works out each descriptor's operation, cost and position, once all fields are read.
    fn validate(mut self, hits: u64) -> Result<EnvoyCall<'a>, InvalidCheck> {
        if self.domain.is_empty() {
            return Err(InvalidCheck::new("there is no domain: set it in Envoy's rate limit filter"));
        }
        if self.descriptors.is_empty() {
            return Err(InvalidCheck::new("there are no descriptors: send at least one"));
        }
        for (index, descriptor) in self.descriptors.iter_mut().enumerate() {
            let cost = descriptor.hits.unwrap_or(hits.max(1));
            descriptor.cost = u32::try_from(cost).map_err(|_| {
                InvalidCheck::new("hits_addend is above 4294967295: send a whole number up to that")
                    .at("descriptor", index)
            })?;
            (descriptor.verb, descriptor.cost) = match (descriptor.is_negative, descriptor.cost) {
                (true, cost) => (Verb::Refund, cost),
                // Zero hits ask whether at least one unit is left.
                (false, 0) => (Verb::Peek, 1),
                (false, cost) => (Verb::Check, cost),
            };
        }
        let mut indexes = 0..;
        let is_open = |descriptor: &&mut EnvoyDescriptor| !matches!(descriptor.limit, DescriptorLimit::Zero);
        let is_refund = |descriptor: &&mut EnvoyDescriptor| descriptor.verb == Verb::Refund;
        for descriptor in
            self.descriptors.iter_mut().filter(is_open).filter(|descriptor| !is_refund(descriptor))
        {
            descriptor.batch_index = indexes.next();
        }
        for descriptor in self.descriptors.iter_mut().filter(is_open).filter(is_refund) {
            descriptor.batch_index = indexes.next();
        }
        Ok(self)
    }

    /// All entries as attributes.
    pub(super) fn attributes(&self) -> Vec<Attribute<'_>> {
        self.entries.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    /// The request for a descriptor.
    pub(super) fn request<'r>(
        &'r self,
        of: &EnvoyDescriptor,
        attributes: &'r [Attribute<'r>],
    ) -> CheckRequest<'r> {
        let entries = &attributes[of.entries.clone()];
        let descriptor = Some(Descriptor { domain: &self.domain, entries });
        CheckRequest { attributes: entries, descriptor, cost: of.cost, ..CheckRequest::new("") }
            .with_known_entries(entries)
    }

    /// The request for the call as a whole, with the attributes of all descriptors.
    pub(super) fn whole_request<'r>(&'r self, attributes: &'r [Attribute<'r>]) -> CheckRequest<'r> {
        let checks = self.descriptors.iter().filter(|descriptor| descriptor.verb == Verb::Check);
        let cost = checks.map(|descriptor| descriptor.cost).max();
        CheckRequest { cost: cost.unwrap_or(0), ..CheckRequest::new("") }.with_known_entries(attributes)
    }
}

fn entry<'a>(mut fields: MessageFields<'a>) -> Result<(Cow<'a, str>, Cow<'a, str>), InvalidCheck> {
    let (mut name, mut text) = (Cow::Borrowed(""), Cow::Borrowed(""));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => name = bounded_text(RequestField::EntryName, value)?,
            2 => text = bounded_text(RequestField::EntryValue, value)?,
            _ => {}
        }
    }
    if name.is_empty() { Err(InvalidCheck::new("an entry has no name: send one")) } else { Ok((name, text)) }
}

/// Decodes the limit in a descriptor.
fn inline_limit(mut fields: MessageFields<'_>) -> Result<DescriptorLimit, InvalidCheck> {
    let (mut amount, mut unit_number) = (0, 0);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => amount = value.number()?,
            2 => unit_number = value.number()?,
            _ => {}
        }
    }
    let period = unit::period(unit_number).ok_or_else(|| {
        InvalidCheck::new("the limit has no unit: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
    })?;
    let Ok(amount) = u32::try_from(amount) else {
        return Err(InvalidCheck::new("the limit is above 4294967295: send a whole number up to that"));
    };
    match Quota::new(amount, period) {
        Ok(quota) => unit::wall_clock_window(quota)
            .map(DescriptorLimit::Inline)
            .map_err(|error| InvalidCheck::new(error.to_string())),
        Err(_) => Ok(DescriptorLimit::Zero),
    }
}

/// Decodes a `UInt64Value`, the wrapper that tells 0 from an absent number.
fn uint64_value(mut fields: MessageFields<'_>) -> Result<u64, InvalidCheck> {
    let mut number_value = 0;
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            number_value = value.number()?;
        }
    }
    Ok(number_value)
}

fn bounded_text<'a>(field: RequestField, value: FieldValue<'a>) -> Result<Cow<'a, str>, InvalidCheck> {
    let length = value.bytes()?.len();
    if length > field.bound().max {
        return Err(RequestError::Length { field, length }.into());
    }
    Ok(value.text()?)
}
