//! Envoy's rate limit service, version 3.
//!
//! Each descriptor becomes one request under the rules that its entries match. All descriptors of a call are decided
//! together: if one is over its limit, none of the others is charged. An invalid call fails with an error, never with
//! the code UNKNOWN, which Envoy treats as allowed.

mod call;
mod unit;

use super::GrpcInner;
use super::frame;
use super::message::{put_bytes, put_message, put_number};
use crate::api::{DenialFormat, RateLimitHeaders, WireNumbers, for_each_header};
use call::{DescriptorLimit, EnvoyCall, EnvoyDescriptor};
use ratekeeper::rules::{Attribute, InlineLimit, Verb};
use ratekeeper::{CheckBatch, DrawOutcome, Retry, RuleDecision, Store};
use tonic::Status;

/// The status that Envoy denies requests with by default.
const TOO_MANY_REQUESTS: u16 = 429;

/// The codes of a `RateLimitResponse`.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// The typical size of an encoded answer, rounded up.
const TYPICAL_ANSWER_BYTES: usize = 512;

/// Answers a `ShouldRateLimit` call.
pub(super) async fn should_rate_limit<S: Store>(
    shared: &GrpcInner<S>,
    message: &[u8],
) -> Result<Vec<u8>, Status> {
    let call = EnvoyCall::read(message)?;
    let attributes = call.attributes();
    let mut batch = shared.limiter.begin();
    add_descriptors(shared, &call, &attributes, &mut batch);
    if !batch.is_empty() {
        shared.limiter.decide(&mut batch).await;
    }
    let is_over = (0..call.descriptors.len()).any(|index| call.is_over(index, &batch));
    if is_over {
        log_denials(shared, &call, &attributes, &batch);
        if let Some(mut refunds) = refund(shared, &call, &attributes, &batch) {
            shared.limiter.decide(&mut refunds).await;
        }
    }
    let mut answer = Vec::with_capacity(TYPICAL_ANSWER_BYTES);
    frame::append(&mut answer, |out| write_answer(shared.options.headers, &call, &batch, is_over, out));
    Ok(answer)
}

/// Adds a call to the batch: first the descriptors that are decided together, then the refunds.
fn add_descriptors<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    batch: &mut CheckBatch,
) {
    let add = |batch: &mut CheckBatch, descriptor: &EnvoyDescriptor, verb: Verb| {
        add_descriptor(shared, call, attributes, descriptor, verb, batch);
    };
    let together = || call.descriptors.iter().filter(|descriptor| descriptor.verb != Verb::Refund);
    shared.limiter.begin_atomic_group(batch, &call.whole_request(attributes));
    together().for_each(|descriptor| add(batch, descriptor, descriptor.verb));
    let is_denied = |batch: &CheckBatch, descriptor: &EnvoyDescriptor| {
        descriptor.batch_index.is_none_or(|index| batch.is_denied_outright(index))
    };
    if together().any(|descriptor| is_denied(batch, descriptor)) {
        // A descriptor that is denied regardless of its limits draws nothing, so it would not keep the others from
        // being charged: they only peek.
        let denied: Vec<bool> = together().map(|descriptor| is_denied(batch, descriptor)).collect();
        batch.truncate(0);
        for (descriptor, is_denied) in together().zip(denied) {
            add(batch, descriptor, if is_denied { descriptor.verb } else { Verb::Peek });
        }
    }
    batch.end_atomic_group();
    call.descriptors
        .iter()
        .filter(|descriptor| descriptor.verb == Verb::Refund)
        .for_each(|descriptor| add(batch, descriptor, Verb::Refund));
}

/// Adds a descriptor to the batch, unless its limit is zero.
fn add_descriptor<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    descriptor: &EnvoyDescriptor,
    verb: Verb,
    batch: &mut CheckBatch,
) {
    let request = call.request(descriptor, attributes);
    match &descriptor.limit {
        DescriptorLimit::Rules => shared.limiter.add(batch, verb, &request),
        DescriptorLimit::Inline(limit) => {
            shared.limiter.add_inline(batch, InlineLimit::Descriptor, limit, verb, &request);
        }
        DescriptorLimit::Zero => {}
    }
}

impl EnvoyCall<'_> {
    /// Whether a descriptor is over its limit.
    fn is_over(&self, index: usize, batch: &CheckBatch) -> bool {
        let descriptor = &self.descriptors[index];
        match descriptor.batch_index {
            Some(index) => !batch.decision(index).is_allowed(),
            None => descriptor.verb != Verb::Refund,
        }
    }
}

/// A batch that refunds what was taken for a denied call. Returns `None` if nothing was.
///
/// A store decides up to [`MAX_DRAWS`](ratekeeper::MAX_DRAWS) limits atomically. A call with more limits is decided in
/// several groups, one of which may have been granted before another was denied.
#[cold]
fn refund<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    batch: &CheckBatch,
) -> Option<CheckBatch> {
    let has_taken = |descriptor: &&EnvoyDescriptor| {
        let decision = descriptor
            .batch_index
            .filter(|_| descriptor.verb == Verb::Check)
            .map(|index| batch.decision(index));
        decision.is_some_and(|decision| {
            let mut statuses = decision.policies().map(|policy| policy.status.outcome()).peekable();
            statuses.peek().is_some() && statuses.all(|answer| matches!(answer, DrawOutcome::Granted(_)))
        })
    };
    let mut taken = call.descriptors.iter().filter(has_taken).peekable();
    taken.peek()?;
    let mut refunds = shared.limiter.begin();
    taken.for_each(|descriptor| {
        add_descriptor(shared, call, attributes, descriptor, Verb::Refund, &mut refunds);
    });
    Some(refunds)
}

#[cold]
fn log_denials<S: Store>(
    shared: &GrpcInner<S>,
    call: &EnvoyCall<'_>,
    attributes: &[Attribute<'_>],
    batch: &CheckBatch,
) {
    for descriptor in call.descriptors.iter().filter(|descriptor| descriptor.verb == Verb::Check) {
        let decision = descriptor.batch_index.map(|index| batch.decision(index));
        if let Some(decision) = decision.filter(|decision| !decision.is_allowed()) {
            shared.denials.record(shared.limiter.clock(), &call.request(descriptor, attributes), &decision);
        }
    }
}

/// Writes a `RateLimitResponse`.
fn write_answer(
    fields: RateLimitHeaders,
    call: &EnvoyCall<'_>,
    batch: &CheckBatch,
    is_over: bool,
    out: &mut Vec<u8>,
) {
    put_number(out, 1, if is_over { OVER_LIMIT } else { OK });
    for (index, descriptor) in call.descriptors.iter().enumerate() {
        let code = if call.is_over(index, batch) { OVER_LIMIT } else { OK };
        let decision = descriptor.batch_index.map(|index| batch.decision(index));
        put_message(out, 2, |out| write_status(code, decision.as_ref(), out));
    }
    let reported = reported_decision(call, batch, is_over)
        .map(|decision| (decision, WireNumbers::from_decision(&decision)));
    if let Some((decision, numbers)) = &reported {
        for_each_header(fields, decision, numbers, |name, value| write_header(name, value, out));
    }
    if is_over {
        write_header("content-type", DenialFormat::Json.content_type().as_bytes(), out);
        write_header("cache-control", b"no-store", out);
        let mut body = Vec::new();
        match &reported {
            Some((decision, numbers)) => {
                DenialFormat::Json.write(decision, numbers, TOO_MANY_REQUESTS, &mut body);
            }
            None => body.extend_from_slice(ZERO_LIMIT_BODY),
        }
        put_bytes(out, 5, &body);
    }
}

/// The body for a limit of zero, which no rule and no store has decided.
const ZERO_LIMIT_BODY: &[u8] = br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded"}}"#;

/// Writes a `DescriptorStatus`.
fn write_status(code: u64, decision: Option<&RuleDecision<'_>>, out: &mut Vec<u8>) {
    put_number(out, 1, code);
    let Some((decision, binding)) = decision.and_then(|decision| Some((decision, decision.binding()?)))
    else {
        return;
    };
    put_message(out, 2, |out| {
        let (requests, unit) = unit::requests_per_unit(binding.limit);
        put_number(out, 1, requests.into());
        put_number(out, 2, unit);
        put_bytes(out, 3, decision.limit_name().unwrap_or_default().as_bytes());
    });
    put_number(out, 3, binding.forecast.remaining.into());
    let micros = binding.forecast.reset.get();
    put_message(out, 4, |out| {
        put_number(out, 1, micros / 1_000_000);
        put_number(out, 2, micros % 1_000_000 * 1_000);
    });
}

fn write_header(name: &str, value: &[u8], out: &mut Vec<u8>) {
    put_message(out, 3, |out| {
        put_bytes(out, 1, name.as_bytes());
        put_bytes(out, 2, value);
    });
}

/// The decision that the headers and the body report: of the denials, the one with the longest wait; without a denial,
/// the one with the fewest units left. Of equals, the first.
fn reported_decision<'d>(
    call: &EnvoyCall<'_>,
    batch: &'d CheckBatch,
    is_over: bool,
) -> Option<RuleDecision<'d>> {
    let decisions = call
        .descriptors
        .iter()
        .filter_map(|descriptor| descriptor.batch_index)
        .map(|index| batch.decision(index));
    let mut decisions = decisions.filter(|decision| decision.is_allowed() != is_over).peekable();
    let mut reported = decisions.next()?;
    // Most calls have one descriptor, and nothing to compare it with.
    if decisions.peek().is_some() {
        let mut highest = DescriptorRank::of(&reported);
        for decision in decisions {
            let rank = DescriptorRank::of(&decision);
            if rank > highest {
                (highest, reported) = (rank, decision);
            }
        }
    }
    Some(reported)
}

/// The priority of a decision for being reported, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DescriptorRank {
    /// No limit applies.
    Unbound,
    /// Allowed, with this many units left.
    Remaining(std::cmp::Reverse<u32>),
    /// Denied by a limit, with this wait.
    Wait(Retry),
    /// Denied regardless of its limits.
    Denied,
}

impl DescriptorRank {
    fn of(decision: &RuleDecision<'_>) -> DescriptorRank {
        match decision.binding() {
            Some(binding) => match binding.forecast.retry {
                Some(retry) => DescriptorRank::Wait(retry),
                None => DescriptorRank::Remaining(std::cmp::Reverse(binding.forecast.remaining)),
            },
            None if decision.is_allowed() => DescriptorRank::Unbound,
            None => DescriptorRank::Denied,
        }
    }
}
