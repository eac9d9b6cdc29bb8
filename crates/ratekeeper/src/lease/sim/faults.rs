//! The limit holds, whatever happens.
//!
//! Each seed makes a world: a limit, some nodes and keys, and weather. Nothing may be admitted beyond the limit, in any
//! stretch of time. A seed that fails is named; `RATEKEEPER_SEED=n cargo test -p ratekeeper --all-features faults` runs it alone.

use super::rng::SimRng;
use super::simulation::{FaultPlan, SimDraw, Simulation, micros};
use super::tables::limit;
use ratekeeper_core::{Algorithm, Align, Zone};

const SEEDS: u64 = 3_000;

#[test]
fn a_limit_holds_in_any_weather() {
    let seeds = match std::env::var("RATEKEEPER_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("RATEKEEPER_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    let (mut from_hand, mut admitted) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        let world = live(seed);
        from_hand += world.nodes.iter().map(super::node::SimNode::granted).sum::<u64>();
        admitted += world.counts.iter().map(|counts| counts.admitted).sum::<u64>();
        if world.excess > 0 {
            failed.push((seed, world.excess));
        }
    }
    assert!(failed.is_empty(), "(seed, by how many thousandths of a unit): {failed:?}");
    println!("{admitted} units admitted, {from_hand} draws from hand");
    // What never leases would prove nothing.
    assert!(seeds.end - seeds.start == 1 || from_hand > admitted / 10, "{from_hand} of {admitted}");
}

/// A few minutes of a world.
fn live(seed: u64) -> Simulation {
    let mut dice = SimRng::new(seed ^ 0x5eed);
    let laws = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
    ];
    let kinds = if dice.happens(0.6) { 1 } else { laws.len() };
    let law = dice.pick(&laws[..kinds]);
    let quotas = ["3000/min", "1000/min", "500 per 10s", "100/s", "5000/min"];
    let quota = match law {
        Algorithm::TokenBucket => {
            dice.pick(&["3000/min", "1000/min burst 300", "20/s burst 400", "100/s", "40/s burst 2500"])
        }
        _ => dice.pick(&quotas),
    };
    let limit = limit(law, quota);
    // Others of its kind that bind now and then.
    let others = ["400 per 10s", "120/s", "6000/min"].map(|quota| self::limit(law, quota));
    let limits = match dice.below(3) {
        0 => vec![limit],
        1 => vec![limit, dice.pick(&others)],
        _ => vec![dice.pick(&others), limit, dice.pick(&others)],
    };
    let rate = f64::from(limit.quota().amount()) / (limit.quota().per().get() as f64 / 1e6);
    let (nodes, keys) = (1 + dice.below(4), 1 + dice.below(2));
    let weather = weather(&mut dice);
    let mut world = Simulation::new(&limits, keys, nodes, weather, seed);
    let end = world.now + micros(6_000.0 / rate).clamp(60_000_000, 200_000_000);
    let mut demand = rate;
    let mut phase_ends = 0;
    let mut weights = vec![1.0; nodes];
    while world.now < end {
        if world.now >= phase_ends {
            // Quiet times, in which much is taken ahead, and rushes, in which every unit counts.
            let is_rush = dice.happens(0.3);
            demand = rate * if is_rush { dice.scale(3.0, 20.0) } else { dice.scale(0.1, 2.0) };
            weights.fill_with(|| dice.scale(0.05, 1.0));
            phase_ends =
                world.now + micros(if is_rush { dice.scale(0.3, 4.0) } else { dice.scale(1.0, 40.0) });
        }
        let next = world.now + micros(dice.wait(1.0 / (demand * keys as f64)));
        world.run_until(next);
        let node = pick(&mut dice, &weights);
        let units = if dice.happens(0.9) { 1 } else { dice.pick(&[0, 2, 3, 10, 60]) };
        world.request(node, SimDraw { key: dice.below(keys), units, is_due: false });
    }
    world
}

fn weather(dice: &mut SimRng) -> FaultPlan {
    let mut often =
        |least: f64| if dice.happens(0.5) { f64::INFINITY } else { dice.scale(least, 20.0 * least) };
    let (stall, death, stop, outage) = (often(3.0), often(10.0), often(15.0), often(20.0));
    let mut chance = |most: f64| if dice.happens(0.5) { 0.0 } else { dice.part() * most };
    let (loss, late, unsent) = (chance(0.2), chance(0.2), chance(0.2));
    let patience = dice.scale(0.01, 3.0);
    FaultPlan {
        trip: (0.000_1, dice.scale(0.000_2, 0.3)),
        loss,
        late,
        unsent,
        stall,
        death,
        stop,
        outage,
        // Clocks may fall behind by one in 64, and no more.
        drift: dice.between(0.0, 0.015),
        patience,
    }
}

fn pick(dice: &mut SimRng, weights: &[f64]) -> usize {
    let mut spot = dice.part() * weights.iter().sum::<f64>();
    weights
        .iter()
        .position(|weight| {
            spot -= weight;
            spot < 0.0
        })
        .unwrap_or(0)
}
