//! Accuracy of leases without faults.
//!
//! The same requests are decided by the nodes and, one by one and at once, by the limit itself (the *oracle*).
//! Three values are measured, as shares of all requests:
//!
//! - *net* false denials: what the limit admits, less what the nodes admit;
//! - *gross* false denials: requests that a node denies although the limit itself admits them at that moment;
//! - store calls: how often the store is asked, for a request or for a renewal.
//!
//! The net share says how many requests are denied that need not be: a unit that was leased to another node and
//! is spent there soon after is made up for. The gross share says how often the nodes and the limit itself
//! disagree about which requests to deny. Once one of two limiters has admitted a request that the other has not,
//! it has a unit less and denies where the other admits, until they agree again, though both admit equally many.
//! That happens to every limiter that sees requests in a different order, and so to nodes that ask the store for
//! every request, too. They process the same requests for comparison: *exact* is their gross share. Below the
//! limit, where hardly anything is denied, leases have to come close to that.
//!
//! Everything is measured with several seeds. The median is reported, and the worst value beside it.

use super::rng::SimRng;
use super::simulation::{FaultPlan, NodeCounts, SimDraw, Simulation, micros};
use ratekeeper_core::{Algorithm, Align, Amount, Limit, Micros, State, Zone};

/// From this many requests per second at a node on, its rate of store calls is measured: leases are made for such
/// keys.
const BUSY_REQUESTS_PER_SECOND: f64 = 1_000.0;

/// One row of a table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CaseRow {
    /// Requests, with all seeds together.
    pub requests: u64,
    /// Net false denials, as a share of the requests.
    pub net: SeedSpread,
    /// Gross false denials, as a share of the requests.
    pub gross: SeedSpread,
    /// Gross false denials if the store is asked for every request.
    pub exact: SeedSpread,
    /// How much greater `gross` is than `exact`.
    pub gross_excess: SeedSpread,
    /// Store calls per request.
    pub store_calls: SeedSpread,
    /// Store calls per request at the busiest node. `None` if it gets fewer than a thousand requests a second.
    pub busiest_store_calls: Option<SeedSpread>,
}

/// The spread of a value over several seeds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SeedSpread {
    /// The median.
    pub median: f64,
    /// The greatest value.
    pub worst: f64,
}

/// A key that is drawn by several nodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SimCase {
    /// Its limit.
    pub limit: Limit,
    /// Further limits that apply to each request.
    pub other_limits: [Option<Limit>; 2],
    /// The cost of a request is uniform in `1..=max_cost`.
    pub max_cost: u32,
    /// The number of nodes.
    pub nodes: usize,
    /// The share of the requests that the first node gets. The others get equal shares of the rest.
    pub first_node_share: f64,
    /// Demand as a multiple of the limit; with several limits, of the one that allows the least.
    pub demand: f64,
}

/// Many keys that are drawn by several nodes, with Zipf-distributed popularity: the weight of the key at rank `r`
/// is `r` to the power of −1.1.
#[derive(Clone, Copy, Debug)]
pub struct KeyPopulation<'a> {
    /// The quota of each key, under a token bucket.
    pub quota: &'a str,
    /// The number of keys.
    pub keys: usize,
    /// Requests per second.
    pub requests_per_second: f64,
    /// The number of nodes.
    pub nodes: usize,
    /// Seconds before the measurement starts.
    pub warm_up_seconds: f64,
    /// Seconds of the measurement.
    pub measured_seconds: f64,
}

/// The results with one seed.
#[derive(Clone, Copy, Debug)]
struct SeedRun {
    requests: u64,
    net: f64,
    gross: f64,
    exact: f64,
    store_calls: f64,
    busiest_store_calls: Option<f64>,
}

/// Single limits: all combinations of limit, number of nodes, distribution over nodes and demand.
///
/// # Panics
/// If one of the built-in limits is invalid, which would be a bug.
pub fn cases() -> Vec<SimCase> {
    let quotas = ["10/min", "100/min", "1000/min", "100/s", "1000/s", "10000/s", "100000/s"];
    let single = ALGORITHMS.into_iter().flat_map(|algorithm| quotas.map(|quota| (algorithm, vec![quota], 1)));
    single.flat_map(|(algorithm, quotas, max_cost)| case_grid(algorithm, &quotas, max_cost)).collect()
}

/// Several limits at once, and requests that cost more than one unit, with all numbers of nodes, distributions
/// over nodes and demands.
///
/// # Panics
/// If one of the built-in limits is invalid, which would be a bug.
pub fn combined_cases() -> Vec<SimCase> {
    let kinds: [(&[&str], u32); 8] = [
        (&["20/s", "600/min"], 1),
        (&["100/s", "3000/min"], 1),
        (&["1000/s", "30000/min"], 1),
        (&["20/s", "600/min", "30000/h"], 1),
        (&["100/s", "4000/min", "180000/h"], 1),
        (&["1000/min"], 10),
        (&["10000/min"], 100),
        (&["100/s", "3000/min"], 5),
    ];
    let all = ALGORITHMS
        .into_iter()
        .flat_map(|algorithm| kinds.map(|(quotas, max_cost)| (algorithm, quotas, max_cost)));
    all.flat_map(|(algorithm, quotas, max_cost)| case_grid(algorithm, quotas, max_cost)).collect()
}

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
    Algorithm::SlidingWindowCounter,
];

/// All numbers of nodes, distributions over nodes and demands.
fn case_grid(algorithm: Algorithm, quotas: &[&str], max_cost: u32) -> Vec<SimCase> {
    let mut cases = Vec::new();
    for nodes in [2, 4, 16] {
        for first in [1.0 / float(nodes), 0.9] {
            for demand in [0.5, 0.95, 1.0, 1.5, 10.0] {
                cases.push(SimCase::new(algorithm, quotas, max_cost, (nodes, first, demand)));
            }
        }
    }
    cases
}

impl SimCase {
    fn new(
        algorithm: Algorithm,
        quotas: &[&str],
        max_cost: u32,
        (nodes, first_node_share, demand): (usize, f64, f64),
    ) -> SimCase {
        let other = |index: usize| quotas.get(index).map(|quota| limit(algorithm, quota));
        SimCase {
            limit: limit(algorithm, quotas[0]),
            other_limits: [other(1), other(2)],
            max_cost,
            nodes,
            first_node_share,
            demand,
        }
    }

    /// All limits of a request.
    pub fn limits(&self) -> Vec<Limit> {
        std::iter::once(self.limit).chain(self.other_limits.into_iter().flatten()).collect()
    }

    /// Measures the case with `seeds` seeds, of which there must be at least one: with as many requests as the
    /// result needs, but at most `max_requests` per seed.
    pub fn measure(&self, max_requests: u64, seeds: u64) -> CaseRow {
        let requests = self.requests().min(max_requests);
        summarize(&(1..=seeds).map(|seed| self.run(requests, seed)).collect::<Vec<_>>())
    }

    /// The number of requests that a reliable result needs. When a burst has been spent, nodes hold a few of its
    /// last units that the limit itself has spent, and so they stay a little behind. That happens once, and
    /// matters little after many windows.
    fn requests(&self) -> u64 {
        let windows = if self.demand < 1.0 { 20.0 } else { 120.0 };
        let burst = self.limits().iter().map(|limit| float(limit.capacity())).fold(0.0, f64::max);
        let burst = burst / self.mean_cost();
        (to_usize(windows * self.demand * burst) as u64)
            .max(to_usize((300.0 * burst).clamp(100_000.0, 300_000.0)) as u64)
    }

    fn run(&self, requests: u64, seed: u64) -> SeedRun {
        let (counts, admissible) = self.simulate(requests, seed, false);
        SeedRun { exact: run(&counts, admissible).gross, ..self.run_leased(requests, seed) }
    }

    /// Like [`SimCase::run`], without the comparison.
    fn run_leased(&self, requests: u64, seed: u64) -> SeedRun {
        let (counts, admissible) = self.simulate(requests, seed, true);
        let busiest_store_calls =
            (self.busiest_rate() >= BUSY_REQUESTS_PER_SECOND).then(|| store_calls_per_request(&counts[..1]));
        SeedRun { busiest_store_calls, ..run(&counts, admissible) }
    }

    /// Simulates `requests` requests, with leases or without, and counts them per node. Also returns how many
    /// units the limit itself admits. Nodes are chosen at random, not in turns: real requests are not spread
    /// evenly over a millisecond.
    fn simulate(&self, requests: u64, seed: u64, is_leasing: bool) -> (Vec<NodeCounts>, u64) {
        let mut simulation = Simulation::new(&self.limits(), 1, self.nodes, FaultPlan::NO_FAULTS, seed);
        simulation.is_leasing = is_leasing;
        // Requests have their own generator, so that they are the same whatever their results are.
        let mut rng = SimRng::new(!seed);
        let mut oracle = Oracle::new(&self.limits(), 1);
        let (begin, mut at, rate, other_share) =
            (simulation.now, 0.0, self.request_rate(), self.other_node_share());
        for _ in 0..requests {
            at += rng.exponential(1.0 / rate);
            let point = rng.fraction();
            let node = if point < self.first_node_share {
                0
            } else {
                1 + to_usize((point - self.first_node_share) / other_share).min(self.nodes - 2)
            };
            simulation.run_until(begin + micros(at));
            let units = match self.max_cost {
                1 => 1,
                max => 1 + u32::try_from(rng.below(max as usize)).unwrap_or(0),
            };
            let is_admissible = oracle.draw(0, units, simulation.now);
            simulation.request(node, SimDraw { key: 0, units, is_admissible });
        }
        simulation.run_until(simulation.now + micros(0.1));
        (simulation.counts, oracle.admitted)
    }

    /// Requests per second.
    fn request_rate(&self) -> f64 {
        let rate = |limit: &Limit| float(limit.quota().amount()) / float(limit.quota().per().get()) * 1e6;
        self.demand * self.limits().iter().map(rate).fold(f64::INFINITY, f64::min) / self.mean_cost()
    }

    fn mean_cost(&self) -> f64 {
        (1.0 + float(self.max_cost)) / 2.0
    }

    /// The share of the requests that each node but the first gets.
    fn other_node_share(&self) -> f64 {
        (1.0 - self.first_node_share) / float(self.nodes - 1)
    }

    /// Requests per second at the first node, which gets the most.
    fn busiest_rate(&self) -> f64 {
        self.request_rate() * self.first_node_share
    }
}

impl KeyPopulation<'_> {
    /// Measures the population.
    ///
    /// # Panics
    /// If the quota is invalid.
    pub fn measure(&self, seeds: u64) -> CaseRow {
        summarize(&(1..=seeds).map(|seed| self.run(seed)).collect::<Vec<_>>())
    }

    fn run(&self, seed: u64) -> SeedRun {
        let limit = limit(Algorithm::TokenBucket, self.quota);
        let mut simulation = Simulation::new(&[limit], self.keys, self.nodes, FaultPlan::NO_FAULTS, seed);
        let mut oracle = Oracle::new(&[limit], self.keys);
        let ranks = ZipfRanks::new(self.keys);
        let (begin, mut at, mut before) = (simulation.now, 0.0, None);
        while at < self.warm_up_seconds + self.measured_seconds {
            at += simulation.rng.exponential(1.0 / self.requests_per_second);
            simulation.run_until(begin + micros(at));
            if at > self.warm_up_seconds && before.is_none() {
                before = Some((simulation.counts.clone(), oracle.admitted));
            }
            let (node, key) = (simulation.rng.below(self.nodes), ranks.pick(&mut simulation.rng));
            let is_admissible = oracle.draw(key, 1, simulation.now);
            simulation.request(node, SimDraw { key, units: 1, is_admissible });
        }
        simulation.run_until(simulation.now + micros(0.1));
        let (counts, admitted) = before.unwrap_or_default();
        let counted: Vec<NodeCounts> =
            simulation.counts.iter().zip(&counts).map(|(after, before)| after.since(before)).collect();
        run(&counted, oracle.admitted - admitted)
    }
}

fn run(counts: &[NodeCounts], admissible: u64) -> SeedRun {
    let sum = |of: fn(&NodeCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let requests = sum(|counts| counts.requests);
    let admitted = sum(|counts| counts.admitted);
    SeedRun {
        requests,
        net: (float(admissible) - float(admitted)) / float(requests),
        gross: float(sum(|counts| counts.falsely_denied)) / float(requests),
        exact: 0.0,
        store_calls: store_calls_per_request(counts),
        busiest_store_calls: None,
    }
}

fn store_calls_per_request(counts: &[NodeCounts]) -> f64 {
    let calls: u64 = counts.iter().map(|counts| counts.store_requests + counts.renewals).sum();
    float(calls) / float(counts.iter().map(|counts| counts.requests).sum::<u64>())
}

fn summarize(runs: &[SeedRun]) -> CaseRow {
    let spread = |of: fn(&SeedRun) -> f64| {
        let mut sorted: Vec<f64> = runs.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        SeedSpread { median: sorted[sorted.len() / 2], worst: sorted[sorted.len() - 1] }
    };
    CaseRow {
        requests: runs.iter().map(|run| run.requests).sum(),
        net: spread(|run| run.net),
        gross: spread(|run| run.gross),
        exact: spread(|run| run.exact),
        gross_excess: spread(|run| run.gross - run.exact),
        store_calls: spread(|run| run.store_calls),
        busiest_store_calls: runs[0]
            .busiest_store_calls
            .map(|_| spread(|run| run.busiest_store_calls.unwrap_or(0.0))),
    }
}

impl NodeCounts {
    fn since(&self, before: &NodeCounts) -> NodeCounts {
        NodeCounts {
            requests: self.requests - before.requests,
            admitted: self.admitted - before.admitted,
            falsely_denied: self.falsely_denied - before.falsely_denied,
            store_requests: self.store_requests - before.store_requests,
            renewals: self.renewals - before.renewals,
        }
    }
}

/// The limits themselves, applied to all requests at once.
struct Oracle {
    limits: Vec<Limit>,
    keys: Vec<Vec<Option<State>>>,
    admitted: u64,
}

impl Oracle {
    fn new(limits: &[Limit], keys: usize) -> Oracle {
        Oracle { limits: limits.to_vec(), keys: vec![vec![None; limits.len()]; keys], admitted: 0 }
    }

    fn draw(&mut self, key: usize, units: u32, now: u64) -> bool {
        let states = &mut self.keys[key];
        let step = |(limit, state): (&Limit, &Option<State>)| {
            limit.step(*state, Micros::new(now), Amount::exactly(units))
        };
        let is_admissible = self.limits.iter().zip(&*states).all(|both| step(both).granted.is_some());
        if is_admissible {
            for (limit, state) in self.limits.iter().zip(states) {
                *state = Some(step((limit, state)).state);
            }
            self.admitted += u64::from(units);
        }
        is_admissible
    }
}

/// Cumulative weights of the ranks.
struct ZipfRanks(Vec<f64>);

impl ZipfRanks {
    fn new(keys: usize) -> ZipfRanks {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += float(rank).powf(-1.1);
            sum
        });
        ZipfRanks(sums.collect())
    }

    fn pick(&self, rng: &mut SimRng) -> usize {
        let point = rng.fraction() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= point).min(self.0.len() - 1)
    }
}

pub(super) fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().expect("the quota is valid")).expect("the limit is valid")
}

/// Converts a number for a share; beyond 2^53, approximately.
#[expect(clippy::cast_precision_loss, reason = "the result is a share")]
fn float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the number is small")]
fn to_usize(number: f64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the accuracy of a case, with at most `max_store_calls` store calls per request at the busiest node.
    #[track_caller]
    fn check(
        algorithm: Algorithm,
        quota: &str,
        (nodes, first, demand): (usize, f64, f64),
        max_store_calls: f64,
    ) {
        let case = SimCase::new(algorithm, &[quota], 1, (nodes, first, demand));
        let requests = case.requests().min(1_800_000);
        let run = if demand < 1.0 { case.run(requests, 1) } else { case.run_leased(requests, 1) };
        assert!(run.net < 0.001, "{case:?}: {run:?}");
        assert!(demand >= 1.0 || run.gross - run.exact < 0.001, "{case:?}: {run:?}");
        assert!(run.busiest_store_calls.is_none_or(|busiest| busiest < max_store_calls), "{case:?}: {run:?}");
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
                        let run = case.run_leased(case.requests().min(400_000), 1);
                        assert!(run.net < 0.001, "{case:?}: {run:?}");
                    }
                }
            }
        }
    }

    /// A window that is used up in its first seconds, over and over: no unit may be left unspent in a lease.
    #[test]
    fn a_long_window_beside_a_short_one_is_used_up_completely() {
        for (quotas, nodes) in [(["20/s", "600/h"], 2), (["30/s", "1200/day"], 4)] {
            let limits = quotas.map(|quota| limit(ALGORITHMS[1], quota));
            let mut simulation = Simulation::new(&limits, 1, nodes, FaultPlan::NO_FAULTS, 1);
            let mut rng = SimRng::new(2);
            let begin = simulation.now;
            for request in 0..12_000_u64 {
                simulation.run_until(begin + request * 10_000);
                let node = rng.below(nodes);
                simulation.request(node, SimDraw { key: 0, units: 1, is_admissible: false });
            }
            simulation.run_until(simulation.now + micros(1.0));
            let admitted: u64 = simulation.counts.iter().map(|counts| counts.admitted).sum();
            assert_eq!(admitted, u64::from(limits[1].capacity()), "{quotas:?}");
            assert_eq!(simulation.excess, 0);
        }
    }

    #[test]
    fn requests_of_several_units_have_few_false_denials() {
        for algorithm in ALGORITHMS {
            for (quota, max_cost) in [("1000/min", 10), ("10000/min", 100)] {
                for (nodes, first) in [(2, 0.5), (4, 0.25), (16, 0.9)] {
                    for demand in [0.95, 1.5, 10.0] {
                        let case = SimCase::new(algorithm, &[quota], max_cost, (nodes, first, demand));
                        let run = case.run_leased(case.requests().min(400_000), 1);
                        assert!(run.net < 0.001, "{case:?}: {run:?}");
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
            (2, 0.5, 1.0, 0.4),
            (4, 0.9, 1.0, 0.4),
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
            };
            let row = population.measure(1);
            assert!(row.store_calls.worst < 0.1, "{row:?}");
        }
    }
}
