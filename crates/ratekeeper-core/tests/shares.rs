//! A limit divided among nodes: all shares together grant at most the limit plus one unit each.

use proptest::prelude::*;
use ratekeeper_core::{
    Algorithm, Align, Amount, Leak, Limit, LogSize, Micros, Op, PermitId, Quota, Span, Zone,
};
use ratekeeper_testkit::{KeyEngine, SingleKeyStore};

/// The beginning of a week, and so of every shorter window.
const START: Micros = Micros::new(1_699_833_600_000_000);

const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket(Leak::Meter),
    Algorithm::LeakyBucket(Leak::Queue),
    Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
    Algorithm::FixedWindow(Align::FirstHit),
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog(LogSize::Standard),
    Algorithm::Concurrency,
];

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().expect("the quota is valid"))
        .expect("the algorithm supports the quota")
}

/// Generates small limits of every algorithm, which a few draws exhaust.
fn limits() -> impl Strategy<Value = Limit> {
    const PERIODS: [Span; 4] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::MINUTE];
    let parts =
        (prop::sample::select(&ALGORITHMS[..]), 1_u32..60, prop::sample::select(&PERIODS[..]), 0_u32..40);
    parts.prop_map(|(algorithm, amount, per, burst)| {
        let quota = Quota::new(amount, per).expect("neither is zero");
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket(_)) && burst > 0;
        let quota = if has_burst { quota.with_burst(burst).expect("it is not zero") } else { quota };
        Limit::new(algorithm, quota).expect("small quotas fit every algorithm")
    })
}

fn draw(cell: &mut SingleKeyStore, at: Micros, limit: &Limit, cost: u32, permit: u64) -> bool {
    cell.apply(at, limit, Op::Take(Amount::exactly(cost)), PermitId(permit)).retry.is_none()
}

fn remaining(cell: &SingleKeyStore, at: Micros, limit: &Limit) -> u64 {
    cell.clone().apply(at, limit, Op::Peek(Amount::ZERO), PermitId(0)).remaining.into()
}

/// Returns the most that the limit itself grants from one instant to another, both included.
fn max_granted(limit: &Limit, from: Micros, to: Micros) -> u64 {
    let (capacity, quota) = (u64::from(limit.capacity()), limit.quota());
    let (length, per) = (to.since(from).get(), quota.per().get());
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => {
            capacity + length * u64::from(quota.amount()) / per
        }
        Algorithm::FixedWindow(Align::WallClock(_)) | Algorithm::SlidingWindowCounter => {
            capacity * (to.get() / per - from.get() / per + 1)
        }
        // Permits are never released here, so they expire like the entries of a log.
        Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency => capacity * (length / per + 1),
        // The windows of each node begin independently, and one may end just as its first unit is counted.
        Algorithm::FixedWindow(Align::FirstHit) => capacity * (length / per + 2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_shares_grant_at_most_the_limit_plus_a_unit_each(
        limit in limits(),
        nodes in 1_usize..9,
        steps in prop::collection::vec((0_usize..9, 0_u64..400_000, 1_u32..4), 1..120),
    ) {
        let share = limit.share(u32::try_from(nodes).expect("there are fewer than nine"));
        let mut cells = vec![SingleKeyStore::default(); nodes];
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
                let windows = max_granted(&limit, *from, *to) / u64::from(limit.capacity()).max(1);
                let slack = match limit.algorithm() {
                    // The burst of a share is at most one unit larger.
                    Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => nodes as u64,
                    _ => nodes as u64 * windows,
                };
                prop_assert!(
                    total <= max_granted(&limit, *from, *to) + slack,
                    "{limit} of {nodes}: {total} from {from:?} to {to:?}"
                );
            }
        }
    }

    #[test]
    fn remaining_units_are_divided_and_combined_again(
        limit in limits().prop_filter("list states are not carried over", |limit| !limit.uses_list_state()),
        nodes in 2_u32..9,
        steps in prop::collection::vec((0_u64..400_000, 1_u32..4), 1..40),
        later in 0_u64..10_000_000,
    ) {
        let (mut cell, mut now) = (SingleKeyStore::default(), START);
        for (pause, cost) in steps {
            now = now.plus(Span::micros(pause));
            draw(&mut cell, now, &limit, cost, 0);
        }
        let share = limit.share(nodes);
        let (whole, each) = (remaining(&cell, now, &limit), remaining(&cell, now, &share));
        let is_full = whole == u64::from(limit.capacity());
        prop_assert!(is_full || each * u64::from(nodes) <= whole, "{limit} of {nodes}: {each} each of {whole}");
        // A draw of zero units carries the state over too.
        let mut divided = cell.clone();
        divided.apply(now, &share, Op::Take(Amount::exactly(0)), PermitId(0));
        let then = now.plus(Span::micros(later));
        let (whole_then, each_then) = (remaining(&cell, then, &limit), remaining(&divided, then, &share));
        prop_assert!(
            each_then * u64::from(nodes) <= whole_then + u64::from(nodes),
            "{limit} of {nodes}: later {each_then} each of {whole_then}"
        );
        if draw(&mut divided, now, &share, 1, 0) {
            let back = remaining(&divided, now, &limit);
            prop_assert!(back <= whole, "{limit} of {nodes}: {whole} left became {back}");
        }
    }

    #[test]
    fn every_valid_limit_can_be_divided(
        algorithm in prop::sample::select(&ALGORITHMS[..]),
        amount in 1_u32..,
        per in 1_u64..Limit::MAX_TTL.get(),
        shift in 0_u32..50,
        burst in prop::option::of(1_u32..),
        nodes in 0_u32..,
        fewer in 0_u32..33,
    ) {
        let quota = Quota::new(amount, Span::micros((per >> shift).max(1))).expect("neither is zero");
        let quota = burst.map_or(Ok(quota), |burst| quota.with_burst(burst)).expect("it is not zero");
        let Ok(limit) = Limit::new(algorithm, quota) else { return Ok(()) };
        let nodes = nodes.checked_shr(fewer).unwrap_or(0);
        let share = limit.share(nodes);
        prop_assert_eq!(share.share_count(), nodes.clamp(1, Limit::MAX_SHARES));
        let part = (limit.capacity() / share.share_count()).max(1);
        // A share that refills too slowly to be counted is reduced to one unit.
        prop_assert!(share.capacity() == part || share.capacity() == 1, "{share}: {}", share.capacity());
        prop_assert!(share.ttl() <= Limit::MAX_TTL);
        prop_assert_eq!(share.share(1), limit);
        prop_assert_eq!(share.family(), limit.family());
        prop_assert_eq!(share == limit, share.share_count() == 1);
        let mut cell = SingleKeyStore::default();
        prop_assert!(draw(&mut cell, START, &share, 1, 0), "a share has at least one unit");
    }
}

#[test]
fn a_share_has_part_of_the_burst_and_rate() {
    for (algorithm, quota, nodes, capacity, refill) in [
        (Algorithm::TokenBucket, "100/s burst 20", 3, 6, Span::millis(30)),
        (Algorithm::TokenBucket, "100/s", 4, 25, Span::millis(40)),
        (Algorithm::TokenBucket, "1/h", 3, 1, Span::micros(3 * Span::HOUR.get())),
        (Algorithm::LeakyBucket(Leak::Meter), "100/s", 3, 1, Span::millis(30)),
        (Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "100/min", 3, 33, Span::MINUTE),
        (Algorithm::SlidingWindowLog(LogSize::Standard), "2/s", 5, 1, Span::SECOND),
        (Algorithm::Concurrency, "7/min", 2, 3, Span::MINUTE),
    ] {
        let share = limit(algorithm, quota).share(nodes);
        assert_eq!(share.capacity(), capacity, "{share}");
        let mut cell = SingleKeyStore::default();
        assert!(draw(&mut cell, START, &share, capacity, 0), "{share}");
        let just_before = Span::micros(refill.get() - 1);
        assert!(!draw(&mut cell, START.plus(just_before), &share, 1, 1), "{share} refills too early");
        assert!(draw(&mut cell, START.plus(refill), &share, 1, 2), "{share} refills too late");
    }
}

#[test]
fn a_limit_and_its_shares_are_distinct() {
    let whole = limit(Algorithm::TokenBucket, "100/s burst 20");
    assert_eq!(whole.share(1), whole);
    assert_eq!(whole.share(0), whole);
    assert_ne!(whole.share(2), whole.share(3));
    assert_eq!(whole.share(2).share(3), whole.share(3));
    assert_eq!(whole.share(3).to_string(), "token_bucket 100/s burst 20, one of 3 shares");
    assert_eq!(whole.share(u32::MAX).share_count(), Limit::MAX_SHARES);
    // The window reflects the number of shares, so that the reported rate is that of the share.
    assert_eq!(whole.share(3).window(), Span::micros(180_000));
}
