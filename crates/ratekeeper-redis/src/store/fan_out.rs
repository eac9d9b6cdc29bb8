//! Fan-out of one call to several servers.
//!
//! The keys of one client are on one server, so nearly every group goes to one. If its keys are on several
//! servers, each server is asked for its part at the same time, and units that some of them granted are refunded
//! if another denies. Until then, other requests may find that many units fewer. Draws that their rule keeps on
//! this node are decided here first.

use crate::batch::queue::{Batcher, PendingReply, SubRequest};
use ratekeeper_core::{Draw, DrawOutcome, Draws, Op, PermitId, StoreFailure};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long after the deadline to wait for a reply that was decided before it.
const REPLY_GRACE: Duration = Duration::from_millis(2);

/// The parts of a call that go to one server.
#[derive(Debug)]
pub(crate) struct ServerRequest {
    batcher: Arc<Batcher>,
    parts: Vec<SubRequest>,
    pending: Option<Result<PendingReply, StoreFailure>>,
}

/// The parts of one call, by server.
#[derive(Debug, Default)]
pub(crate) struct FanOut {
    requests: Vec<ServerRequest>,
    /// Groups with a part that no server can decide.
    failed: Vec<(usize, StoreFailure)>,
    /// Groups that are decided by several servers, or partly on this node.
    split: Vec<usize>,
    /// Groups that are sent to a server, in order.
    groups: Vec<usize>,
}

impl FanOut {
    /// The groups that are sent to a server.
    pub(crate) fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Adds a part of a group, to be sent to a server.
    pub(crate) fn add(&mut self, batcher: &Arc<Batcher>, part: SubRequest) {
        self.add_group(part.group);
        match self.requests.iter_mut().find(|request| Arc::ptr_eq(&request.batcher, batcher)) {
            Some(request) => request.parts.push(part),
            None => self.requests.push(ServerRequest {
                batcher: Arc::clone(batcher),
                parts: vec![part],
                pending: None,
            }),
        }
    }

    /// Records that no server can decide a part of a group.
    pub(crate) fn fail(&mut self, group: usize, failure: StoreFailure) {
        self.add_group(group);
        self.failed.push((group, failure));
    }

    fn add_group(&mut self, group: usize) {
        if self.groups.last() != Some(&group) {
            self.groups.push(group);
        }
    }

    /// Records that a group is decided in several places.
    pub(crate) fn split(&mut self, group: usize) {
        self.split.push(group);
    }

    /// Sends all parts at once, and records the results in the draws, or the failure in their group.
    pub(crate) async fn run(&mut self, draws: &mut Draws, deadline: Instant) {
        for request in &mut self.requests {
            request.pending = Some(request.batcher.submit(draws, &mut request.parts, deadline));
        }
        for request in &mut self.requests {
            let pending = request.pending.take().unwrap_or(Err(StoreFailure::Unreachable));
            let decided = await_reply(pending, deadline).await;
            for (index, part) in request.parts.iter().enumerate() {
                match &decided {
                    Ok((decided, first)) => copy_results(draws, part, decided, first + index),
                    Err(failure) => draws.fail_group(part.group, *failure),
                }
            }
        }
        for (group, failure) in self.failed.drain(..) {
            draws.fail_group(group, failure);
        }
    }

    /// Refunds the units that were granted to groups that were denied or failed elsewhere. Returns those groups:
    /// the caller refunds what was granted on this node.
    pub(crate) fn refund_granted(&self, draws: &Draws, deadline: Instant) -> Vec<usize> {
        let mut undone = Vec::new();
        for group in self.split.iter().copied() {
            let is_denied = draws.group(group).iter().any(Draw::denies_request);
            if !is_denied && draws.group_failure(group).is_none() {
                continue;
            }
            undone.push(group);
            for request in &self.requests {
                for part in request.parts.iter().filter(|part| part.group == group) {
                    request.refund(draws, part, deadline);
                }
            }
        }
        undone
    }
}

impl ServerRequest {
    /// Refunds granted units, without waiting for the reply.
    fn refund(&self, draws: &Draws, part: &SubRequest, deadline: Instant) {
        let mut refunds = Draws::new();
        let group = draws.group(part.group);
        let picked = |index: usize| part.picks.as_ref().is_none_or(|picks| picks.contains(&index));
        for (_, draw) in group.iter().enumerate().filter(|(index, _)| picked(*index)) {
            if let DrawOutcome::Granted(units @ 1..) = draw.outcome() {
                refunds.push(draws.key(draw), draw.scope(), *draw.limit(), Op::Refund(units), draw.permit());
            }
        }
        if !refunds.is_empty() {
            // If this fails, the client lacks the units until they are refilled.
            let _ = self.batcher.submit(&refunds, &mut [SubRequest::whole(0, part.slot)], deadline);
        }
    }
}

/// Sends a group, or a part of it, to one server, and records the result.
pub(crate) async fn request_one(
    batcher: &Batcher,
    draws: &mut Draws,
    mut part: SubRequest,
    deadline: Instant,
) {
    let pending = batcher.submit(draws, slice::from_mut(&mut part), deadline);
    match await_reply(pending, deadline).await {
        Ok((decided, first)) => copy_results(draws, &part, &decided, first),
        Err(failure) => draws.fail_group(part.group, failure),
    }
}

/// Waits for a batch, and returns its draws with the index of the first group that was submitted.
async fn await_reply(
    pending: Result<PendingReply, StoreFailure>,
    deadline: Instant,
) -> Result<(Arc<Draws>, usize), StoreFailure> {
    let PendingReply { decided, first_group: first } = pending?;
    match timeout_at(deadline + REPLY_GRACE, decided).await {
        Ok(Ok(decided)) => Ok((decided, first)),
        Ok(Err(_)) => Err(StoreFailure::Unreachable),
        Err(_) => Err(StoreFailure::Timeout),
    }
}

/// Copies the results of a part of a group from another buffer.
fn copy_results(draws: &mut Draws, part: &SubRequest, decided: &Draws, group: usize) {
    if let Some(failure) = decided.group_failure(group) {
        draws.fail_group(part.group, failure);
        return;
    }
    let (own, decided) = (draws.group_mut(part.group), decided.group(group));
    match &part.picks {
        None => {
            for (draw, decided) in own.iter_mut().zip(decided) {
                draw.copy_decision(decided);
            }
        }
        Some(picks) => {
            for (index, decided) in picks.iter().zip(decided) {
                own[*index].copy_decision(decided);
            }
        }
    }
}

/// Releases a permit, without waiting for the reply.
pub(crate) fn release_permit(batcher: &Batcher, draws: &Draws, slot: u16, deadline: Instant) {
    debug_assert!(draws.all().iter().all(|draw| draw.permit() != PermitId::default()), "a permit has an ID");
    // If the message is lost, the permit expires.
    let _ = batcher.submit(draws, &mut [SubRequest::whole(0, slot)], deadline);
}
