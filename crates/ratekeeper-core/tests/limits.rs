//! Which limits are valid, what their errors say, and how limits compare.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::{
    Algorithm, Align, Amount, Clock, Leak, Limit, LimitError, LogSize, Micros, PermitId, Quota, Span, Zone,
};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

fn build(algorithm: Algorithm, quota: &str) -> Result<Limit, LimitError> {
    Limit::new(algorithm, quota.parse::<Quota>().expect("the quota is valid"))
}

#[test]
fn every_error_says_what_to_write_instead() {
    let berlin: Zone = "Europe/Berlin".parse().unwrap();
    let cases = [
        (Algorithm::FixedWindow(Align::FirstHit), "10/s burst 3", "leave the burst out"),
        (Algorithm::SlidingWindowCounter, "10/s burst 3", "leave the burst out"),
        (Algorithm::SlidingWindowLog(LogSize::Standard), "10/s burst 3", "leave the burst out"),
        (Algorithm::Concurrency, "10/s burst 3", "leave the burst out"),
        (Algorithm::SlidingWindowLog(LogSize::Standard), "10001/s", "use sliding_window_counter"),
        (Algorithm::SlidingWindowCounter, "10/9ms", "write at least 10ms"),
        (Algorithm::SlidingWindowCounter, "4294967295 per 2097151999us", "round the amount"),
        (Algorithm::TokenBucket, "4294967295 per 99999999999us", "round the amount"),
        (Algorithm::FixedWindow(Align::WallClock(berlin)), "10/h", "use a day, a week or a month"),
        (Algorithm::TokenBucket, "1/year burst 101", "lower the burst"),
        (Algorithm::SlidingWindowCounter, "1/51y", "shorten the period"),
    ];
    for (algorithm, quota, expected) in cases {
        let error = build(algorithm, quota).expect_err(quota).to_string();
        assert!(error.contains(expected), "{quota} under {algorithm:?}: {error:?}");
    }
}

#[test]
fn large_quotas_that_fit_are_accepted() {
    let cases = [
        (Algorithm::TokenBucket, "4294967295/s"),
        (Algorithm::TokenBucket, "4294967291/month"),
        (Algorithm::TokenBucket, "999999/month"),
        (Algorithm::TokenBucket, "1/year burst 99"),
        (Algorithm::LeakyBucket(Leak::Queue), "4294967295/year"),
        (Algorithm::SlidingWindowCounter, "4294967295/month"),
        (Algorithm::SlidingWindowCounter, "10/10ms"),
        (Algorithm::SlidingWindowCounter, "1/50y"),
        (Algorithm::SlidingWindowLog(LogSize::Standard), "10000/s"),
        (Algorithm::SlidingWindowLog(LogSize::Large), "4294967295/s"),
        (Algorithm::FixedWindow(Align::FirstHit), "4294967295/99y"),
        (Algorithm::Concurrency, "4294967295/day"),
    ];
    for (algorithm, quota) in cases {
        assert!(
            build(algorithm, quota).is_ok(),
            "{quota} under {algorithm:?}: {:?}",
            build(algorithm, quota)
        );
    }
}

#[test]
fn capacity_is_the_burst_or_the_amount() {
    let capacity = |algorithm, quota| build(algorithm, quota).unwrap().capacity();
    assert_eq!(capacity(Algorithm::TokenBucket, "100/s"), 100);
    assert_eq!(capacity(Algorithm::TokenBucket, "100/s burst 7"), 7);
    assert_eq!(capacity(Algorithm::LeakyBucket(Leak::Meter), "100/s"), 1);
    assert_eq!(capacity(Algorithm::LeakyBucket(Leak::Meter), "100/s burst 7"), 7);
    assert_eq!(capacity(Algorithm::LeakyBucket(Leak::Queue), "100/s"), 100);
    assert_eq!(capacity(Algorithm::Concurrency, "100/s"), 100);
}

#[test]
fn limits_are_equal_if_algorithm_and_quota_are() {
    let limits = [
        build(Algorithm::TokenBucket, "100/s"),
        build(Algorithm::TokenBucket, "100/s burst 100"),
        build(Algorithm::LeakyBucket(Leak::Meter), "100/s"),
        build(Algorithm::LeakyBucket(Leak::Queue), "100/s"),
        build(Algorithm::FixedWindow(Align::FirstHit), "100/s"),
        build(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "100/s"),
        build(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "100/day"),
        build(Algorithm::FixedWindow(Align::WallClock("Africa/Abidjan".parse().unwrap())), "100/day"),
        build(Algorithm::FixedWindow(Align::FirstHit), "100/day"),
        build(Algorithm::SlidingWindowCounter, "100/s"),
        build(Algorithm::SlidingWindowLog(LogSize::Standard), "100/s"),
        build(Algorithm::Concurrency, "100/s"),
    ];
    for (index, one) in limits.iter().enumerate() {
        assert_eq!(one.clone().unwrap(), one.clone().unwrap());
        for other in &limits[index + 1..] {
            assert_ne!(one, other);
        }
    }
    assert_eq!(limits[1].clone().unwrap().to_string(), "token_bucket 100/s burst 100");
}

/// Stores keep states by family: algorithms that can't read each other's states must not share one.
#[test]
fn algorithms_with_incompatible_states_have_different_families() {
    let families = [
        vec![Algorithm::TokenBucket],
        vec![Algorithm::LeakyBucket(Leak::Meter), Algorithm::LeakyBucket(Leak::Queue)],
        vec![Algorithm::FixedWindow(Align::FirstHit), Algorithm::FixedWindow(Align::WallClock(Zone::UTC))],
        vec![Algorithm::SlidingWindowCounter],
        vec![Algorithm::SlidingWindowLog(LogSize::Standard), Algorithm::SlidingWindowLog(LogSize::Large)],
        vec![Algorithm::Concurrency],
    ];
    assert_eq!(families.len(), Algorithm::FAMILIES);
    for (family, algorithms) in families.iter().enumerate() {
        for algorithm in algorithms {
            let limit = build(*algorithm, "100/s").unwrap();
            assert_eq!((limit.family(), limit.algorithm()), (family, *algorithm));
            assert_eq!(limit.uses_list_state(), family >= 4);
        }
    }
}

#[test]
fn different_limits_have_different_hashes() {
    let random = RandomState::new();
    let hash = |algorithm, quota| random.hash_one(build(algorithm, quota).unwrap());
    assert_eq!(hash(Algorithm::TokenBucket, "1/s"), hash(Algorithm::TokenBucket, "1/s"));
    assert_ne!(hash(Algorithm::TokenBucket, "1/s"), hash(Algorithm::TokenBucket, "2/s"));
    assert_ne!(hash(Algorithm::TokenBucket, "1/s"), hash(Algorithm::SlidingWindowCounter, "1/s"));
}

/// A store bounds list states by their entries: units taken at the same time are one entry, and so is a permit.
#[test]
fn a_list_state_grows_by_one_entry_per_draw() {
    for algorithm in [Algorithm::SlidingWindowLog(LogSize::Standard), Algorithm::Concurrency] {
        let limit = build(algorithm, "100/s").unwrap();
        let (mut list, now) = (limit.new_list(), Micros::new(1_700_000_000_000_000));
        assert_eq!(list.entries(), 0);
        for turn in 0..3 {
            limit.step_list(&mut list, now.plus(Span::micros(turn)), Amount::exactly(5), PermitId(turn));
        }
        assert_eq!(list.entries(), 3);
        assert!(!limit.expire_list(&mut list, now.plus(Span::millis(999))));
        assert!(limit.expire_list(&mut list, now.plus(Span::millis(1001))));
        assert_eq!(list.entries(), 0);
    }
}

/// A full store evicts the key that has used the least.
#[test]
fn fill_levels_are_comparable_across_algorithms() {
    let now = Micros::new(1_700_000_000_000_000);
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
    ];
    for algorithm in algorithms {
        let limit = build(algorithm, "100/h").unwrap();
        let fill = |units| limit.fill_per_mille(limit.step(None, now, Amount::exactly(units)).state, now);
        assert_eq!([fill(0), fill(1), fill(50), fill(100)], [0, 10, 500, 1000], "{limit}");
        let state = limit.step(None, now, Amount::exactly(100)).state;
        let later = now.plus(Span::secs(7200));
        assert_eq!(
            (limit.fill_per_mille(state, later), limit.is_expired(state, later)),
            (0, true),
            "{limit}"
        );
        assert!(!limit.is_expired(state, now), "{limit}");
    }
    let large = build(Algorithm::TokenBucket, "4294967295/day").unwrap();
    assert_eq!(
        large.fill_per_mille(large.step(None, now, Amount::exactly(1)).state, now),
        1,
        "only zero units map to 0"
    );
}

#[test]
fn a_shared_clock_shows_the_same_time() {
    #[derive(Debug)]
    struct Stopped;
    impl Clock for Stopped {
        fn now(&self) -> Micros {
            Micros::new(7)
        }
    }
    assert_eq!(Arc::new(Stopped).now(), Micros::new(7));
}

#[test]
fn the_capacity_and_the_window_give_the_rate() {
    let shown = |algorithm, quota: &str| {
        let limit = Limit::new(algorithm, quota.parse().unwrap()).unwrap();
        (limit.capacity(), limit.window())
    };
    assert_eq!(shown(Algorithm::TokenBucket, "100/min"), (100, Span::MINUTE));
    assert_eq!(shown(Algorithm::TokenBucket, "100/min burst 20"), (20, Span::micros(12_000_000)));
    assert_eq!(shown(Algorithm::TokenBucket, "167 per 100s burst 100"), (100, Span::micros(59_880_240)));
    assert_eq!(shown(Algorithm::LeakyBucket(Leak::Meter), "10/s"), (1, Span::millis(100)));
    assert_eq!(shown(Algorithm::SlidingWindowCounter, "7/h"), (7, Span::HOUR));
}
