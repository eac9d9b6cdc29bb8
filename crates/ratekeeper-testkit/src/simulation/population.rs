//! Many keys, of which most are seldom drawn.

use super::cases::{CaseRow, limit};
use super::cluster::{NodeCounts, SimDraw, SimSetup, Simulation, micros};
use super::faults::FaultPlan;
use super::oracle::{Oracle, ZipfRanks};
use super::rng::SimRng;
use ratekeeper::LeasePolicy;
use ratekeeper_core::{Algorithm, Consistency};

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
    /// How many units nodes lease, and when.
    pub policy: LeasePolicy,
}

impl KeyPopulation<'_> {
    /// Measures the population with the seeds from 1 to `seeds`.
    ///
    /// # Panics
    /// If the quota is invalid.
    pub fn measure(&self, seeds: u64) -> CaseRow {
        CaseRow::of((1..=seeds).map(|seed| self.run(seed)))
    }

    fn run(&self, seed: u64) -> (Vec<NodeCounts>, u64) {
        let limit = limit(Algorithm::TokenBucket, self.quota);
        let setup = SimSetup {
            limits: &[limit],
            keys: self.keys,
            nodes: self.nodes,
            faults: FaultPlan::NO_FAULTS,
            consistency: Consistency::Leased,
            policy: self.policy,
        };
        let mut simulation = Simulation::new(&setup, seed);
        let mut oracle = Oracle::new(&[limit], self.keys);
        let mut rng = SimRng::new(!seed);
        let ranks = ZipfRanks::new(self.keys);
        let (begin, mut at, mut before) = (simulation.now(), 0.0, None);
        while at < self.warm_up_seconds + self.measured_seconds {
            at += rng.exponential(1.0 / self.requests_per_second);
            simulation.run_until(begin + micros(at));
            if at > self.warm_up_seconds && before.is_none() {
                before = Some((simulation.counts().to_vec(), oracle.admitted));
            }
            let (node, key) = (rng.below(self.nodes), ranks.pick(&mut rng));
            let is_admissible = oracle.draw(key, 1, simulation.now());
            simulation.request(node, SimDraw { key, units: 1, is_admissible });
        }
        simulation.run_until(simulation.now() + micros(0.1));
        let (counts, admitted) = before.unwrap_or_default();
        let counted = simulation.counts().iter().zip(&counts).map(|(after, before)| after.since(before));
        (counted.collect(), oracle.admitted - admitted)
    }
}
