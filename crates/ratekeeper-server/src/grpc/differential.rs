//! Compares the hand-written codec with code generated from the same `.proto` files, and feeds it arbitrary bytes.

use super::check::{read_batch, with_request, with_stream_request};
use super::envoy;
use super::generated::envoy::service::ratelimit::v3::rate_limit_response::Code;
use super::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::generated::ratekeeper::v1::{
    CheckBatchRequest, CheckRequest, CheckStreamRequest, CheckStreamResponse,
};
use super::{Grpc, GrpcInner, frame, stream};
use crate::api::ApiOptions;
use crate::conn::BodyPermits;
use crate::denial_log::DenialLog;
use prost::Message;
use ratekeeper::rules::{self, RuleSet, Verb, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::runtime::Builder;

const RULES: &str = "
rules:
  - {id: users, match: {path: '/users/{id}'}, key: [api_key, endpoint], limits: [5/s, 100/h]}
  - {id: tenants, key: [tenant], algorithm: sliding_window_log, limit: 50/min}
  - {id: edge, match: {domain: edge, descriptor: [a]}, algorithm: fixed_window, limit: 7/min}
  - {id: tried-out, key: [ip], shadow: true, limit: 1/min}
default: {limit: 100/min burst 20}
deny: ['0*', 192.0.2.0/24]
";

/// Fragments of valid and invalid messages: fields of checks, of stream checks and of Envoy's calls.
const FRAGMENTS: [&[u8]; 40] = [
    b"\x0a\x01a",
    b"\x0a\x010",
    b"\x0a\x00",
    b"\x0a\x04edge",
    b"\x0a\x01\xff",
    b"\x12\x08/users/7",
    b"\x12\x00",
    b"\x1a\x03GET",
    b"\x22\x03pro",
    b"\x2a\x09192.0.2.7",
    b"\x2a\x0b2001:db8::1",
    b"\x2a\x03any",
    b"\x32\x0e\x0a\x06tenant\x12\x04acme",
    b"\x32\x04\x0a\x01b\x12",
    b"\x32\x03\x0a\x01b",
    b"\x38\x05",
    b"\x38\x00",
    b"\x38\xff\xff\xff\xff\x0f",
    b"\x38\x80\x80\x80\x80\x10",
    b"\x08\x07",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x12\x03\x0a\x01a",
    b"\x12\x05\x0a\x01a\x38\x02",
    b"\x12\x02\x0a\x00",
    // Descriptors: one entry, two entries, a limit, an empty limit, hits, zero hits, negative hits.
    b"\x12\x08\x0a\x06\x0a\x01a\x12\x01b",
    b"\x12\x13\x0a\x06\x0a\x01a\x12\x01b\x0a\x09\x0a\x07api_key",
    b"\x12\x0e\x0a\x06\x0a\x01a\x12\x01b\x12\x04\x08\x03\x10\x02",
    b"\x12\x0a\x0a\x06\x0a\x01a\x12\x01b\x12\x00",
    b"\x12\x0c\x0a\x06\x0a\x01a\x12\x01b\x1a\x02\x08\x05",
    b"\x12\x0a\x0a\x06\x0a\x01a\x12\x01b\x1a\x00",
    b"\x12\x0a\x0a\x06\x0a\x01a\x12\x01b\x20\x01",
    b"\x12\x0a\x0a\x08\x0a\x02ip\x12\x02::",
    b"\x18\x03",
    b"\x0d\x01\x02\x03\x04",
    b"\x11\x01\x02\x03\x04\x05\x06\x07\x08",
    b"\x0b\x0c",
    b"\x00",
    b"\xff",
    b"\x80\x01",
    b"",
];

/// Runs `check` on random sequences of fragments and on random bytes.
fn for_messages(check: impl Fn(&[u8])) {
    let check = AssertUnwindSafe(check);
    bolero::check!().with_type::<Vec<u8>>().for_each(|numbers: &Vec<u8>| {
        let pieces = numbers.iter().map(|number| FRAGMENTS[usize::from(*number) % FRAGMENTS.len()]);
        check(&pieces.collect::<Vec<_>>().concat());
        check(numbers);
    });
}

/// Whether a request equals the generated message.
fn is_same(request: &rules::CheckRequest<'_>, message: &CheckRequest) -> bool {
    let ip = request.ip.map(|ip| ip.to_string()).unwrap_or_default();
    let is_attribute =
        |(name, value): &(&str, &str)| message.attributes.get(*name).is_some_and(|known| known == value);
    request.client_key == message.client_key
        && request.endpoint == message.endpoint
        && request.method == message.method
        && request.tier == message.tier
        && ip == message.ip
        && request.attributes.len() == message.attributes.len()
        && request.attributes.iter().all(is_attribute)
        && request.cost == message.cost.unwrap_or(1)
}

#[test]
fn checks_are_decoded_like_the_generated_messages() {
    for_messages(|bytes| {
        let valid = "the generated decoder accepts it too";
        let _ = with_request(bytes, |request| {
            let message = CheckRequest::decode(bytes).expect(valid);
            assert!(is_same(request, &message), "{request:?} is not {message:?}");
        });
        let stream_message = || CheckStreamRequest::decode(bytes).expect(valid);
        let is_same_check =
            |request: &rules::CheckRequest<'_>| is_same(request, &stream_message().check.unwrap());
        if let (id, Ok(is_same)) = with_stream_request(bytes, is_same_check) {
            assert!(id == stream_message().id && is_same);
        }
        if let Ok(count) = read_batch(bytes, 1000, |_| ()) {
            let message = CheckBatchRequest::decode(bytes).expect(valid);
            assert_eq!(count, message.checks.len());
            let mut checks = message.checks.iter();
            read_batch(bytes, 1000, |request| assert!(is_same(request, checks.next().unwrap()))).unwrap();
        }
    });
}

#[test]
fn messages_of_the_generated_encoder_can_be_read() {
    let words = ["", "a", "é", "/users/7", "192.0.2.7", "tenant"].map(str::to_owned);
    bolero::check!().with_type::<[u8; 8]>().for_each(|numbers: &[u8; 8]| {
        let word = |index: usize| {
            words[usize::from(numbers[index]) % words.len()].repeat(1 + usize::from(numbers[6] >> 5))
        };
        let check = CheckRequest {
            client_key: word(0) + "k",
            endpoint: word(1),
            method: word(2),
            tier: word(3),
            ip: if numbers[4] & 1 == 0 { String::new() } else { "2001:db8::1".to_owned() },
            attributes: (0..numbers[5] % 33).map(|name| (name.to_string(), word(1))).collect(),
            cost: (numbers[4] & 2 == 0).then(|| u32::MAX >> (numbers[7] & 31)),
        };
        let bytes = check.encode_to_vec();
        assert_eq!(with_request(&bytes, |request| is_same(request, &check)), Ok(true), "{check:?}");
        let id = u64::MAX >> (numbers[7] & 63);
        let numbered = CheckStreamRequest { id, check: Some(check.clone()) }.encode_to_vec();
        let found = with_stream_request(&numbered, |request| is_same(request, &check));
        assert_eq!(found, (id, Ok(true)));
        let batch = CheckBatchRequest { checks: vec![check.clone(); 3] }.encode_to_vec();
        assert_eq!(read_batch(&batch, 3, |request| assert!(is_same(request, &check))), Ok(3));
    });
}

fn shared() -> Arc<GrpcInner<MemoryStore<Arc<ManualClock>>>> {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let rules = RuleSet::compile(&read(RULES, Micros::EPOCH).spec.unwrap()).unwrap();
    let limiter = RuleLimiter::new(rules, store, clock);
    Grpc::new(limiter, &ApiOptions::default(), Arc::new(DenialLog::new(0)), BodyPermits::default()).shared
}

#[test]
fn any_envoy_call_is_answered_for_each_descriptor_or_rejected() {
    let (runtime, shared) = (Builder::new_current_thread().build().unwrap(), shared());
    for_messages(|bytes| {
        let Ok(answer) = runtime.block_on(envoy::should_rate_limit(&shared, bytes)) else { return };
        let (answer, rest) = frame::split(&answer, 1 << 20).unwrap().unwrap();
        let answer = RateLimitResponse::decode(answer).expect("the generated decoder accepts the answer");
        let is_over = answer.statuses.iter().any(|status| status.code() == Code::OverLimit);
        assert_eq!(answer.overall_code(), if is_over { Code::OverLimit } else { Code::Ok });
        assert!(rest.is_empty() && answer.statuses.iter().all(|status| status.code() != Code::Unknown));
        assert_eq!(is_over, !answer.raw_body.is_empty());
        assert!(
            answer
                .response_headers_to_add
                .iter()
                .all(|header| !header.key.is_empty() && !header.value.is_empty())
        );
        // The generated decoder rejects text that is not UTF-8; ours does not.
        if let Ok(call) = RateLimitRequest::decode(bytes) {
            assert_eq!(call.descriptors.len(), answer.statuses.len());
        }
    });
}

#[test]
fn every_stream_message_is_answered_once_until_one_is_malformed() {
    let (runtime, shared) = (Builder::new_current_thread().build().unwrap(), shared());
    for_messages(|bytes| {
        let mut frames = Vec::new();
        // The first byte says how long the messages are.
        let mut sent = 0;
        for piece in bytes.chunks(usize::from(bytes.first().copied().unwrap_or(1)).max(1)) {
            frame::append(&mut frames, |out| out.extend_from_slice(piece));
            sent += 1;
        }
        let answers = runtime.block_on(stream::answers(frames, Arc::clone(&shared)));
        let (mut rest, mut count) = (&answers[..], 0);
        while let Some((answer, after)) = frame::split(rest, 1 << 20).unwrap() {
            assert!(CheckStreamResponse::decode(answer).unwrap().outcome.is_some());
            (rest, count) = (after, count + 1);
        }
        assert_eq!(count, sent);
        runtime.block_on(stream::answers(bytes.to_vec(), Arc::clone(&shared)));
    });
    let batch =
        runtime.block_on(shared.limiter.decide_one(Verb::Peek, &rules::CheckRequest::new("untouched")));
    assert_eq!(batch.decision(0).remaining(), 20);
}

#[test]
fn each_limit_is_evaluated_at_most_once_per_envoy_call() {
    let (runtime, shared) = (Builder::new_current_thread().build().unwrap(), shared());
    // The domain `edge` and two descriptors `a: b`, which take from the same limit of 7 a minute.
    let call = b"\x0a\x04edge\x12\x08\x0a\x06\x0a\x01a\x12\x01b\x12\x08\x0a\x06\x0a\x01a\x12\x01b";
    let mut over = 0;
    for _ in 0..5 {
        let before = ratekeeper_core::forecast_count();
        let answer = runtime.block_on(envoy::should_rate_limit(&shared, call)).unwrap();
        assert_eq!(ratekeeper_core::forecast_count() - before, 2);
        let (answer, _) = frame::split(&answer, 1 << 20).unwrap().unwrap();
        over += i32::from(RateLimitResponse::decode(answer).unwrap().overall_code() == Code::OverLimit);
    }
    assert!(over > 0 && over < 5);
}
