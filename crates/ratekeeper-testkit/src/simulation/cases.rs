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

use super::arrivals::{ArrivalPattern, ArrivalProcess};
use super::cluster::{NodeCounts, SimDraw, SimSetup, Simulation, micros};
use super::faults::FaultPlan;
use super::oracle::{Oracle, float};
use super::rng::SimRng;
use ratekeeper::LeasePolicy;
use ratekeeper_core::{Algorithm, Align, Consistency, Limit, Zone};

/// From this many requests per second at a node on, its rate of store calls is measured: leases are made for such
/// keys.
const BUSY_REQUESTS_PER_SECOND: f64 = 1_000.0;

/// A key that is drawn by several nodes.
#[derive(Clone, Copy, Debug)]
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
    /// When requests arrive.
    pub arrivals: ArrivalPattern,
    /// How many units nodes lease, and when.
    pub policy: LeasePolicy,
}

/// The results of one case: for each value the median of several seeds, and the worst.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CaseRow {
    /// Requests, with all seeds together.
    pub requests: u64,
    /// Net false denials, as a share of the requested units.
    pub net: SeedSpread,
    /// Gross false denials, as a share of the requested units.
    pub gross: SeedSpread,
    /// Store calls per request.
    pub store_calls: SeedSpread,
    /// Store calls per request at the first node, which gets the most.
    pub first_store_calls: SeedSpread,
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

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
    Algorithm::SlidingWindowCounter,
];

/// Single limits: all combinations of limit, number of nodes, distribution over nodes and demand.
///
/// # Panics
/// If one of the built-in limits is invalid, which would be a bug.
pub fn cases() -> Vec<SimCase> {
    let quotas = ["10/min", "100/min", "1000/min", "100/s", "1000/s", "10000/s", "100000/s"];
    let single = ALGORITHMS.into_iter().flat_map(|algorithm| quotas.map(|quota| (algorithm, [quota])));
    single.flat_map(|(algorithm, quotas)| case_grid(algorithm, &quotas, 1)).collect()
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
    /// A case with independent arrivals at several nodes: the number of nodes, the share of the first, and the demand.
    ///
    /// # Panics
    /// If a quota is invalid, or there are more than three.
    pub fn new(
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
            arrivals: ArrivalPattern::Poisson,
            policy: LeasePolicy::DEFAULT,
        }
    }

    /// All limits of a request.
    pub fn limits(&self) -> Vec<Limit> {
        std::iter::once(self.limit).chain(self.other_limits.into_iter().flatten()).collect()
    }

    /// Measures the case with the seeds from 1 to `seeds`: with as many requests as the result needs, but at most
    /// `max_requests` per seed. With [`Consistency::Exact`], the store decides every request.
    pub fn measure(&self, max_requests: u64, seeds: u64, consistency: Consistency) -> CaseRow {
        let requests = self.requests().min(max_requests);
        CaseRow::of((1..=seeds).map(|seed| self.simulate(requests, seed, consistency)))
    }

    /// Returns whether the first node gets at least 1000 requests per second: only then its store calls are held to a bar.
    pub fn is_busy(&self) -> bool {
        self.request_rate() * self.first_node_share >= BUSY_REQUESTS_PER_SECOND
    }

    /// The number of requests that a reliable result needs. When a burst has been spent, nodes hold a few of its
    /// last units that the limit itself has spent, and so they stay a little behind. That happens once, and
    /// matters little after many windows.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "there are some millions")]
    fn requests(&self) -> u64 {
        let windows = if self.demand < 1.0 { 20.0 } else { 120.0 };
        let burst = self.limits().iter().map(|limit| float(limit.capacity())).fold(0.0, f64::max);
        let burst = burst / self.mean_cost();
        (windows * self.demand * burst).max((300.0 * burst).clamp(100_000.0, 300_000.0)) as u64
    }

    /// Simulates `requests` requests and counts them per node. Also returns how many units the limit itself admits.
    /// Nodes are chosen at random, not in turns: real requests are not spread evenly over a millisecond.
    fn simulate(&self, requests: u64, seed: u64, consistency: Consistency) -> (Vec<NodeCounts>, u64) {
        let (limits, faults) = (self.limits(), FaultPlan::NO_FAULTS);
        let (nodes, policy) = (self.nodes, self.policy);
        let setup = SimSetup { limits: &limits, keys: 1, nodes, faults, consistency, policy };
        let mut simulation = Simulation::new(&setup, seed);
        // Requests have their own generator, so that they are the same whatever their results are.
        let mut rng = SimRng::new(!seed);
        let mut oracle = Oracle::new(&limits, 1);
        let window = float(self.limit.window().get()) / 1e6;
        let mut arrivals = ArrivalProcess::new(self.arrivals, self.request_rate(), window, requests);
        let begin = simulation.now();
        for _ in 0..requests {
            let at = arrivals.next(&mut rng);
            let node = arrivals.node(&mut rng, self.nodes, self.first_node_share);
            simulation.run_until(begin + micros(at));
            let units = match self.max_cost {
                1 => 1,
                max => 1 + u32::try_from(rng.below(max as usize)).unwrap_or(0),
            };
            let is_admissible = oracle.draw(0, units, simulation.now());
            simulation.request(node, SimDraw { key: 0, units, is_admissible });
        }
        simulation.run_until(simulation.now() + micros(0.1));
        (simulation.counts().to_vec(), oracle.admitted)
    }

    /// Requests per second.
    fn request_rate(&self) -> f64 {
        let rate = |limit: &Limit| float(limit.quota().amount()) / float(limit.quota().per().get()) * 1e6;
        self.demand * self.limits().iter().map(rate).fold(f64::INFINITY, f64::min) / self.mean_cost()
    }

    fn mean_cost(&self) -> f64 {
        (1.0 + float(self.max_cost)) / 2.0
    }
}

impl CaseRow {
    /// Sums up runs: each with the counts of its nodes, and how many units the limit itself admits.
    pub(super) fn of(runs: impl Iterator<Item = (Vec<NodeCounts>, u64)>) -> CaseRow {
        let (mut requests, mut shares) = (0, [const { Vec::new() }; 4]);
        for (counts, admissible) in runs {
            let all = counts.iter().fold(NodeCounts::default(), |sum, counts| sum.plus(counts));
            requests += all.requests;
            shares[0].push((float(admissible) - float(all.admitted)) / float(all.units));
            shares[1].push(float(all.falsely_denied) / float(all.units));
            shares[2].push(all.store_calls_per_request());
            shares[3].push(counts[0].store_calls_per_request());
        }
        let [net, gross, store_calls, first_store_calls] = shares.map(SeedSpread::of);
        CaseRow { requests, net, gross, store_calls, first_store_calls }
    }
}

impl SeedSpread {
    fn of(mut values: Vec<f64>) -> SeedSpread {
        values.sort_by(f64::total_cmp);
        SeedSpread { median: values[values.len() / 2], worst: values[values.len() - 1] }
    }
}

/// A limit under an algorithm, by its quota.
pub(super) fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().expect("the quota is valid")).expect("the limit is valid")
}
