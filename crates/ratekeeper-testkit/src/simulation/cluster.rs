//! The discrete-event simulation of nodes, server and network.

use super::bound::AdmissionBound;
use super::client::{OutgoingCall, SimDecision, WaitingDraws};
use super::clock::{SimClock, VirtualTime};
use super::faults::FaultPlan;
use super::node::{DrawFuture, SimNode, poll};
use super::rng::SimRng;
use super::server::{MAX_LIMITS, PerLimit, Renewal, SimReply, SimServer};
use ratekeeper::{DrawDecision, LeaseOptions, LeasePolicy, LendOutcome, LendRequest, RenewalOwner};
use ratekeeper_core::{
    Amount, Consistency, Draw, DrawOptions, Draws, LEASE_TERM, Limit, Micros, Op, PermitId, Scope,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;

/// When every simulation starts: late enough that no time underflows.
const START: u64 = 1_000_003 * LEASE_TERM.get() + 7_654_321;
const SECOND: u64 = 1_000_000;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct SimSetup<'a> {
    /// The limits that apply to each request, at most [`MAX_LIMITS`].
    pub limits: &'a [Limit],
    /// The number of keys.
    pub keys: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// Faults and message delays.
    pub faults: FaultPlan,
    /// Whether nodes lease units. If not, the server decides each draw.
    pub consistency: Consistency,
    /// How many units nodes lease, and when.
    pub policy: LeasePolicy,
}

/// Nodes, a server, and messages in flight between them.
pub struct Simulation {
    nodes: Vec<SimNode>,
    rng: SimRng,
    counts: Vec<NodeCounts>,
    excess: u64,
    time: VirtualTime,
    limits: Vec<Limit>,
    consistency: Consistency,
    server: SimServer,
    outage_until: u64,
    faults: FaultPlan,
    /// For each key and limit, by their index.
    bounds: Vec<AdmissionBound>,
    events: BinaryHeap<Reverse<SimEvent>>,
    last_id: u64,
    /// Calls that wait for a reply.
    pending: HashMap<u64, InFlightCall>,
    /// A buffer that is reused.
    draws: Draws,
}

/// Counts of the requests at a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeCounts {
    /// Units that were requested.
    pub units: u64,
    /// Requests.
    pub requests: u64,
    /// Units that were admitted.
    pub admitted: u64,
    /// Units that were denied here and admitted by the oracle, which sees all requests at once.
    pub falsely_denied: u64,
    /// Requests that went to the server.
    pub store_requests: u64,
    /// Renewals that were sent on their own.
    pub renewals: u64,
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub struct SimDraw {
    /// The index of its key.
    pub key: usize,
    /// Its cost.
    pub units: u32,
    /// Whether the oracle admits it.
    pub is_admissible: bool,
}

/// A call that waits for a reply.
struct InFlightCall {
    node: usize,
    request: Option<WaitingRequest>,
    /// Each with the index of its limit.
    renewals: Vec<(usize, LendRequest)>,
}

/// A request that waits for a reply.
struct WaitingRequest {
    draw: SimDraw,
    waiting: WaitingDraws,
    future: DrawFuture,
    /// For each limit, the units that are claimed at the node, and when they were claimed.
    claimed: PerLimit<u32>,
    claimed_at: Micros,
}

/// A call on its way to the server.
#[derive(Clone, Copy, Debug)]
struct SimCall {
    id: u64,
    node: usize,
    incarnation: u32,
    key: usize,
    draw: Option<(SimDraw, PerLimit<u32>)>,
    renewals: PerLimit<Option<Renewal>>,
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
    CallArrives(Box<SimCall>),
    ReplyArrives(Box<(SimCall, SimReply)>),
    TimedOut { node: usize, id: u64 },
    Sweep(usize),
    Stall(usize),
    Crash(usize),
    Stop(usize),
    Outage,
}

impl Simulation {
    /// Creates a simulation. The seed determines everything that happens in it.
    pub fn new(setup: &SimSetup<'_>, seed: u64) -> Simulation {
        let SimSetup { limits, keys, nodes, faults, consistency, policy } = *setup;
        let (mut rng, time) = (SimRng::new(seed), VirtualTime::starting_at(START));
        let node_count = u32::try_from(nodes).unwrap_or(u32::MAX);
        let max_keys = (keys * limits.len()).next_multiple_of(8) * 2;
        let options = LeaseOptions { max_keys, hash_seed: Some(seed), policy };
        let node = |_| SimNode::new(options, node_count, SimClock::random(&time, &mut rng, faults.drift));
        let mut simulation = Simulation {
            nodes: (0..nodes).map(node).collect(),
            rng,
            counts: vec![NodeCounts::default(); nodes],
            excess: 0,
            time,
            limits: limits.to_vec(),
            consistency,
            server: SimServer::new(limits, keys),
            outage_until: 0,
            faults,
            bounds: (0..keys).flat_map(|_| limits.iter().map(AdmissionBound::new)).collect(),
            events: BinaryHeap::new(),
            last_id: 0,
            pending: HashMap::new(),
            draws: Draws::new(),
        };
        for node in 0..nodes {
            let first = simulation.now() + simulation.rng.below(1_000_000) as u64;
            simulation.schedule(first, SimEventKind::Sweep(node));
            simulation.schedule_random(faults.stall, SimEventKind::Stall(node));
            simulation.schedule_random(faults.crash, SimEventKind::Crash(node));
            simulation.schedule_random(faults.stop, SimEventKind::Stop(node));
        }
        simulation.schedule_random(faults.outage, SimEventKind::Outage);
        simulation
    }

    /// Returns the current time in microseconds.
    pub fn now(&self) -> u64 {
        self.time.now()
    }

    /// Returns the counts of each node.
    pub fn counts(&self) -> &[NodeCounts] {
        &self.counts
    }

    /// Returns the largest excess over the limit in any period of time, in thousandths of a unit.
    pub fn excess(&self) -> u64 {
        self.excess
    }

    /// Returns how many draws were granted from leases.
    pub fn draws_from_leases(&self) -> u64 {
        self.nodes.iter().map(SimNode::draws_from_leases).sum()
    }

    /// Processes all events up to this time.
    pub fn run_until(&mut self, then: u64) {
        while self.events.peek().is_some_and(|event| event.0.at <= then) {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.time.advance_to(event.at);
            self.handle_event(event.kind);
        }
        self.time.advance_to(then);
    }

    /// A client sends a request to a node, now.
    pub fn request(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].requests += 1;
        self.counts[node].units += u64::from(draw.units);
        if !self.is_postponed(node, &SimEventKind::Request { node, draw }) {
            self.serve(node, draw);
        }
    }

    fn serve(&mut self, node: usize, draw: SimDraw) {
        let mut draws = std::mem::take(&mut self.draws);
        draws.clear();
        self.push_draws(&mut draws, draw.key, draw.units);
        let undecided = match self.nodes[node].draw(draws) {
            Ok(draws) => {
                if draws.group(0).iter().any(Draw::denies_request) {
                    self.deny(node, draw);
                } else {
                    self.admit(node, draw, [draw.units; MAX_LIMITS]);
                }
                self.draws = draws;
                None
            }
            Err(future) => Some((draw, future)),
        };
        self.send_calls(node, undecided);
    }

    /// Creates the draws of a request.
    fn push_draws(&self, draws: &mut Draws, key: usize, units: u32) {
        let options = DrawOptions { consistency: self.consistency, ..DrawOptions::default() };
        for (index, limit) in self.limits.iter().enumerate() {
            let op = Op::Take(Amount::exactly(units));
            let scope = Scope(self.key_index(key, index) as u64);
            draws.push("k".into(), scope, *limit, op, PermitId::default());
            draws.set_options(options);
        }
    }

    /// The index of a key under one of its limits.
    fn key_index(&self, key: usize, limit: usize) -> usize {
        key * self.limits.len() + limit
    }

    fn admit(&mut self, node: usize, draw: SimDraw, units_per_limit: PerLimit<u32>) {
        self.counts[node].admitted += u64::from(draw.units);
        self.count_admitted(draw.key, units_per_limit);
    }

    /// Counts units as admitted now.
    fn count_admitted(&mut self, key: usize, units_per_limit: PerLimit<u32>) {
        let now = Micros::new(self.now());
        for (index, units) in units_per_limit.into_iter().enumerate().take(self.limits.len()) {
            if units > 0 {
                let number = self.key_index(key, index);
                self.excess = self.excess.max(self.bounds[number].admit(units, now));
            }
        }
    }

    /// Removes claimed units that were counted as admitted and were put back.
    fn retract(&mut self, request: &WaitingRequest) {
        for (index, units) in request.claimed.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            let number = self.key_index(request.draw.key, index);
            self.bounds[number].retract(units, request.claimed_at);
        }
    }

    fn deny(&mut self, node: usize, draw: SimDraw) {
        self.counts[node].falsely_denied += if draw.is_admissible { u64::from(draw.units) } else { 0 };
    }

    /// Sends all calls that a node has to send. One of them may be for a request.
    fn send_calls(&mut self, node: usize, mut undecided: Option<(SimDraw, DrawFuture)>) {
        while let Some(call) = self.nodes[node].leased.store().next_call() {
            let undecided = if call.draws.is_some() { undecided.take() } else { None };
            self.send(node, call, undecided);
        }
        debug_assert!(undecided.is_none(), "a request that waits has a call");
    }

    fn send(&mut self, node: usize, call: OutgoingCall, undecided: Option<(SimDraw, DrawFuture)>) {
        let mut key = undecided.as_ref().map_or(0, |(draw, _)| draw.key);
        let (mut sent, mut renewals) = ([None; MAX_LIMITS], Vec::new());
        for mut request in call.renewals {
            if self.rng.happens(self.faults.unsent) {
                request.answer(LendOutcome::Unsent);
                continue;
            }
            let limit = match request.owner() {
                RenewalOwner::Draw { draw, .. } => *draw,
                RenewalOwner::Key(name, _) => {
                    let number = usize::try_from(name.scope.0).unwrap_or(0);
                    key = number / self.limits.len();
                    number % self.limits.len()
                }
            };
            sent[limit] = Some((request.report(), request.request()));
            renewals.push((limit, request));
        }
        let request = undecided.zip(call.draws).map(|((draw, future), waiting)| {
            let mut claimed = [0; MAX_LIMITS];
            for (claimed, asked) in claimed.iter_mut().zip(waiting.units).take(self.limits.len()) {
                *claimed = draw.units - asked;
            }
            self.count_admitted(draw.key, claimed);
            WaitingRequest { draw, waiting, future, claimed, claimed_at: Micros::new(self.now()) }
        });
        match &request {
            Some(_) => self.counts[node].store_requests += 1,
            None if !renewals.is_empty() => self.counts[node].renewals += 1,
            None => return self.nodes[node].leased.settle(),
        }
        self.last_id += 1;
        let id = self.last_id;
        let draw = request.as_ref().map(|request| (request.draw, request.waiting.units));
        let incarnation = self.nodes[node].incarnation;
        self.pending.insert(id, InFlightCall { node, request, renewals });
        if self.faults.timeout.is_finite() {
            let timeout = self.now() + micros(self.faults.timeout);
            self.schedule(timeout, SimEventKind::TimedOut { node, id });
        }
        let call = SimCall { id, node, incarnation, key, draw, renewals: sent };
        self.transmit(SimEventKind::CallArrives(Box::new(call)));
        self.nodes[node].leased.settle();
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
        self.schedule(self.now() + micros(delay), kind);
    }

    fn handle_event(&mut self, kind: SimEventKind) {
        match kind {
            SimEventKind::Request { node, draw } => {
                if !self.is_postponed(node, &kind) {
                    self.serve(node, draw);
                }
            }
            SimEventKind::CallArrives(call) => self.handle_call(&call),
            SimEventKind::ReplyArrives(ref both) => {
                let (call, reply) = &**both;
                if !self.is_postponed(call.node, &kind) {
                    self.handle_reply(call, reply);
                }
            }
            SimEventKind::TimedOut { node, id } => {
                if !self.is_postponed(node, &kind) {
                    self.time_out(id);
                }
            }
            SimEventKind::Sweep(node) => {
                if !self.is_postponed(node, &kind) {
                    self.nodes[node].leased.sweep();
                    self.send_calls(node, None);
                    self.schedule(self.now() + SECOND, kind);
                }
            }
            SimEventKind::Stall(node) => {
                let duration = self.rng.log_uniform(0.001, 100.0);
                self.nodes[node].stalled_until = self.now() + micros(duration);
                self.schedule_random(self.faults.stall, kind);
            }
            SimEventKind::Crash(node) => {
                self.crash(node);
                self.schedule_random(self.faults.crash, kind);
            }
            SimEventKind::Stop(node) => {
                self.nodes[node].leave();
                self.send_calls(node, None);
                self.schedule(self.now() + SECOND / 5, SimEventKind::Crash(node));
                self.schedule_random(self.faults.stop, kind);
            }
            SimEventKind::Outage => {
                self.outage_until = self.now() + micros(self.rng.log_uniform(0.01, 60.0));
                self.schedule_random(self.faults.outage, kind);
            }
        }
    }

    fn handle_call(&mut self, call: &SimCall) {
        if self.now() < self.outage_until {
            return;
        }
        let now = Micros::new(self.now());
        let reply = self.server.handle(call.key, call.draw.map(|(_, units)| units), &call.renewals, now);
        // The units are taken whether or not the reply arrives: this counts the most that can have been admitted.
        if let Some((draw, units)) = call.draw {
            if reply.is_granted(self.limits.len()) {
                self.admit(call.node, draw, units);
            } else {
                self.deny(call.node, draw);
            }
        }
        self.transmit(SimEventKind::ReplyArrives(Box::new((*call, reply))));
    }

    fn handle_reply(&mut self, call: &SimCall, reply: &SimReply) {
        if self.nodes[call.node].incarnation != call.incarnation {
            return;
        }
        let Some(pending) = self.pending.remove(&call.id) else { return };
        for (limit, mut request) in pending.renewals {
            let decision = call.draw.zip(reply.results).map(|((_, units), results)| DrawDecision {
                limit: self.limits[limit],
                amount: Amount::exactly(units[limit]),
                result: results[limit],
            });
            if let Some(reply) = reply.lease_replies[limit] {
                request.answer(LendOutcome::Lent { reply, decision });
            }
        }
        if let (Some(mut request), Some(results)) = (pending.request, reply.results) {
            request.waiting.deliver(SimDecision::Results(results));
            self.draws = poll(&mut request.future).expect("a decision ends the request");
            if !reply.is_granted(self.limits.len()) {
                self.retract(&request);
            }
        }
        self.nodes[call.node].leased.settle();
        self.send_calls(call.node, None);
    }

    /// A node stops waiting for a reply. The server may or may not have handled the call.
    fn time_out(&mut self, id: u64) {
        let Some(InFlightCall { node, request, renewals }) = self.pending.remove(&id) else { return };
        drop(renewals);
        if let Some(mut request) = request {
            self.retract(&request);
            // A caller that abandons its request drops the future.
            if !self.rng.happens(self.faults.abandon) {
                request.waiting.deliver(SimDecision::TimedOut);
                self.draws = poll(&mut request.future).expect("a timeout ends the request");
            }
        }
        self.nodes[node].leased.settle();
        self.send_calls(node, None);
    }

    /// The node's requests and leases are gone. Units that were claimed for the requests stay counted as admitted: that
    /// is the most that can have been.
    fn crash(&mut self, node: usize) {
        self.pending.retain(|_, call| call.node != node);
        let clock = SimClock::random(&self.time, &mut self.rng, self.faults.drift);
        self.nodes[node].restart(clock);
    }

    /// Whether a node is stalled. If so, the event is postponed until the stall ends.
    fn is_postponed(&mut self, node: usize, kind: &SimEventKind) -> bool {
        let until = self.nodes[node].stalled_until;
        if self.now() < until {
            self.schedule(until, kind.clone());
            return true;
        }
        false
    }

    fn schedule_random(&mut self, mean: f64, kind: SimEventKind) {
        if mean.is_finite() {
            let wait = self.rng.exponential(mean);
            self.schedule(self.now() + micros(wait), kind);
        }
    }

    fn schedule(&mut self, at: u64, kind: SimEventKind) {
        self.last_id += 1;
        self.events.push(Reverse(SimEvent { at, id: self.last_id, kind }));
    }
}

impl NodeCounts {
    /// Counts of both.
    pub(super) fn plus(&self, other: &NodeCounts) -> NodeCounts {
        self.combine(other, u64::wrapping_add)
    }

    /// Counts since `before`.
    pub(super) fn since(&self, before: &NodeCounts) -> NodeCounts {
        self.combine(before, u64::wrapping_sub)
    }

    fn combine(&self, other: &NodeCounts, with: fn(u64, u64) -> u64) -> NodeCounts {
        NodeCounts {
            units: with(self.units, other.units),
            requests: with(self.requests, other.requests),
            admitted: with(self.admitted, other.admitted),
            falsely_denied: with(self.falsely_denied, other.falsely_denied),
            store_requests: with(self.store_requests, other.store_requests),
            renewals: with(self.renewals, other.renewals),
        }
    }

    /// How often the server was asked, for a request or for a renewal.
    #[expect(clippy::cast_precision_loss, reason = "the result is a share")]
    pub(super) fn store_calls_per_request(&self) -> f64 {
        (self.store_requests + self.renewals) as f64 / self.requests as f64
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Simulation").field("limits", &self.limits).field("now", &self.now()).finish()
    }
}

/// Converts seconds to whole microseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations are short and not negative"
)]
pub fn micros(seconds: f64) -> u64 {
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
