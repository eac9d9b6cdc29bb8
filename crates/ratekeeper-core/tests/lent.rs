//! Units that are lent, under resets, refunds and changes of quota.

use proptest::prelude::*;
use ratekeeper_core::{
    Algorithm, Amount, Leak, LeaseReport, LeaseRequest, LeasedState, Limit, Micros, Quota, Span,
};

const START: Micros = Micros::new(1_700_000_000_123_457);

const LAWS: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::LeakyBucket(Leak::Meter), Algorithm::LeakyBucket(Leak::Queue)];

/// Two buckets of one family: before a change of quota, and after it.
fn changes() -> impl Strategy<Value = (Limit, Limit)> {
    const PERIODS: [Span; 4] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::HOUR];
    let quota = || (1_u32..60, prop::sample::select(&PERIODS[..]), 1_u32..40);
    let limit = |law, (amount, per, burst)| {
        let quota = Quota::new(amount, per).and_then(|quota| quota.with_burst(burst));
        Limit::new(law, quota.expect("nothing is zero")).expect("small quotas fit every law")
    };
    (0_usize..3, 0_usize..3, quota(), quota())
        .prop_map(move |(one, other, before, after)| {
            // A queue lends nothing itself, but may take a bucket over.
            let laws = if one == 0 { [LAWS[0]; 2] } else { [LAWS[1], LAWS[other.max(1)]] };
            (limit(laws[0], before), limit(laws[1], after))
        })
        .boxed()
}

/// A key that was drawn from, and of which units were lent now and a while ago.
fn held(limit: &Limit, now: Micros, drawn: u32, older: u32, recent: u32, ago: Span) -> LeasedState {
    let wish = |units| LeaseRequest { soon: 0, later: units, one_of: 1 };
    let (held, _) = limit.lend(LeasedState::default(), now.less(ago), LeaseReport::default(), wish(older));
    let (step, lent) = limit.step_beside(held, now.less(ago), Amount::between(0, drawn));
    let held = LeasedState { state: Some(step.state), lent };
    limit.lend(held, now, LeaseReport::default(), wish(recent)).0
}

fn room(limit: &Limit, held: LeasedState, now: Micros) -> u32 {
    let all = Amount::between(0, u32::MAX);
    limit.step_beside(held, now, all).0.granted.expect("nothing at all always fits")
}

proptest! {
    /// What is lent is out, whatever the quota is now. Beside it a token bucket keeps what is left, a leaky one what is in.
    #[test]
    fn a_change_of_quota_keeps_what_is_lent(
        (before, after) in changes(),
        (drawn, older, recent) in (0_u32..20, 0_u32..20, 0_u32..20),
        ago in 0_u64..70_000_000,
        later in prop_oneof![Just(0_u64), 0_u64..90_000_000],
    ) {
        let held = held(&before, START, drawn, older, recent, Span::micros(ago));
        let now = START.plus(Span::micros(later));
        let lent = before.step_beside(held, now, Amount::PEEK).1.units();
        let adopted = after.adopt_beside(held, &before, now);

        let kept = lent.min(after.capacity());
        prop_assert_eq!(adopted.lent.units(), kept);
        let left = room(&before, held, now);
        let most = after.capacity() - kept;
        let expected = match (before.law(), left == before.capacity()) {
            // Who owes nothing and was lent nothing is new to the other quota.
            (_, true) => after.capacity(),
            (Algorithm::TokenBucket, _) => left.min(most),
            _ => after.capacity().saturating_sub(before.capacity() - left),
        };
        // A part of a unit that is owed counts whole, and the new rate counts from now: nothing is lent by the change.
        prop_assert!(room(&after, adopted, now) == expected, "{} of {expected}", room(&after, adopted, now));
        if lent == 0 {
            let (step, _) = before.step_beside(held, now, Amount::PEEK);
            prop_assert_eq!(adopted.state, after.adopt(step.state, &before, now));
        }
    }

    /// Giving back and resetting touch what is owed and never what is lent.
    #[test]
    fn what_is_lent_is_given_back_by_nobody_else(
        (limit, _) in changes(),
        (drawn, older, recent, given) in (0_u32..20, 0_u32..20, 0_u32..20, 0_u32..30),
        ago in 0_u64..70_000_000,
    ) {
        let held = held(&limit, START, drawn, older, recent, Span::micros(ago));
        let (_, lent) = limit.step_beside(held, START, Amount::PEEK);
        let after = limit.give_beside(held, START, given);
        prop_assert_eq!(after.lent, lent);
        let most = limit.capacity() - lent.units();
        prop_assert_eq!(room(&limit, after, START), room(&limit, held, START).saturating_add(given).min(most));
        let reset = limit.give_beside(held, START, u32::MAX);
        prop_assert_eq!((reset.lent, room(&limit, reset, START)), (lent, most));
    }
}
