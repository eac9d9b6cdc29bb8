//! Script calls are small, are filled again without allocating, and survive invalid replies.

use super::{GroupResult, ScriptCall};
use proptest::prelude::{any, prop_assert, proptest};
use ratekeeper::{KeyName, RenewalOwner};
use ratekeeper_core::{
    Algorithm, Align, Amount, Draws, Key, LeaseReport, LeaseRequest, Limit, LogSize, Micros, Op, PermitId,
    Scope, Span, Zone,
};
use std::sync::Arc;

const NOW: Micros = Micros::new(1_700_000_000_123_457);

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

fn mixed() -> Draws {
    let berlin: Zone = "Europe/Berlin".parse().unwrap();
    let limits = [
        limit(Algorithm::TokenBucket, "100/min"),
        limit(Algorithm::FixedWindow(Align::WallClock(berlin)), "100/month"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "5/s"),
        limit(Algorithm::Concurrency, "5/s"),
    ];
    let mut draws = Draws::new();
    for request in 0..60 {
        draws.begin_group();
        for limit in &limits[..1 + request % 4] {
            let op = Op::Take(Amount::exactly(1));
            draws.push(format!("user:{}", request % 17).as_str().into(), Scope(0), *limit, op, PermitId(7));
        }
    }
    draws
}

fn fill(call: &mut ScriptCall, draws: &Draws) {
    call.reset(NOW);
    for group in 0..draws.len() {
        call.push(draws, group, 1, None);
    }
}

#[test]
fn a_key_and_a_limit_are_encoded_once() {
    let (mut call, draws) = (ScriptCall::default(), mixed());
    fill(&mut call, &draws);
    assert_eq!((call.group_count(), call.draw_count()), (60, draws.all().len()));
    let names = call.key_names(&draws);
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), names.len()), (call.key_count(), distinct.len()));
    assert!(call.arguments().next().unwrap().len() < 300);
    assert_eq!(names[0], b"rk1:{user:0}:b");
    let mut command = redis::Cmd::new();
    call.write(&draws, &mut command);
    assert_eq!(command.args_iter().count(), 3 + names.len() + 2);
}

fn owner(key: &str, limit: &Limit) -> RenewalOwner {
    RenewalOwner::Key(Arc::new(KeyName { key: Key::new([key]).unwrap(), scope: Scope(0) }), *limit)
}

fn push_renewal(call: &mut ScriptCall, draws: &Draws, key: &RenewalOwner) {
    let report = LeaseReport { term: 7, spent: 1, kept: 2, returned: 3 };
    let request = LeaseRequest { short_horizon: 4, long_horizon: 5, long_horizon_divisor: 6 };
    call.push_renewal(draws, key, report, request);
}

#[test]
fn a_warm_call_is_filled_without_allocating() {
    let (mut call, draws, limit) = (ScriptCall::default(), mixed(), limit(Algorithm::TokenBucket, "100/min"));
    let owner = owner("user:3", &limit);
    let fill = |call: &mut ScriptCall| {
        fill(call, &draws);
        push_renewal(call, &draws, &owner);
    };
    fill(&mut call);
    let again = allocation_counter::measure(|| fill(&mut call));
    assert_eq!(again.count_total, 0);
}

#[test]
fn renewals_are_a_separate_argument_and_share_the_keys() {
    let (mut call, draws, limit) = (ScriptCall::default(), mixed(), limit(Algorithm::TokenBucket, "100/min"));
    fill(&mut call, &draws);
    let (keys, limits) = (call.key_count(), call.arguments().next().unwrap().to_vec());
    assert_eq!(call.arguments().count(), 2, "without a renewal there is no third");
    push_renewal(&mut call, &draws, &owner("user:3", &limit));
    assert_eq!((call.key_count(), call.arguments().count()), (keys, 3));
    assert_eq!(call.arguments().next(), Some(&limits[..]), "the key and the limit are already encoded");
    push_renewal(&mut call, &draws, &owner("another client", &limit));
    assert_eq!((call.key_count(), call.arguments().count()), (keys + 1, 3));
    assert_eq!(call.arguments().last().map(<[u8]>::len), Some(2 * 35));
}

#[test]
fn only_equal_requests_can_be_coalesced() {
    let bucket = limit(Algorithm::TokenBucket, "100/min");
    let queue = limit(Algorithm::LeakyBucket(ratekeeper_core::Leak::Queue), "100/min");
    let take = Op::Take(Amount::exactly(2));
    let can_coalesce = |draws_of_group: &[(&str, Limit, Op)]| {
        let mut draws = Draws::new();
        for (key, limit, op) in draws_of_group {
            draws.push((*key).into(), Scope(0), *limit, *op, PermitId(0));
        }
        ScriptCall::can_coalesce(&draws, 0)
    };
    assert!(can_coalesce(&[("a", bucket, take), ("b", bucket, take), ("a", queue, take)]));
    assert!(!can_coalesce(&[("a", bucket, take), ("a", bucket, take)]), "one key twice");
    assert!(!can_coalesce(&[("a", bucket, Op::Take(Amount::between(1, 2)))]), "a range");
    assert!(!can_coalesce(&[("a", bucket, Op::Refund(1))]), "not a take");
    assert!(
        !can_coalesce(&[("a", queue, Op::Take(Amount::exactly(1).with_max_delay(Span::SECOND)))]),
        "a bounded delay"
    );
    assert!(
        can_coalesce(&[("a", bucket, Op::Take(Amount::exactly(1).with_max_delay(Span::SECOND)))]),
        "a token bucket does not delay"
    );
    assert!(!can_coalesce(&[("a", limit(Algorithm::Concurrency, "5/s"), take)]), "one permit each");
}

proptest! {
    /// Any reply is either read or an error.
    #[test]
    fn invalid_replies_are_errors(bytes in proptest::collection::vec(any::<u8>(), 0..400), codes in any::<bool>()) {
        let (mut call, mut draws) = (ScriptCall::default(), mixed());
        fill(&mut call, &draws);
        for key in ["user:3", "user:4"] {
            push_renewal(&mut call, &draws, &owner(key, &limit(Algorithm::TokenBucket, "100/min")));
        }
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| if codes { byte % 36 } else { byte }).collect();
        let Ok(mut reply) = call.read_reply(&bytes) else { return Ok(()) };
        let mut groups = 0;
        for (group, result) in reply.by_ref().enumerate() {
            groups += 1;
            if let Ok(GroupResult::Decided(decided)) = result {
                decided.apply(0, draws.group_mut(group));
            }
        }
        prop_assert!(groups == 60);
        prop_assert!(reply.renewal_results().count() == 2);
    }
}
