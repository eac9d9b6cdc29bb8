//! When requests arrive, and at which node.

use super::oracle::float;
use super::rng::SimRng;
use std::f64::consts::TAU;

/// The arrivals of requests. The mean rate is the same with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalPattern {
    /// Independent of each other, at a constant rate.
    Poisson,
    /// Bursts at four times the mean rate, and silence in between. Both last from a twentieth of a window to five.
    Bursts,
    /// A rate that rises and falls four times by nine tenths of the mean.
    Daily,
    /// A constant rate, and each client request goes to another node than the one before, one node after the other.
    EveryNode,
}

/// The rate of [bursts](ArrivalPattern::Bursts), relative to the mean.
const BURST_RATE: f64 = 4.0;

/// Generates arrivals.
#[derive(Debug)]
pub(super) struct ArrivalProcess {
    kind: ArrivalPattern,
    mean_rate: f64,
    /// The length of a window, in seconds.
    window: f64,
    /// The length of the whole run, in seconds.
    duration: f64,
    /// Seconds since the begin.
    at: f64,
    burst_until: f64,
    arrived: usize,
}

impl ArrivalProcess {
    /// About `requests` requests at `mean_rate` requests a second.
    pub(super) fn new(kind: ArrivalPattern, mean_rate: f64, window: f64, requests: u64) -> ArrivalProcess {
        let duration = float(requests) / mean_rate;
        ArrivalProcess { kind, mean_rate, window, duration, at: 0.0, burst_until: 0.0, arrived: 0 }
    }

    /// Seconds from the begin to the next request.
    pub(super) fn next(&mut self, rng: &mut SimRng) -> f64 {
        self.arrived += 1;
        match self.kind {
            ArrivalPattern::Poisson | ArrivalPattern::EveryNode => {
                self.at += rng.exponential(1.0 / self.mean_rate);
            }
            ArrivalPattern::Bursts => {
                self.at += rng.exponential(1.0 / (BURST_RATE * self.mean_rate));
                if self.at > self.burst_until {
                    let mut phase = |times: f64| times * self.window * rng.log_uniform(0.05, 5.0);
                    self.at = self.at.max(self.burst_until + phase(BURST_RATE - 1.0));
                    self.burst_until = self.at + phase(1.0);
                }
            }
            ArrivalPattern::Daily => {
                let day = self.duration / 4.0;
                let rate = self.mean_rate * (1.0 + 0.9 * (TAU * self.at / day).sin());
                self.at += rng.exponential(1.0 / rate);
            }
        }
        self.at
    }

    /// The node of the request.
    pub(super) fn node(&self, rng: &mut SimRng, nodes: usize, first_node_share: f64) -> usize {
        if self.kind == ArrivalPattern::EveryNode {
            return self.arrived % nodes;
        }
        let point = rng.fraction();
        if point < first_node_share || nodes == 1 {
            return 0;
        }
        let share = (1.0 - first_node_share) / float(nodes - 1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the number is small")]
        let other = ((point - first_node_share) / share) as usize;
        1 + other.min(nodes - 2)
    }
}
