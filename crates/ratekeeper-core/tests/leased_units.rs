//! Lent units, under resets, refunds and changes of quota.

use proptest::prelude::*;
use ratekeeper_core::{
    Algorithm, Amount, Leak, LeaseReport, LeaseRequest, LeasedState, Limit, Micros, Quota, Span,
};

const START: Micros = Micros::new(1_700_000_000_123_457);

const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::LeakyBucket(Leak::Meter), Algorithm::LeakyBucket(Leak::Queue)];

/// Generates two buckets of one family: before and after a change of quota.
fn quota_changes() -> impl Strategy<Value = (Limit, Limit)> {
    const PERIODS: [Span; 4] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::HOUR];
    let quota = || (1_u32..60, prop::sample::select(&PERIODS[..]), 1_u32..40);
    let limit = |algorithm, (amount, per, burst)| {
        let quota = Quota::new(amount, per).and_then(|quota| quota.with_burst(burst));
        Limit::new(algorithm, quota.expect("nothing is zero")).expect("small quotas fit every algorithm")
    };
    (0_usize..3, 0_usize..3, quota(), quota())
        .prop_map(move |(one, other, before, after)| {
            // A queue can't be leased itself, but may take over a leased bucket.
            let algorithms =
                if one == 0 { [ALGORITHMS[0]; 2] } else { [ALGORITHMS[1], ALGORITHMS[other.max(1)]] };
            (limit(algorithms[0], before), limit(algorithms[1], after))
        })
        .boxed()
}

/// Returns a key that was drawn from, with units lent now and `ago`.
fn leased_state(limit: &Limit, now: Micros, drawn: u32, older: u32, recent: u32, ago: Span) -> LeasedState {
    let request = |units| LeaseRequest { short_horizon: 0, long_horizon: units, long_horizon_divisor: 1 };
    let (leased, _) =
        limit.grant_lease(LeasedState::default(), now.minus(ago), LeaseReport::default(), request(older));
    let (step, lent) = limit.step_leased(leased, now.minus(ago), Amount::between(0, drawn));
    let leased = LeasedState { state: Some(step.state), lent };
    limit.grant_lease(leased, now, LeaseReport::default(), request(recent)).0
}

fn remaining(limit: &Limit, leased: LeasedState, now: Micros) -> u32 {
    let all = Amount::between(0, u32::MAX);
    limit.step_leased(leased, now, all).0.granted.expect("zero units always fit")
}

proptest! {
    /// Lent units stay lent under any quota. Besides them a token bucket keeps the tokens left, a leaky bucket its
    /// content.
    #[test]
    fn a_change_of_quota_keeps_lent_units(
        (before, after) in quota_changes(),
        (drawn, older, recent) in (0_u32..20, 0_u32..20, 0_u32..20),
        ago in 0_u64..70_000_000,
        later in prop_oneof![Just(0_u64), 0_u64..90_000_000],
    ) {
        let leased = leased_state(&before, START, drawn, older, recent, Span::micros(ago));
        let now = START.plus(Span::micros(later));
        let lent = before.step_leased(leased, now, Amount::ZERO).1.total();
        let adopted = after.adopt_leased(leased, &before, now);

        let kept = lent.min(after.capacity());
        prop_assert_eq!(adopted.lent.total(), kept);
        let left = remaining(&before, leased, now);
        let max = after.capacity() - kept;
        let expected = match (before.algorithm(), left == before.capacity()) {
            // A key that owes nothing and was lent nothing is new to the other quota.
            (_, true) => after.capacity(),
            (Algorithm::TokenBucket, _) => left.min(max),
            _ => after.capacity().saturating_sub(before.capacity() - left),
        };
        // A partly owed unit counts as a whole one, and the new rate applies from now: the change adds no units.
        prop_assert!(remaining(&after, adopted, now) == expected, "{} of {expected}", remaining(&after, adopted, now));
        if lent == 0 {
            let (step, _) = before.step_leased(leased, now, Amount::ZERO);
            prop_assert_eq!(adopted.state, after.adopt(step.state, &before, now));
        }
    }

    /// Refunds and resets change the debt and never the lent units.
    #[test]
    fn refunds_and_resets_never_touch_lent_units(
        (limit, _) in quota_changes(),
        (drawn, older, recent, returned) in (0_u32..20, 0_u32..20, 0_u32..20, 0_u32..30),
        ago in 0_u64..70_000_000,
    ) {
        let leased = leased_state(&limit, START, drawn, older, recent, Span::micros(ago));
        let (_, lent) = limit.step_leased(leased, START, Amount::ZERO);
        let after = limit.refund_leased(leased, START, returned);
        prop_assert_eq!(after.lent, lent);
        let max = limit.capacity() - lent.total();
        prop_assert_eq!(remaining(&limit, after, START), remaining(&limit, leased, START).saturating_add(returned).min(max));
        let reset = limit.refund_leased(leased, START, u32::MAX);
        prop_assert_eq!((reset.lent, remaining(&limit, reset, START)), (lent, max));
    }
}
