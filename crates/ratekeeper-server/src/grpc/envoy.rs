//! Envoy's rate limit service, version 3.
//!
//! Each descriptor becomes a request of its own, under the rules that its entries meet, and all of one call are decided
//! together: if one is over its limit, none of the others is charged. What can't be understood is an error of the call,
//! never the code UNKNOWN, which Envoy takes for a yes.

mod call;
mod unit;

use super::GrpcInner;
use super::frame;
use super::message::{put_bytes, put_message, put_number};
use crate::api::{DenialFormat, FieldProfile, WireNumbers, write_fields};
use call::{DescriptorLimit, EnvoyCall, EnvoyDescriptor};
use memchr::memchr;
use ratekeeper::rules::{Attribute, InlineLimit, Verb};
use ratekeeper::{CheckBatch, DrawOutcome, Retry, RuleDecision, Store};
use tonic::Status;

/// The status that Envoy refuses with, unless it is told otherwise.
const TOO_MANY_REQUESTS: u16 = 429;

/// The codes of a response.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// How long an answer is as a rule, with some room.
const ANSWER_BYTES: usize = 512;

/// Answers a call.
pub(super) async fn should_rate_limit<S: Store>(
    shared: &GrpcInner<S>,
    message: &[u8],
) -> Result<Vec<u8>, Status> {
    let call = EnvoyCall::read(message)?;
    let attributes = call.attributes();
    let mut docket = shared.gate.begin();
    file(shared, &call, &attributes, &mut docket);
    if !docket.is_empty() {
        shared.gate.settle(&mut docket).await;
    }
    let is_over = (0..call.asked.len()).any(|index| call.is_over(index, &docket));
    if is_over {
        log_denials(shared, &call, &attributes, &docket);
        if let Some(mut refunds) = refund(shared, &call, &attributes, &docket) {
            shared.gate.settle(&mut refunds).await;
        }
    }
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    frame::append(&mut answer, |out| write_answer(shared.options.fields, &call, &docket, is_over, out));
    Ok(answer)
}

/// Puts a call on the docket: what is decided together, and behind it what is given back.
fn file<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    docket: &mut CheckBatch,
) {
    let gate = &shared.gate;
    let add = |docket: &mut CheckBatch, asked: &EnvoyDescriptor, verb: Verb| {
        let request = call.request(asked, attributes);
        match &asked.hold {
            DescriptorLimit::Rules => gate.add(docket, verb, &request),
            DescriptorLimit::Stated(limit) => {
                gate.add_stated(docket, InlineLimit::Descriptor, limit, verb, &request)
            }
            DescriptorLimit::Closed => {}
        }
    };
    let together = || call.asked.iter().filter(|asked| asked.verb != Verb::Refund);
    gate.join(docket, &call.whole(attributes));
    together().for_each(|asked| add(docket, asked, asked.verb));
    let is_denied = |docket: &CheckBatch, asked: &EnvoyDescriptor| {
        asked.place.is_none_or(|place| docket.is_denied(place))
    };
    if together().any(|asked| is_denied(docket, asked)) {
        // Whoever is denied whatever its limits say keeps the others from nothing, so they only look.
        let denied: Vec<bool> = together().map(|asked| is_denied(docket, asked)).collect();
        docket.cut(0);
        for (asked, is_denied) in together().zip(denied) {
            add(docket, asked, if is_denied { asked.verb } else { Verb::Peek });
        }
    }
    docket.part();
    call.asked
        .iter()
        .filter(|asked| asked.verb == Verb::Refund)
        .for_each(|asked| add(docket, asked, Verb::Refund));
}

impl EnvoyCall<'_> {
    /// Whether a descriptor is over its limit.
    fn is_over(&self, index: usize, docket: &CheckBatch) -> bool {
        let asked = &self.asked[index];
        match asked.place {
            Some(place) => !docket.verdict(place).is_allowed(),
            None => asked.verb != Verb::Refund,
        }
    }
}

/// What was taken for a call that is refused, to be given back.
///
/// A store decides up to [`MAX_DRAWS`](ratekeeper::MAX_DRAWS) limits as one; a call that meets more is decided in several
/// groups, one of which may have taken before another refused.
#[cold]
fn refund<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    docket: &CheckBatch,
) -> Option<CheckBatch> {
    let has_taken = |asked: &&EnvoyDescriptor| {
        let verdict = asked.place.filter(|_| asked.verb == Verb::Check).map(|place| docket.verdict(place));
        verdict.is_some_and(|verdict| {
            let mut readings = verdict.policies().map(|policy| policy.reading.answer()).peekable();
            readings.peek().is_some() && readings.all(|answer| matches!(answer, DrawOutcome::Granted(_)))
        })
    };
    let mut taken = call.asked.iter().filter(has_taken).peekable();
    taken.peek()?;
    let mut refunds = shared.gate.begin();
    for asked in taken {
        let request = call.request(asked, attributes);
        match &asked.hold {
            DescriptorLimit::Rules => shared.gate.add(&mut refunds, Verb::Refund, &request),
            DescriptorLimit::Stated(limit) => {
                shared.gate.add_stated(&mut refunds, InlineLimit::Descriptor, limit, Verb::Refund, &request);
            }
            DescriptorLimit::Closed => {}
        }
    }
    Some(refunds)
}

#[cold]
fn log_denials<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    docket: &CheckBatch,
) {
    for asked in call.asked.iter().filter(|asked| asked.verb == Verb::Check) {
        let verdict = asked.place.map(|place| docket.verdict(place));
        if let Some(verdict) = verdict.filter(|verdict| !verdict.is_allowed()) {
            shared.denials.note(shared.gate.clock(), &call.request(asked, attributes), &verdict);
        }
    }
}

/// Writes a `RateLimitResponse`.
fn write_answer(
    fields: FieldProfile,
    call: &EnvoyCall<'_>,
    docket: &CheckBatch,
    is_over: bool,
    out: &mut Vec<u8>,
) {
    put_number(out, 1, if is_over { OVER_LIMIT } else { OK });
    for (index, asked) in call.asked.iter().enumerate() {
        let code = if call.is_over(index, docket) { OVER_LIMIT } else { OK };
        let verdict = asked.place.map(|place| docket.verdict(place));
        put_message(out, 2, |out| write_status(code, verdict.as_ref(), out));
    }
    let speaker = speaker(call, docket, is_over);
    if let Some(verdict) = &speaker {
        let figures = WireNumbers::of(verdict);
        let mut lines = Vec::with_capacity(ANSWER_BYTES);
        write_fields(fields, verdict, &figures, &mut lines);
        write_headers(&lines, out);
    }
    if is_over {
        write_header(b"content-type", DenialFormat::Json.content_type().as_bytes(), out);
        write_header(b"cache-control", b"no-store", out);
        let mut body = Vec::new();
        match &speaker {
            Some(verdict) => {
                DenialFormat::Json.write(verdict, &WireNumbers::of(verdict), TOO_MANY_REQUESTS, &mut body);
            }
            None => body.extend_from_slice(CLOSED),
        }
        put_bytes(out, 5, &body);
    }
}

/// What is told of a limit of nothing at all, which no rule and no store knows of.
const CLOSED: &[u8] = br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded"}}"#;

/// Writes a `DescriptorStatus`.
fn write_status(code: u64, verdict: Option<&RuleDecision<'_>>, out: &mut Vec<u8>) {
    put_number(out, 1, code);
    let Some((verdict, binding)) = verdict.and_then(|verdict| Some((verdict, verdict.binding()?))) else {
        return;
    };
    put_message(out, 2, |out| {
        let (requests, unit) = unit::told(binding.limit);
        put_number(out, 1, requests.into());
        put_number(out, 2, unit);
        put_bytes(out, 3, verdict.limit_name().unwrap_or_default().as_bytes());
    });
    put_number(out, 3, binding.outlook.remaining.into());
    let micros = binding.outlook.reset.get();
    put_message(out, 4, |out| {
        put_number(out, 1, micros / 1_000_000);
        put_number(out, 2, micros % 1_000_000 * 1_000);
    });
}

/// Writes header fields, from lines as HTTP/1 has them. Looked at byte by byte, they took 4 % of all that a call takes.
fn write_headers(mut lines: &[u8], out: &mut Vec<u8>) {
    while let (Some(colon), Some(end)) = (memchr(b':', lines), memchr(b'\n', lines)) {
        write_header(&lines[..colon], lines[colon + 1..end].trim_ascii(), out);
        lines = &lines[end + 1..];
    }
}

fn write_header(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put_message(out, 3, |out| {
        put_bytes(out, 1, name);
        put_bytes(out, 2, value);
    });
}

/// Which of the verdicts the client hears: of those that refuse, the one to wait for longest; if none does, the one with
/// the least left. The first of equals.
fn speaker<'d>(call: &EnvoyCall<'_>, docket: &'d CheckBatch, is_over: bool) -> Option<RuleDecision<'d>> {
    let verdicts = call.asked.iter().filter_map(|asked| asked.place).map(|place| docket.verdict(place));
    let mut verdicts = verdicts.filter(|verdict| verdict.is_allowed() != is_over).peekable();
    let mut speaker = verdicts.next()?;
    // Most calls have one descriptor, and nothing to weigh it against.
    if verdicts.peek().is_some() {
        let mut most = DescriptorRank::of(&speaker);
        for verdict in verdicts {
            let urgency = DescriptorRank::of(&verdict);
            if urgency > most {
                (most, speaker) = (urgency, verdict);
            }
        }
    }
    Some(speaker)
}

/// How much a client should hear of a verdict before others, the most last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DescriptorRank {
    /// No limit binds.
    Unbound,
    /// So many are gone.
    Left(std::cmp::Reverse<u32>),
    /// It has to wait.
    Wait(Retry),
    /// It is refused whatever its limits say.
    Denied,
}

impl DescriptorRank {
    fn of(verdict: &RuleDecision<'_>) -> DescriptorRank {
        match verdict.binding() {
            Some(binding) => match binding.outlook.retry {
                Some(retry) => DescriptorRank::Wait(retry),
                None => DescriptorRank::Left(std::cmp::Reverse(binding.outlook.remaining)),
            },
            None if verdict.is_allowed() => DescriptorRank::Unbound,
            None => DescriptorRank::Denied,
        }
    }
}
