//! What passes between [`Leased`](super::leased::Leased) and the store that lends it units.
//!
//! Draws and lease requests travel together, because the store applies both in one step. Their answers travel apart:
//! a caller that no longer waits for its draws must not lose the units that were lent with them. So each
//! [`LendRequest`] is answered on its own, even if no caller waits for the draws any more, and the answer is data: the
//! store knows nothing of how leases are accounted for.

use super::{KeyName, LeaseRenewal, LeaseReply};
use crate::store::Store;
use parking_lot::Mutex;
use ratekeeper_core::{
    Amount, Draw, DrawResult, Draws, KeyRef, LeaseReport, LeaseRequest, Limit, Scope, State,
};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use tokio::sync::Notify;

/// A store that can lend units to be spent elsewhere.
pub trait LendingStore: Store {
    /// Decides the groups that [are pending](LeaseRequests::is_pending), and sends the lease requests with the draws
    /// that they belong to. Every lease request is [answered](LendRequest::answer), at the latest when it is dropped.
    ///
    /// A group without a reply is [failed](Draws::fail_group) and not decided further, because units that are leased
    /// to this node may count for it: see [`LendingStore::decide_failed`].
    fn draw_and_lend(
        &self,
        draws: &mut Draws,
        requests: &mut LeaseRequests,
    ) -> impl Future<Output = ()> + Send;

    /// Sends lease requests that belong to no draw, without waiting for their answers.
    fn lend(&self, requests: Vec<LendRequest>);

    /// Decides a failed group on this node, as far as the options of its draws say so, from the last known states.
    /// `newer_state` returns the state of a key under a limit that came with a lease, if it has not been returned
    /// before.
    fn decide_failed(
        &self,
        draws: &mut Draws,
        group: usize,
        newer_state: impl Fn(KeyRef<'_>, Scope, &Limit) -> Option<State>,
    );

    /// Whether all servers of the store are up.
    fn is_up(&self) -> bool;

    /// The number of nodes that share the store, including this one.
    fn live_nodes(&self) -> u32;
}

/// Which groups of a call the store decides, and the lease requests that travel with them.
#[derive(Debug, Default)]
pub struct LeaseRequests {
    /// The groups before this one are decided.
    first_group: usize,
    /// Later groups that are decided, in order.
    decided: Vec<usize>,
    /// The lease requests of the pending groups, in the order of the groups.
    requests: Vec<LendRequest>,
    /// Pending groups that the store decided without asking a server, in order.
    decided_from_cache: Vec<usize>,
}

impl LeaseRequests {
    /// No lease requests: the store decides every group.
    pub const fn none() -> LeaseRequests {
        LeaseRequests::starting_at(0)
    }

    /// The store decides the groups from `first_group` on.
    pub(super) const fn starting_at(first_group: usize) -> LeaseRequests {
        LeaseRequests {
            first_group,
            decided: Vec::new(),
            requests: Vec::new(),
            decided_from_cache: Vec::new(),
        }
    }

    /// Records that a group is decided.
    pub(super) fn mark_decided(&mut self, group: usize) {
        self.decided.push(group);
    }

    pub(super) fn push(&mut self, request: LendRequest) {
        self.requests.push(request);
    }

    /// Returns whether the store has to decide a group.
    pub fn is_pending(&self, group: usize) -> bool {
        group >= self.first_group && self.decided.binary_search(&group).is_err()
    }

    /// The draws that lease requests travel with, each by its group and its index there.
    pub(super) fn renewed_draws(&self) -> Vec<(usize, usize)> {
        let draw = |request: &LendRequest| match request.owner {
            RenewalOwner::Draw { group, draw } => Some((group, draw)),
            RenewalOwner::Key(..) => None,
        };
        self.requests.iter().filter_map(draw).collect()
    }

    /// Takes the lease requests of a group out.
    pub fn take_group(&mut self, group: usize) -> Vec<LendRequest> {
        if self.requests.is_empty() {
            return Vec::new();
        }
        self.requests.extract_if(.., |request| request.group() == Some(group)).collect()
    }

    /// Records that a pending group was decided without asking a server, from replies to earlier calls.
    pub fn mark_decided_from_cache(&mut self, group: usize) {
        self.decided_from_cache.push(group);
    }

    pub(super) fn is_decided_from_cache(&self, group: usize) -> bool {
        self.decided_from_cache.contains(&group)
    }
}

/// A report about a key's lease, and a request for more units.
///
/// It is answered once. If it is dropped without an answer, the store may or may not have applied it.
#[derive(Debug)]
pub struct LendRequest {
    renewal: LeaseRenewal,
    owner: RenewalOwner,
    /// Where the answer goes. `None` once it has been given.
    answers: Option<Arc<LendAnswers>>,
}

/// The key and limit of a lease request.
#[derive(Clone, Debug)]
pub enum RenewalOwner {
    /// Those of a draw.
    Draw {
        /// The group of the draw.
        group: usize,
        /// The index of the draw in its group.
        draw: usize,
    },
    /// Those of a request that is sent on its own.
    Key(Arc<KeyName>, Limit),
}

/// The answer to a lease request.
#[derive(Clone, Copy, Debug)]
pub enum LendOutcome {
    /// The request was not sent, or the store applied nothing of it.
    Unsent,
    /// There was no reply. The store may or may not have applied the request.
    Unanswered,
    /// The store applied the request.
    Lent {
        /// What was lent.
        reply: LeaseReply,
        /// The store's decision about the draw that the request travelled with, from before the units were lent.
        decision: Option<DrawDecision>,
    },
}

/// The store's decision about a draw.
#[derive(Clone, Copy, Debug)]
pub struct DrawDecision {
    /// The limit.
    pub limit: Limit,
    /// The amount that was asked for.
    pub amount: Amount,
    /// The result.
    pub result: DrawResult,
}

impl DrawDecision {
    /// The decision about a draw. Returns `None` if it was not decided.
    pub fn of(draw: &Draw) -> Option<DrawDecision> {
        let decision =
            || DrawDecision { limit: *draw.limit(), amount: draw.op().amount(), result: *draw.result() };
        draw.is_decided().then(decision)
    }
}

impl LendRequest {
    pub(super) fn new(renewal: LeaseRenewal, owner: RenewalOwner, answers: &Arc<LendAnswers>) -> LendRequest {
        answers.open.fetch_add(1, AcqRel);
        LendRequest { renewal, owner, answers: Some(Arc::clone(answers)) }
    }

    /// Returns the key and limit that the request is about.
    pub fn owner(&self) -> &RenewalOwner {
        &self.owner
    }

    /// Returns what this node did with the units that it was lent before.
    pub fn report(&self) -> LeaseReport {
        self.renewal.report
    }

    /// Returns how many units this node asks for.
    pub fn request(&self) -> LeaseRequest {
        self.renewal.request
    }

    /// Gives the answer. Only the first one counts.
    pub fn answer(&mut self, outcome: LendOutcome) {
        if let Some(answers) = self.answers.take() {
            answers.push(LendAnswer { renewal: self.renewal, outcome });
        }
    }

    fn group(&self) -> Option<usize> {
        match self.owner {
            RenewalOwner::Draw { group, .. } => Some(group),
            RenewalOwner::Key(..) => None,
        }
    }
}

impl Drop for LendRequest {
    fn drop(&mut self) {
        self.answer(LendOutcome::Unanswered);
    }
}

/// An answered lease request.
#[derive(Debug)]
pub(super) struct LendAnswer {
    pub(super) renewal: LeaseRenewal,
    pub(super) outcome: LendOutcome,
}

/// Answers that are not settled yet. A key has at most one lease request at a time, so there are no more of them than
/// keys in the lease table.
#[derive(Debug, Default)]
pub(super) struct LendAnswers {
    queue: Mutex<Vec<LendAnswer>>,
    /// Lease requests whose answer is not settled.
    open: AtomicUsize,
    /// Wakes the task that settles answers which no request has settled.
    arrived: Notify,
    /// Wakes the tasks that wait until all answers are settled.
    settled: Notify,
}

impl LendAnswers {
    fn push(&self, answer: LendAnswer) {
        self.queue.lock().push(answer);
        self.arrived.notify_one();
    }

    /// Settles all answers that have arrived.
    pub(super) fn settle_with(&self, mut settle: impl FnMut(LendAnswer)) {
        loop {
            let arrived = std::mem::take(&mut *self.queue.lock());
            if arrived.is_empty() {
                return;
            }
            let count = arrived.len();
            arrived.into_iter().for_each(&mut settle);
            if self.open.fetch_sub(count, AcqRel) == count {
                self.settled.notify_waiters();
            }
        }
    }

    /// Waits for the next answer.
    pub(super) async fn next(&self) {
        self.arrived.notified().await;
    }

    /// Waits until all lease requests are settled.
    pub(super) async fn all_settled(&self) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.open.load(Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }
}
