//! All of it together, one event after the other.

use super::super::{DetachedRenewal, DrawClaim, LeaseRenewal, PendingRequest};
use super::bound::AdmissionBound;
use super::node::{SimClock, SimNode, tag};
use super::rng::SimRng;
use super::store::{SimReply, SimStore};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Amount, Consistency, Draw as LimitDraw, DrawOptions, Draws, Limit, Micros, Op, PermitId, Scope, TERM,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// How many limits a request may be held to.
pub(super) const MOST_LIMITS: usize = 3;
/// Something for each limit.
pub(super) type PerLimit<T> = [T; MOST_LIMITS];

/// When every world begins: late enough for all that matters to have happened after 0.
const BEGIN: u64 = 1_000_003 * TERM.get() + 7_654_321;
const SECOND: u64 = 1_000_000;

/// What may go wrong, and how long words take. Times are in seconds, and `INFINITY` is never.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultPlan {
    /// How long a word takes, between these.
    pub(super) trip: (f64, f64),
    /// How likely it is lost, and how likely so late that nobody waits for it.
    pub(super) loss: f64,
    pub(super) late: f64,
    /// How likely an order can't be sent.
    pub(super) unsent: f64,
    /// How often, on the whole, each node stands still for a while, dies, or stops in good order.
    pub(super) stall: f64,
    pub(super) death: f64,
    pub(super) stop: f64,
    /// How often the store is away for a moment. It forgets nothing.
    pub(super) outage: f64,
    /// How slow or fast nodes' clocks run, at most.
    pub(super) drift: f64,
    /// How long a node waits for an answer.
    pub(super) patience: f64,
}

impl FaultPlan {
    /// Nothing goes wrong, and the store is a millisecond away.
    pub(super) const FAIR: FaultPlan = FaultPlan {
        trip: (0.000_4, 0.000_6),
        loss: 0.0,
        late: 0.0,
        unsent: 0.0,
        stall: f64::INFINITY,
        death: f64::INFINITY,
        stop: f64::INFINITY,
        outage: f64::INFINITY,
        drift: 0.0,
        patience: f64::INFINITY,
    };
}

/// Nodes, a store, and what is on its way between them.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) now: u64,
    pub(super) nodes: Vec<SimNode>,
    pub(super) dice: SimRng,
    pub(super) counts: Vec<NodeCounts>,
    /// By how many thousandths of a unit the limit was passed, at most.
    pub(super) excess: u64,
    /// Whether nodes are lent units. If not, each draw is decided by the store.
    pub(super) is_lent: bool,
    limits: Vec<Limit>,
    store: SimStore,
    away_until: u64,
    weather: FaultPlan,
    /// For each key and limit, by their number.
    bounds: Vec<AdmissionBound>,
    events: BinaryHeap<Reverse<SimEvent>>,
    made: u64,
    /// Questions that somebody waits for.
    waiting: HashMap<u64, PendingDraw>,
    errands: Vec<DetachedRenewal>,
    /// Kept, to be filled again.
    draws: Draws,
    out: PendingRequest,
}

/// A question that somebody waits for, and what is claimed meanwhile.
#[derive(Debug)]
struct PendingDraw {
    question: SimRequest,
    claimed: Option<ClaimedRequest>,
}

/// A request that is lowered by what is claimed for it.
#[derive(Debug)]
struct ClaimedRequest {
    draws: Draws,
    claims: Vec<DrawClaim>,
    /// For each limit, how many units, and when.
    units: PerLimit<u32>,
    at: Micros,
}

/// What came of the requests at a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCounts {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    /// Those that were refused here and admitted by whoever sees everything.
    pub(super) wronged: u64,
    /// Those that the store was asked for.
    pub(super) asked: u64,
    /// Orders that went alone.
    pub(super) orders: u64,
}

/// What somebody asks of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimDraw {
    pub(super) key: usize,
    pub(super) units: u32,
    /// Whether it would be admitted if all that nodes know were known in one place.
    pub(super) is_due: bool,
}

#[derive(Clone, Copy, Debug)]
struct SimRequest {
    number: u64,
    node: usize,
    life: u32,
    key: usize,
    draw: Option<SimDraw>,
    /// What the request takes from each limit.
    units: PerLimit<u32>,
    orders: PerLimit<Option<LeaseRenewal>>,
    /// By the node's clock.
    asked_at: Micros,
}

#[derive(Debug)]
struct SimEvent {
    at: u64,
    number: u64,
    what: SimEventKind,
}

#[derive(Clone, Debug)]
enum SimEventKind {
    Request { node: usize, draw: SimDraw },
    Arrives(Box<SimRequest>),
    Answered(Box<(SimRequest, SimReply)>),
    GivenUp { node: usize, number: u64 },
    Sweep(usize),
    Stall(usize),
    Death(usize),
    Stop(usize),
    Outage,
}

impl Simulation {
    /// A world that begins, in which each request is held to all of the limits.
    pub(super) fn new(
        limits: &[Limit],
        keys: usize,
        nodes: usize,
        weather: FaultPlan,
        seed: u64,
    ) -> Simulation {
        let mut dice = SimRng::new(seed);
        let fleet = u32::try_from(nodes).unwrap_or(u32::MAX);
        let cells = (keys * limits.len()).next_multiple_of(8) * 2;
        let node = |_| SimNode::new(cells, fleet, SimClock::wrong(&mut dice, weather.drift));
        let mut world = Simulation {
            now: BEGIN,
            nodes: (0..nodes).map(node).collect(),
            dice,
            counts: vec![NodeCounts::default(); nodes],
            excess: 0,
            is_lent: true,
            limits: limits.to_vec(),
            store: SimStore::new(limits, keys),
            away_until: 0,
            weather,
            bounds: (0..keys).flat_map(|_| limits.iter().map(AdmissionBound::new)).collect(),
            events: BinaryHeap::new(),
            made: 0,
            waiting: HashMap::new(),
            errands: Vec::new(),
            draws: Draws::new(),
            out: PendingRequest::default(),
        };
        for node in 0..nodes {
            let first = world.now + world.dice.below(1_000_000) as u64;
            world.schedule(first, SimEventKind::Sweep(node));
            world.expect(weather.stall, SimEventKind::Stall(node));
            world.expect(weather.death, SimEventKind::Death(node));
            world.expect(weather.stop, SimEventKind::Stop(node));
        }
        world.expect(weather.outage, SimEventKind::Outage);
        world
    }

    /// Lets everything happen up to then.
    pub(super) fn run_until(&mut self, then: u64) {
        while self.events.peek().is_some_and(|event| event.0.at <= then) {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.now = self.now.max(event.at);
            self.happen(event.what);
        }
        self.now = self.now.max(then);
    }

    /// Somebody draws at a node, now.
    pub(super) fn request(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].requests += u64::from(draw.units);
        if self.is_postponed(node, &SimEventKind::Request { node, draw }) {
            return;
        }
        self.serve(node, draw);
    }

    fn serve(&mut self, node: usize, draw: SimDraw) {
        let SimDraw { key, units, .. } = draw;
        let mut wanted = [0; MOST_LIMITS];
        wanted[..self.limits.len()].fill(units);
        if !self.is_lent {
            return self.send(node, key, Some((draw, wanted)), [None; MOST_LIMITS], None);
        }
        let mut draws = std::mem::take(&mut self.draws);
        let mut out = std::mem::take(&mut self.out);
        draws.clear();
        self.push(&mut draws, key, units);
        let clock = self.clock(node);
        let is_answered = self.spend(node, key, &mut draws, clock, &mut out);
        let mut orders = [None; MOST_LIMITS];
        for wanted in out.orders.drain(..) {
            orders[wanted.draw] = Some(wanted.order);
        }
        if is_answered {
            for (index, order) in orders.into_iter().enumerate().filter(|(_, order)| order.is_some()) {
                let mut alone = [None; MOST_LIMITS];
                alone[index] = order;
                self.send(node, key, None, alone, None);
            }
            if draws.group(0).iter().any(LimitDraw::stops) {
                self.refuse(node, draw);
            } else {
                self.admit(node, key, units, wanted);
            }
        } else {
            let claims = std::mem::take(&mut out.claims);
            let mut claimed = [0; MOST_LIMITS];
            for (index, draw) in draws.group(0).iter().enumerate() {
                let lowered = draw.act().ask().at_least();
                (claimed[index], wanted[index]) = (wanted[index] - lowered, lowered);
            }
            let claimed = (!claims.is_empty()).then(|| {
                let at = self.count(key, claimed);
                ClaimedRequest { draws: draws.clone(), claims, units: claimed, at }
            });
            self.send(node, key, Some((draw, wanted)), orders, claimed);
        }
        (self.draws, self.out) = (draws, out);
    }

    /// Makes a request's draws.
    fn push(&self, draws: &mut Draws, key: usize, units: u32) {
        let terms = DrawOptions { consistency: Consistency::Leased, ..DrawOptions::default() };
        for (index, limit) in self.limits.iter().enumerate() {
            let act = Op::Take(Amount::exactly(units));
            let scope = Scope(self.number(key, index) as u64);
            draws.push("k".into(), scope, *limit, act, PermitId::default());
            draws.set_terms(terms);
        }
    }

    fn spend(
        &self,
        node: usize,
        key: usize,
        draws: &mut Draws,
        clock: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let mut tags = [KeyHash::NONE; MOST_LIMITS];
        let leases = &self.nodes[node].leases;
        for (index, place) in tags.iter_mut().enumerate().take(self.limits.len()) {
            *place = tag(self.number(key, index));
        }
        match &tags[..self.limits.len()] {
            [tag] => leases.spend_one(draws, 0, *tag, clock, out),
            tags => leases.spend_together(draws, 0, tags, clock, out),
        }
    }

    /// The number of a key under one of its limits.
    fn number(&self, key: usize, limit: usize) -> usize {
        key * self.limits.len() + limit
    }

    fn admit(&mut self, node: usize, key: usize, units: u32, of_each: PerLimit<u32>) {
        self.counts[node].admitted += u64::from(units);
        self.count(key, of_each);
    }

    /// Counts units as admitted now.
    fn count(&mut self, key: usize, of_each: PerLimit<u32>) -> Micros {
        let now = Micros::new(self.now);
        for (index, units) in of_each.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            let number = self.number(key, index);
            self.excess = self.excess.max(self.bounds[number].admit(units, now));
        }
        now
    }

    /// Takes out what was counted as admitted, and was put back.
    fn forgive(&mut self, key: usize, claimed: &ClaimedRequest) {
        for (index, units) in claimed.units.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            let number = self.number(key, index);
            self.bounds[number].forgive(units, claimed.at);
        }
    }

    fn refuse(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].wronged += if draw.is_due { u64::from(draw.units) } else { 0 };
    }

    fn send(
        &mut self,
        node: usize,
        key: usize,
        request: Option<(SimDraw, PerLimit<u32>)>,
        orders: PerLimit<Option<LeaseRenewal>>,
        claimed: Option<ClaimedRequest>,
    ) {
        let orders = orders.map(|order| {
            order.filter(|order| {
                let is_sent = !self.dice.happens(self.weather.unsent);
                if !is_sent {
                    self.nodes[node].leases.settle_unsent(order);
                }
                is_sent
            })
        });
        let has_orders = orders.iter().any(Option::is_some);
        match request {
            Some(_) => self.counts[node].asked += 1,
            None if has_orders => self.counts[node].orders += 1,
            None => return,
        }
        let (life, asked_at) = (self.nodes[node].life, self.clock(node));
        let (draw, units) =
            (request.map(|(draw, _)| draw), request.map_or([0; MOST_LIMITS], |(_, units)| units));
        self.made += 1;
        let question = SimRequest { number: self.made, node, life, key, draw, units, orders, asked_at };
        self.waiting.insert(question.number, PendingDraw { question, claimed });
        if self.weather.patience.is_finite() {
            let given_up = self.now + micros(self.weather.patience);
            self.schedule(given_up, SimEventKind::GivenUp { node, number: question.number });
        }
        self.carry(SimEventKind::Arrives(Box::new(question)));
    }

    /// Sends a word on its way, unless it is lost.
    fn carry(&mut self, what: SimEventKind) {
        if self.dice.happens(self.weather.loss) {
            return;
        }
        let (least, most) = self.weather.trip;
        let trip = match self.dice.happens(self.weather.late) {
            true => self.dice.scale(most, 90.0),
            false => self.dice.between(least, most),
        };
        self.schedule(self.now + micros(trip), what);
    }

    fn happen(&mut self, what: SimEventKind) {
        match what {
            SimEventKind::Request { node, draw } => {
                if !self.is_postponed(node, &what) {
                    self.serve(node, draw);
                }
            }
            SimEventKind::Arrives(question) => self.arrive(&question),
            SimEventKind::Answered(ref both) => {
                let (question, answer) = &**both;
                if !self.is_postponed(question.node, &what) {
                    self.hear(question, answer);
                }
            }
            SimEventKind::GivenUp { node, number } => {
                if !self.is_postponed(node, &what) {
                    self.give_up(number);
                }
            }
            SimEventKind::Sweep(node) => {
                if !self.is_postponed(node, &what) {
                    self.sweep(node);
                    self.schedule(self.now + SECOND, what);
                }
            }
            SimEventKind::Stall(node) => {
                let pause = self.dice.scale(0.001, 100.0);
                self.nodes[node].stands_until = self.now + micros(pause);
                self.expect(self.weather.stall, what);
            }
            SimEventKind::Death(node) => {
                self.die(node);
                self.expect(self.weather.death, what);
            }
            SimEventKind::Stop(node) => self.stop(node),
            SimEventKind::Outage => {
                self.away_until = self.now + micros(self.dice.scale(0.01, 60.0));
                self.expect(self.weather.outage, what);
            }
        }
    }

    fn arrive(&mut self, question: &SimRequest) {
        if self.now < self.away_until {
            return;
        }
        let now = Micros::new(self.now);
        let units = question.draw.map(|_| question.units);
        let answer = self.store.answer(question.key, units, &question.orders, now);
        // Whether or not anybody hears of it, it is taken: the most that can have been admitted is counted.
        if let Some(draw) = question.draw {
            if answer.is_granted(self.limits.len()) {
                self.admit(question.node, draw.key, draw.units, question.units);
            } else {
                self.refuse(question.node, draw);
            }
        }
        self.carry(SimEventKind::Answered(Box::new((*question, answer))));
    }

    fn hear(&mut self, question: &SimRequest, answer: &SimReply) {
        let node = question.node;
        let Some(waiting) = self.waiting.remove(&question.number) else { return };
        if self.nodes[node].life != question.life {
            return;
        }
        let clock = self.clock(node);
        let leases = &self.nodes[node].leases;
        let mut errands = Vec::new();
        for (index, limit) in self.limits.iter().enumerate() {
            let number = self.number(question.key, index);
            if let Some(outcomes) = &answer.outcomes {
                let ask = Amount::exactly(question.units[index]);
                leases.note(tag(number), limit, ask, &outcomes[index], question.asked_at);
            }
            if let (Some(order), Some(told)) = (&question.orders[index], answer.told[index]) {
                errands.extend(leases.settle(order, told, clock));
            }
        }
        if let (Some(mut claimed), Some(outcomes)) = (waiting.claimed, &answer.outcomes) {
            for (draw, outcome) in claimed.draws.group_mut(0).iter_mut().zip(outcomes) {
                draw.settle(|_, _, _| *outcome);
            }
            leases.resolve(&mut claimed.draws, 0, &claimed.claims, clock, &mut errands);
            if !answer.is_granted(self.limits.len()) {
                self.forgive(question.key, &claimed);
            }
        }
        for errand in errands {
            self.run_errand(node, &errand);
        }
    }

    fn give_up(&mut self, number: u64) {
        let Some(PendingDraw { question, claimed }) = self.waiting.remove(&number) else { return };
        let node = &self.nodes[question.node];
        if node.life != question.life {
            return;
        }
        for order in question.orders.iter().flatten() {
            node.leases.settle_lost(order);
        }
        if let Some(claimed) = claimed {
            node.leases.abandon(&claimed.claims);
            self.forgive(question.key, &claimed);
        }
    }

    fn sweep(&mut self, node: usize) {
        let clock = self.clock(node);
        let mut errands = std::mem::take(&mut self.errands);
        let leases = &self.nodes[node].leases;
        leases.sweep(leases.shards(), clock, &mut errands);
        for errand in errands.drain(..) {
            self.run_errand(node, &errand);
        }
        self.errands = errands;
    }

    /// Gives everything back, and is gone soon after.
    fn stop(&mut self, node: usize) {
        let clock = self.clock(node);
        let mut errands = Vec::new();
        self.nodes[node].leases.drain(clock, &mut errands);
        for errand in &errands {
            self.run_errand(node, errand);
        }
        self.schedule(self.now + SECOND / 5, SimEventKind::Death(node));
        self.expect(self.weather.stop, SimEventKind::Stop(node));
    }

    fn run_errand(&mut self, node: usize, errand: &DetachedRenewal) {
        let number = usize::try_from(errand.name.scope.0).unwrap_or(0);
        let (key, limit) = (number / self.limits.len(), number % self.limits.len());
        let mut orders = [None; MOST_LIMITS];
        orders[limit] = Some(errand.order);
        self.send(node, key, None, orders, None);
    }

    fn die(&mut self, node: usize) {
        let clock = SimClock::wrong(&mut self.dice, self.weather.drift);
        self.nodes[node].restart(clock);
        self.nodes[node].stands_until = 0;
    }

    fn clock(&self, node: usize) -> Micros {
        self.nodes[node].read_clock(BEGIN, self.now)
    }

    /// Whether a node stands still; then it happens when it goes on.
    fn is_postponed(&mut self, node: usize, what: &SimEventKind) -> bool {
        let until = self.nodes[node].stands_until;
        if self.now < until {
            self.schedule(until, what.clone());
            return true;
        }
        false
    }

    fn expect(&mut self, mean: f64, what: SimEventKind) {
        if mean.is_finite() {
            let wait = self.dice.wait(mean);
            self.schedule(self.now + micros(wait), what);
        }
    }

    fn schedule(&mut self, at: u64, what: SimEventKind) {
        self.made += 1;
        self.events.push(Reverse(SimEvent { at, number: self.made, what }));
    }
}

/// Seconds in whole microseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "spans are short, and not below nothing"
)]
pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// Earlier events first, and of those at the same time the one that was made first.
impl Ord for SimEvent {
    fn cmp(&self, other: &SimEvent) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for SimEvent {
    fn partial_cmp(&self, other: &SimEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SimEvent {
    fn eq(&self, other: &SimEvent) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SimEvent {}
