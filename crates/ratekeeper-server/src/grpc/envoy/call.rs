//! What Envoy asks.

use super::super::check::InvalidCheck;
use super::super::message::{FieldValue, MessageFields};
use super::unit;
use ratekeeper::rules::{Attribute, CheckRequest, Descriptor, Verb};
use ratekeeper::{Limit, Quota};
use std::borrow::Cow;
use std::ops::Range;

/// The most descriptors of a call: many times as many as anybody configures.
const MAX_DESCRIPTORS: usize = 64;
/// The most entries of a descriptor.
const MAX_ENTRIES: usize = 32;
/// The most bytes of a domain or of an entry's name, which somebody has configured.
const MAX_NAME_BYTES: usize = 256;
/// The most bytes of an entry's value, which may be a header of a stranger's. More than Envoy takes in by default with all
/// headers of a request (60 KiB): what is refused here is an error, and Envoy may let the stranger pass for it.
const MAX_VALUE_BYTES: usize = 65_535;

/// A call: a domain, and what it asks.
#[derive(Debug)]
pub(super) struct EnvoyCall<'a> {
    domain: Cow<'a, str>,
    /// The names and values of all descriptors.
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) asked: Vec<EnvoyDescriptor>,
}

/// A descriptor.
#[derive(Debug)]
pub(super) struct EnvoyDescriptor {
    /// Which of all entries are its own.
    entries: Range<usize>,
    pub(super) hold: DescriptorLimit,
    pub(super) verb: Verb,
    cost: u32,
    /// The cost that it comes with.
    hits: Option<u64>,
    is_negative: bool,
    /// Its position on the docket: first all that is decided together, then what is given back. Nothing if no store is asked.
    pub(super) place: Option<usize>,
}

/// What a descriptor is held to.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorLimit {
    /// The rules.
    Rules,
    /// A limit that it came with.
    Stated(Limit),
    /// A limit of nothing at all that it came with.
    Closed,
}

impl<'a> EnvoyCall<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<EnvoyCall<'a>, InvalidCheck> {
        let mut call = EnvoyCall { domain: Cow::Borrowed(""), entries: Vec::new(), asked: Vec::new() };
        let (mut fields, mut hits) = (MessageFields::of(message), 0);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => call.domain = named("the domain", value)?,
                2 => {
                    let index = call.asked.len();
                    if index == MAX_DESCRIPTORS {
                        let said = format!("there are more than {MAX_DESCRIPTORS} descriptors: send fewer");
                        return Err(InvalidCheck::new(said));
                    }
                    call.take_descriptor(value.fields()?).map_err(|flaw| flaw.about("descriptor", index))?;
                }
                3 => hits = value.number()?,
                _ => {}
            }
        }
        call.complete(hits)
    }

    fn take_descriptor(&mut self, mut fields: MessageFields<'a>) -> Result<(), InvalidCheck> {
        let first = self.entries.len();
        let (mut hold, mut hits, mut is_negative) = (DescriptorLimit::Rules, None, false);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 if self.entries.len() - first == MAX_ENTRIES => {
                    let said = format!("it has more than {MAX_ENTRIES} entries: send fewer");
                    return Err(InvalidCheck::new(said));
                }
                1 => self.entries.push(entry(value.fields()?)?),
                2 => hold = stated(value.fields()?)?,
                3 => hits = Some(wrapped(value.fields()?)?),
                4 => is_negative = value.number()? != 0,
                _ => {}
            }
        }
        let entries = first..self.entries.len();
        if entries.is_empty() {
            return Err(InvalidCheck::new("it has no entries: send at least one"));
        }
        self.asked.push(EnvoyDescriptor {
            entries,
            hold,
            verb: Verb::Check,
            cost: 1,
            hits,
            is_negative,
            place: None,
        });
        Ok(())
    }

    /// Works out what is to be done, now that everything is there.
    fn complete(mut self, hits: u64) -> Result<EnvoyCall<'a>, InvalidCheck> {
        if self.domain.is_empty() {
            return Err(InvalidCheck::new("there is no domain: set it in Envoy's rate limit filter"));
        }
        if self.asked.is_empty() {
            return Err(InvalidCheck::new("there are no descriptors: send at least one"));
        }
        for (index, asked) in self.asked.iter_mut().enumerate() {
            let cost = asked.hits.unwrap_or(hits.max(1));
            asked.cost = u32::try_from(cost).map_err(|_| {
                InvalidCheck::new("hits_addend is above 4294967295: send a whole number up to that")
                    .about("descriptor", index)
            })?;
            (asked.verb, asked.cost) = match (asked.is_negative, asked.cost) {
                (true, cost) => (Verb::Refund, cost),
                // Whether anything is left at all.
                (false, 0) => (Verb::Peek, 1),
                (false, cost) => (Verb::Check, cost),
            };
        }
        let mut places = 0..;
        let is_open = |asked: &&mut EnvoyDescriptor| !matches!(asked.hold, DescriptorLimit::Closed);
        let is_refund = |asked: &&mut EnvoyDescriptor| asked.verb == Verb::Refund;
        for asked in self.asked.iter_mut().filter(is_open).filter(|asked| !is_refund(asked)) {
            asked.place = places.next();
        }
        for asked in self.asked.iter_mut().filter(is_open).filter(is_refund) {
            asked.place = places.next();
        }
        Ok(self)
    }

    /// Names and values as rules see them.
    pub(super) fn attributes(&self) -> Vec<Attribute<'_>> {
        self.entries.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    /// The request that a descriptor stands for.
    pub(super) fn request<'r>(
        &'r self,
        asked: &EnvoyDescriptor,
        attributes: &'r [Attribute<'r>],
    ) -> CheckRequest<'r> {
        let entries = &attributes[asked.entries.clone()];
        let descriptor = Some(Descriptor { domain: &self.domain, entries });
        CheckRequest { attributes: entries, descriptor, cost: asked.cost, ..CheckRequest::new("") }
            .told_by(entries)
    }

    /// The request that the call as a whole stands for: whatever its descriptors tell.
    pub(super) fn whole<'r>(&'r self, attributes: &'r [Attribute<'r>]) -> CheckRequest<'r> {
        let cost = self.asked.iter().filter(|asked| asked.verb == Verb::Check).map(|asked| asked.cost).max();
        CheckRequest { cost: cost.unwrap_or(0), ..CheckRequest::new("") }.told_by(attributes)
    }
}

fn entry<'a>(mut fields: MessageFields<'a>) -> Result<(Cow<'a, str>, Cow<'a, str>), InvalidCheck> {
    let (mut name, mut text) = (Cow::Borrowed(""), Cow::Borrowed(""));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => name = named("the name of an entry", value)?,
            2 => text = bounded("an entry", value, MAX_VALUE_BYTES)?,
            _ => {}
        }
    }
    match name.is_empty() {
        false => Ok((name, text)),
        true => Err(InvalidCheck::new("an entry has no name: send one")),
    }
}

/// A limit that a descriptor comes with.
fn stated(mut fields: MessageFields<'_>) -> Result<DescriptorLimit, InvalidCheck> {
    let (mut amount, mut number_of_unit) = (0, 0);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => amount = value.number()?,
            2 => number_of_unit = value.number()?,
            _ => {}
        }
    }
    let period = unit::period(number_of_unit).ok_or_else(|| {
        InvalidCheck::new("the limit has no unit: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
    })?;
    let Ok(amount) = u32::try_from(amount) else {
        return Err(InvalidCheck::new("the limit is above 4294967295: send a whole number up to that"));
    };
    match Quota::new(amount, period) {
        Ok(quota) => unit::stated(quota)
            .map(DescriptorLimit::Stated)
            .map_err(|error| InvalidCheck::new(error.to_string())),
        Err(_) => Ok(DescriptorLimit::Closed),
    }
}

/// A number in a message of its own, as protobuf has it where 0 is not the same as none.
fn wrapped(mut fields: MessageFields<'_>) -> Result<u64, InvalidCheck> {
    let mut wrapped = 0;
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            wrapped = value.number()?;
        }
    }
    Ok(wrapped)
}

fn named<'a>(what: &str, value: FieldValue<'a>) -> Result<Cow<'a, str>, InvalidCheck> {
    bounded(what, value, MAX_NAME_BYTES)
}

fn bounded<'a>(what: &str, value: FieldValue<'a>, most: usize) -> Result<Cow<'a, str>, InvalidCheck> {
    let length = value.bytes()?.len();
    match length <= most {
        true => Ok(value.text()?),
        false => Err(InvalidCheck::new(format!("{what} has {length} bytes: send at most {most}"))),
    }
}
