//! Arrival times of requests: random, on/off, and the worst cases.

use crate::keys::Rng;

/// The distribution of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Independent of each other.
    Poisson,
    /// Four times the rate for a quarter of the time, in phases of random length.
    OnOff,
    /// A burst at the very end of a window and one at the very beginning of the next: the worst case of a fixed window.
    Edge,
    /// A burst at the very end of a window, and one in the next window shortly before the first leaves the sliding
    /// window. A sliding counter, which assumes the first was spread over its whole window, has almost forgotten it by
    /// then.
    Late,
}

impl Shape {
    pub(crate) const ALL: [Shape; 4] = [Shape::Poisson, Shape::OnOff, Shape::Edge, Shape::Late];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Shape::Poisson => "poisson",
            Shape::OnOff => "on/off",
            Shape::Edge => "edge bursts",
            Shape::Late => "late bursts",
        }
    }
}

/// Arrivals over a number of windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    pub(crate) shape: Shape,
    /// The mean number of arrivals per window; in traces made of bursts, the number per burst.
    pub(crate) a_window: f64,
    /// The length of the window in microseconds.
    pub(crate) window_us: u64,
    pub(crate) windows: u64,
    pub(crate) seed: u64,
}

impl Trace {
    /// The arrivals in order, in microseconds since the first window began.
    pub(crate) fn arrivals(&self) -> Vec<u64> {
        let mut rng = Rng::new(self.seed);
        let mut arrivals = match self.shape {
            Shape::Poisson => self.steady(&mut rng, 0.0, self.windows as f64, self.a_window),
            Shape::OnOff => self.on_off(&mut rng),
            // The third window of each group is silent, so that the groups do not affect each other.
            Shape::Edge => self.bursts(&mut rng, [0.98, 1.0], [1.0, 1.02]),
            Shape::Late => self.bursts(&mut rng, [0.98, 1.0], [1.96, 1.98]),
        };
        arrivals.sort_unstable();
        arrivals
    }

    /// Random arrivals between two times, measured in windows.
    fn steady(&self, rng: &mut Rng, from: f64, to: f64, a_window: f64) -> Vec<u64> {
        let mut arrivals = Vec::new();
        let mut at = from + rng.wait(1.0 / a_window);
        while at < to {
            arrivals.push(self.micros(at));
            at += rng.wait(1.0 / a_window);
        }
        arrivals
    }

    fn on_off(&self, rng: &mut Rng) -> Vec<u64> {
        let mut arrivals = Vec::new();
        let mut at = 0.0;
        while at < self.windows as f64 {
            let on_until = at + rng.wait(0.25);
            arrivals.extend(self.steady(rng, at, on_until, 4.0 * self.a_window));
            at = on_until + rng.wait(0.75);
        }
        arrivals
    }

    /// Two bursts in every three windows, each spread evenly over an interval.
    fn bursts(&self, rng: &mut Rng, first: [f64; 2], second: [f64; 2]) -> Vec<u64> {
        let rounds = (0..self.windows).step_by(3);
        let stretches =
            rounds.flat_map(|round| [first, second].map(|stretch| stretch.map(|at| round as f64 + at)));
        let mut arrivals = Vec::new();
        for [from, to] in stretches {
            arrivals.extend(
                (0..self.a_window.round() as u64).map(|_| self.micros(from + rng.unit() * (to - from))),
            );
        }
        arrivals
    }

    fn micros(&self, windows: f64) -> u64 {
        (windows * self.window_us as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_have_the_stated_demand_and_are_reproducible() {
        for shape in Shape::ALL {
            let trace = Trace { shape, a_window: 100.0, window_us: 60_000_000, windows: 3000, seed: 3 };
            let arrivals = trace.arrivals();
            let expected = match shape {
                Shape::Poisson | Shape::OnOff => 300_000,
                Shape::Edge | Shape::Late => 200_000,
            };
            assert!(arrivals.len().abs_diff(expected) < expected / 20, "{shape:?}: {}", arrivals.len());
            assert!(arrivals.is_sorted());
            assert_eq!(arrivals, trace.arrivals());
        }
    }
}
