//! Few requests are falsely denied, and busy keys seldom need a store call.

use ratekeeper::{Algorithm, Align, Consistency, LeasePolicy, Limit, Zone};
use ratekeeper_testkit::simulation::{
    FaultPlan, KeyPopulation, SimCase, SimDraw, SimRng, SimSetup, Simulation, micros,
};

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
    Algorithm::SlidingWindowCounter,
];

/// Checks the accuracy of a case, with at most `max_store_calls` store calls per request at the busiest node.
#[track_caller]
fn check(algorithm: Algorithm, quota: &str, (nodes, first, demand): (usize, f64, f64), max_store_calls: f64) {
    let case = SimCase::new(algorithm, &[quota], 1, (nodes, first, demand));
    let row = case.measure(1_800_000, 1, Consistency::Leased);
    assert!(row.net.worst < 0.001, "{case:?}: {row:?}");
    if demand < 1.0 {
        let exact = case.measure(1_800_000, 1, Consistency::Exact);
        assert!(row.gross.worst - exact.gross.worst < 0.001, "{case:?}: {row:?}, exactly {exact:?}");
    }
    assert!(!case.is_busy() || row.first_store_calls.worst < max_store_calls, "{case:?}: {row:?}");
}

/// Checks the cases that are the hardest: near the limit, and with one node that gets nearly everything.
fn check_all(algorithm: Algorithm, quotas: &[&str]) {
    for quota in quotas {
        for (nodes, first) in [(2, 0.5), (2, 0.9), (16, 1.0 / 16.0), (16, 0.9)] {
            for demand in [0.95, 1.0, 1.5, 10.0] {
                check(algorithm, quota, (nodes, first, demand), 0.01);
            }
        }
    }
}

#[test]
fn buckets_have_few_false_denials_and_few_store_calls() {
    check_all(Algorithm::TokenBucket, &["10/min", "1000/min", "10000/s"]);
}

#[test]
fn windows_have_few_false_denials_and_few_store_calls() {
    check_all(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), &["1000/min", "10000/s"]);
    check_all(Algorithm::SlidingWindowCounter, &["1000/min"]);
}

/// One limit has leased units here and the other has none: the store is asked for the second, and the units
/// leased of the first count too.
#[test]
fn several_limits_have_few_false_denials() {
    for algorithm in ALGORITHMS {
        for quotas in [&["20/s", "600/min"][..], &["20/s", "600/min", "30000/h"]] {
            for (nodes, first) in [(2, 0.5), (4, 0.25), (16, 0.9)] {
                for demand in [0.95, 1.5, 10.0] {
                    let case = SimCase::new(algorithm, quotas, 1, (nodes, first, demand));
                    let row = case.measure(400_000, 1, Consistency::Leased);
                    assert!(row.net.worst < 0.001, "{case:?}: {row:?}");
                }
            }
        }
    }
}

/// A window that is used up in its first seconds, over and over: no unit may be left unspent in a lease.
#[test]
fn a_long_window_beside_a_short_one_is_used_up_completely() {
    for (quotas, nodes) in [(["20/s", "600/h"], 2), (["30/s", "1200/day"], 4)] {
        let limits = quotas.map(|quota| Limit::new(ALGORITHMS[1], quota.parse().unwrap()).unwrap());
        let (faults, consistency) = (FaultPlan::NO_FAULTS, Consistency::Leased);
        let setup =
            SimSetup { limits: &limits, keys: 1, nodes, faults, consistency, policy: LeasePolicy::DEFAULT };
        let mut simulation = Simulation::new(&setup, 1);
        let mut rng = SimRng::new(2);
        let begin = simulation.now();
        for request in 0..12_000_u64 {
            simulation.run_until(begin + request * 10_000);
            let node = rng.below(nodes);
            simulation.request(node, SimDraw { key: 0, units: 1, is_admissible: false });
        }
        simulation.run_until(simulation.now() + micros(1.0));
        let admitted: u64 = simulation.counts().iter().map(|counts| counts.admitted).sum();
        assert_eq!(admitted, u64::from(limits[1].capacity()), "{quotas:?}");
        assert_eq!(simulation.excess(), 0);
    }
}

#[test]
fn requests_of_several_units_have_few_false_denials() {
    for algorithm in ALGORITHMS {
        for (quota, max_cost) in [("1000/min", 10), ("10000/min", 100)] {
            for (nodes, first) in [(2, 0.5), (4, 0.25), (16, 0.9)] {
                for demand in [0.95, 1.5, 10.0] {
                    let case = SimCase::new(algorithm, &[quota], max_cost, (nodes, first, demand));
                    let row = case.measure(400_000, 1, Consistency::Leased);
                    assert!(row.net.worst < 0.001, "{case:?}: {row:?}");
                }
            }
        }
    }
}

/// Near its limit a sliding window has hardly anything to lease. It must neither deny because of that, nor
/// ask the store for every draw once demand is well above the limit.
#[test]
fn a_full_sliding_window_has_few_false_denials() {
    for (nodes, first, demand, max_store_calls) in [
        (2, 0.5, 1.0, 0.8),
        (4, 0.9, 1.0, 0.8),
        (2, 0.9, 1.5, 0.02),
        (16, 0.9, 1.5, 0.02),
        (2, 0.5, 10.0, 0.01),
        (16, 0.9, 10.0, 0.01),
    ] {
        check(Algorithm::SlidingWindowCounter, "10000/s", (nodes, first, demand), max_store_calls);
    }
}

/// A node that the store never denies, because other nodes leave it some units, would send almost every draw
/// to the store.
#[test]
fn nodes_take_turns_when_demand_exceeds_the_limit() {
    for (quota, nodes, first) in [("10000/s", 4, 0.25), ("1000/s", 2, 0.9)] {
        check(Algorithm::TokenBucket, quota, (nodes, first, 1.5), 0.01);
    }
}

#[test]
fn a_population_of_keys_has_few_store_calls() {
    for quota in ["1000/min", "100000/min"] {
        let population = KeyPopulation {
            quota,
            keys: 30_000,
            requests_per_second: 30_000.0,
            nodes: 4,
            warm_up_seconds: 60.0,
            measured_seconds: 20.0,
            policy: LeasePolicy::DEFAULT,
        };
        let row = population.measure(1);
        assert!(row.store_calls.worst < 0.1, "{row:?}");
    }
}
