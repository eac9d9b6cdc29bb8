//! A node's connection to the simulated server: calls wait here until the simulation sends them, and their futures wait
//! until it delivers the replies.

use super::server::{MAX_LIMITS, PerLimit};
use parking_lot::Mutex;
use ratekeeper::{LeaseRequests, LendRequest, LendingStore, Store};
use ratekeeper_core::{DrawResult, Draws, KeyRef, Limit, PermitId, Scope, State, StoreFailure};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// The store as a node sees it.
#[derive(Debug)]
pub(super) struct SimStore {
    nodes: u32,
    outbox: Mutex<Vec<OutgoingCall>>,
}

/// A call that is to be sent.
#[derive(Debug)]
pub(super) struct OutgoingCall {
    /// The draws of a request that waits for the reply. `None` if no request does.
    pub(super) draws: Option<WaitingDraws>,
    pub(super) renewals: Vec<LendRequest>,
}

/// Draws that wait for the server's decision.
#[derive(Clone, Debug)]
pub(super) struct WaitingDraws {
    /// The units of each draw.
    pub(super) units: PerLimit<u32>,
    decision: Arc<Mutex<Option<SimDecision>>>,
}

/// How the server decided draws.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimDecision {
    Results(PerLimit<DrawResult>),
    /// There was no reply.
    TimedOut,
}

impl WaitingDraws {
    /// Delivers the decision. The future of the draws has to be polled afterwards.
    pub(super) fn deliver(&self, decision: SimDecision) {
        *self.decision.lock() = Some(decision);
    }

    async fn decision(&self) -> SimDecision {
        poll_fn(|_| self.decision.lock().take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl SimStore {
    /// The store of one of `nodes` nodes.
    pub(super) fn new(nodes: u32) -> SimStore {
        SimStore { nodes, outbox: Mutex::default() }
    }

    /// Takes a call to send. Returns `None` if there is none.
    pub(super) fn next_call(&self) -> Option<OutgoingCall> {
        self.outbox.lock().pop()
    }
}

impl Store for SimStore {
    async fn draw(&self, draws: &mut Draws) {
        self.draw_and_lend(draws, &mut LeaseRequests::none()).await;
    }

    fn release(&self, _: KeyRef<'_>, _: Scope, _: &Limit, _: PermitId) {}
}

impl LendingStore for SimStore {
    /// Each call has one group.
    async fn draw_and_lend(&self, draws: &mut Draws, requests: &mut LeaseRequests) {
        let mut units = [0; MAX_LIMITS];
        for (units, draw) in units.iter_mut().zip(draws.group(0)) {
            *units = draw.op().amount().at_least();
        }
        let waiting = WaitingDraws { units, decision: Arc::default() };
        let call = OutgoingCall { draws: Some(waiting.clone()), renewals: requests.take_group(0) };
        self.outbox.lock().push(call);
        match waiting.decision().await {
            SimDecision::Results(results) => {
                for (draw, result) in draws.group_mut(0).iter_mut().zip(results) {
                    draw.decide_with(|_, _, _| result);
                }
            }
            SimDecision::TimedOut => draws.fail_group(0, StoreFailure::Timeout),
        }
    }

    fn lend(&self, requests: Vec<LendRequest>) {
        let calls = requests.into_iter().map(|request| OutgoingCall { draws: None, renewals: vec![request] });
        self.outbox.lock().extend(calls);
    }

    /// Leaves the group undecided: it is neither admitted nor denied.
    fn decide_failed(&self, _: &mut Draws, _: usize, _: impl Fn(KeyRef<'_>, Scope, &Limit) -> Option<State>) {
    }

    fn is_up(&self) -> bool {
        true
    }

    fn live_nodes(&self) -> u32 {
        self.nodes
    }
}
