//! Model checking of the lease protocol: every order of events.
//!
//! A few nodes share a bucket in a store. They lease units, spend them until the lease expires, report spent units,
//! keep some, return some, crash and restart. Messages get lost or delayed, and the clocks of nodes run slow within
//! the margin that nodes allow for. In no time interval may all nodes together admit more than the burst plus the
//! refill in that interval. The store side is the production code; the node side is its rules in their shortest
//! form. Each rule is also violated on purpose, and the checker must detect it.

#![expect(
    clippy::print_stdout,
    reason = "a run prints how many states were explored, and how a violation shows"
)]

use ratekeeper_core::{
    Algorithm, Amount, LEASE_TERM, LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits, Limit,
    Micros, Span, State,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt::Debug;

/// Time passes in steps of half a term. In each step the bucket refills one unit.
const STEP: Span = Span::micros(LEASE_TERM.get() / 2);
const BURST: u32 = 2;
/// By how many steps a node ends its leases early, and by how many its clock may fall behind.
const MARGIN: u8 = 1;

/// The initial step: late enough that everything that may still matter happens after step 0.
const INITIAL_STEP: u8 = 8;
/// A term that has expired for every node.
const FIRST_TERM: u64 = 1_000;

/// A rule of the protocol that is violated on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RuleViolation {
    /// Lent units are charged, but refill like any other debt.
    LentUnitsRefill,
    /// The lease of a node starts when its reply arrives.
    LeaseTimedFromReply,
    /// Lent units expire in the store at the end of their own term.
    TermTooShort,
    /// Returned units are returned again if the call was not acknowledged.
    ReturnedTwice,
    /// Spent units are reported again if the call was not acknowledged.
    ReportedTwice,
    /// A clock falls behind by more than the margin allows for.
    ClockSlowerThanMargin,
}

struct LeaseProtocol {
    nodes: usize,
    /// How many faults may happen: a message is lost or delayed, a node crashes, a clock falls behind.
    faults: u8,
    violation: Option<RuleViolation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProtocolState {
    now: u8,
    store: StoredState,
    nodes: Vec<LeaseNode>,
    faults: u8,
    /// By how many units admissions exceed the refill, in the worst time interval up to now.
    excess: u32,
}

/// The state of the store, in numbers that can be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StoredState {
    state: Option<(u64, u64)>,
    lent: (u32, u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LeaseNode {
    /// By how many steps its clock is behind.
    lag: u8,
    lease: Option<NodeLease>,
    call: Option<LeaseCall>,
    /// A call that the node no longer waits for, and that may still arrive.
    stray: Option<LeaseCall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NodeLease {
    term: u64,
    units: u32,
    spent: u32,
    /// When the lease ends, by the clock of the node.
    ends: u8,
    /// Whether a report on the lease was not acknowledged. Nothing more is reported about it then.
    is_unacknowledged: bool,
}

/// A call on its way to the store, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LeaseCall {
    /// When the call was sent, by the clock of the node.
    sent: u8,
    report: (u64, u32, u32, u32),
    requested: u32,
    answer: Option<LeaseAnswer>,
}

/// The reply to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LeaseAnswer {
    units: u32,
    term: u64,
    /// When the lease ends by the clock of the node, counted from when the call was sent.
    ends: u8,
    /// How many steps the lease lasts, for a node that counts from the reply.
    lasts: u8,
    is_report_accepted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ProtocolEvent {
    TimePasses,
    FallsBehind(usize),
    /// A node requests units, and reports what it has spent and keeps.
    RequestsLease(usize, u32),
    ReturnsUnits(usize),
    Arrives(usize),
    Answered(usize),
    /// The call or its reply is lost, and the node times out.
    Lost(usize),
    /// The node times out, but the call is still on its way.
    Late(usize),
    StrayArrives(usize),
    Spends(usize),
    /// A request is decided by the store directly.
    StoreDecides,
    Dies(usize),
}

impl ProtocolEvent {
    fn is_fault(&self) -> bool {
        matches!(
            self,
            ProtocolEvent::FallsBehind(_)
                | ProtocolEvent::Lost(_)
                | ProtocolEvent::Late(_)
                | ProtocolEvent::Dies(_)
        )
    }
}

fn limit() -> Limit {
    let quota = format!("1 per {}us burst {BURST}", STEP.get()).parse().expect("the quota is valid");
    Limit::new(Algorithm::TokenBucket, quota).expect("the quota can be counted exactly")
}

fn micros(step: u8) -> Micros {
    Micros::new(FIRST_TERM * LEASE_TERM.get() + u64::from(step) * STEP.get())
}

fn steps(span: Span) -> u8 {
    u8::try_from(span.get() / STEP.get()).expect("a lease lasts a few steps")
}

impl StoredState {
    fn held(self) -> LeasedState {
        let state = self.state.map(|(owed, at)| State::new(owed, at));
        LeasedState { state, lent: LentUnits { older: self.lent.0, recent: self.lent.1 } }
    }

    fn from_leased(leased: LeasedState) -> StoredState {
        StoredState { state: leased.state.map(State::numbers), lent: (leased.lent.older, leased.lent.recent) }
    }
}

impl LeaseProtocol {
    fn violates(&self, violation: RuleViolation) -> bool {
        self.violation == Some(violation)
    }

    /// The store decides a request.
    fn check(&self, state: &mut ProtocolState) {
        let (step, lent) = limit().step_leased(state.store.held(), micros(state.now), Amount::exactly(1));
        if step.granted.is_some() {
            state.store = StoredState::from_leased(LeasedState { state: Some(step.state), lent });
            state.admit();
        }
    }

    /// The store processes the report of a call and lends units.
    fn handle_call(&self, state: &mut ProtocolState, call: &LeaseCall) -> LeaseGrant {
        let ((term, spent, kept, back), now) = (call.report, state.now);
        let request =
            LeaseRequest { short_horizon: 0, long_horizon: call.requested, long_horizon_divisor: 1 };
        let report = LeaseReport { term, spent, kept, returned: back };
        let (mut leased, grant) = limit().grant_lease(state.store.held(), micros(now), report, request);
        if self.violates(RuleViolation::LentUnitsRefill) {
            let back = leased.lent.total();
            leased.lent = LentUnits::default();
            let (step, _) = limit().step_leased(leased, micros(now), Amount::exactly(back));
            leased.state = Some(step.state);
        }
        if self.violates(RuleViolation::TermTooShort) {
            leased.lent = LentUnits { older: leased.lent.total(), recent: 0 };
        }
        state.store = StoredState::from_leased(leased);
        grant
    }
}

impl ProtocolState {
    /// Admits a unit, which is in every interval up to now.
    fn admit(&mut self) {
        self.excess += 1;
    }

    /// Advances time: all intervals get longer by one step, in which one unit refills, and the interval that begins
    /// now is empty.
    ///
    /// Only differences of time matter: everything can be shifted back by a term. So time never ends, and yet the
    /// number of states is finite.
    fn advance_time(&mut self) {
        self.now += 1;
        self.excess = self.excess.saturating_sub(1);
        let is_over = self.now == INITIAL_STEP + 2;
        let (step, lent) = limit().step_leased(self.store.held(), micros(self.now), Amount::ZERO);
        let (owed, at) = step.state.numbers();
        let at = if is_over { at - LEASE_TERM.get() } else { at };
        let state = (owed > 0 || lent.total() > 0).then(|| State::new(owed, at));
        self.store = StoredState::from_leased(LeasedState { state, lent });
        for index in 0..self.nodes.len() {
            let lease = self.lease(index);
            let node = &mut self.nodes[index];
            node.lease = lease;
            if is_over {
                node.shift_back_one_term();
            }
            // A clock may fall behind again during the next lease.
            if node.lease.is_none() && node.call.is_none() {
                node.lag = 0;
            }
        }
        if is_over {
            self.now = INITIAL_STEP;
        }
    }

    /// Returns whether more was admitted in some interval than is allowed.
    fn exceeds_limit(&self) -> bool {
        self.excess > BURST
    }

    fn clock(&self, node: usize) -> u8 {
        self.now - self.nodes[node].lag
    }

    /// Returns the lease of a node, or `None` if it has ended by the clock of the node.
    fn lease(&self, node: usize) -> Option<NodeLease> {
        self.nodes[node].lease.filter(|lease| self.clock(node) < lease.ends)
    }
}

impl LeaseNode {
    fn shift_back_one_term(&mut self) {
        let earlier = |term: &mut u64| *term = (*term - 1).max(FIRST_TERM);
        if let Some(lease) = &mut self.lease {
            lease.ends -= 2;
            earlier(&mut lease.term);
        }
        for call in [&mut self.call, &mut self.stray].into_iter().flatten() {
            call.sent = call.sent.saturating_sub(2);
            earlier(&mut call.report.0);
            if let Some(answer) = &mut call.answer {
                earlier(&mut answer.term);
                answer.ends = answer.ends.saturating_sub(2);
            }
        }
    }
}

impl Model for LeaseProtocol {
    type State = ProtocolState;
    type Action = ProtocolEvent;

    fn init_states(&self) -> Vec<ProtocolState> {
        let store = StoredState { state: None, lent: (0, 0) };
        let nodes = vec![LeaseNode::default(); self.nodes];
        vec![ProtocolState { now: INITIAL_STEP, store, nodes, faults: self.faults, excess: 0 }]
    }

    fn actions(&self, state: &ProtocolState, events: &mut Vec<ProtocolEvent>) {
        events.extend([ProtocolEvent::TimePasses, ProtocolEvent::StoreDecides]);
        for (index, node) in state.nodes.iter().enumerate() {
            let may_fail = state.faults > 0;
            // Expired units must refill before another node can get them, so one more step does no harm yet.
            let slowest = MARGIN + if self.violates(RuleViolation::ClockSlowerThanMargin) { 2 } else { 0 };
            if may_fail && node.lag < slowest && (node.lease.is_some() || node.call.is_some()) {
                events.push(ProtocolEvent::FallsBehind(index));
            }
            if may_fail && (node.lease.is_some() || node.call.is_some()) {
                events.push(ProtocolEvent::Dies(index));
            }
            let lease = state.lease(index);
            if lease.is_some_and(|lease| lease.units > 0) {
                events.push(ProtocolEvent::Spends(index));
            }
            if node.stray.is_some() {
                events.push(ProtocolEvent::StrayArrives(index));
            }
            match node.call {
                None if lease.is_none_or(|lease| !lease.is_unacknowledged) => {
                    events.extend([1, 2].map(|units| ProtocolEvent::RequestsLease(index, units)));
                    if lease.is_some_and(|lease| lease.units > 0) {
                        events.push(ProtocolEvent::ReturnsUnits(index));
                    }
                }
                None => {}
                Some(LeaseCall { answer: None, .. }) => {
                    events.push(ProtocolEvent::Arrives(index));
                    if may_fail {
                        events.push(ProtocolEvent::Lost(index));
                    }
                    if may_fail && node.stray.is_none() {
                        events.push(ProtocolEvent::Late(index));
                    }
                }
                Some(LeaseCall { answer: Some(_), .. }) => {
                    events.push(ProtocolEvent::Answered(index));
                    if may_fail {
                        events.push(ProtocolEvent::Lost(index));
                    }
                }
            }
        }
    }

    fn next_state(&self, state: &ProtocolState, event: ProtocolEvent) -> Option<ProtocolState> {
        let mut next = state.clone();
        next.faults -= u8::from(event.is_fault());
        match event {
            ProtocolEvent::TimePasses => next.advance_time(),
            ProtocolEvent::FallsBehind(index) => next.nodes[index].lag += 1,
            ProtocolEvent::StoreDecides => self.check(&mut next),
            ProtocolEvent::Spends(index) => {
                next.admit();
                let lease = next.nodes[index].lease.as_mut()?;
                (lease.units, lease.spent) = (lease.units - 1, lease.spent + 1);
            }
            ProtocolEvent::RequestsLease(index, wanted) => {
                let sent = next.clock(index);
                let lease = next.lease(index);
                let node = &mut next.nodes[index];
                node.lease = lease;
                // Each unit is reported once, whether the report arrives or not.
                let report = match &mut node.lease {
                    Some(lease) => {
                        let report = (lease.term, lease.spent, lease.units, 0);
                        lease.spent = 0;
                        report
                    }
                    None => (FIRST_TERM, 0, 0, 0),
                };
                node.call = Some(LeaseCall { sent, report, requested: wanted, answer: None });
            }
            ProtocolEvent::ReturnsUnits(index) => {
                let sent = next.clock(index);
                let node = &mut next.nodes[index];
                let lease = node.lease.take()?;
                let report = (lease.term, lease.spent, 0, lease.units);
                node.call = Some(LeaseCall { sent, report, requested: 0, answer: None });
            }
            ProtocolEvent::Arrives(index) => {
                let mut call = next.nodes[index].call?;
                let grant = self.handle_call(&mut next, &call);
                let lasts = steps(grant.expires_at.since(micros(next.now)));
                let ends = (call.sent + lasts).saturating_sub(MARGIN);
                let LeaseGrant { units, term, is_report_accepted: is_known, .. } = grant;
                // From here on, the send time and the content of the call no longer matter.
                let lasts =
                    if self.violates(RuleViolation::LeaseTimedFromReply) { lasts - MARGIN } else { 0 };
                let answer = Some(LeaseAnswer { units, term, ends, lasts, is_report_accepted: is_known });
                call = LeaseCall { sent: 0, requested: 0, report: (FIRST_TERM, 0, 0, 0), answer };
                next.nodes[index].call = Some(call);
            }
            ProtocolEvent::Answered(index) => {
                let received = next.clock(index);
                let node = &mut next.nodes[index];
                let LeaseAnswer { units, term, ends, lasts, is_report_accepted: is_known } =
                    node.call.take()?.answer?;
                let kept = match node.lease {
                    Some(lease) if is_known => (lease.units, lease.spent),
                    _ => (0, 0),
                };
                let ends =
                    if self.violates(RuleViolation::LeaseTimedFromReply) { received + lasts } else { ends };
                node.lease = Some(NodeLease {
                    term,
                    units: kept.0 + units,
                    spent: kept.1,
                    ends,
                    is_unacknowledged: false,
                });
                next.nodes[index].lease = next.lease(index);
            }
            ProtocolEvent::StrayArrives(index) => {
                let call = next.nodes[index].stray.take()?;
                self.handle_call(&mut next, &call);
            }
            ProtocolEvent::Lost(index) | ProtocolEvent::Late(index) => {
                let node = &mut next.nodes[index];
                let mut call = node.call.take()?;
                if event == ProtocolEvent::Late(index) {
                    node.stray = Some(LeaseCall { sent: 0, ..call });
                }
                let (_, spent, _, back) = call.report;
                if let Some(lease) = &mut node.lease {
                    lease.is_unacknowledged = true;
                    if self.violates(RuleViolation::ReportedTwice) {
                        (lease.is_unacknowledged, lease.spent) = (false, lease.spent + spent);
                    }
                }
                if self.violates(RuleViolation::ReturnedTwice) && back > 0 {
                    call.answer = None;
                    node.call = Some(call);
                }
            }
            ProtocolEvent::Dies(index) => {
                let LeaseNode { lag, call, stray, .. } = next.nodes[index];
                let stray = stray.or(call.filter(|call| call.answer.is_none()));
                next.nodes[index] = LeaseNode { lag, stray, ..LeaseNode::default() };
            }
        }
        // Nodes are interchangeable.
        next.nodes.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no interval admits more than the burst plus the refill", |_, state| {
                !ProtocolState::exceeds_limit(state)
            }),
            // Otherwise the model tests nothing: leases are spent besides the store's own decisions.
            Property::sometimes("nodes have spent leased units", |_, state: &ProtocolState| {
                let spent = state.nodes.iter().filter(|node| node.lease.is_some_and(|lease| lease.spent > 0));
                spent.count() == state.nodes.len().min(2)
            }),
        ]
    }
}

/// Explores all states, or all states within the given number of events.
fn explore(nodes: usize, faults: u8, events: Option<usize>) {
    let protocol = LeaseProtocol { nodes, faults, violation: None };
    let checker =
        protocol.checker().threads(2).target_max_depth(events.unwrap_or(usize::MAX)).spawn_bfs().join();
    println!(
        "{nodes} nodes, {faults} faults: {} states, {} deep",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

#[test]
fn one_leasing_node_never_exceeds_the_limit() {
    explore(1, 2, None);
}

#[test]
fn two_nodes_never_exceed_the_limit() {
    explore(2, 0, None);
}

#[test]
fn two_nodes_with_one_fault_never_exceed_the_limit() {
    explore(2, 1, Some(14));
}

#[test]
fn three_nodes_with_one_fault_never_exceed_the_limit() {
    explore(3, 1, Some(12));
}

/// Asserts that the checker detects a violated rule.
fn assert_detected(violation: RuleViolation) {
    let broken = LeaseProtocol { nodes: 1, faults: 3, violation: Some(violation) };
    let first = HasDiscoveries::AnyOf(["no interval admits more than the burst plus the refill"].into());
    let checker = broken.checker().threads(2).finish_when(first).spawn_bfs().join();
    let found = checker.discovery("no interval admits more than the burst plus the refill");
    let path = found.unwrap_or_else(|| {
        panic!("{violation:?} was not detected in {} states", checker.unique_state_count())
    });
    println!("{violation:?} after {} states:\n{path}", checker.unique_state_count());
}

#[test]
fn refilling_lent_units_is_detected() {
    assert_detected(RuleViolation::LentUnitsRefill);
}

#[test]
fn a_lease_timed_from_its_reply_is_detected() {
    assert_detected(RuleViolation::LeaseTimedFromReply);
}

#[test]
fn a_term_that_is_too_short_is_detected() {
    assert_detected(RuleViolation::TermTooShort);
}

#[test]
fn returning_units_twice_is_detected() {
    assert_detected(RuleViolation::ReturnedTwice);
}

#[test]
fn reporting_units_twice_is_detected() {
    assert_detected(RuleViolation::ReportedTwice);
}

#[test]
fn a_clock_slower_than_the_margin_is_detected() {
    assert_detected(RuleViolation::ClockSlowerThanMargin);
}
