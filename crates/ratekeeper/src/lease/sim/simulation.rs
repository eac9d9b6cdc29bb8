//! The discrete-event simulation of nodes, store and network.

use super::super::{DetachedRenewal, DrawClaim, LeaseRenewal, PendingRequest};
use super::bound::AdmissionBound;
use super::node::{SimClock, SimNode, key_hash};
use super::rng::SimRng;
use super::store::{SimReply, SimStore};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Amount, Consistency, Draw as LimitDraw, DrawOptions, Draws, LEASE_TERM, Limit, Micros, Op, PermitId,
    Scope,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The most limits of a request.
pub(super) const MAX_LIMITS: usize = 3;
/// A value for each limit.
pub(super) type PerLimit<T> = [T; MAX_LIMITS];

/// When every simulation starts: late enough that no time underflows.
const START: u64 = 1_000_003 * LEASE_TERM.get() + 7_654_321;
const SECOND: u64 = 1_000_000;

/// Faults and message delays. Times are in seconds; `INFINITY` means never.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultPlan {
    /// Range of the delay of a message.
    pub(super) delay: (f64, f64),
    /// Probability that a message is lost.
    pub(super) loss: f64,
    /// Probability that a message is so late that the node may have stopped waiting.
    pub(super) late: f64,
    /// Probability that a renewal can't be sent.
    pub(super) unsent: f64,
    /// Mean time between stalls of each node.
    pub(super) stall: f64,
    /// Mean time between crashes of each node.
    pub(super) crash: f64,
    /// Mean time between orderly shutdowns of each node.
    pub(super) stop: f64,
    /// Mean time between short outages of the store. It keeps its state.
    pub(super) outage: f64,
    /// The largest drift of the nodes' clocks.
    pub(super) drift: f64,
    /// How long a node waits for a reply.
    pub(super) timeout: f64,
}

impl FaultPlan {
    /// No faults, and a round trip of about a millisecond.
    pub(super) const NO_FAULTS: FaultPlan = FaultPlan {
        delay: (0.000_4, 0.000_6),
        loss: 0.0,
        late: 0.0,
        unsent: 0.0,
        stall: f64::INFINITY,
        crash: f64::INFINITY,
        stop: f64::INFINITY,
        outage: f64::INFINITY,
        drift: 0.0,
        timeout: f64::INFINITY,
    };
}

/// Nodes, a store, and messages in flight between them.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) now: u64,
    pub(super) nodes: Vec<SimNode>,
    pub(super) rng: SimRng,
    pub(super) counts: Vec<NodeCounts>,
    /// The largest excess over the limit, in thousandths of a unit.
    pub(super) excess: u64,
    /// Whether nodes lease units. If not, the store decides each draw.
    pub(super) is_leasing: bool,
    limits: Vec<Limit>,
    store: SimStore,
    outage_until: u64,
    faults: FaultPlan,
    /// For each key and limit, by their index.
    bounds: Vec<AdmissionBound>,
    events: BinaryHeap<Reverse<SimEvent>>,
    last_id: u64,
    /// Requests that wait for a reply.
    pending: HashMap<u64, PendingDraw>,
    renewals: Vec<DetachedRenewal>,
    /// Buffers that are reused.
    draws: Draws,
    out: PendingRequest,
}

/// A request that waits for a reply, and what is claimed for it.
#[derive(Debug)]
struct PendingDraw {
    request: SimRequest,
    claimed: Option<ClaimedRequest>,
}

/// A request that was reduced by the claimed units.
#[derive(Debug)]
struct ClaimedRequest {
    draws: Draws,
    claims: Vec<DrawClaim>,
    /// For each limit, the claimed units, and when they were claimed.
    units: PerLimit<u32>,
    at: Micros,
}

/// Counts of the requests at a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCounts {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    /// Units that were denied here and admitted by the oracle, which sees all requests at once.
    pub(super) falsely_denied: u64,
    /// Requests that went to the store.
    pub(super) store_requests: u64,
    /// Renewals that were sent on their own.
    pub(super) renewals: u64,
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimDraw {
    pub(super) key: usize,
    pub(super) units: u32,
    /// Whether the oracle admits it.
    pub(super) is_admissible: bool,
}

#[derive(Clone, Copy, Debug)]
struct SimRequest {
    id: u64,
    node: usize,
    incarnation: u32,
    key: usize,
    draw: Option<SimDraw>,
    /// The units that the store is asked for, for each limit.
    units: PerLimit<u32>,
    renewals: PerLimit<Option<LeaseRenewal>>,
    /// By the node's clock.
    sent_at: Micros,
}

#[derive(Debug)]
struct SimEvent {
    at: u64,
    id: u64,
    kind: SimEventKind,
}

#[derive(Clone, Debug)]
enum SimEventKind {
    Request { node: usize, draw: SimDraw },
    RequestArrives(Box<SimRequest>),
    ReplyArrives(Box<(SimRequest, SimReply)>),
    TimedOut { node: usize, number: u64 },
    Sweep(usize),
    Stall(usize),
    Crash(usize),
    Stop(usize),
    Outage,
}

impl Simulation {
    /// Creates a simulation in which all limits apply to each request.
    pub(super) fn new(
        limits: &[Limit],
        keys: usize,
        nodes: usize,
        faults: FaultPlan,
        seed: u64,
    ) -> Simulation {
        let mut rng = SimRng::new(seed);
        let node_count = u32::try_from(nodes).unwrap_or(u32::MAX);
        let max_keys = (keys * limits.len()).next_multiple_of(8) * 2;
        let node = |_| SimNode::new(max_keys, node_count, SimClock::random(&mut rng, faults.drift));
        let mut simulation = Simulation {
            now: START,
            nodes: (0..nodes).map(node).collect(),
            rng,
            counts: vec![NodeCounts::default(); nodes],
            excess: 0,
            is_leasing: true,
            limits: limits.to_vec(),
            store: SimStore::new(limits, keys),
            outage_until: 0,
            faults,
            bounds: (0..keys).flat_map(|_| limits.iter().map(AdmissionBound::new)).collect(),
            events: BinaryHeap::new(),
            last_id: 0,
            pending: HashMap::new(),
            renewals: Vec::new(),
            draws: Draws::new(),
            out: PendingRequest::default(),
        };
        for node in 0..nodes {
            let first = simulation.now + simulation.rng.below(1_000_000) as u64;
            simulation.schedule(first, SimEventKind::Sweep(node));
            simulation.schedule_random(faults.stall, SimEventKind::Stall(node));
            simulation.schedule_random(faults.crash, SimEventKind::Crash(node));
            simulation.schedule_random(faults.stop, SimEventKind::Stop(node));
        }
        simulation.schedule_random(faults.outage, SimEventKind::Outage);
        simulation
    }

    /// Processes all events up to this time.
    pub(super) fn run_until(&mut self, then: u64) {
        while self.events.peek().is_some_and(|event| event.0.at <= then) {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.now = self.now.max(event.at);
            self.handle_event(event.kind);
        }
        self.now = self.now.max(then);
    }

    /// A client sends a request to a node, now.
    pub(super) fn request(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].requests += u64::from(draw.units);
        if self.is_postponed(node, &SimEventKind::Request { node, draw }) {
            return;
        }
        self.serve(node, draw);
    }

    fn serve(&mut self, node: usize, draw: SimDraw) {
        let SimDraw { key, units, .. } = draw;
        let mut requested = [0; MAX_LIMITS];
        requested[..self.limits.len()].fill(units);
        if !self.is_leasing {
            return self.send(node, key, Some((draw, requested)), [None; MAX_LIMITS], None);
        }
        let mut draws = std::mem::take(&mut self.draws);
        let mut out = std::mem::take(&mut self.out);
        draws.clear();
        self.push_draws(&mut draws, key, units);
        let clock = self.node_time(node);
        let is_answered = self.spend(node, key, &mut draws, clock, &mut out);
        let mut renewals = [None; MAX_LIMITS];
        for renewal in out.renewals.drain(..) {
            renewals[renewal.draw] = Some(renewal.renewal);
        }
        if is_answered {
            for (index, renewal) in renewals.into_iter().enumerate().filter(|(_, renewal)| renewal.is_some())
            {
                let mut alone = [None; MAX_LIMITS];
                alone[index] = renewal;
                self.send(node, key, None, alone, None);
            }
            if draws.group(0).iter().any(LimitDraw::denies_request) {
                self.deny(node, draw);
            } else {
                self.admit(node, key, units, requested);
            }
        } else {
            let claims = std::mem::take(&mut out.claims);
            let mut claimed = [0; MAX_LIMITS];
            for (index, draw) in draws.group(0).iter().enumerate() {
                let reduced = draw.op().amount().at_least();
                (claimed[index], requested[index]) = (requested[index] - reduced, reduced);
            }
            let claimed = (!claims.is_empty()).then(|| {
                let at = self.count_admitted(key, claimed);
                ClaimedRequest { draws: draws.clone(), claims, units: claimed, at }
            });
            self.send(node, key, Some((draw, requested)), renewals, claimed);
        }
        (self.draws, self.out) = (draws, out);
    }

    /// Creates the draws of a request.
    fn push_draws(&self, draws: &mut Draws, key: usize, units: u32) {
        let options = DrawOptions { consistency: Consistency::Leased, ..DrawOptions::default() };
        for (index, limit) in self.limits.iter().enumerate() {
            let op = Op::Take(Amount::exactly(units));
            let scope = Scope(self.key_index(key, index) as u64);
            draws.push("k".into(), scope, *limit, op, PermitId::default());
            draws.set_options(options);
        }
    }

    fn spend(
        &self,
        node: usize,
        key: usize,
        draws: &mut Draws,
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let mut hashes = [KeyHash::NONE; MAX_LIMITS];
        let leases = &self.nodes[node].leases;
        for (index, slot) in hashes.iter_mut().enumerate().take(self.limits.len()) {
            *slot = key_hash(self.key_index(key, index));
        }
        match &hashes[..self.limits.len()] {
            [hash] => leases.spend_single(draws, 0, *hash, now, out),
            hashes => leases.spend_group(draws, 0, hashes, now, out),
        }
    }

    /// The index of a key under one of its limits.
    fn key_index(&self, key: usize, limit: usize) -> usize {
        key * self.limits.len() + limit
    }

    fn admit(&mut self, node: usize, key: usize, units: u32, units_per_limit: PerLimit<u32>) {
        self.counts[node].admitted += u64::from(units);
        self.count_admitted(key, units_per_limit);
    }

    /// Counts units as admitted now.
    fn count_admitted(&mut self, key: usize, units_per_limit: PerLimit<u32>) -> Micros {
        let now = Micros::new(self.now);
        for (index, units) in units_per_limit.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            let number = self.key_index(key, index);
            self.excess = self.excess.max(self.bounds[number].admit(units, now));
        }
        now
    }

    /// Removes claimed units that were counted as admitted and were put back.
    fn retract(&mut self, key: usize, claimed: &ClaimedRequest) {
        for (index, units) in claimed.units.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            let number = self.key_index(key, index);
            self.bounds[number].retract(units, claimed.at);
        }
    }

    fn deny(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].falsely_denied += if draw.is_admissible { u64::from(draw.units) } else { 0 };
    }

    fn send(
        &mut self,
        node: usize,
        key: usize,
        draw_units: Option<(SimDraw, PerLimit<u32>)>,
        renewals: PerLimit<Option<LeaseRenewal>>,
        claimed: Option<ClaimedRequest>,
    ) {
        let renewals = renewals.map(|renewal| {
            renewal.filter(|renewal| {
                let is_sent = !self.rng.happens(self.faults.unsent);
                if !is_sent {
                    self.nodes[node].leases.cancel_renewal(renewal);
                }
                is_sent
            })
        });
        let has_renewals = renewals.iter().any(Option::is_some);
        match draw_units {
            Some(_) => self.counts[node].store_requests += 1,
            None if has_renewals => self.counts[node].renewals += 1,
            None => return,
        }
        let (incarnation, sent_at) = (self.nodes[node].incarnation, self.node_time(node));
        let (draw, units) =
            (draw_units.map(|(draw, _)| draw), draw_units.map_or([0; MAX_LIMITS], |(_, units)| units));
        self.last_id += 1;
        let request = SimRequest { id: self.last_id, node, incarnation, key, draw, units, renewals, sent_at };
        self.pending.insert(request.id, PendingDraw { request, claimed });
        if self.faults.timeout.is_finite() {
            let timeout = self.now + micros(self.faults.timeout);
            self.schedule(timeout, SimEventKind::TimedOut { node, number: request.id });
        }
        self.transmit(SimEventKind::RequestArrives(Box::new(request)));
    }

    /// Sends a message, unless it is lost.
    fn transmit(&mut self, kind: SimEventKind) {
        if self.rng.happens(self.faults.loss) {
            return;
        }
        let (least, most) = self.faults.delay;
        let delay = if self.rng.happens(self.faults.late) {
            self.rng.log_uniform(most, 90.0)
        } else {
            self.rng.uniform(least, most)
        };
        self.schedule(self.now + micros(delay), kind);
    }

    fn handle_event(&mut self, kind: SimEventKind) {
        match kind {
            SimEventKind::Request { node, draw } => {
                if !self.is_postponed(node, &kind) {
                    self.serve(node, draw);
                }
            }
            SimEventKind::RequestArrives(request) => self.handle_request(&request),
            SimEventKind::ReplyArrives(ref both) => {
                let (request, reply) = &**both;
                if !self.is_postponed(request.node, &kind) {
                    self.handle_reply(request, reply);
                }
            }
            SimEventKind::TimedOut { node, number } => {
                if !self.is_postponed(node, &kind) {
                    self.time_out(number);
                }
            }
            SimEventKind::Sweep(node) => {
                if !self.is_postponed(node, &kind) {
                    self.sweep(node);
                    self.schedule(self.now + SECOND, kind);
                }
            }
            SimEventKind::Stall(node) => {
                let duration = self.rng.log_uniform(0.001, 100.0);
                self.nodes[node].stalled_until = self.now + micros(duration);
                self.schedule_random(self.faults.stall, kind);
            }
            SimEventKind::Crash(node) => {
                self.crash(node);
                self.schedule_random(self.faults.crash, kind);
            }
            SimEventKind::Stop(node) => self.stop(node),
            SimEventKind::Outage => {
                self.outage_until = self.now + micros(self.rng.log_uniform(0.01, 60.0));
                self.schedule_random(self.faults.outage, kind);
            }
        }
    }

    fn handle_request(&mut self, request: &SimRequest) {
        if self.now < self.outage_until {
            return;
        }
        let now = Micros::new(self.now);
        let units = request.draw.map(|_| request.units);
        let reply = self.store.handle(request.key, units, &request.renewals, now);
        // The units are taken whether or not the reply arrives: this counts the most that can have been admitted.
        if let Some(draw) = request.draw {
            if reply.is_granted(self.limits.len()) {
                self.admit(request.node, draw.key, draw.units, request.units);
            } else {
                self.deny(request.node, draw);
            }
        }
        self.transmit(SimEventKind::ReplyArrives(Box::new((*request, reply))));
    }

    fn handle_reply(&mut self, request: &SimRequest, reply: &SimReply) {
        let node = request.node;
        let Some(pending) = self.pending.remove(&request.id) else { return };
        if self.nodes[node].incarnation != request.incarnation {
            return;
        }
        let clock = self.node_time(node);
        let leases = &self.nodes[node].leases;
        let mut renewals = Vec::new();
        for (index, limit) in self.limits.iter().enumerate() {
            let number = self.key_index(request.key, index);
            if let Some(results) = &reply.results {
                let amount = Amount::exactly(request.units[index]);
                leases.record_decision(key_hash(number), limit, amount, &results[index], request.sent_at);
            }
            if let (Some(renewal), Some(lease_reply)) = (&request.renewals[index], reply.lease_replies[index])
            {
                renewals.extend(leases.apply_reply(renewal, lease_reply, clock));
            }
        }
        if let (Some(mut claimed), Some(results)) = (pending.claimed, &reply.results) {
            for (draw, result) in claimed.draws.group_mut(0).iter_mut().zip(results) {
                draw.decide_with(|_, _, _| *result);
            }
            leases.resolve_claims(&mut claimed.draws, 0, &claimed.claims, clock, &mut renewals);
            if !reply.is_granted(self.limits.len()) {
                self.retract(request.key, &claimed);
            }
        }
        for renewal in renewals {
            self.send_renewal(node, &renewal);
        }
    }

    fn time_out(&mut self, number: u64) {
        let Some(PendingDraw { request, claimed }) = self.pending.remove(&number) else { return };
        let node = &self.nodes[request.node];
        if node.incarnation != request.incarnation {
            return;
        }
        for renewal in request.renewals.iter().flatten() {
            node.leases.mark_unacked(renewal);
        }
        if let Some(claimed) = claimed {
            node.leases.cancel_claims(&claimed.claims);
            self.retract(request.key, &claimed);
        }
    }

    fn sweep(&mut self, node: usize) {
        let clock = self.node_time(node);
        let mut renewals = std::mem::take(&mut self.renewals);
        let leases = &self.nodes[node].leases;
        leases.sweep(leases.shards(), clock, &mut renewals);
        for renewal in renewals.drain(..) {
            self.send_renewal(node, &renewal);
        }
        self.renewals = renewals;
    }

    /// Returns all leased units, and crashes soon after.
    fn stop(&mut self, node: usize) {
        let clock = self.node_time(node);
        let mut renewals = Vec::new();
        self.nodes[node].leases.drain(clock, &mut renewals);
        for renewal in &renewals {
            self.send_renewal(node, renewal);
        }
        self.schedule(self.now + SECOND / 5, SimEventKind::Crash(node));
        self.schedule_random(self.faults.stop, SimEventKind::Stop(node));
    }

    fn send_renewal(&mut self, node: usize, renewal: &DetachedRenewal) {
        let number = usize::try_from(renewal.name.scope.0).unwrap_or(0);
        let (key, limit) = (number / self.limits.len(), number % self.limits.len());
        let mut renewals = [None; MAX_LIMITS];
        renewals[limit] = Some(renewal.renewal);
        self.send(node, key, None, renewals, None);
    }

    fn crash(&mut self, node: usize) {
        let clock = SimClock::random(&mut self.rng, self.faults.drift);
        self.nodes[node].restart(clock);
        self.nodes[node].stalled_until = 0;
    }

    fn node_time(&self, node: usize) -> Micros {
        self.nodes[node].read_clock(START, self.now)
    }

    /// Whether a node is stalled. If so, the event is postponed until the stall ends.
    fn is_postponed(&mut self, node: usize, kind: &SimEventKind) -> bool {
        let until = self.nodes[node].stalled_until;
        if self.now < until {
            self.schedule(until, kind.clone());
            return true;
        }
        false
    }

    fn schedule_random(&mut self, mean: f64, kind: SimEventKind) {
        if mean.is_finite() {
            let wait = self.rng.exponential(mean);
            self.schedule(self.now + micros(wait), kind);
        }
    }

    fn schedule(&mut self, at: u64, kind: SimEventKind) {
        self.last_id += 1;
        self.events.push(Reverse(SimEvent { at, id: self.last_id, kind }));
    }
}

/// Converts seconds to whole microseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations are short and not negative"
)]
pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// Earlier events first. Events at the same time are ordered by creation.
impl Ord for SimEvent {
    fn cmp(&self, other: &SimEvent) -> std::cmp::Ordering {
        (self.at, self.id).cmp(&(other.at, other.id))
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
