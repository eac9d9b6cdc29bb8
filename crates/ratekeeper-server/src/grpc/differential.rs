//! What is read and written by hand, held to what is generated from the same `.proto` files; and whatever bytes come, an
//! answer.

use super::check::{GrpcCheck, read_batch, read_numbered};
use super::envoy;
use super::generated::envoy::service::ratelimit::v3::rate_limit_response::Code;
use super::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::generated::ratekeeper::v1::{
    CheckBatchRequest, CheckRequest, CheckStreamRequest, CheckStreamResponse,
};
use super::{Grpc, GrpcInner, frame, stream};
use crate::api::ApiOptions;
use crate::denial_log::DenialLog;
use crate::http::BodyPermits;
use prost::Message;
use ratekeeper::rules::{RuleSet, Verb, read};
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

/// Pieces that messages and mistakes in them are made of: the fields of a check, of one on a stream, and of what Envoy asks.
const PIECES: [&[u8]; 40] = [
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
    // Descriptors: one entry, two, a limit, hits, hits of nothing, hits that are given back.
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

/// Whatever pieces there are, one behind the other.
fn for_messages(check: impl Fn(&[u8])) {
    let check = AssertUnwindSafe(check);
    bolero::check!().with_type::<Vec<u8>>().for_each(|numbers: &Vec<u8>| {
        let pieces = numbers.iter().map(|number| PIECES[usize::from(*number) % PIECES.len()]);
        check(&pieces.collect::<Vec<_>>().concat());
        check(numbers);
    });
}

/// Whether a check is the one that the generated message says.
fn is_same(check: &GrpcCheck<'_>, message: &CheckRequest) -> bool {
    let request = check.request();
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
fn a_check_is_read_as_anybody_would_read_it() {
    for_messages(|bytes| {
        if let Ok(check) = GrpcCheck::read(bytes) {
            let message = CheckRequest::decode(bytes).expect("what is read can be read");
            assert!(is_same(&check, &message), "{check:?} is not {message:?}");
        }
        if let (id, Ok(check)) = read_numbered(bytes) {
            let message = CheckStreamRequest::decode(bytes).expect("what is read can be read");
            assert!(id == message.id && is_same(&check, &message.check.unwrap()));
        }
        let mut checks = Vec::new();
        if read_batch(bytes, 1000, |check| checks.push(check.clone())).is_ok() {
            let message = CheckBatchRequest::decode(bytes).expect("what is read can be read");
            assert_eq!(checks.len(), message.checks.len());
            assert!(checks.iter().zip(&message.checks).all(|(check, message)| is_same(check, message)));
        }
    });
}

#[test]
fn what_others_write_can_be_read() {
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
        assert!(is_same(&GrpcCheck::read(&bytes).unwrap(), &check), "{check:?}");
        let id = u64::MAX >> (numbers[7] & 63);
        let numbered = CheckStreamRequest { id, check: Some(check.clone()) }.encode_to_vec();
        let (read, found) = read_numbered(&numbered);
        assert!(read == id && is_same(&found.unwrap(), &check));
        let batch = CheckBatchRequest { checks: vec![check.clone(); 3] }.encode_to_vec();
        assert_eq!(read_batch(&batch, 3, |found| assert!(is_same(found, &check))), Ok(3));
    });
}

fn shared() -> Arc<GrpcInner<MemoryStore<Arc<ManualClock>>>> {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let rules = RuleSet::compile(&read(RULES, Micros::EPOCH).spec.unwrap()).unwrap();
    let gate = RuleLimiter::new(rules, store, clock);
    Grpc::new(gate, &ApiOptions::default(), Arc::new(DenialLog::new(0)), BodyPermits::default()).shared
}

#[test]
fn whatever_envoy_sends_is_answered_for_each_descriptor_or_refused() {
    let (threads, shared) = (Builder::new_current_thread().build().unwrap(), shared());
    for_messages(|bytes| {
        let Ok(answer) = threads.block_on(envoy::should_rate_limit(&shared, bytes)) else { return };
        let (answer, rest) = frame::split(&answer, 1 << 20).unwrap().unwrap();
        let answer = RateLimitResponse::decode(answer).expect("what is written can be read");
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
        // What is no text is read here, and by nobody else.
        if let Ok(asked) = RateLimitRequest::decode(bytes) {
            assert_eq!(asked.descriptors.len(), answer.statuses.len());
        }
    });
}

#[test]
fn whatever_comes_on_a_stream_is_answered_once_each_until_it_breaks() {
    let (threads, shared) = (Builder::new_current_thread().build().unwrap(), shared());
    for_messages(|bytes| {
        let mut inbox = Vec::new();
        // Each byte of what came says how much of it makes the next message.
        let mut sent = 0;
        for piece in bytes.chunks(usize::from(bytes.first().copied().unwrap_or(1)).max(1)) {
            frame::append(&mut inbox, |out| out.extend_from_slice(piece));
            sent += 1;
        }
        let answers = threads.block_on(stream::answers(inbox, Arc::clone(&shared)));
        let (mut rest, mut count) = (&answers[..], 0);
        while let Some((answer, behind)) = frame::split(rest, 1 << 20).unwrap() {
            assert!(CheckStreamResponse::decode(answer).unwrap().outcome.is_some());
            (rest, count) = (behind, count + 1);
        }
        assert_eq!(count, sent);
        threads.block_on(stream::answers(bytes.to_vec(), Arc::clone(&shared)));
    });
    let docket =
        threads.block_on(shared.gate.ask(Verb::Peek, &ratekeeper::rules::CheckRequest::new("untouched")));
    assert_eq!(docket.verdict(0).decision().remaining(), 20);
}
