//! How well leases do when nothing goes wrong.
//!
//! The same requests are decided by the nodes and, one by one and at once, by the limit itself. Three things are counted,
//! as shares of all requests:
//!
//! - *net* false refusals: what the limit admits, less what the nodes admit;
//! - *gross* false refusals: requests that a node refuses though the limit itself admits them, there and then;
//! - how often the store is asked, for a request or for a refill.
//!
//! The net share says how many are refused who need not be: a unit that was in another node's hand and is spent there soon after
//! is made up for. The gross share says how often the nodes and the limit itself disagree about which ones to refuse. Once one of
//! two limiters has admitted a request that the other has not, it has a unit less, refuses where the other admits, and that
//! is how they meet again, though both admit as many. That happens to whoever hears of requests in another order, and so
//! to nodes that ask the store for every request, too. They are put through the same requests for comparison: *exact* is their
//! gross share. Below the limit, where hardly anything is refused, leases have to come close to that.
//!
//! Everything is done with several seeds. The figures are those in the middle, and beside them the worst.

use super::rng::SimRng;
use super::simulation::{FaultPlan, NodeCounts, SimDraw, Simulation, micros};
use ratekeeper_core::{Algorithm, Align, Amount, Limit, Micros, State, Zone};

/// Keys that a node draws at least so often each second are those that leases are for.
const BUSY: f64 = 1_000.0;

/// One line of a table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CaseRow {
    /// How many requests there were, with every seed together.
    pub requests: u64,
    /// Net false refusals, as a share of the requests.
    pub net: SeedSpread,
    /// Gross ones.
    pub gross: SeedSpread,
    /// Gross ones if the store is asked for every request.
    pub exact: SeedSpread,
    /// By how much the gross ones are more than those.
    pub beyond: SeedSpread,
    /// How often the store was asked for each request.
    pub asked: SeedSpread,
    /// The same at the busiest node, if that is drawn a thousand times a second or more.
    pub asked_by_busiest: Option<SeedSpread>,
}

/// What was counted with several seeds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SeedSpread {
    /// The figure in the middle.
    pub median: f64,
    /// The greatest.
    pub worst: f64,
}

/// A key that is drawn by several nodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SimCase {
    /// Its limit.
    pub limit: Limit,
    /// Further limits that each request is held to.
    pub others: [Option<Limit>; 2],
    /// What a request costs: from one unit to this many, each as likely.
    pub most_cost: u32,
    /// How many nodes there are.
    pub nodes: usize,
    /// What share of the requests the first node gets. The others get as many as each other.
    pub first: f64,
    /// How much is asked for, as a multiple of the limit, and of that which allows the least where there are several.
    pub demand: f64,
}

/// Many keys that are drawn by several nodes, some much more often than others: the key at rank `r` as often as `r` to the
/// power of −1.1 says.
#[derive(Clone, Copy, Debug)]
pub struct KeyPopulation<'a> {
    /// What each key is allowed, under a token bucket.
    pub quota: &'a str,
    /// How many keys there are.
    pub keys: usize,
    /// How many requests there are each second.
    pub per_second: f64,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many seconds pass before anything is counted, and how many then.
    pub warm: f64,
    /// See there.
    pub seconds: f64,
}

/// What happened with one seed.
#[derive(Clone, Copy, Debug)]
struct SeedRun {
    requests: u64,
    net: f64,
    gross: f64,
    exact: f64,
    asked: f64,
    asked_by_busiest: Option<f64>,
}

/// Every limit, number of nodes, spread and demand.
///
/// # Panics
/// If its own limits can't be read, which would be a fault here.
pub fn cases() -> Vec<SimCase> {
    let quotas = ["10/min", "100/min", "1000/min", "100/s", "1000/s", "10000/s", "100000/s"];
    let single = LAWS.into_iter().flat_map(|law| quotas.map(|quota| (law, vec![quota], 1)));
    single.flat_map(|(law, quotas, most_cost)| spread(law, &quotas, most_cost)).collect()
}

/// Several limits at once, and requests that cost more than one unit, with every number of nodes, spread and demand.
///
/// # Panics
/// If its own limits can't be read, which would be a fault here.
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
    let all = LAWS.into_iter().flat_map(|law| kinds.map(|(quotas, most_cost)| (law, quotas, most_cost)));
    all.flat_map(|(law, quotas, most_cost)| spread(law, quotas, most_cost)).collect()
}

const LAWS: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow(Align::Wall(Zone::UTC)), Algorithm::SlidingWindowCounter];

/// Every number of nodes, spread and demand.
fn spread(law: Algorithm, quotas: &[&str], most_cost: u32) -> Vec<SimCase> {
    let mut cases = Vec::new();
    for nodes in [2, 4, 16] {
        for first in [1.0 / float(nodes), 0.9] {
            for demand in [0.5, 0.95, 1.0, 1.5, 10.0] {
                cases.push(SimCase::new(law, quotas, most_cost, (nodes, first, demand)));
            }
        }
    }
    cases
}

impl SimCase {
    fn new(
        law: Algorithm,
        quotas: &[&str],
        most_cost: u32,
        (nodes, first, demand): (usize, f64, f64),
    ) -> SimCase {
        let other = |index: usize| quotas.get(index).map(|quota| limit(law, quota));
        SimCase {
            limit: limit(law, quotas[0]),
            others: [other(1), other(2)],
            most_cost,
            nodes,
            first,
            demand,
        }
    }

    /// All limits that a request is held to.
    pub fn limits(&self) -> Vec<Limit> {
        std::iter::once(self.limit).chain(self.others.into_iter().flatten()).collect()
    }

    /// Draws the key, with each of one seed or more, as often as it takes to tell, but at most so many times.
    pub fn measure(&self, most: u64, seeds: u64) -> CaseRow {
        let requests = self.requests().min(most);
        row(&(1..=seeds).map(|seed| self.run(requests, seed)).collect::<Vec<_>>())
    }

    /// When a burst has been spent, nodes have a few of its last units in hand which the limit itself has spent, and so they
    /// stay a little behind. That happens once, and after many windows it weighs little.
    fn requests(&self) -> u64 {
        let windows = if self.demand < 1.0 { 20.0 } else { 120.0 };
        let burst = self.limits().iter().map(|limit| float(limit.capacity())).fold(0.0, f64::max);
        let burst = burst / self.mean_cost();
        (whole(windows * self.demand * burst) as u64)
            .max(whole((300.0 * burst).clamp(100_000.0, 300_000.0)) as u64)
    }

    fn run(&self, requests: u64, seed: u64) -> SeedRun {
        let (counts, due) = self.live(requests, seed, false);
        SeedRun { exact: run(&counts, due).gross, ..self.run_lent(requests, seed) }
    }

    /// The same without the comparison.
    fn run_lent(&self, requests: u64, seed: u64) -> SeedRun {
        let (counts, due) = self.live(requests, seed, true);
        let asked_by_busiest = (self.busiest() >= BUSY).then(|| asked(&counts[..1]));
        SeedRun { asked_by_busiest, ..run(&counts, due) }
    }

    /// Has so many requests decided, with leases or without, and by the limit itself: what came of them at each node, and how
    /// many the limit has admitted. Each node's share is a chance, not a turn: nobody spreads requests evenly over a
    /// millisecond.
    fn live(&self, requests: u64, seed: u64, is_lent: bool) -> (Vec<NodeCounts>, u64) {
        let mut world = Simulation::new(&self.limits(), 1, self.nodes, FaultPlan::FAIR, seed);
        world.is_lent = is_lent;
        // With dice of their own, requests are the same whatever becomes of them.
        let mut dice = SimRng::new(!seed);
        let mut oracle = Oracle::new(&self.limits(), 1);
        let (begin, mut at, rate, others) = (world.now, 0.0, self.rate(), self.others());
        for _ in 0..requests {
            at += dice.wait(1.0 / rate);
            let spot = dice.part();
            let node = match spot < self.first {
                true => 0,
                false => 1 + whole((spot - self.first) / others).min(self.nodes - 2),
            };
            world.run_until(begin + micros(at));
            let units = match self.most_cost {
                1 => 1,
                most => 1 + u32::try_from(dice.below(most as usize)).unwrap_or(0),
            };
            let is_due = oracle.draw(0, units, world.now);
            world.request(node, SimDraw { key: 0, units, is_due });
        }
        world.run_until(world.now + micros(0.1));
        (world.counts, oracle.admitted)
    }

    /// Requests each second.
    fn rate(&self) -> f64 {
        let rate = |limit: &Limit| float(limit.quota().amount()) / float(limit.quota().per().get()) * 1e6;
        self.demand * self.limits().iter().map(rate).fold(f64::INFINITY, f64::min) / self.mean_cost()
    }

    fn mean_cost(&self) -> f64 {
        (1.0 + float(self.most_cost)) / 2.0
    }

    /// What share of the requests each node but the first gets.
    fn others(&self) -> f64 {
        (1.0 - self.first) / float(self.nodes - 1)
    }

    /// Requests each second at the first node, which has the most.
    fn busiest(&self) -> f64 {
        self.rate() * self.first
    }
}

impl KeyPopulation<'_> {
    /// Draws the keys.
    ///
    /// # Panics
    /// If the quota can't be read.
    pub fn measure(&self, seeds: u64) -> CaseRow {
        row(&(1..=seeds).map(|seed| self.run(seed)).collect::<Vec<_>>())
    }

    fn run(&self, seed: u64) -> SeedRun {
        let limit = limit(Algorithm::TokenBucket, self.quota);
        let mut world = Simulation::new(&[limit], self.keys, self.nodes, FaultPlan::FAIR, seed);
        let mut oracle = Oracle::new(&[limit], self.keys);
        let ranks = ZipfRanks::new(self.keys);
        let (begin, mut at, mut before) = (world.now, 0.0, None);
        while at < self.warm + self.seconds {
            at += world.dice.wait(1.0 / self.per_second);
            world.run_until(begin + micros(at));
            if at > self.warm && before.is_none() {
                before = Some((world.counts.clone(), oracle.admitted));
            }
            let (node, key) = (world.dice.below(self.nodes), ranks.pick(&mut world.dice));
            let is_due = oracle.draw(key, 1, world.now);
            world.request(node, SimDraw { key, units: 1, is_due });
        }
        world.run_until(world.now + micros(0.1));
        let (counts, admitted) = before.unwrap_or_default();
        let counted: Vec<NodeCounts> =
            world.counts.iter().zip(&counts).map(|(after, before)| after.since(before)).collect();
        run(&counted, oracle.admitted - admitted)
    }
}

fn run(counts: &[NodeCounts], due: u64) -> SeedRun {
    let sum = |of: fn(&NodeCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let requests = sum(|counts| counts.requests);
    let admitted = sum(|counts| counts.admitted);
    SeedRun {
        requests,
        net: (float(due) - float(admitted)) / float(requests),
        gross: float(sum(|counts| counts.wronged)) / float(requests),
        exact: 0.0,
        asked: asked(counts),
        asked_by_busiest: None,
    }
}

fn asked(counts: &[NodeCounts]) -> f64 {
    let asked: u64 = counts.iter().map(|counts| counts.asked + counts.orders).sum();
    float(asked) / float(counts.iter().map(|counts| counts.requests).sum::<u64>())
}

fn row(runs: &[SeedRun]) -> CaseRow {
    let figure = |of: fn(&SeedRun) -> f64| {
        let mut sorted: Vec<f64> = runs.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        SeedSpread { median: sorted[sorted.len() / 2], worst: sorted[sorted.len() - 1] }
    };
    CaseRow {
        requests: runs.iter().map(|run| run.requests).sum(),
        net: figure(|run| run.net),
        gross: figure(|run| run.gross),
        exact: figure(|run| run.exact),
        beyond: figure(|run| run.gross - run.exact),
        asked: figure(|run| run.asked),
        asked_by_busiest: runs[0].asked_by_busiest.map(|_| figure(|run| run.asked_by_busiest.unwrap_or(0.0))),
    }
}

impl NodeCounts {
    fn since(&self, before: &NodeCounts) -> NodeCounts {
        NodeCounts {
            requests: self.requests - before.requests,
            admitted: self.admitted - before.admitted,
            wronged: self.wronged - before.wronged,
            asked: self.asked - before.asked,
            orders: self.orders - before.orders,
        }
    }
}

/// The limits themselves, with all requests before them at once.
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
        let is_due = self.limits.iter().zip(&*states).all(|both| step(both).granted.is_some());
        if is_due {
            for (limit, state) in self.limits.iter().zip(states) {
                *state = Some(step((limit, state)).state);
            }
            self.admitted += u64::from(units);
        }
        is_due
    }
}

/// How likely each rank is or one before it.
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

    fn pick(&self, dice: &mut SimRng) -> usize {
        let spot = dice.part() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= spot).min(self.0.len() - 1)
    }
}

pub(super) fn limit(law: Algorithm, quota: &str) -> Limit {
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

    /// Holds a case to the bars, with `asked` for the busiest node.
    #[track_caller]
    fn check(law: Algorithm, quota: &str, (nodes, first, demand): (usize, f64, f64), asked: f64) {
        let case = SimCase::new(law, &[quota], 1, (nodes, first, demand));
        let requests = case.requests().min(1_800_000);
        let run = if demand < 1.0 { case.run(requests, 1) } else { case.run_lent(requests, 1) };
        assert!(run.net < 0.001, "{case:?}: {run:?}");
        assert!(demand >= 1.0 || run.gross - run.exact < 0.001, "{case:?}: {run:?}");
        assert!(run.asked_by_busiest.is_none_or(|busiest| busiest < asked), "{case:?}: {run:?}");
    }

    /// The bars, where they are the hardest to meet: near the limit, and where one node gets nearly everything.
    fn check_all(law: Algorithm, quotas: &[&str]) {
        for quota in quotas {
            for (nodes, first) in [(2, 0.5), (2, 0.9), (16, 1.0 / 16.0), (16, 0.9)] {
                for demand in [0.95, 1.0, 1.5, 10.0] {
                    check(law, quota, (nodes, first, demand), 0.01);
                }
            }
        }
    }

    #[test]
    fn of_buckets_few_are_refused_who_need_not_be_and_the_store_is_seldom_asked() {
        check_all(Algorithm::TokenBucket, &["10/min", "1000/min", "10000/s"]);
    }

    #[test]
    fn of_windows_few_are_refused_who_need_not_be_and_the_store_is_seldom_asked() {
        check_all(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), &["1000/min", "10000/s"]);
        check_all(Algorithm::SlidingWindowCounter, &["1000/min"]);
    }

    /// A limit that has units here and one that has none: the request asks the store for the second, and what is here of
    /// the first counts too.
    #[test]
    fn of_several_limits_few_are_refused_who_need_not_be() {
        for law in LAWS {
            for quotas in [&["20/s", "600/min"][..], &["20/s", "600/min", "30000/h"]] {
                for (nodes, first) in [(2, 0.5), (4, 0.25), (16, 0.9)] {
                    for demand in [0.95, 1.5, 10.0] {
                        let case = SimCase::new(law, quotas, 1, (nodes, first, demand));
                        let run = case.run_lent(case.requests().min(400_000), 1);
                        assert!(run.net < 0.001, "{case:?}: {run:?}");
                    }
                }
            }
        }
    }

    /// A window that is used up in its first seconds, over and over: not a unit of it may be left in somebody's hands.
    #[test]
    fn a_long_window_beside_a_short_one_is_used_to_the_last_unit() {
        for (quotas, nodes) in [(["20/s", "600/h"], 2), (["30/s", "1200/day"], 4)] {
            let limits = quotas.map(|quota| limit(LAWS[1], quota));
            let mut world = Simulation::new(&limits, 1, nodes, FaultPlan::FAIR, 1);
            let mut dice = SimRng::new(2);
            let begin = world.now;
            for request in 0..12_000_u64 {
                world.run_until(begin + request * 10_000);
                let node = dice.below(nodes);
                world.request(node, SimDraw { key: 0, units: 1, is_due: false });
            }
            world.run_until(world.now + micros(1.0));
            let admitted: u64 = world.counts.iter().map(|counts| counts.admitted).sum();
            assert_eq!(admitted, u64::from(limits[1].capacity()), "{quotas:?}");
            assert_eq!(world.excess, 0);
        }
    }

    #[test]
    fn of_requests_that_cost_several_units_few_are_refused_that_need_not_be() {
        for law in LAWS {
            for (quota, most_cost) in [("1000/min", 10), ("10000/min", 100)] {
                for (nodes, first) in [(2, 0.5), (4, 0.25), (16, 0.9)] {
                    for demand in [0.95, 1.5, 10.0] {
                        let case = SimCase::new(law, &[quota], most_cost, (nodes, first, demand));
                        let run = case.run_lent(case.requests().min(400_000), 1);
                        assert!(run.net < 0.001, "{case:?}: {run:?}");
                    }
                }
            }
        }
    }

    /// Near its limit a sliding window has hardly anything to lend. What it must not do is to refuse for that, nor to ask
    /// for every draw once it is well past the limit.
    #[test]
    fn a_sliding_window_that_is_full_refuses_as_many_as_it_should() {
        for (nodes, first, demand, asked) in [
            (2, 0.5, 1.0, 0.4),
            (4, 0.9, 1.0, 0.4),
            (2, 0.9, 1.5, 0.02),
            (16, 0.9, 1.5, 0.02),
            (2, 0.5, 10.0, 0.01),
            (16, 0.9, 10.0, 0.01),
        ] {
            check(Algorithm::SlidingWindowCounter, "10000/s", (nodes, first, demand), asked);
        }
    }

    /// A node that the store never refuses, because others leave it something, would ask it for nearly each draw.
    #[test]
    fn nodes_that_want_more_than_there_is_take_turns() {
        for (quota, nodes, first) in [("10000/s", 4, 0.25), ("1000/s", 2, 0.9)] {
            check(Algorithm::TokenBucket, quota, (nodes, first, 1.5), 0.01);
        }
    }

    #[test]
    fn a_crowd_of_keys_seldom_asks_the_store() {
        for quota in ["1000/min", "100000/min"] {
            let crowd = KeyPopulation {
                quota,
                keys: 30_000,
                per_second: 30_000.0,
                nodes: 4,
                warm: 60.0,
                seconds: 20.0,
            };
            let row = crowd.measure(1);
            assert!(row.asked.worst < 0.1, "{row:?}");
        }
    }
}
