//! What a buffer of draws holds, and what the client hears of it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::{
    Algorithm, Amount, Decision, DrawOutcome, DrawResult, Draws, Forecast, Key, KeyRef, Leak, Limit,
    LimitStatus, MAX_DRAWS, Micros, Op, PermitId, Quota, Retry, Scope, Span, State,
};
use std::time::Duration;

const NOW: Micros = Micros::new(1_700_000_000_000_000);

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse::<Quota>().unwrap()).unwrap()
}

/// A buffer of one group, each draw of which took so many units from a limit with its burst untouched.
fn decided(draws: &[(&str, u32)]) -> Draws {
    let mut buffer = Draws::new();
    for (quota, units) in draws {
        let ask = Amount::exactly(*units);
        buffer.push("k".into(), Scope(0), limit(Algorithm::TokenBucket, quota), Op::Take(ask), PermitId(0));
    }
    for draw in buffer.group_mut(0) {
        draw.settle(|limit, act, _| {
            let step = limit.step(None, NOW, act.ask());
            DrawResult::of_state(step.answer(), NOW, step.state)
        });
    }
    buffer
}

#[test]
fn of_several_limits_that_agree_the_one_with_the_least_left_binds() {
    let buffer = decided(&[("10/s", 4), ("5/s", 4), ("5/h", 4)]);
    let decision = Decision::of(buffer.group(0));
    assert!(decision.is_allowed());
    assert_eq!((decision.index(), decision.remaining(), decision.retry()), (Some(1), 1, None));
    assert_eq!(decision.limit(), Some(buffer.all()[1].limit()));
    assert_eq!(decision.reading().map(LimitStatus::answer), Some(DrawOutcome::Granted(4)));
    assert_eq!(decision.reset_after(), Duration::from_millis(800));
    assert_eq!(decision.reset_at(), Some(NOW.plus(Span::millis(800))));
    assert_eq!((decision.delay(), decision.retry_after()), (Duration::ZERO, None));
}

#[test]
fn of_several_limits_that_refuse_the_one_to_wait_for_longest_binds() {
    let decision = Decision::of(decided(&[("10/s", 4), ("5/h burst 3", 4), ("2/s burst 1", 4)]).group(0));
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
        draw.settle(|limit, act, _| {
            let drained = limit.step(None, NOW, Amount::exactly(limit.capacity())).state;
            let step = limit.step(Some(drained), NOW, act.ask());
            DrawResult::of_state(step.answer(), NOW, step.state)
        });
    }
    let decision = Decision::of(buffer.group(0));
    assert_eq!((decision.index(), decision.retry_after()), (Some(1), Some(Duration::from_secs(1))));
}

#[test]
fn a_delay_is_the_longest_of_all() {
    let mut buffer = Draws::new();
    for quota in ["10/s burst 9", "2/s burst 9"] {
        let queue = limit(Algorithm::LeakyBucket(Leak::Queue), quota);
        buffer.push("k".into(), Scope(0), queue, Op::Take(Amount::exactly(1)), PermitId(0));
    }
    for draw in buffer.group_mut(0) {
        draw.settle(|limit, act, _| {
            let step = limit.step(Some(limit.step(None, NOW, Amount::exactly(2)).state), NOW, act.ask());
            DrawResult::of_state(step.answer(), NOW, step.state)
        });
    }
    let decision = Decision::of(buffer.group(0));
    assert!(decision.is_allowed());
    assert_eq!((decision.index(), decision.delay()), (Some(0), Duration::from_secs(1)));
}

#[test]
fn one_limit_speaks_for_itself() {
    let queue = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 9");
    let (ask, first) = (Amount::exactly(1), queue.step(None, NOW, Amount::exactly(1)));
    let step = queue.step(Some(first.state), NOW, ask);
    let decision = Decision::of_one(&queue, ask, DrawResult::of_state(step.answer(), NOW, step.state));
    assert!(decision.is_allowed());
    assert_eq!(
        (decision.index(), decision.remaining(), decision.delay()),
        (Some(0), 7, Duration::from_millis(100))
    );
    let refused = Decision::of_one(&queue, ask, DrawResult::of_state(DrawOutcome::Refused, NOW, step.state));
    assert!(!refused.is_allowed());
}

#[test]
fn without_a_limit_everything_is_allowed() {
    for decision in [Decision::UNLIMITED, Decision::of(&[])] {
        assert!(decision.is_allowed());
        assert_eq!((decision.index(), decision.limit(), decision.remaining()), (None, None, u32::MAX));
        assert_eq!(
            (decision.reset_after(), decision.reset_at(), decision.retry()),
            (Duration::ZERO, None, None)
        );
    }
}

#[test]
fn an_outcome_that_was_told_says_what_it_was_told() {
    let log = limit(Algorithm::Concurrency, "9/min");
    let outlook = |retry| Forecast { remaining: 7, reset: Span::secs(3), delay: Span::ZERO, retry };
    let told = |answer, retry| {
        LimitStatus::new(&log, Amount::exactly(1), DrawResult::of_outlook(answer, NOW, outlook(retry)))
    };
    let granted = told(DrawOutcome::Granted(u32::MAX), None);
    assert_eq!(
        (granted.answer(), granted.now(), granted.limit()),
        (DrawOutcome::Granted(u32::MAX), NOW, &log)
    );
    assert_eq!((granted.remaining(), granted.reset(), granted.retry()), (7, Span::secs(3), None));
    assert_eq!(told(DrawOutcome::Spared, None).answer(), DrawOutcome::Spared);
    let refused = told(DrawOutcome::Refused, Some(Retry::After(Span::ZERO)));
    assert_eq!((refused.answer(), refused.retry()), (DrawOutcome::Refused, Some(Retry::After(Span::ZERO))));
    assert_eq!(told(DrawOutcome::Refused, Some(Retry::Never)).retry(), Some(Retry::Never));
    for (answer, is_refused) in
        [(DrawOutcome::Granted(0), false), (DrawOutcome::Spared, false), (DrawOutcome::Refused, true)]
    {
        assert_eq!(DrawResult::of_state(answer, NOW, State::default()).is_refused(), is_refused);
        assert_eq!(DrawResult::of_outlook(answer, NOW, outlook(None)).is_refused(), is_refused);
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
    draws.push_again(Scope(1), bucket, Op::Clear, PermitId(2));
    draws.push_again(Scope(1), window, take, PermitId(2));
    draws.begin();
    draws.begin();
    draws.push(parts.borrow(), Scope(7), window, Op::Give(2), PermitId(3));
    draws.push("a".into(), Scope(0), bucket, take, PermitId(4));
    assert_eq!((draws.len(), draws.is_empty()), (3, false));
    assert_eq!([draws.group(0).len(), draws.group(1).len(), draws.group(2).len()], [3, 0, 2]);
    assert_eq!([draws.group_mut(0).len(), draws.group_mut(1).len(), draws.group_mut(2).len()], [3, 0, 2]);
    let all = draws.all();
    let keys: Vec<KeyRef<'_>> = all.iter().map(|draw| draws.key(draw)).collect();
    assert_eq!(keys, ["a".into(), "a".into(), "a".into(), parts.borrow(), "a".into()]);
    assert_eq!(all.iter().map(|draw| draw.scope().0).collect::<Vec<_>>(), [0, 1, 1, 7, 0]);
    assert_eq!(all.iter().map(|draw| draw.permit().0).collect::<Vec<_>>(), [1, 2, 2, 3, 4]);
    assert_eq!((all[1].act(), all[3].act(), all[3].limit()), (Op::Clear, Op::Give(2), &window));
    assert!(all[1].shares_hash(&all[0]), "the same key, pushed again");
    assert!(!all[2].shares_hash(&all[1]), "another law");
    assert!(!all[4].shares_hash(&all[0]), "the same text, but pushed anew");
    assert_eq!(all[0].answer(), DrawOutcome::Spared, "nobody decided it yet");
    draws.clear();
    assert_eq!((draws.len(), draws.all().len()), (0, 0));
}

#[test]
#[should_panic(expected = "at most 16 draws")]
fn a_request_has_a_bound() {
    let mut draws = Draws::new();
    for _ in 0..2 {
        draws.begin();
        for _ in 0..MAX_DRAWS {
            draws.push("k".into(), Scope(0), limit(Algorithm::TokenBucket, "1/s"), Op::Clear, PermitId(0));
        }
    }
    draws.push_again(Scope(0), limit(Algorithm::TokenBucket, "1/s"), Op::Clear, PermitId(0));
}
