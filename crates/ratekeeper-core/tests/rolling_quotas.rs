//! Several quotas drawing from one key in turn, as when a change of rules rolls over a fleet: of its own draws each admits what
//! it would admit alone, so all of them together admit no more than their sum.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Leak, LeaseReport, LeaseRequest, LeasedState, Limit, LogSize,
    Micros, Op, PermitId, PriorStates, Quota, Span, Zone,
};
use ratekeeper_testkit::{Cell, KeyEngine, test_each_law};

/// The beginning of a week, and so of every shorter window.
const START: Micros = Micros::new(1_699_833_600_000_000);

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().expect("the quota can be read")).expect("the law takes the quota")
}

/// Small quotas of a law, whose periods and bursts differ widely.
fn limits(law: Algorithm) -> impl Strategy<Value = Vec<Limit>> {
    const PERIODS: [Span; 5] = [Span::millis(100), Span::SECOND, Span::secs(7), Span::MINUTE, Span::HOUR];
    let quota = (1_u32..60, select(&PERIODS[..]), 0_u32..40).prop_map(move |(amount, per, burst)| {
        let quota = Quota::new(amount, per).expect("neither is zero");
        let has_burst = matches!(law, Algorithm::TokenBucket | Algorithm::LeakyBucket(_)) && burst > 0;
        let quota = if has_burst { quota.with_burst(burst).expect("it is not zero") } else { quota };
        Limit::new(law, quota).expect("small quotas fit every law")
    });
    vec(quota, 2..5)
}

/// The most that a limit alone admits from one instant to another, both included.
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
        Algorithm::FixedWindow(Align::FirstHit) => capacity * (length / per + 2),
    }
}

fn granted(answer: DrawOutcome) -> u64 {
    if let DrawOutcome::Granted(units) = answer { u64::from(units) } else { 0 }
}

/// What was admitted: when, under which limit, and how many units.
type Admitted = Vec<(Micros, Limit, u64)>;

fn check_sums(limits: &[Limit], admitted: &Admitted) -> Result<(), TestCaseError> {
    for limit in limits {
        let own: Vec<_> = admitted.iter().filter(|(_, other, _)| other == limit).collect();
        for (index, (from, ..)) in own.iter().enumerate() {
            let mut total = 0;
            for (to, _, units) in &own[index..] {
                total += units;
                let most = most(limit, *from, *to);
                prop_assert!(total <= most, "{limit}: {total} of {most} from {from:?} to {to:?}");
            }
        }
    }
    Ok(())
}

fn each_quota_admits_of_its_own_draws_what_it_would_alone(law: Algorithm) {
    let pauses = prop_oneof![4 => Just(0_u64), 4 => 0..400_000_u64, 1 => 0..20_000_000_u64];
    let steps = vec((0..4_usize, pauses, 1..60_u32), 1..150);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(limits(law), steps), |(limits, steps)| {
        let (mut cell, mut now, mut admitted) = (Cell::default(), START, Admitted::new());
        for (number, (index, pause, cost)) in (0..).zip(steps) {
            let limit = limits[index % limits.len()];
            now = now.plus(Span::micros(pause));
            let ask = Amount::between(1, cost);
            let reply = cell.act(now, &limit, Op::Take(ask), PermitId(number));
            admitted.push((now, limit, granted(reply.answer)));
        }
        check_sums(&limits, &admitted)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

test_each_law!(each_quota_admits_of_its_own_draws_what_it_would_alone: token_bucket leaky_meter leaky_queue wall_window
    first_hit_window sliding_window_counter sliding_window_log concurrency);

/// Draws from a key under both quotas by turns, as fast as they admit, and says how many units each was given.
fn by_turns(limits: [Limit; 2], pause: Span, length: Span) -> [u64; 2] {
    let (mut cell, mut given, mut now) = (Cell::default(), [0; 2], START);
    for turn in 0.. {
        if now.since(START) > length {
            break;
        }
        let ask = Amount::between(1, u32::MAX);
        let reply = cell.act(now, &limits[turn % 2], Op::Take(ask), PermitId(turn as u64));
        given[turn % 2] += granted(reply.answer);
        now = now.plus(pause);
    }
    given
}

#[test]
fn two_quotas_by_turns_admit_no_more_than_their_sum() {
    let pairs = [
        (Algorithm::TokenBucket, "100/s burst 20", "100/s burst 200"),
        (Algorithm::TokenBucket, "1000/h", "10/s burst 1"),
        (Algorithm::LeakyBucket(Leak::Meter), "100/s burst 10", "20/s burst 200"),
        (Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "100/s", "1000/min"),
        (Algorithm::FixedWindow(Align::FirstHit), "10/s", "100 per 8s"),
        (Algorithm::SlidingWindowCounter, "100/s", "1000/min"),
        (Algorithm::SlidingWindowLog(LogSize::Modest), "100/s", "1000/min"),
        (Algorithm::Concurrency, "10/s", "100/min"),
    ];
    let length = Span::secs(8);
    for (law, one, other) in pairs {
        let limits = [limit(law, one), limit(law, other)];
        let given = by_turns(limits, Span::millis(3), length);
        for (limit, given) in limits.iter().zip(given) {
            let most = most(limit, START, START.plus(length));
            assert!(given <= most, "{limit} beside the other: {given} of {most}");
        }
        // Nobody is starved by the other quota: at least what the smaller of the two would admit alone.
        let least = limits.iter().map(|limit| {
            let alone = by_turns([*limit; 2], Span::millis(3), length);
            alone[0] + alone[1]
        });
        let (given, least) = (given[0] + given[1], least.min().unwrap_or(0));
        assert!(given * 10 >= least * 9, "{one} and {other}: {given}, and one of them alone {least}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What is lent counts when it is lent: nobody reports it, so it lapses and is owed.
    #[test]
    fn leases_of_several_quotas_stay_within_each(
        limits in limits(Algorithm::TokenBucket),
        steps in vec((0..4_usize, 0..4_000_000_u64, 1..60_u32, any::<bool>()), 1..100),
    ) {
        let mut current: Option<(Limit, LeasedState)> = None;
        let (mut former, mut now, mut admitted) = (PriorStates::default(), START, Admitted::new());
        for (index, pause, units, is_lease) in steps {
            let limit = limits[index % limits.len()];
            now = now.plus(Span::micros(pause));
            let held = match current {
                Some((before, held)) if before != limit => limit.take_over(held, &before, &mut former, now),
                known => known.map_or(LeasedState::default(), |(_, held)| held),
            };
            let (held, granted) = if is_lease {
                let wish = LeaseRequest { soon: 0, later: units, one_of: 1 };
                let (held, loan) = limit.lend(held, now, LeaseReport::default(), wish);
                (held, loan.units)
            } else {
                let (step, lent) = limit.step_beside(held, now, Amount::between(0, units));
                (LeasedState { state: Some(step.state), lent }, step.granted.unwrap_or(0))
            };
            current = Some((limit, held));
            admitted.push((now, limit, u64::from(granted)));
        }
        check_sums(&limits, &admitted)?;
    }
}
