//! The lease protocol, in every order in which it can happen.
//!
//! A few nodes share a bucket in a store. They ask for units ahead, spend them while their lease lasts, tell what they
//! spent, keep some, give some back, die and start anew; words get lost and come late; clocks of nodes run slow, within
//! the margin that they allow for. Whatever happens, in no stretch of time may all of them together admit more than the
//! burst and what flows back in that time. The store's part is the code that is shipped; a node's part is its rules in
//! their shortest form. Each rule is also broken, and the checker has to see it.

#![expect(
    clippy::print_stdout,
    reason = "who looks at a run sees how much was looked at, and how a flaw shows"
)]

use ratekeeper_core::{
    Algorithm, Amount, LeaseGrant, LeaseReport, LeaseRequest, LeasedState, LentUnits, Limit, Micros, Span,
    State, TERM,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt::Debug;

/// Time passes in steps of half a term, in each of which the bucket gets a unit back.
const STEP: Span = Span::micros(TERM.get() / 2);
const BURST: u32 = 2;
/// By how much a node ends its leases early, in steps, and by how much its clock may fall behind.
const MARGIN: u8 = 1;

/// When the world begins, in steps: late enough for all that may still matter to have happened after 0.
const NOON: u8 = 8;
/// A term that has lapsed for everybody.
const FIRST_TERM: u64 = 1_000;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    /// What is lent is paid for, but flows back like anything else.
    LentIsNotCounted,
    /// A node's lease lasts from when it heard of it.
    DeadlineFromTheReply,
    /// What is lent lapses in the store at the end of its own term.
    TermTooShort,
    /// What is given back without an answer is given back again.
    BackTwice,
    /// What was told without an answer is told again.
    ToldTwice,
    /// A clock falls behind by more than the margin allows for.
    SlowerThanTheMargin,
}

struct Protocol {
    nodes: usize,
    /// How often something may go wrong: a word is lost or late, a node dies, a clock falls behind.
    faults: u8,
    flaw: Option<Flaw>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    store: Stored,
    nodes: Vec<Node>,
    faults: u8,
    /// By how many units the most that was admitted in any stretch of time up to now exceeds what flows back in it.
    excess: u32,
}

/// What the store remembers, in numbers that can be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    state: Option<(u64, u64)>,
    lent: (u32, u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    /// By how many steps its clock is behind.
    lag: u8,
    lease: Option<Lease>,
    call: Option<Call>,
    /// A question that nobody waits for any more, and that may yet arrive.
    stray: Option<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lease {
    term: u64,
    units: u32,
    spent: u32,
    /// When it ends, by the node's clock.
    ends: u8,
    /// Whether something was said of it that got no answer: then nothing is said of it any more.
    is_mute: bool,
}

/// A question on its way, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Call {
    /// When it was sent, by the node's clock.
    sent: u8,
    report: (u64, u32, u32, u32),
    wanted: u32,
    answer: Option<Answer>,
}

/// What a node hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Answer {
    units: u32,
    term: u64,
    /// When the lease ends by the node's clock, because the question was sent when it was.
    ends: u8,
    /// For how many steps it lasts, for a node that does not care when it asked.
    lasts: u8,
    is_known: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    TimePasses,
    FallsBehind(usize),
    /// A node asks for so many units, and tells what it has spent and keeps.
    Asks(usize, u32),
    GivesBack(usize),
    Arrives(usize),
    Answered(usize),
    /// The question is lost, or its answer; the node has waited long enough.
    Lost(usize),
    /// The node has waited long enough, but the question is still on its way.
    Late(usize),
    StrayArrives(usize),
    Spends(usize),
    /// A request is decided by the store itself.
    Checked,
    Dies(usize),
}

impl Event {
    fn is_fault(&self) -> bool {
        matches!(self, Event::FallsBehind(_) | Event::Lost(_) | Event::Late(_) | Event::Dies(_))
    }
}

fn limit() -> Limit {
    let quota = format!("1 per {}us burst {BURST}", STEP.get()).parse().expect("it can be read");
    Limit::new(Algorithm::TokenBucket, quota).expect("it can be counted")
}

fn micros(step: u8) -> Micros {
    Micros::new(FIRST_TERM * TERM.get() + u64::from(step) * STEP.get())
}

fn steps(span: Span) -> u8 {
    u8::try_from(span.get() / STEP.get()).expect("a lease ends soon")
}

impl Stored {
    fn held(self) -> LeasedState {
        let state = self.state.map(|(owed, at)| State::new(owed, at));
        LeasedState { state, lent: LentUnits { older: self.lent.0, recent: self.lent.1 } }
    }

    fn of(held: LeasedState) -> Stored {
        Stored { state: held.state.map(State::numbers), lent: (held.lent.older, held.lent.recent) }
    }
}

impl Protocol {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The store decides a request.
    fn check(&self, world: &mut World) {
        let (step, lent) = limit().step_beside(world.store.held(), micros(world.now), Amount::exactly(1));
        if step.granted.is_some() {
            world.store = Stored::of(LeasedState { state: Some(step.state), lent });
            world.admit();
        }
    }

    /// The store hears what a node says, and lends.
    fn hear(&self, world: &mut World, call: &Call) -> LeaseGrant {
        let ((term, spent, kept, back), now) = (call.report, world.now);
        let wish = LeaseRequest { soon: 0, later: call.wanted, one_of: 1 };
        let report = LeaseReport { term, spent, kept, back };
        let (mut held, loan) = limit().lend(world.store.held(), micros(now), report, wish);
        if self.has(Flaw::LentIsNotCounted) {
            let back = held.lent.units();
            held.lent = LentUnits::default();
            let (step, _) = limit().step_beside(held, micros(now), Amount::exactly(back));
            held.state = Some(step.state);
        }
        if self.has(Flaw::TermTooShort) {
            held.lent = LentUnits { older: held.lent.units(), recent: 0 };
        }
        world.store = Stored::of(held);
        loan
    }
}

impl World {
    /// A unit is admitted, which every stretch of time up to now has in it.
    fn admit(&mut self) {
        self.excess += 1;
    }

    /// All stretches become longer by a step, in which a unit flows back; but one that begins now is empty.
    ///
    /// What happened when no longer matters: after a term everything is as if it had been a term earlier. So the world
    /// has no end, and yet finitely many states.
    fn pass(&mut self) {
        self.now += 1;
        self.excess = self.excess.saturating_sub(1);
        let is_over = self.now == NOON + 2;
        let (step, lent) = limit().step_beside(self.store.held(), micros(self.now), Amount::PEEK);
        let (owed, at) = step.state.numbers();
        let at = if is_over { at - TERM.get() } else { at };
        let state = (owed > 0 || lent.units() > 0).then(|| State::new(owed, at));
        self.store = Stored::of(LeasedState { state, lent });
        for index in 0..self.nodes.len() {
            let lease = self.lease(index);
            let node = &mut self.nodes[index];
            node.lease = lease;
            if is_over {
                node.forget_a_term();
            }
            // A clock may fall behind again while the next lease lasts.
            if node.lease.is_none() && node.call.is_none() {
                node.lag = 0;
            }
        }
        if is_over {
            self.now = NOON;
        }
    }

    /// Whether in some stretch of time more was admitted than may be.
    fn is_exceeded(&self) -> bool {
        self.excess > BURST
    }

    fn clock(&self, node: usize) -> u8 {
        self.now - self.nodes[node].lag
    }

    /// A node's lease, if by its own clock it has not ended.
    fn lease(&self, node: usize) -> Option<Lease> {
        self.nodes[node].lease.filter(|lease| self.clock(node) < lease.ends)
    }
}

impl Node {
    fn forget_a_term(&mut self) {
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

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let store = Stored { state: None, lent: (0, 0) };
        let nodes = vec![Node::default(); self.nodes];
        vec![World { now: NOON, store, nodes, faults: self.faults, excess: 0 }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.extend([Event::TimePasses, Event::Checked]);
        for (index, node) in world.nodes.iter().enumerate() {
            let may_fail = world.faults > 0;
            // What lapses must flow back before anybody else can have it, so that a step more does no harm yet.
            let slowest = MARGIN + if self.has(Flaw::SlowerThanTheMargin) { 2 } else { 0 };
            if may_fail && node.lag < slowest && (node.lease.is_some() || node.call.is_some()) {
                events.push(Event::FallsBehind(index));
            }
            if may_fail && (node.lease.is_some() || node.call.is_some()) {
                events.push(Event::Dies(index));
            }
            let lease = world.lease(index);
            if lease.is_some_and(|lease| lease.units > 0) {
                events.push(Event::Spends(index));
            }
            if node.stray.is_some() {
                events.push(Event::StrayArrives(index));
            }
            match node.call {
                None if lease.is_none_or(|lease| !lease.is_mute) => {
                    events.extend([1, 2].map(|units| Event::Asks(index, units)));
                    if lease.is_some_and(|lease| lease.units > 0) {
                        events.push(Event::GivesBack(index));
                    }
                }
                None => {}
                Some(Call { answer: None, .. }) => {
                    events.push(Event::Arrives(index));
                    if may_fail {
                        events.push(Event::Lost(index));
                    }
                    if may_fail && node.stray.is_none() {
                        events.push(Event::Late(index));
                    }
                }
                Some(Call { answer: Some(_), .. }) => {
                    events.push(Event::Answered(index));
                    if may_fail {
                        events.push(Event::Lost(index));
                    }
                }
            }
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        next.faults -= u8::from(event.is_fault());
        match event {
            Event::TimePasses => next.pass(),
            Event::FallsBehind(index) => next.nodes[index].lag += 1,
            Event::Checked => self.check(&mut next),
            Event::Spends(index) => {
                next.admit();
                let lease = next.nodes[index].lease.as_mut()?;
                (lease.units, lease.spent) = (lease.units - 1, lease.spent + 1);
            }
            Event::Asks(index, wanted) => {
                let sent = next.clock(index);
                let lease = next.lease(index);
                let node = &mut next.nodes[index];
                node.lease = lease;
                // What is told is told once, whether it is heard or not.
                let report = match &mut node.lease {
                    Some(lease) => {
                        let report = (lease.term, lease.spent, lease.units, 0);
                        lease.spent = 0;
                        report
                    }
                    None => (FIRST_TERM, 0, 0, 0),
                };
                node.call = Some(Call { sent, report, wanted, answer: None });
            }
            Event::GivesBack(index) => {
                let sent = next.clock(index);
                let node = &mut next.nodes[index];
                let lease = node.lease.take()?;
                let report = (lease.term, lease.spent, 0, lease.units);
                node.call = Some(Call { sent, report, wanted: 0, answer: None });
            }
            Event::Arrives(index) => {
                let mut call = next.nodes[index].call?;
                let loan = self.hear(&mut next, &call);
                let lasts = steps(loan.until.since(micros(next.now)));
                let ends = (call.sent + lasts).saturating_sub(MARGIN);
                let LeaseGrant { units, term, is_known, .. } = loan;
                // From here on, when it was sent and what it said matters no more.
                let lasts = if self.has(Flaw::DeadlineFromTheReply) { lasts - MARGIN } else { 0 };
                let answer = Some(Answer { units, term, ends, lasts, is_known });
                call = Call { sent: 0, wanted: 0, report: (FIRST_TERM, 0, 0, 0), answer };
                next.nodes[index].call = Some(call);
            }
            Event::Answered(index) => {
                let heard = next.clock(index);
                let node = &mut next.nodes[index];
                let Answer { units, term, ends, lasts, is_known } = node.call.take()?.answer?;
                let kept = match node.lease {
                    Some(lease) if is_known => (lease.units, lease.spent),
                    _ => (0, 0),
                };
                let ends = if self.has(Flaw::DeadlineFromTheReply) { heard + lasts } else { ends };
                node.lease = Some(Lease { term, units: kept.0 + units, spent: kept.1, ends, is_mute: false });
                next.nodes[index].lease = next.lease(index);
            }
            Event::StrayArrives(index) => {
                let call = next.nodes[index].stray.take()?;
                self.hear(&mut next, &call);
            }
            Event::Lost(index) | Event::Late(index) => {
                let node = &mut next.nodes[index];
                let mut call = node.call.take()?;
                if event == Event::Late(index) {
                    node.stray = Some(Call { sent: 0, ..call });
                }
                let (_, spent, _, back) = call.report;
                if let Some(lease) = &mut node.lease {
                    lease.is_mute = true;
                    if self.has(Flaw::ToldTwice) {
                        (lease.is_mute, lease.spent) = (false, lease.spent + spent);
                    }
                }
                if self.has(Flaw::BackTwice) && back > 0 {
                    call.answer = None;
                    node.call = Some(call);
                }
            }
            Event::Dies(index) => {
                let Node { lag, call, stray, .. } = next.nodes[index];
                let stray = stray.or(call.filter(|call| call.answer.is_none()));
                next.nodes[index] = Node { lag, stray, ..Node::default() };
            }
        }
        // One node is like another.
        next.nodes.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no stretch of time sees more than the burst and what flows back",
                |_, world| !World::is_exceeded(world),
            ),
            // Else nothing is tested: leases are spent, beside what the store decides.
            Property::sometimes("nodes have spent of their leases", |_, world: &World| {
                let spent = world.nodes.iter().filter(|node| node.lease.is_some_and(|lease| lease.spent > 0));
                spent.count() == world.nodes.len().min(2)
            }),
        ]
    }
}

/// Everything that can happen; or everything that can happen in the first so many events.
fn explore(nodes: usize, faults: u8, events: Option<usize>) {
    let protocol = Protocol { nodes, faults, flaw: None };
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
fn one_node_beside_others_that_lease_nothing_never_exceeds_the_limit() {
    explore(1, 2, None);
}

#[test]
fn two_nodes_never_exceed_the_limit() {
    explore(2, 0, None);
}

#[test]
fn two_nodes_of_which_one_fails_never_exceed_the_limit() {
    explore(2, 1, Some(14));
}

#[test]
fn three_nodes_of_which_one_fails_never_exceed_the_limit() {
    explore(3, 1, Some(12));
}

/// A broken rule has to be found out.
fn is_found(flaw: Flaw) {
    let broken = Protocol { nodes: 1, faults: 3, flaw: Some(flaw) };
    let first =
        HasDiscoveries::AnyOf(["no stretch of time sees more than the burst and what flows back"].into());
    let checker = broken.checker().threads(2).finish_when(first).spawn_bfs().join();
    let found = checker.discovery("no stretch of time sees more than the burst and what flows back");
    let path = found
        .unwrap_or_else(|| panic!("{flaw:?} was not noticed in {} states", checker.unique_state_count()));
    println!("{flaw:?} after {} states:\n{path}", checker.unique_state_count());
}

#[test]
fn units_that_flow_back_while_they_are_lent_are_noticed() {
    is_found(Flaw::LentIsNotCounted);
}

#[test]
fn a_deadline_that_counts_from_the_reply_is_noticed() {
    is_found(Flaw::DeadlineFromTheReply);
}

#[test]
fn a_term_that_is_too_short_is_noticed() {
    is_found(Flaw::TermTooShort);
}

#[test]
fn a_double_give_back_is_noticed() {
    is_found(Flaw::BackTwice);
}

#[test]
fn a_report_that_is_sent_twice_is_noticed() {
    is_found(Flaw::ToldTwice);
}

#[test]
fn a_clock_that_is_slower_than_the_margin_is_noticed() {
    is_found(Flaw::SlowerThanTheMargin);
}
