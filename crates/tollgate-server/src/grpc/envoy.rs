//! Envoy's rate limit service, version 3.
//!
//! Each descriptor becomes a request of its own, under the rules that its entries meet, and all of one call are decided
//! together: if one is over its limit, none of the others is charged. What can't be understood is an error of the call,
//! never the code UNKNOWN, which Envoy takes for a yes.

mod call;
mod unit;

use super::Shared;
use super::generated::envoy::config::core::v3::HeaderValue;
use super::generated::envoy::service::ratelimit::v3::RateLimitResponse;
use super::generated::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use crate::api::{Figures, RefusalForm, write_fields};
use call::{Asked, Call, Hold};
use tollgate::rules::{Attribute, Stated, Verb};
use tollgate::{Answer, Docket, Retry, Span, Store, Verdict};
use tonic::Status;

/// The status that Envoy refuses with, unless it is told otherwise.
const TOO_MANY_REQUESTS: u16 = 429;

/// Answers a call.
pub(super) async fn should_rate_limit<S: Store>(
    shared: &Shared<S>,
    message: &[u8],
) -> Result<RateLimitResponse, Status> {
    let call = Call::read(message)?;
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
    Ok(answer(shared, &call, &docket, is_over))
}

/// Puts a call on the docket: what is decided together, and behind it what is given back.
fn file<S: Store>(shared: &Shared<S>, call: &Call<'_>, attributes: &[Attribute<'_>], docket: &mut Docket) {
    let gate = &shared.gate;
    let add = |docket: &mut Docket, asked: &Asked, verb: Verb| {
        let request = call.request(asked, attributes);
        match &asked.hold {
            Hold::Rules => gate.add(docket, verb, &request),
            Hold::Stated(limit) => gate.add_stated(docket, Stated::Descriptor, limit, verb, &request),
            Hold::Closed => {}
        }
    };
    let together = || call.asked.iter().filter(|asked| asked.verb != Verb::Refund);
    gate.join(docket, &call.whole(attributes));
    together().for_each(|asked| add(docket, asked, asked.verb));
    let is_denied = |docket: &Docket, asked: &Asked| asked.place.is_none_or(|place| docket.is_denied(place));
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

impl Call<'_> {
    /// Whether a descriptor is over its limit.
    fn is_over(&self, index: usize, docket: &Docket) -> bool {
        let asked = &self.asked[index];
        match asked.place {
            Some(place) => !docket.verdict(place).is_allowed(),
            None => asked.verb != Verb::Refund,
        }
    }
}

/// What was taken for a call that is refused, to be given back.
///
/// A store decides up to [`MAX_DRAWS`](tollgate::MAX_DRAWS) limits as one; a call that meets more is decided in several
/// groups, one of which may have taken before another refused.
#[cold]
fn refund<S: Store>(
    shared: &Shared<S>,
    call: &Call<'_>,
    attributes: &[Attribute<'_>],
    docket: &Docket,
) -> Option<Docket> {
    let has_taken = |asked: &&Asked| {
        let verdict = asked.place.filter(|_| asked.verb == Verb::Check).map(|place| docket.verdict(place));
        verdict.is_some_and(|verdict| {
            let mut readings = verdict.policies().map(|policy| policy.reading.answer()).peekable();
            readings.peek().is_some() && readings.all(|answer| matches!(answer, Answer::Granted(_)))
        })
    };
    let mut taken = call.asked.iter().filter(has_taken).peekable();
    taken.peek()?;
    let mut refunds = shared.gate.begin();
    for asked in taken {
        let request = call.request(asked, attributes);
        match &asked.hold {
            Hold::Rules => shared.gate.add(&mut refunds, Verb::Refund, &request),
            Hold::Stated(limit) => {
                shared.gate.add_stated(&mut refunds, Stated::Descriptor, limit, Verb::Refund, &request);
            }
            Hold::Closed => {}
        }
    }
    Some(refunds)
}

#[cold]
fn log_denials<S: Store>(shared: &Shared<S>, call: &Call<'_>, attributes: &[Attribute<'_>], docket: &Docket) {
    for asked in call.asked.iter().filter(|asked| asked.verb == Verb::Check) {
        let verdict = asked.place.map(|place| docket.verdict(place));
        if let Some(verdict) = verdict.filter(|verdict| !verdict.is_allowed()) {
            shared.denials.note(shared.gate.clock(), &call.request(asked, attributes), &verdict);
        }
    }
}

fn answer<S>(shared: &Shared<S>, call: &Call<'_>, docket: &Docket, is_over: bool) -> RateLimitResponse {
    let code = |is_over| if is_over { Code::OverLimit } else { Code::Ok };
    let statuses = call.asked.iter().enumerate().map(|(index, asked)| {
        let code = code(call.is_over(index, docket)).into();
        match asked.place.map(|place| docket.verdict(place)) {
            Some(verdict) => DescriptorStatus { code, ..status(&verdict) },
            None => DescriptorStatus { code, ..DescriptorStatus::default() },
        }
    });
    let mut response = RateLimitResponse {
        overall_code: code(is_over).into(),
        statuses: statuses.collect(),
        response_headers_to_add: Vec::new(),
        raw_body: Vec::new(),
    };
    let speaker = speaker(call, docket, is_over);
    if let Some(verdict) = &speaker {
        let mut lines = Vec::new();
        write_fields(shared.options.fields, verdict, &Figures::of(verdict), &mut lines);
        response.response_headers_to_add.extend(headers(&lines));
    }
    if is_over {
        let form = RefusalForm::Json;
        response.response_headers_to_add.push(header("content-type", form.content_type()));
        response.response_headers_to_add.push(header("cache-control", "no-store"));
        match &speaker {
            Some(verdict) => {
                form.write(verdict, &Figures::of(verdict), TOO_MANY_REQUESTS, &mut response.raw_body);
            }
            None => response.raw_body.extend_from_slice(CLOSED),
        }
    }
    response
}

/// What is told of a limit of nothing at all, which no rule and no store knows of.
const CLOSED: &[u8] = br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded"}}"#;

/// What is told of a descriptor, but for the code.
fn status(verdict: &Verdict<'_>) -> DescriptorStatus {
    let Some(binding) = verdict.binding() else { return DescriptorStatus::default() };
    DescriptorStatus {
        code: Code::Unknown.into(),
        current_limit: Some(unit::told(binding.limit, verdict.limit_name().unwrap_or_default())),
        limit_remaining: binding.outlook.remaining,
        duration_until_reset: Some(duration(binding.outlook.reset)),
    }
}

fn duration(span: Span) -> prost_types::Duration {
    let micros = span.get();
    prost_types::Duration {
        seconds: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).unwrap_or(0),
    }
}

/// Which of the verdicts the client hears: of those that refuse, the one to wait for longest; if none does, the one with
/// the least left. The first of equals.
fn speaker<'d>(call: &Call<'_>, docket: &'d Docket, is_over: bool) -> Option<Verdict<'d>> {
    let verdicts = call.asked.iter().filter_map(|asked| asked.place).map(|place| docket.verdict(place));
    let mut speaker: Option<(Urgency, Verdict<'d>)> = None;
    for verdict in verdicts.filter(|verdict| verdict.is_allowed() != is_over) {
        let urgency = Urgency::of(&verdict);
        if speaker.as_ref().is_none_or(|(other, _)| urgency > *other) {
            speaker = Some((urgency, verdict));
        }
    }
    speaker.map(|(_, verdict)| verdict)
}

/// How much a client should hear of a verdict before others, the most last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// No limit binds.
    Unbound,
    /// So many are gone.
    Left(std::cmp::Reverse<u32>),
    /// It has to wait.
    Wait(Retry),
    /// It is refused whatever its limits say.
    Denied,
}

impl Urgency {
    fn of(verdict: &Verdict<'_>) -> Urgency {
        match verdict.binding() {
            Some(binding) => match binding.outlook.retry {
                Some(retry) => Urgency::Wait(retry),
                None => Urgency::Left(std::cmp::Reverse(binding.outlook.remaining)),
            },
            None if verdict.is_allowed() => Urgency::Unbound,
            None => Urgency::Denied,
        }
    }
}

/// Header fields, from lines as HTTP/1 has them.
fn headers(lines: &[u8]) -> impl Iterator<Item = HeaderValue> {
    let lines = str::from_utf8(lines).unwrap_or_default();
    lines
        .split_terminator("\r\n")
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| header(key, value))
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned() }
}
