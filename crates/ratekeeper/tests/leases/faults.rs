//! The limit holds under all faults.
//!
//! Each seed determines a simulation: a limit, nodes, keys and faults. No period of time may have more admitted
//! units than the limit allows. Failing seeds are printed; `RATEKEEPER_SEED=n cargo test -p ratekeeper --test leases
//! faults` runs one seed alone.

use ratekeeper::{Algorithm, Align, Consistency, LeasePolicy, Limit, Zone};
use ratekeeper_testkit::simulation::{FaultPlan, SimDraw, SimRng, SimSetup, Simulation, micros};

const SEEDS: u64 = 3_000;

#[test]
fn the_limit_holds_under_all_faults() {
    let seeds = match std::env::var("RATEKEEPER_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("RATEKEEPER_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    let (mut from_leases, mut admitted) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        let simulation = simulate(seed);
        from_leases += simulation.draws_from_leases();
        admitted += simulation.counts().iter().map(|counts| counts.admitted).sum::<u64>();
        if simulation.excess() > 0 {
            failed.push((seed, simulation.excess()));
        }
    }
    assert!(failed.is_empty(), "(seed, excess in thousandths of a unit): {failed:?}");
    println!("{admitted} units admitted, {from_leases} draws granted from leases");
    // A simulation that never leases would prove nothing.
    assert!(seeds.end - seeds.start == 1 || from_leases > admitted / 10, "{from_leases} of {admitted}");
}

/// Simulates a few minutes.
fn simulate(seed: u64) -> Simulation {
    let mut rng = SimRng::new(seed ^ 0x5eed);
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
    ];
    let kinds = if rng.happens(0.6) { 1 } else { algorithms.len() };
    let algorithm = rng.pick(&algorithms[..kinds]);
    let quotas = ["3000/min", "1000/min", "500 per 10s", "100/s", "5000/min"];
    let quota = match algorithm {
        Algorithm::TokenBucket => {
            rng.pick(&["3000/min", "1000/min burst 300", "20/s burst 400", "100/s", "40/s burst 2500"])
        }
        _ => rng.pick(&quotas),
    };
    let limit = |quota: &str| Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    let main = limit(quota);
    // Other limits of the same algorithm that bind now and then.
    let others = ["400 per 10s", "120/s", "6000/min"].map(limit);
    let limits = match rng.below(3) {
        0 => vec![main],
        1 => vec![main, rng.pick(&others)],
        _ => vec![rng.pick(&others), main, rng.pick(&others)],
    };
    let rate = f64::from(main.quota().amount()) / (main.quota().per().get() as f64 / 1e6);
    let (nodes, keys) = (1 + rng.below(4), 1 + rng.below(2));
    let faults = random_faults(&mut rng);
    let setup = SimSetup {
        limits: &limits,
        keys,
        nodes,
        faults,
        consistency: Consistency::Leased,
        policy: LeasePolicy::DEFAULT,
    };
    let mut simulation = Simulation::new(&setup, seed);
    let end = simulation.now() + micros(6_000.0 / rate).clamp(60_000_000, 200_000_000);
    let mut demand = rate;
    let mut phase_ends = 0;
    let mut weights = vec![1.0; nodes];
    while simulation.now() < end {
        if simulation.now() >= phase_ends {
            // Quiet phases, in which many units are leased, and rushes, in which every unit counts.
            let is_rush = rng.happens(0.3);
            demand = rate * if is_rush { rng.log_uniform(3.0, 20.0) } else { rng.log_uniform(0.1, 2.0) };
            weights.fill_with(|| rng.log_uniform(0.05, 1.0));
            phase_ends = simulation.now()
                + micros(if is_rush { rng.log_uniform(0.3, 4.0) } else { rng.log_uniform(1.0, 40.0) });
        }
        let next = simulation.now() + micros(rng.exponential(1.0 / (demand * keys as f64)));
        simulation.run_until(next);
        let node = pick_weighted(&mut rng, &weights);
        let units = if rng.happens(0.9) { 1 } else { rng.pick(&[0, 2, 3, 10, 60]) };
        simulation.request(node, SimDraw { key: rng.below(keys), units, is_admissible: false });
    }
    simulation
}

fn random_faults(rng: &mut SimRng) -> FaultPlan {
    let mut interval =
        |least: f64| if rng.happens(0.5) { f64::INFINITY } else { rng.log_uniform(least, 20.0 * least) };
    let (stall, death, stop, outage) = (interval(3.0), interval(10.0), interval(15.0), interval(20.0));
    let mut chance = |most: f64| if rng.happens(0.5) { 0.0 } else { rng.fraction() * most };
    let (loss, late, unsent, abandon) = (chance(0.2), chance(0.2), chance(0.2), chance(1.0));
    let timeout = rng.log_uniform(0.01, 3.0);
    FaultPlan {
        delay: (0.000_1, rng.log_uniform(0.000_2, 0.3)),
        loss,
        late,
        unsent,
        abandon,
        stall,
        crash: death,
        stop,
        outage,
        // Clocks may run slow by at most one in 64.
        drift: rng.uniform(0.0, 0.015),
        timeout,
    }
}

fn pick_weighted(rng: &mut SimRng, weights: &[f64]) -> usize {
    let mut point = rng.fraction() * weights.iter().sum::<f64>();
    weights
        .iter()
        .position(|weight| {
            point -= weight;
            point < 0.0
        })
        .unwrap_or(0)
}
