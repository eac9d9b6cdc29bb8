//! A limit divided among nodes: together they grant no more than it, but for a unit each.

use proptest::prelude::*;
use ratekeeper_core::{
    Algorithm, Align, Amount, Leak, Limit, LogSize, Micros, Op, PermitId, Quota, Span, Zone,
};
use ratekeeper_testkit::{Cell, KeyEngine};

/// The beginning of a week, and so of every shorter window.
const START: Micros = Micros::new(1_699_833_600_000_000);

const LAWS: [Algorithm; 8] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket(Leak::Meter),
    Algorithm::LeakyBucket(Leak::Queue),
    Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
    Algorithm::FixedWindow(Align::FirstHit),
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog(LogSize::Modest),
    Algorithm::Concurrency,
];

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().expect("the quota can be read")).expect("the law takes the quota")
}

/// Small limits of every law, which a few draws use up.
fn limits() -> impl Strategy<Value = Limit> {
    const PERIODS: [Span; 4] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::MINUTE];
    let parts = (prop::sample::select(&LAWS[..]), 1_u32..60, prop::sample::select(&PERIODS[..]), 0_u32..40);
    parts.prop_map(|(law, amount, per, burst)| {
        let quota = Quota::new(amount, per).expect("neither is zero");
        let has_burst = matches!(law, Algorithm::TokenBucket | Algorithm::LeakyBucket(_)) && burst > 0;
        let quota = if has_burst { quota.with_burst(burst).expect("it is not zero") } else { quota };
        Limit::new(law, quota).expect("small quotas fit every law")
    })
}

fn draw(cell: &mut Cell, at: Micros, limit: &Limit, cost: u32, permit: u64) -> bool {
    cell.act(at, limit, Op::Take(Amount::exactly(cost)), PermitId(permit)).retry.is_none()
}

fn left(cell: &Cell, at: Micros, limit: &Limit) -> u64 {
    cell.clone().act(at, limit, Op::Look(Amount::PEEK), PermitId(0)).remaining.into()
}

/// The most that the limit itself grants from one instant to another, both included.
fn most(limit: &Limit, from: Micros, to: Micros) -> u64 {
    let (capacity, quota) = (u64::from(limit.capacity()), limit.quota());
    let (length, per) = (to.since(from).get(), quota.per().get());
    match limit.law() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => {
            capacity + length * u64::from(quota.amount()) / per
        }
        Algorithm::FixedWindow(Align::Wall(_)) | Algorithm::SlidingWindowCounter => {
            capacity * (to.get() / per - from.get() / per + 1)
        }
        // Nobody gives places back here, so they come back as those of a log do.
        Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency => capacity * (length / per + 1),
        // Each node's windows begin when they do, and one may end just as its first unit is counted.
        Algorithm::FixedWindow(Align::FirstHit) => capacity * (length / per + 2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shares_grant_together_what_the_limit_does_and_a_unit_each(
        limit in limits(),
        nodes in 1_usize..9,
        steps in prop::collection::vec((0_usize..9, 0_u64..400_000, 1_u32..4), 1..120),
    ) {
        let share = limit.share(u32::try_from(nodes).expect("there are few"));
        let mut cells = vec![Cell::default(); nodes];
        let (mut now, mut granted) = (START, Vec::new());
        for (number, (node, pause, cost)) in (0..).zip(steps) {
            now = now.plus(Span::micros(pause));
            if draw(&mut cells[node % nodes], now, &share, cost, number) {
                granted.push((now, u64::from(cost)));
            }
        }
        for (index, (from, _)) in granted.iter().enumerate() {
            let mut total = 0;
            for (to, units) in &granted[index..] {
                total += units;
                let windows = most(&limit, *from, *to) / u64::from(limit.capacity()).max(1);
                let slack = match limit.law() {
                    // A share's burst is one unit more at most.
                    Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => nodes as u64,
                    _ => nodes as u64 * windows,
                };
                prop_assert!(
                    total <= most(&limit, *from, *to) + slack,
                    "{limit} of {nodes}: {total} from {from:?} to {to:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_left_is_divided_and_put_together_again(
        limit in limits().prop_filter("rolls are not carried over", |limit| !limit.keeps_roll()),
        nodes in 2_u32..9,
        steps in prop::collection::vec((0_u64..400_000, 1_u32..4), 1..40),
        later in 0_u64..10_000_000,
    ) {
        let (mut cell, mut now) = (Cell::default(), START);
        for (pause, cost) in steps {
            now = now.plus(Span::micros(pause));
            draw(&mut cell, now, &limit, cost, 0);
        }
        let share = limit.share(nodes);
        let (whole, each) = (left(&cell, now, &limit), left(&cell, now, &share));
        let is_fresh = whole == u64::from(limit.capacity());
        prop_assert!(is_fresh || each * u64::from(nodes) <= whole, "{limit} of {nodes}: {each} each of {whole}");
        // Whoever asks for nothing has the state carried over all the same.
        let mut divided = cell.clone();
        divided.act(now, &share, Op::Take(Amount::exactly(0)), PermitId(0));
        let then = now.plus(Span::micros(later));
        let (whole_then, each_then) = (left(&cell, then, &limit), left(&divided, then, &share));
        prop_assert!(
            each_then * u64::from(nodes) <= whole_then + u64::from(nodes),
            "{limit} of {nodes}: later {each_then} each of {whole_then}"
        );
        if draw(&mut divided, now, &share, 1, 0) {
            let back = left(&divided, now, &limit);
            prop_assert!(back <= whole, "{limit} of {nodes}: {whole} left became {back}");
        }
    }

    #[test]
    fn whatever_can_be_counted_can_be_divided(
        law in prop::sample::select(&LAWS[..]),
        amount in 1_u32..,
        per in 1_u64..Limit::LONGEST.get(),
        shift in 0_u32..50,
        burst in prop::option::of(1_u32..),
        nodes in 0_u32..,
        fewer in 0_u32..33,
    ) {
        let quota = Quota::new(amount, Span::micros((per >> shift).max(1))).expect("neither is zero");
        let quota = burst.map_or(Ok(quota), |burst| quota.with_burst(burst)).expect("it is not zero");
        let Ok(limit) = Limit::new(law, quota) else { return Ok(()) };
        let nodes = nodes.checked_shr(fewer).unwrap_or(0);
        let share = limit.share(nodes);
        prop_assert_eq!(share.shares(), nodes.clamp(1, Limit::MOST_SHARES));
        let part = (limit.capacity() / share.shares()).max(1);
        // What is too slow to be counted is cut down to a unit.
        prop_assert!(share.capacity() == part || share.capacity() == 1, "{share}: {}", share.capacity());
        prop_assert!(share.ttl() <= Limit::LONGEST);
        prop_assert_eq!(share.share(1), limit);
        prop_assert_eq!(share.family(), limit.family());
        prop_assert_eq!(share == limit, share.shares() == 1);
        let mut cell = Cell::default();
        prop_assert!(draw(&mut cell, START, &share, 1, 0), "a share has a unit at least");
    }
}

#[test]
fn a_share_is_a_part_at_the_same_pace() {
    for (law, quota, nodes, capacity, refill) in [
        (Algorithm::TokenBucket, "100/s burst 20", 3, 6, Span::millis(30)),
        (Algorithm::TokenBucket, "100/s", 4, 25, Span::millis(40)),
        (Algorithm::TokenBucket, "1/h", 3, 1, Span::micros(3 * Span::HOUR.get())),
        (Algorithm::LeakyBucket(Leak::Meter), "100/s", 3, 1, Span::millis(30)),
        (Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "100/min", 3, 33, Span::MINUTE),
        (Algorithm::SlidingWindowLog(LogSize::Modest), "2/s", 5, 1, Span::SECOND),
        (Algorithm::Concurrency, "7/min", 2, 3, Span::MINUTE),
    ] {
        let share = limit(law, quota).share(nodes);
        assert_eq!(share.capacity(), capacity, "{share}");
        let mut cell = Cell::default();
        assert!(draw(&mut cell, START, &share, capacity, 0), "{share}");
        let just_before = Span::micros(refill.get() - 1);
        assert!(!draw(&mut cell, START.plus(just_before), &share, 1, 1), "{share} comes back too early");
        assert!(draw(&mut cell, START.plus(refill), &share, 1, 2), "{share} comes back too late");
    }
}

#[test]
fn a_limit_and_its_shares_are_told_apart() {
    let whole = limit(Algorithm::TokenBucket, "100/s burst 20");
    assert_eq!(whole.share(1), whole);
    assert_eq!(whole.share(0), whole);
    assert_ne!(whole.share(2), whole.share(3));
    assert_eq!(whole.share(2).share(3), whole.share(3));
    assert_eq!(whole.share(3).to_string(), "token_bucket 100/s burst 20, one of 3 shares");
    assert_eq!(whole.share(u32::MAX).shares(), Limit::MOST_SHARES);
    // As many as a unit of the whole takes to come back, so that the rate it tells is its own.
    assert_eq!(whole.share(3).window(), Span::micros(180_000));
}
