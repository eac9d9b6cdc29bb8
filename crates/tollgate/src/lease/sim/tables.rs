//! How well leases do when nothing goes wrong.
//!
//! The same requests are decided by the nodes and, one by one and at once, by the limit itself. What the limit admits and
//! the nodes do not, as a share of all requests, are *net false refusals*: a request that is refused while its unit is
//! in another node's hand, where it is spent soon after, is made up for. Beside it stands how often the store is asked,
//! for a request or for a refill, for each request.

use super::dice::Dice;
use super::world::{Counts, Weather, World, micros};
use tollgate_core::{Align, Ask, Law, Limit, Micros, State, Zone};

/// Keys that a node draws at least so often each second are those that leases are for.
const BUSY: f64 = 1_000.0;

/// One line of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The limit of each key.
    pub limit: String,
    /// How many nodes there are.
    pub nodes: usize,
    /// What share of the requests the first node gets.
    pub first: f64,
    /// How much is asked for, as a multiple of the limit; of many keys, requests a second.
    pub demand: f64,
    /// How many requests there were.
    pub requests: u64,
    /// Net false refusals, as a share of the requests.
    pub refused: f64,
    /// How often the store was asked for each request.
    pub asked: f64,
    /// The same at the busiest node, if that is drawn a thousand times a second or more.
    pub asked_by_busiest: Option<f64>,
}

/// A limit that is drawn by several nodes.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) limit: Limit,
    pub(super) nodes: usize,
    pub(super) first: f64,
    pub(super) demand: f64,
}

/// Every limit, number of nodes, spread and demand.
///
/// # Panics
/// If its own limits can't be read, which would be a fault here.
#[cfg(feature = "simulation")]
pub fn table() -> Vec<Row> {
    let buckets = ["10/min", "100/min", "1000/min", "100/s", "10000/s", "100000/s"]
        .map(|quota| (Law::TokenBucket, quota));
    let windows = ["100/min", "1000/min", "10000/s"];
    let fixed = windows.map(|quota| (Law::FixedWindow(Align::Wall(Zone::UTC)), quota));
    let sliding = windows.map(|quota| (Law::SlidingWindowCounter, quota));
    let mut rows = Vec::new();
    for (law, quota) in buckets.into_iter().chain(fixed).chain(sliding) {
        let limit = limit(law, quota);
        for nodes in [2, 4, 16] {
            for first in [1.0 / float(nodes), 0.9] {
                for demand in [0.5, 0.95, 1.0, 1.5, 10.0] {
                    rows.push(measure(&Case { limit, nodes, first, demand }, 6_000_000, 1));
                }
            }
        }
    }
    rows
}

/// Draws one key, for at least two hundred windows, and at least a hundred thousand times unless that is more than `most`.
pub(super) fn measure(case: &Case, most: u64, seed: u64) -> Row {
    let rate = case.demand * float(case.limit.quota().amount()) / float(case.limit.quota().per().get()) * 1e6;
    let window = float(case.limit.window().get()) / 1e6;
    let seconds = (200.0 * window).max(100_000.0 / rate).min(float(most) / rate);
    let mut world = World::new(case.limit, 1, case.nodes, Weather::FAIR, seed);
    let mut oracle = Oracle::new(case.limit, 1);
    let others = (1.0 - case.first) / float(case.nodes - 1);
    let (begin, mut at) = (world.now, 0.0);
    loop {
        at += world.dice.wait(1.0 / rate);
        if at > seconds {
            break;
        }
        let spot = world.dice.part();
        let node =
            if spot < case.first { 0 } else { 1 + whole((spot - case.first) / others).min(case.nodes - 2) };
        world.run_until(begin + micros(at));
        oracle.draw(0, world.now);
        world.request(node, 0, 1);
    }
    world.run_until(world.now + micros(0.1));
    let busiest = rate * case.first.max(others);
    Row {
        limit: case.limit.to_string(),
        nodes: case.nodes,
        first: case.first,
        demand: case.demand,
        asked_by_busiest: (busiest >= BUSY).then(|| asked(&world.counts[..1])),
        ..row(&world.counts, oracle.admitted)
    }
}

/// Draws many keys, some much more often than others: the key at rank `r` as often as `r` to the power of −1.1 says. What
/// happens in the first `warm` seconds is not counted.
///
/// # Panics
/// If the quota can't be read.
pub fn crowd(quota: &str, keys: usize, per_second: f64, nodes: usize, warm: f64, seconds: f64) -> Row {
    let limit = limit(Law::TokenBucket, quota);
    let mut world = World::new(limit, keys, nodes, Weather::FAIR, 1);
    let mut oracle = Oracle::new(limit, keys);
    let ranks = Ranks::new(keys);
    let (begin, mut at, mut before) = (world.now, 0.0, None);
    while at < warm + seconds {
        at += world.dice.wait(1.0 / per_second);
        world.run_until(begin + micros(at));
        if at > warm && before.is_none() {
            before = Some((world.counts.clone(), oracle.admitted));
        }
        let (node, key) = (world.dice.below(nodes), ranks.pick(&mut world.dice));
        oracle.draw(key, world.now);
        world.request(node, key, 1);
    }
    world.run_until(world.now + micros(0.1));
    let (counts, admitted) = before.unwrap_or_default();
    let counted: Vec<Counts> =
        world.counts.iter().zip(&counts).map(|(after, before)| after.since(before)).collect();
    Row {
        limit: limit.to_string(),
        nodes,
        first: 1.0 / float(nodes),
        demand: per_second,
        ..row(&counted, oracle.admitted - admitted)
    }
}

fn row(counts: &[Counts], admitted: u64) -> Row {
    let requests: u64 = counts.iter().map(|counts| counts.requests).sum();
    let ours: u64 = counts.iter().map(|counts| counts.admitted).sum();
    Row {
        limit: String::new(),
        nodes: counts.len(),
        first: 0.0,
        demand: 0.0,
        requests,
        refused: (float(admitted) - float(ours)) / float(requests),
        asked: asked(counts),
        asked_by_busiest: None,
    }
}

fn asked(counts: &[Counts]) -> f64 {
    let asked: u64 = counts.iter().map(|counts| counts.asked + counts.orders).sum();
    float(asked) / float(counts.iter().map(|counts| counts.requests).sum::<u64>())
}

impl Counts {
    fn since(&self, before: &Counts) -> Counts {
        Counts {
            requests: self.requests - before.requests,
            admitted: self.admitted - before.admitted,
            asked: self.asked - before.asked,
            orders: self.orders - before.orders,
        }
    }
}

/// The limit itself, with all requests before it at once.
struct Oracle {
    limit: Limit,
    keys: Vec<Option<State>>,
    admitted: u64,
}

impl Oracle {
    fn new(limit: Limit, keys: usize) -> Oracle {
        Oracle { limit, keys: vec![None; keys], admitted: 0 }
    }

    fn draw(&mut self, key: usize, now: u64) {
        let step = self.limit.step(self.keys[key], Micros::new(now), Ask::exactly(1));
        if step.granted.is_some() {
            self.keys[key] = Some(step.state);
            self.admitted += 1;
        }
    }
}

/// How likely each rank is or one before it.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(keys: usize) -> Ranks {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += float(rank).powf(-1.1);
            sum
        });
        Ranks(sums.collect())
    }

    fn pick(&self, dice: &mut Dice) -> usize {
        let spot = dice.part() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= spot).min(self.0.len() - 1)
    }
}

pub(super) fn limit(law: Law, quota: &str) -> Limit {
    Limit::new(law, quota.parse().expect("it can be read")).expect("it can be counted")
}

/// A number for a share; beyond 2^53, about.
#[expect(clippy::cast_precision_loss, reason = "it is for a share")]
fn float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small number")]
fn whole(number: f64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bars, where they are the hardest to meet: near the limit, and where one node gets nearly everything.
    #[test]
    fn few_are_refused_who_need_not_be_and_the_store_is_seldom_asked() {
        let windows = Law::FixedWindow(Align::Wall(Zone::UTC));
        for (law, quota) in [
            (Law::TokenBucket, "10/min"),
            (Law::TokenBucket, "100/min"),
            (Law::TokenBucket, "1000/min"),
            (Law::TokenBucket, "10000/s"),
            (windows, "1000/min"),
            (Law::SlidingWindowCounter, "1000/min"),
        ] {
            for nodes in [2, 16] {
                for first in [1.0 / float(nodes), 0.9] {
                    for demand in [0.95, 1.0, 10.0] {
                        let case = Case { limit: limit(law, quota), nodes, first, demand };
                        let row = measure(&case, 1_000_000, 1);
                        assert!(row.refused < 0.001, "{row:?}");
                        assert!(row.asked_by_busiest.is_none_or(|asked| asked < 0.01), "{row:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_crowd_of_keys_seldom_asks_the_store() {
        for quota in ["1000/min", "100000/min"] {
            let row = crowd(quota, 30_000, 30_000.0, 4, 60.0, 20.0);
            assert!(row.asked < 0.1, "{row:?}");
        }
    }
}
