//! Draw buffers, and the decisions made from them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::{
    Algorithm, Amount, Decision, DrawOutcome, DrawResult, Draws, Forecast, Key, KeyRef, Leak, Limit,
    LimitStatus, MAX_DRAWS, Micros, Op, PermitId, Quota, Retry, Scope, Span, State,
};
use std::time::Duration;

const NOW: Micros = Micros::new(1_700_000_000_000_000);

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse::<Quota>().unwrap()).unwrap()
}

/// Returns a buffer with one group, in which each draw takes the given units from an unused limit.
fn decided(draws: &[(&str, u32)]) -> Draws {
    let mut buffer = Draws::new();
    for (quota, units) in draws {
        let amount = Amount::exactly(*units);
        buffer.push(
            "k".into(),
            Scope(0),
            limit(Algorithm::TokenBucket, quota),
            Op::Take(amount),
            PermitId(0),
        );
    }
    for draw in buffer.group_mut(0) {
        draw.decide_with(|limit, op, _| {
            let step = limit.step(None, NOW, op.amount());
            DrawResult::from_state(step.outcome(), NOW, step.state)
        });
    }
    buffer
}

#[test]
fn if_all_limits_allow_the_one_with_the_least_left_binds() {
    let buffer = decided(&[("10/s", 4), ("5/s", 4), ("5/h", 4)]);
    let decision = Decision::from_group(buffer.group(0));
    assert!(decision.is_allowed());
    assert_eq!((decision.index(), decision.remaining(), decision.retry()), (Some(1), 1, None));
    assert_eq!(decision.limit(), Some(buffer.all()[1].limit()));
    assert_eq!(decision.status().map(LimitStatus::outcome), Some(DrawOutcome::Granted(4)));
    assert_eq!(decision.reset_after(), Duration::from_millis(800));
    assert_eq!(decision.reset_at(), Some(NOW.plus(Span::millis(800))));
    assert_eq!((decision.delay(), decision.retry_after()), (Duration::ZERO, None));
}

#[test]
fn if_several_limits_deny_the_one_with_the_longest_wait_binds() {
    let decision =
        Decision::from_group(decided(&[("10/s", 4), ("5/h burst 3", 4), ("2/s burst 1", 4)]).group(0));
    assert!(!decision.is_allowed());
    assert_eq!(
        (decision.index(), decision.retry(), decision.retry_after()),
        (Some(1), Some(Retry::Never), None)
    );

    let mut buffer = Draws::new();
    for quota in ["2/s", "1/s", "2/s burst 3"] {
        buffer.push(
            "k".into(),
            Scope(0),
            limit(Algorithm::TokenBucket, quota),
            Op::Take(Amount::exactly(1)),
            PermitId(0),
        );
    }
    for draw in buffer.group_mut(0) {
        draw.decide_with(|limit, op, _| {
            let exhausted = limit.step(None, NOW, Amount::exactly(limit.capacity())).state;
            let step = limit.step(Some(exhausted), NOW, op.amount());
            DrawResult::from_state(step.outcome(), NOW, step.state)
        });
    }
    let decision = Decision::from_group(buffer.group(0));
    assert_eq!((decision.index(), decision.retry_after()), (Some(1), Some(Duration::from_secs(1))));
}

#[test]
fn the_delay_is_the_longest_of_all_limits() {
    let mut buffer = Draws::new();
    for quota in ["10/s burst 9", "2/s burst 9"] {
        let queue = limit(Algorithm::LeakyBucket(Leak::Queue), quota);
        buffer.push("k".into(), Scope(0), queue, Op::Take(Amount::exactly(1)), PermitId(0));
    }
    for draw in buffer.group_mut(0) {
        draw.decide_with(|limit, op, _| {
            let step = limit.step(Some(limit.step(None, NOW, Amount::exactly(2)).state), NOW, op.amount());
            DrawResult::from_state(step.outcome(), NOW, step.state)
        });
    }
    let decision = Decision::from_group(buffer.group(0));
    assert!(decision.is_allowed());
    assert_eq!((decision.index(), decision.delay()), (Some(0), Duration::from_secs(1)));
}

#[test]
fn a_single_limit_determines_the_decision() {
    let queue = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 9");
    let (amount, first) = (Amount::exactly(1), queue.step(None, NOW, Amount::exactly(1)));
    let step = queue.step(Some(first.state), NOW, amount);
    let decision =
        Decision::from_single(&queue, amount, DrawResult::from_state(step.outcome(), NOW, step.state));
    assert!(decision.is_allowed());
    assert_eq!(
        (decision.index(), decision.remaining(), decision.delay()),
        (Some(0), 7, Duration::from_millis(100))
    );
    let denied =
        Decision::from_single(&queue, amount, DrawResult::from_state(DrawOutcome::Denied, NOW, step.state));
    assert!(!denied.is_allowed());
}

#[test]
fn without_a_limit_everything_is_allowed() {
    for decision in [Decision::UNLIMITED, Decision::from_group(&[])] {
        assert!(decision.is_allowed());
        assert_eq!((decision.index(), decision.limit(), decision.remaining()), (None, None, u32::MAX));
        assert_eq!(
            (decision.reset_after(), decision.reset_at(), decision.retry()),
            (Duration::ZERO, None, None)
        );
    }
}

#[test]
fn a_result_with_a_forecast_keeps_it() {
    let slots = limit(Algorithm::Concurrency, "9/min");
    let forecast = |retry| Forecast { remaining: 7, reset: Span::secs(3), delay: Span::ZERO, retry };
    let status = |outcome, retry| {
        LimitStatus::new(&slots, Amount::exactly(1), DrawResult::from_forecast(outcome, NOW, forecast(retry)))
    };
    let granted = status(DrawOutcome::Granted(u32::MAX), None);
    assert_eq!(
        (granted.outcome(), granted.decided_at(), granted.limit()),
        (DrawOutcome::Granted(u32::MAX), NOW, &slots)
    );
    assert_eq!((granted.remaining(), granted.reset(), granted.retry()), (7, Span::secs(3), None));
    assert_eq!(status(DrawOutcome::WouldGrant, None).outcome(), DrawOutcome::WouldGrant);
    let denied = status(DrawOutcome::Denied, Some(Retry::After(Span::ZERO)));
    assert_eq!((denied.outcome(), denied.retry()), (DrawOutcome::Denied, Some(Retry::After(Span::ZERO))));
    assert_eq!(status(DrawOutcome::Denied, Some(Retry::Never)).retry(), Some(Retry::Never));
    for (outcome, is_denied) in
        [(DrawOutcome::Granted(0), false), (DrawOutcome::WouldGrant, false), (DrawOutcome::Denied, true)]
    {
        assert_eq!(DrawResult::from_state(outcome, NOW, State::default()).is_denied(), is_denied);
        assert_eq!(DrawResult::from_forecast(outcome, NOW, forecast(None)).is_denied(), is_denied);
    }
}

#[test]
fn a_buffer_keeps_groups_keys_and_scopes_apart() {
    let (bucket, window) =
        (limit(Algorithm::TokenBucket, "1/s"), limit(Algorithm::SlidingWindowCounter, "1/s"));
    let parts = Key::new(["a", "b"]).unwrap();
    let take = Op::Take(Amount::exactly(1));
    let mut draws = Draws::new();
    assert!(draws.is_empty());
    draws.push("a".into(), Scope(0), bucket, take, PermitId(1));
    draws.push_same_key(Scope(1), bucket, Op::Reset, PermitId(2));
    draws.push_same_key(Scope(1), window, take, PermitId(2));
    draws.begin_group();
    draws.begin_group();
    draws.push(parts.borrow(), Scope(7), window, Op::Refund(2), PermitId(3));
    draws.push("a".into(), Scope(0), bucket, take, PermitId(4));
    assert_eq!((draws.len(), draws.is_empty()), (3, false));
    assert_eq!([draws.group(0).len(), draws.group(1).len(), draws.group(2).len()], [3, 0, 2]);
    assert_eq!([draws.group_mut(0).len(), draws.group_mut(1).len(), draws.group_mut(2).len()], [3, 0, 2]);
    let all = draws.all();
    let keys: Vec<KeyRef<'_>> = all.iter().map(|draw| draws.key(draw)).collect();
    assert_eq!(keys, ["a".into(), "a".into(), "a".into(), parts.borrow(), "a".into()]);
    assert_eq!(all.iter().map(|draw| draw.scope().0).collect::<Vec<_>>(), [0, 1, 1, 7, 0]);
    assert_eq!(all.iter().map(|draw| draw.permit().0).collect::<Vec<_>>(), [1, 2, 2, 3, 4]);
    assert_eq!((all[1].op(), all[3].op(), all[3].limit()), (Op::Reset, Op::Refund(2), &window));
    assert!(all[1].has_same_hash_as(&all[0]), "the same key, pushed again");
    assert!(!all[2].has_same_hash_as(&all[1]), "another algorithm");
    assert!(!all[4].has_same_hash_as(&all[0]), "the same text, but pushed separately");
    assert_eq!(all[0].outcome(), DrawOutcome::WouldGrant, "not decided yet");
    draws.clear();
    assert_eq!((draws.len(), draws.all().len()), (0, 0));
}

#[test]
#[should_panic(expected = "at most 16 draws")]
fn draws_per_request_are_bounded() {
    let mut draws = Draws::new();
    for _ in 0..2 {
        draws.begin_group();
        for _ in 0..MAX_DRAWS {
            draws.push("k".into(), Scope(0), limit(Algorithm::TokenBucket, "1/s"), Op::Reset, PermitId(0));
        }
    }
    draws.push_same_key(Scope(0), limit(Algorithm::TokenBucket, "1/s"), Op::Reset, PermitId(0));
}
