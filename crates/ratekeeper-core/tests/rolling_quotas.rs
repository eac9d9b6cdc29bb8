//! Several quotas that draw from one key in turn, as during a rolling change of rules: each admits through its own
//! draws what it would admit alone, so together they admit at most their sum.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Leak, LeaseReport, LeaseRequest, LeasedState, Limit, LogSize,
    Micros, Op, PermitId, PriorStates, Quota, Span, Zone,
};
use ratekeeper_testkit::{KeyEngine, SingleKeyStore, test_each_algorithm};

/// The beginning of a week, and so of every shorter window.
const START: Micros = Micros::new(1_699_833_600_000_000);

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().expect("the quota is valid"))
        .expect("the algorithm supports the quota")
}

/// Generates small quotas of an algorithm, with widely different periods and bursts.
fn limits(algorithm: Algorithm) -> impl Strategy<Value = Vec<Limit>> {
    const PERIODS: [Span; 5] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::MINUTE, Span::HOUR];
    let quota = (1_u32..60, select(&PERIODS[..]), 0_u32..40).prop_map(move |(amount, per, burst)| {
        let quota = Quota::new(amount, per).expect("neither is zero");
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket(_)) && burst > 0;
        let quota = if has_burst { quota.with_burst(burst).expect("it is not zero") } else { quota };
        Limit::new(algorithm, quota).expect("small quotas fit every algorithm")
    });
    vec(quota, 2..5)
}

/// Returns the most that a limit alone admits from one instant to another, both included.
fn max_admitted(limit: &Limit, from: Micros, to: Micros) -> u64 {
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
        Algorithm::FixedWindow(Align::FirstHit) => capacity * (length / per + 2),
    }
}

fn granted(outcome: DrawOutcome) -> u64 {
    if let DrawOutcome::Granted(units) = outcome { u64::from(units) } else { 0 }
}

/// The admitted draws: when, under which limit, and how many units.
type Admitted = Vec<(Micros, Limit, u64)>;

fn check_sums(limits: &[Limit], admitted: &Admitted) -> Result<(), TestCaseError> {
    for limit in limits {
        let own: Vec<_> = admitted.iter().filter(|(_, other, _)| other == limit).collect();
        for (index, (from, ..)) in own.iter().enumerate() {
            let mut total = 0;
            for (to, _, units) in &own[index..] {
                total += units;
                let max = max_admitted(limit, *from, *to);
                prop_assert!(total <= max, "{limit}: {total} of {max} from {from:?} to {to:?}");
            }
        }
    }
    Ok(())
}

fn each_quota_admits_at_most_what_it_would_alone(algorithm: Algorithm) {
    let pauses = prop_oneof![4 => Just(0_u64), 4 => 0..400_000_u64, 1 => 0..20_000_000_u64];
    let steps = vec((0..4_usize, pauses, 1..60_u32), 1..150);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(limits(algorithm), steps), |(limits, steps)| {
        let (mut cell, mut now, mut admitted) = (SingleKeyStore::default(), START, Admitted::new());
        for (number, (index, pause, cost)) in (0..).zip(steps) {
            let limit = limits[index % limits.len()];
            now = now.plus(Span::micros(pause));
            let amount = Amount::between(1, cost);
            let reply = cell.apply(now, &limit, Op::Take(amount), PermitId(number));
            admitted.push((now, limit, granted(reply.outcome)));
        }
        check_sums(&limits, &admitted)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

test_each_algorithm!(each_quota_admits_at_most_what_it_would_alone: token_bucket leaky_meter leaky_queue wall_window
    first_hit_window sliding_window_counter sliding_window_log concurrency);

/// Draws from a key under both quotas in turn, as fast as they admit, and returns how many units each granted.
fn alternate(limits: [Limit; 2], pause: Span, length: Span) -> [u64; 2] {
    let (mut cell, mut granted_units, mut now) = (SingleKeyStore::default(), [0; 2], START);
    for turn in 0.. {
        if now.since(START) > length {
            break;
        }
        let amount = Amount::between(1, u32::MAX);
        let reply = cell.apply(now, &limits[turn % 2], Op::Take(amount), PermitId(turn as u64));
        granted_units[turn % 2] += granted(reply.outcome);
        now = now.plus(pause);
    }
    granted_units
}

#[test]
fn two_alternating_quotas_admit_at_most_their_sum() {
    let pairs = [
        (Algorithm::TokenBucket, "100/s burst 20", "100/s burst 200"),
        (Algorithm::TokenBucket, "1000/h", "10/s burst 1"),
        (Algorithm::LeakyBucket(Leak::Meter), "100/s burst 10", "20/s burst 200"),
        (Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "100/s", "1000/min"),
        (Algorithm::FixedWindow(Align::FirstHit), "10/s", "100 per 8s"),
        (Algorithm::SlidingWindowCounter, "100/s", "1000/min"),
        (Algorithm::SlidingWindowLog(LogSize::Standard), "100/s", "1000/min"),
        (Algorithm::Concurrency, "10/s", "100/min"),
    ];
    let length = Span::secs(8);
    for (algorithm, one, other) in pairs {
        let limits = [limit(algorithm, one), limit(algorithm, other)];
        let granted = alternate(limits, Span::millis(3), length);
        for (limit, granted) in limits.iter().zip(granted) {
            let max = max_admitted(limit, START, START.plus(length));
            assert!(granted <= max, "{limit} alongside the other: {granted} of {max}");
        }
        // Neither quota starves the other: together they admit at least 90 % of what the smaller one admits alone.
        let least = limits.iter().map(|limit| {
            let alone = alternate([*limit; 2], Span::millis(3), length);
            alone[0] + alone[1]
        });
        let (granted, least) = (granted[0] + granted[1], least.min().unwrap_or(0));
        assert!(granted * 10 >= least * 9, "{one} and {other}: {granted}, and one of them alone {least}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Lent units count when they are lent: no node reports them, so they expire and become debt.
    #[test]
    fn leases_of_several_quotas_stay_within_each(
        limits in limits(Algorithm::TokenBucket),
        steps in vec((0..4_usize, 0..4_000_000_u64, 1..60_u32, any::<bool>()), 1..100),
    ) {
        let mut current: Option<(Limit, LeasedState)> = None;
        let (mut prior, mut now, mut admitted) = (PriorStates::default(), START, Admitted::new());
        for (index, pause, units, is_lease) in steps {
            let limit = limits[index % limits.len()];
            now = now.plus(Span::micros(pause));
            let leased = match current {
                Some((before, leased)) if before != limit => limit.adopt_with_prior(leased, &before, &mut prior, now),
                known => known.map_or(LeasedState::default(), |(_, leased)| leased),
            };
            let (leased, granted) = if is_lease {
                let request = LeaseRequest { short_horizon: 0, long_horizon: units, long_horizon_divisor: 1 };
                let (leased, grant) = limit.grant_lease(leased, now, LeaseReport::default(), request);
                (leased, grant.units)
            } else {
                let (step, lent) = limit.step_leased(leased, now, Amount::between(0, units));
                (LeasedState { state: Some(step.state), lent }, step.granted.unwrap_or(0))
            };
            current = Some((limit, leased));
            admitted.push((now, limit, u64::from(granted)));
        }
        check_sums(&limits, &admitted)?;
    }
}
